//! Seeded randomness, so that what failed once can be run again.

/// A small generator (SplitMix64). Good enough for test patterns, and the same everywhere.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// `len` random bytes.
    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for word in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
        bytes
    }

    /// The numbers below `count` in a random order.
    pub(super) fn permutation(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for place in (1..order.len()).rev() {
            let other = self.below(place as u64 + 1) as usize;
            order.swap(place, other);
        }
        order
    }
}
