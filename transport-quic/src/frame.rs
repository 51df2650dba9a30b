//! The bytes of the data path.
//!
//! A batch is one bidirectional stream. From the sender:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | [`StreamKind::Batch`] |
//! | segments, any number | a count of slices from 1 to 16,384 (4 bytes), so many [`Entry`]s of 24 bytes, then their bytes in the same order |
//! | 4 | a count of 0: the end |
//! | 1 | whether there is a notification |
//! | 2, n | its length and bytes, if there is one |
//!
//! The sender keeps the stream open until it has the answer, and resets it to give the batch up.
//!
//! From the receiver, one [`Answer`], after the last byte is in place and the notification in the queue, or as soon as it refuses. A
//! segment is checked as a whole before its first byte is written. All numbers are little-endian.

use transport_core::{RegionId, Side, SliceError};

/// What a stream is for: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StreamKind {
    /// The control channel's messages for the engine; begins with a hello in each direction.
    Engine = 1,
    /// The control channel's messages for the transport.
    Transport = 2,
    /// A batch.
    Batch = 3,
}

impl StreamKind {
    pub(crate) fn decode(byte: u8) -> Option<Self> {
        [Self::Engine, Self::Transport, Self::Batch].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The most slices of a segment: a bound on what a receiver holds of a stream.
pub(crate) const MAX_ENTRIES: u32 = 16_384;

/// Longest notification.
pub(crate) const MAX_NOTIFICATION: usize = 1024;

/// One slice as the receiver sees it: where to write, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) region: RegionId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Entry {
    pub(crate) const LEN: usize = 24;

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let fields = [u64::from(self.region.index) | (u64::from(self.region.generation) << 32), self.offset, self.len];
        for (out, field) in out.chunks_exact_mut(8).zip(fields) {
            out.copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let mut reader = Reader(bytes);
        let (index, generation) = (reader.u32().unwrap_or(0), reader.u32().unwrap_or(0));
        let (offset, len) = (reader.u64().unwrap_or(0), reader.u64().unwrap_or(0));
        Self { region: RegionId { index, generation }, offset, len }
    }
}

/// How a batch ended at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// All is in place.
    Delivered,
    /// The sender gave it up, and no byte of it will be written any more.
    Cancelled,
    /// A slice was refused, and no byte of its segment or of later ones was written.
    Refused { index: u64, cause: SliceError },
}

impl Answer {
    /// Longest encoding.
    pub(crate) const MAX_LEN: usize = 64;

    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Delivered => vec![0],
            Self::Cancelled => vec![1],
            Self::Refused { index, cause } => {
                let mut out = vec![2];
                out.extend_from_slice(&index.to_le_bytes());
                let (kind, region, numbers) = match *cause {
                    SliceError::OutOfBounds { side: Side::Destination, region, offset, len, region_len } => {
                        (0, region, [offset, len, region_len])
                    }
                    SliceError::StaleDestination { asked } => (1, asked, [0; 3]),
                    SliceError::NotGranted { asked } => (2, asked, [0; 3]),
                    // The receiver finds no other.
                    _ => (3, RegionId { index: 0, generation: 0 }, [0; 3]),
                };
                out.push(kind);
                out.extend_from_slice(&region.index.to_le_bytes());
                out.extend_from_slice(&region.generation.to_le_bytes());
                numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
                out
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let answer = match reader.u8()? {
            0 => Self::Delivered,
            1 => Self::Cancelled,
            2 => {
                let index = reader.u64()?;
                let kind = reader.u8()?;
                let region = RegionId { index: reader.u32()?, generation: reader.u32()? };
                let (offset, len, region_len) = (reader.u64()?, reader.u64()?, reader.u64()?);
                let cause = match kind {
                    0 => SliceError::OutOfBounds { side: Side::Destination, region, offset, len, region_len },
                    1 => SliceError::StaleDestination { asked: region },
                    2 => SliceError::NotGranted { asked: region },
                    _ => return None,
                };
                Self::Refused { index, cause }
            }
            _ => return None,
        };
        reader.0.is_empty().then_some(answer)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// What the two ends of a connection say first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
}

impl Hello {
    pub(crate) const LEN: usize = 8;

    /// The version of everything in this module.
    pub(crate) const VERSION: u32 = 1;

    const MAGIC: [u8; 4] = *b"KVFq";

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let (magic, version) = out.split_at_mut(4);
        magic.copy_from_slice(&Self::MAGIC);
        version.copy_from_slice(&self.version.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let mut reader = Reader(bytes);
        (reader.take()? == Self::MAGIC).then_some(())?;
        Some(Self { version: reader.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region() -> impl Strategy<Value = RegionId> {
        any::<(u32, u32)>().prop_map(|(index, generation)| RegionId { index, generation })
    }

    fn answer() -> impl Strategy<Value = Answer> {
        let cause = prop_oneof![
            (region(), any::<(u64, u64, u64)>()).prop_map(|(region, (offset, len, region_len))| {
                SliceError::OutOfBounds { side: Side::Destination, region, offset, len, region_len }
            }),
            region().prop_map(|asked| SliceError::StaleDestination { asked }),
            region().prop_map(|asked| SliceError::NotGranted { asked }),
        ];
        prop_oneof![
            Just(Answer::Delivered),
            Just(Answer::Cancelled),
            (any::<u64>(), cause).prop_map(|(index, cause)| Answer::Refused { index, cause }),
        ]
    }

    proptest! {
        #[test]
        fn answers_round_trip(answer in answer()) {
            let bytes = answer.encode();
            prop_assert!(bytes.len() <= Answer::MAX_LEN);
            prop_assert_eq!(Answer::decode(&bytes), Some(answer));
            for len in 0..bytes.len() {
                prop_assert_eq!(Answer::decode(&bytes[..len]), None, "cut short");
            }
        }

        #[test]
        fn entries_round_trip(region in region(), offset in any::<u64>(), len in any::<u64>()) {
            let entry = Entry { region, offset, len };
            prop_assert_eq!(Entry::decode(&entry.encode()), entry);
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80), hello in any::<[u8; 8]>()) {
            if let Some(answer) = Answer::decode(&bytes) {
                prop_assert_eq!(answer.encode(), bytes);
            }
            let _ = Hello::decode(&hello);
        }
    }
}
