//! Registered memory: its keys by rail and piece, here and at the peer.
//!
//! A region is registered once with each rail, in pieces below 4 GiB (or below what a device takes, where that is less): larger memory regions are
//! slower on real NICs, and lengths of 32 bits cannot reach over them. All rails have the same pieces, so a write is cut
//! in the same places whichever rail carries it.

use bytes::Bytes;
use transport_core::{Access, GrantError, Memory, MemorySpace, RegionGrant, RegisterError};

use crate::{
    rail::Rail,
    verbs::{LocalSegment, MemoryRegion, VerbsError},
};

/// The longest piece: the last page before 4 GiB.
const LONGEST_PIECE: u64 = (4 << 30) - PAGE;
const PAGE: u64 = 4096;

/// The length of pieces for devices of which the smallest takes memory regions of `max_mr_size` bytes.
pub(crate) fn piece_len(max_mr_size: u64) -> u64 {
    let longest = max_mr_size.min(LONGEST_PIECE);
    let whole_pages = longest - longest % PAGE;
    if whole_pages > 0 { whole_pages } else { longest.max(1) }
}

/// The piece that an offset lies in. As a rule there is one, and then nothing is divided.
fn place(offset: u64, piece: u64) -> u64 {
    if offset < piece { 0 } else { offset / piece }
}

/// A region that is registered with all rails.
#[derive(Debug)]
pub(crate) struct Registered {
    base: u64,
    len: u64,
    piece: u64,
    /// By rail, then by piece; none where the rail was lost before.
    rails: Vec<Vec<Box<dyn MemoryRegion>>>,
}

impl Registered {
    /// Registers memory with each rail that is not lost. Whatever fails, nothing stays registered.
    pub(crate) fn new(
        rails: &[Rail],
        piece: u64,
        memory: &Memory,
        access: Access,
        registered: usize,
    ) -> Result<Self, RegisterError> {
        let len = memory.len();
        let pieces = len.div_ceil(piece);
        if access.remote_write() && encoded_len(rails.len(), pieces) > RegionGrant::MAX_KEYS as u64 {
            let reason = format!(
                "it takes {pieces} pieces of {piece} bytes on each of {} rails, and their keys do not fit the {} bytes of a grant; register it in several regions",
                rails.len(),
                RegionGrant::MAX_KEYS
            );
            return Err(RegisterError::Refused { len, reason });
        }
        if rails.iter().all(Rail::is_lost) {
            let names = rails.iter().map(|rail| &*rail.name).collect::<Vec<_>>().join(", ");
            let reason = format!("every device is lost ({names}); open the transport again when they are back");
            return Err(RegisterError::Refused { len, reason });
        }
        let register = |rail: &Rail| {
            // The lanes of a lost rail are never used, so nobody asks for its keys.
            let pieces = if rail.is_lost() { 0 } else { pieces };
            (0..pieces)
                .map(|number| {
                    let offset = number * piece;
                    let part = piece.min(len - offset);
                    rail.domain.register(memory, offset, part, access.remote_write()).map_err(|error| {
                        let what = Attempted { number, pieces, offset, part, space: memory.space() };
                        RegisterError::Refused { len, reason: explain(rail, &what, registered, &error) }
                    })
                })
                .collect::<Result<Vec<_>, _>>()
        };
        let rails = rails.iter().map(register).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { base: memory.address().as_ptr().addr() as u64, len, piece, rails })
    }

    /// Addresses without memory behind them.
    #[cfg(all(test, feature = "sim"))]
    pub(crate) fn for_tests(base: u64, len: u64, piece: u64) -> Self {
        Self { base, len, piece, rails: Vec::new() }
    }

    /// How many bytes from `offset` on lie in one piece.
    pub(crate) fn until_border(&self, offset: u64) -> u64 {
        self.piece - (offset - place(offset, self.piece) * self.piece)
    }

    /// The segment for a range that crosses no border.
    pub(crate) fn segment(&self, rail: usize, offset: u64, len: u32) -> Option<LocalSegment> {
        let region = self.rails.get(rail)?.get(place(offset, self.piece) as usize)?;
        Some(LocalSegment { address: self.base + offset, len, key: region.local_key() })
    }

    /// What a peer needs to write here: the keys of a grant.
    pub(crate) fn keys(&self) -> Bytes {
        let pieces = self.len.div_ceil(self.piece);
        let mut keys = Vec::with_capacity(encoded_len(self.rails.len(), pieces) as usize);
        keys.push(self.rails.len() as u8);
        keys.extend_from_slice(&self.base.to_le_bytes());
        keys.extend_from_slice(&self.piece.to_le_bytes());
        for rail in &self.rails {
            for piece in 0..pieces {
                let key = rail.get(piece as usize).map_or(0, |region| region.remote_key());
                keys.extend_from_slice(&key.to_le_bytes());
            }
        }
        keys.into()
    }
}

const HEAD: usize = 17;

fn encoded_len(rails: usize, pieces: u64) -> u64 {
    (pieces.saturating_mul(4)).saturating_mul(rails as u64).saturating_add(HEAD as u64)
}

/// What was being registered when it failed.
struct Attempted {
    number: u64,
    pieces: u64,
    offset: u64,
    part: u64,
    space: MemorySpace,
}

fn explain(rail: &Rail, what: &Attempted, registered: usize, error: &VerbsError) -> String {
    use rustix::io::Errno;

    let Attempted { number, pieces, offset, part, space } = *what;
    let remedy = match Errno::from_raw_os_error(error.code) {
        Errno::NOMEM | Errno::AGAIN | Errno::PERM => memory_remedy(rail, registered),
        Errno::OPNOTSUPP => "the device cannot reach this memory; use a staging region in host memory".into(),
        _ => format!("{registered} regions are registered"),
    };
    format!("piece {} of {pieces} ({part} bytes at offset {offset} of {space:?} memory): {error}; {remedy}", number + 1)
}

