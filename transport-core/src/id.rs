//! Names of regions and peers, each with a generation, so that a name of something that is gone is never taken for its
//! successor.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
};

use bytemuck::{Pod, Zeroable};

/// Names a registered region of one transport instance.
///
/// The index is used again after a deregistration, the generation is not: generations start at a random number for each
/// instance and go up with each registration, so an id from before a deregistration, or of a process that has been
/// restarted, is refused (contract clause C9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct RegionId {
    /// Place in the table of regions.
    pub index: u32,
    /// Which registration of that place is meant.
    pub generation: u32,
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} (generation {:#010x})", self.index, self.generation)
    }
}

impl fmt::Debug for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names one connection of a transport instance to a peer.
///
/// A peer that was lost and connected again has another id, so what was meant for the old connection never goes to the
/// new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    /// Place in the table of peers.
    pub index: u32,
    /// Which connection in that place is meant.
    pub generation: u32,
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {} (connection {})", self.index, self.generation)
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A number to start generations at that differs from instance to instance.
pub(crate) fn random_generation() -> u32 {
    // `RandomState` takes its keys from the operating system; no further dependency is needed for one number.
    let bits = RandomState::new().hash_one(std::process::id());
    (bits ^ (bits >> 32)) as u32
}
