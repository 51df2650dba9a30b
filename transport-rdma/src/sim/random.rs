//! Numbers that look random, and keys that never repeat.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU32, Ordering},
};

/// SplitMix64: the same numbers for the same seed.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; zero where that is zero.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or(0)
    }
}

/// Numbers of `bits` bits in an order that is hard to guess, each once.
///
/// Each step is a bijection, so two counts never make the same number.
#[derive(Debug)]
pub(super) struct Numbers {
    count: AtomicU32,
    secret: u32,
    bits: u32,
}

impl Numbers {
    pub(super) fn new(bits: u32) -> Self {
        Self { count: AtomicU32::new(0), secret: RandomState::new().hash_one(bits) as u32, bits }
    }

    pub(super) fn next(&self) -> u32 {
        let mask = u32::MAX >> (32 - self.bits);
        let mut number = self.count.fetch_add(1, Ordering::Relaxed).wrapping_add(self.secret) & mask;
        number = number.wrapping_mul(0x9e37_79b1) & mask;
        number ^= number >> (self.bits / 2);
        number = number.wrapping_mul(0x85eb_ca6b) & mask;
        number ^ (self.secret.rotate_left(16) & mask)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Numbers;

    #[test]
    fn numbers_do_not_repeat() {
        let numbers = Numbers::new(16);
        let seen: HashSet<u32> = (0..1 << 16).map(|_| numbers.next()).collect();
        assert_eq!(seen.len(), 1 << 16);
    }
}
