//! The notification that ends a push.

use bytemuck::{Pod, Zeroable, bytes_of, pod_read_unaligned};

use kv_plan::Tally;

use super::WireError;
use crate::request::Request;

/// Says that a sender's part of a request is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) request: Request,
    /// What the sender wrote for the request, which the receiver compares with what it expects.
    pub(crate) tally: Tally,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Encoded {
    magic: [u8; 4],
    attempt: u32,
    id: u64,
    bytes: u64,
    weight: u64,
}

impl Commit {
    const MAGIC: [u8; 4] = *b"KVc1";

    pub(crate) const LEN: usize = size_of::<Encoded>();

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let encoded = Encoded {
            magic: Self::MAGIC,
            attempt: self.request.attempt.to_le(),
            id: self.request.id.to_le(),
            bytes: self.tally.bytes.to_le(),
            weight: self.tally.weight.to_le(),
        };
        let mut out = [0; Self::LEN];
        out.copy_from_slice(bytes_of(&encoded));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() != Self::LEN || !bytes.starts_with(&Self::MAGIC) {
            return Err(WireError::new(format!("a notification of {} bytes is not a commit", bytes.len())));
        }
        let encoded: Encoded = pod_read_unaligned(bytes);
        Ok(Self {
            request: Request::new(u64::from_le(encoded.id), u32::from_le(encoded.attempt)),
            tally: Tally { bytes: u64::from_le(encoded.bytes), weight: u64::from_le(encoded.weight) },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_commit_round_trips_and_nothing_else_decodes(
            id in any::<u64>(), attempt in any::<u32>(), bytes in any::<u64>(), weight in any::<u64>(),
            noise in prop::collection::vec(any::<u8>(), 0..48),
        ) {
            let commit = Commit { request: Request::new(id, attempt), tally: Tally { bytes, weight } };
            prop_assert_eq!(Commit::decode(&commit.encode()).unwrap(), commit);
            if !noise.starts_with(b"KVc1") || noise.len() != Commit::LEN {
                prop_assert!(Commit::decode(&noise).is_err());
            }
        }
    }
}
