//! The notification that ends a push, and the proof that its parts tile the request.

use bytemuck::{Pod, Zeroable, bytes_of, pod_read_unaligned};

use super::WireError;
use crate::request::Request;

/// A sum over all (table, page) pairs that were written, in which the order does not matter and parts add up.
///
/// Each table and each page has a pseudo-random 64-bit weight, and a pair weighs the product of the two, modulo 2^64. The
/// sum over a part, which is a product of tables and pages, is the product of two short sums. A receiver that adds up all its
/// tables times all its pages knows what the parts of a sender must come to: a part that is missing, sent twice or sent to
/// other pages changes the sum. It is a check against mistakes, not against a peer that means harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage(u64);

impl Coverage {
    /// The coverage of a product of tables and pages.
    pub(crate) fn product(tables: impl IntoIterator<Item = u64>, pages: impl IntoIterator<Item = u64>) -> Self {
        let sum = |keys: &mut dyn Iterator<Item = u64>, salt| {
            keys.fold(0u64, |sum, key| sum.wrapping_add(weight(key ^ salt)))
        };
        let tables = sum(&mut tables.into_iter(), 0x7461_626c_6573_0000);
        let pages = sum(&mut pages.into_iter(), 0x7061_6765_7300_0000);
        Self(tables.wrapping_mul(pages))
    }

    /// Adds the coverage of another part.
    pub(crate) fn add(&mut self, part: Self) {
        self.0 = self.0.wrapping_add(part.0);
    }
}

/// SplitMix64's mixing: each output bit depends on each input bit.
fn weight(key: u64) -> u64 {
    let mut mixed = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Says that a sender's part of a request is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) request: Request,
    /// Bytes that the sender wrote for the request.
    pub(crate) bytes: u64,
    pub(crate) coverage: Coverage,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Encoded {
    magic: [u8; 4],
    attempt: u32,
    id: u64,
    bytes: u64,
    coverage: u64,
}

impl Commit {
    const MAGIC: [u8; 4] = *b"KVc1";

    pub(crate) const LEN: usize = size_of::<Encoded>();

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let encoded = Encoded {
            magic: Self::MAGIC,
            attempt: self.request.attempt.to_le(),
            id: self.request.id.to_le(),
            bytes: self.bytes.to_le(),
            coverage: self.coverage.0.to_le(),
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
            bytes: u64::from_le(encoded.bytes),
            coverage: Coverage(u64::from_le(encoded.coverage)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_in_any_cut_and_order_cover_the_whole(
            tables in prop::collection::btree_set(0u64..1000, 1..20),
            pages in prop::collection::btree_set(0u64..100_000, 1..40),
            cut in 0usize..20,
            page_cut in 0usize..40,
        ) {
            let tables: Vec<u64> = tables.into_iter().collect();
            let pages: Vec<u64> = pages.into_iter().collect();
            let whole = Coverage::product(tables.iter().copied(), pages.iter().copied());
            let (first, second) = tables.split_at(cut.min(tables.len()));
            let (early, late) = pages.split_at(page_cut.min(pages.len()));
            let mut sum = Coverage::default();
            for (tables, pages) in [(second, late), (first, late), (second, early), (first, early)] {
                sum.add(Coverage::product(tables.iter().copied(), pages.iter().rev().copied()));
            }
            prop_assert_eq!(sum, whole);
            // A part twice, or one to another page, does not.
            let mut twice = sum;
            twice.add(Coverage::product(tables.iter().take(1).copied(), pages.iter().take(1).copied()));
            prop_assert_ne!(twice, whole);
            let elsewhere = pages.iter().map(|page| page + u64::from(*page == pages[0]) * 200_000);
            prop_assert_ne!(Coverage::product(tables.iter().copied(), elsewhere), whole);
        }

        #[test]
        fn a_commit_round_trips_and_nothing_else_decodes(
            id in any::<u64>(), attempt in any::<u32>(), bytes in any::<u64>(), coverage in any::<u64>(),
            noise in prop::collection::vec(any::<u8>(), 0..48),
        ) {
            let commit = Commit { request: Request::new(id, attempt), bytes, coverage: Coverage(coverage) };
            prop_assert_eq!(Commit::decode(&commit.encode()).unwrap(), commit);
            if !noise.starts_with(b"KVc1") || noise.len() != Commit::LEN {
                prop_assert!(Commit::decode(&noise).is_err());
            }
        }
    }

    #[test]
    fn nothing_covers_nothing() {
        assert_eq!(Coverage::product([1, 2], []), Coverage::default());
    }
}
