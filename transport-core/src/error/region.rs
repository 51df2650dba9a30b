use crate::{
    id::{PeerId, RegionId},
    memory::{Memory, MemorySpace},
};

use super::{Fault, Retry};

/// Why a name of a local region is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The region was deregistered; its place may be in use again.
    #[error(
        "{asked} is stale: it was deregistered{}",
        current.map_or_else(String::new, |current| format!(", and its place now belongs to {current}"))
    )]
    Stale {
        /// The name that was used.
        asked: RegionId,
        /// The region that has the place now.
        current: Option<RegionId>,
    },
    /// No region of that index was ever registered here.
    #[error("{asked} is unknown: it was never registered with this transport")]
    Unknown {
        /// The name that was used.
        asked: RegionId,
    },
}

impl RegionError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        Fault::Ours
    }

    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        Retry::Never
    }
}

/// Why memory could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The transport's table of regions is full.
    #[error(
        "the transport holds {max} regions, which is its limit; raise max_regions or put several buffers into one region"
    )]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The transport cannot reach memory of this kind.
    #[error("the {transport} transport cannot register memory of {space:?}; use a staging region in host memory")]
    Space {
        /// The transport's name.
        transport: &'static str,
        /// Where the memory lives.
        space: MemorySpace,
    },
    /// The operating system or the device refused, with the limit and its remedy in the text.
    #[error("registering {len} bytes failed: {reason}")]
    Refused {
        /// How many bytes were to be registered.
        len: u64,
        /// The cause in the backend's words, and what to change.
        reason: String,
    },
    /// The transport was shut down.
    #[error("the transport is closed")]
    Closed,
}

impl RegisterError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        Fault::Ours
    }

    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        Retry::Never
    }
}

/// A failed registration: the cause, and the memory, which nothing holds any more but this.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct RegisterFailure {
    /// The memory, given back.
    pub memory: Memory,
    /// Why it was not registered.
    #[source]
    pub cause: RegisterError,
}

/// Why a grant could not be given or taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The region is not there.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The region was registered without remote write.
    #[error("{region} was registered without remote write; register it with Access::REMOTE_WRITE to grant it to peers")]
    NotWritable {
        /// The region.
        region: RegionId,
    },
    /// The peer is not connected.
    #[error("{peer} is not connected: {reason}")]
    NotConnected {
        /// The peer.
        peer: PeerId,
        /// How the connection ended.
        reason: String,
    },
    /// A peer's grant does not decode.
    #[error("a grant of {len} bytes is malformed: {reason}")]
    Malformed {
        /// Length of the encoded grant.
        len: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The peer granted more regions than this side keeps.
    #[error("the peer granted more than {max} regions; let it put several buffers into one region")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The transport was shut down.
    #[error("the transport is closed")]
    Closed,
}

impl GrantError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Malformed { .. } | Self::TooMany { .. } => Fault::Peer,
            Self::NotConnected { .. } => Fault::Network,
            Self::Region(_) | Self::NotWritable { .. } | Self::Closed => Fault::Ours,
        }
    }

    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::NotConnected { .. } => Retry::AfterReconnect,
            _ => Retry::Never,
        }
    }
}
