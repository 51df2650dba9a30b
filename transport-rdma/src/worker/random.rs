//! Numbers that a stranger does not guess and a former connection did not have.

use std::hash::{BuildHasher, RandomState};

/// A number for a connection.
pub(super) fn attempt() -> u64 {
    // `RandomState` takes its keys from the operating system.
    RandomState::new().hash_one(std::process::id())
}

/// A packet sequence number, 24 bits.
pub(super) fn packet_sequence_number() -> u32 {
    (attempt() & 0x00ff_ffff) as u32
}