fn memory_remedy(rail: &Rail, registered: usize) -> String {
    let attributes = &rail.attributes;
    match memlock() {
        Some(limit) => {
            format!("this process may lock {limit} bytes: raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity)")
        }
        None => format!(
            "the limit on locked memory is not the cause, there is none: {registered} regions are registered, and {} takes {} memory regions of at most {} bytes",
            rail.name, attributes.max_mr, attributes.max_mr_size
        ),
    }
}

/// How many bytes this process may lock; `None` where there is no limit.
pub(crate) fn memlock() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// A region of the peer's, as its grant describes it.
#[derive(Debug)]
pub(crate) struct RemoteRegion {
    base: u64,
    len: u64,
    piece: u64,
    pieces: usize,
    /// By the peer's rail, then by piece.
    keys: Vec<u32>,
}

impl RemoteRegion {
    /// Decodes a grant. The numbers are the peer's: they are used for nothing but to tell its own NIC where to write, and
    /// its NIC checks them again.
    pub(crate) fn decode(grant: &RegionGrant, rails: usize) -> Result<Self, GrantError> {
        let malformed = |reason| GrantError::Malformed { len: grant.keys.len(), reason };
        let (found, rest) = grant.keys.split_first().ok_or_else(|| malformed("it has no keys"))?;
        let (base, rest) = rest.split_first_chunk().ok_or_else(|| malformed("its keys are too short"))?;
        let (piece, rest) = rest.split_first_chunk().ok_or_else(|| malformed("its keys are too short"))?;
        let (base, piece) = (u64::from_le_bytes(*base), u64::from_le_bytes(*piece));
        if usize::from(*found) != rails {
            return Err(malformed("it has keys for another number of rails than the peer connected with"));
        }
        if piece == 0 {
            return Err(malformed("its pieces are empty"));
        }
        let pieces = grant.len.div_ceil(piece);
        if encoded_len(rails, pieces) != grant.keys.len() as u64 {
            return Err(malformed("it has another number of keys than its length needs"));
        }
        if base.checked_add(grant.len).is_none() {
            return Err(malformed("it ends beyond the address space"));
        }
        let (keys, _) = rest.as_chunks();
        let keys = keys.iter().map(|key| u32::from_le_bytes(*key)).collect();
        Ok(Self { base, len: grant.len, piece, pieces: pieces as usize, keys })
    }

    /// How many bytes from `offset` on lie in one piece.
    pub(crate) fn until_border(&self, offset: u64) -> u64 {
        self.piece - (offset - place(offset, self.piece) * self.piece)
    }

    /// Address and key for a range that crosses no border.
    pub(crate) fn target(&self, rail: usize, offset: u64) -> Option<(u64, u32)> {
        debug_assert!(offset < self.len, "the batch was checked when it was submitted");
        let piece = place(offset, self.piece) as usize;
        let key = self.keys.get(rail * self.pieces + piece).filter(|_| piece < self.pieces)?;
        Some((self.base.checked_add(offset)?, *key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use transport_core::RegionId;

    use super::*;

    fn grant(len: u64, keys: Vec<u8>) -> RegionGrant {
        RegionGrant { region: RegionId { index: 0, generation: 1 }, len, keys: keys.into() }
    }

    fn keys(rails: u8, base: u64, piece: u64, keys: &[u32]) -> Vec<u8> {
        let mut bytes = vec![rails];
        bytes.extend_from_slice(&base.to_le_bytes());
        bytes.extend_from_slice(&piece.to_le_bytes());
        keys.iter().for_each(|key| bytes.extend_from_slice(&key.to_le_bytes()));
        bytes
    }

    #[test]
    fn offsets_beyond_32_bits_reach_their_piece_and_address() {
        let piece = piece_len(u64::MAX);
        assert_eq!(piece, 4_294_963_200);
        let region = RemoteRegion::decode(&grant(piece + 4096, keys(2, 1 << 40, piece, &[1, 2, 3, 4])), 2).unwrap();
        let offset = piece + 64;
        assert_eq!(region.target(0, offset), Some(((1 << 40) + offset, 2)));
        assert_eq!(region.target(1, offset), Some(((1 << 40) + offset, 4)));
        assert_eq!(region.target(1, 64), Some(((1 << 40) + 64, 3)));
        assert_eq!(region.target(2, 64), None);
        assert_eq!(region.until_border(piece - 10), 10);
    }

    #[test]
    fn pieces_are_whole_pages_where_that_goes() {
        assert_eq!(piece_len(10_000), 8192);
        assert_eq!(piece_len(100), 100);
        assert_eq!(piece_len(0), 1);
    }

    proptest! {
        #[test]
        fn no_grant_panics(len: u64, bytes in prop::collection::vec(any::<u8>(), 0..100), rails in 0usize..5, offset: u64) {
            if let Ok(region) = RemoteRegion::decode(&grant(len, bytes), rails) && offset < len {
                for rail in 0..8 {
                    let _ = region.target(rail, offset);
                }
                prop_assert!(region.until_border(offset) > 0);
            }
        }

        #[test]
        fn what_is_encoded_is_decoded(len in 0u64..1 << 40, rails in 1u8..4) {
            let piece = LONGEST_PIECE;
            let count = len.div_ceil(piece) * u64::from(rails);
            prop_assume!(count <= 250);
            let numbers: Vec<u32> = (0..count as u32).collect();
            let region = RemoteRegion::decode(&grant(len, keys(rails, 4096, piece, &numbers)), usize::from(rails)).unwrap();
            prop_assert_eq!(region.keys, numbers);
        }
    }
}
