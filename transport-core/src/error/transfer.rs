use std::{sync::Arc, time::Duration};

use super::{Fault, Retry, SliceError};

/// Why a transfer ended without being delivered.
///
/// Whatever the variant: the transfer is over, nothing of this process touches its local memory any more (contract
/// clause C3), and no notification of it will be sent. Bytes that had arrived before stay where they are, so the
/// receiver must treat the pages as undefined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// It was cancelled by `Transfer::cancel`, or by a shutdown that aborts.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// The connection to the peer ended. The notification may have been delivered just before that.
    #[error("the peer was lost: {reason}")]
    PeerLost {
        /// What was noticed.
        reason: Arc<str>,
    },
    /// This side disconnected from the peer.
    #[error("this side disconnected from the peer")]
    Disconnected,
    /// The receiving side refused a slice.
    #[error("the peer refused slice {index}: {cause}")]
    Refused {
        /// Index of the slice among the merged slices of the batch.
        index: u64,
        /// What it said.
        cause: SliceError,
    },
    /// The peer answered but made no progress for too long.
    #[error(
        "the peer took no byte for {timeout:?} with {done} of {total} bytes done; it is stuck, or raise stall_timeout"
    )]
    Stalled {
        /// The configured limit.
        timeout: Duration,
        /// Bytes that were done.
        done: u64,
        /// Bytes of the whole batch.
        total: u64,
    },
    /// A transfer that this one was to come after did not succeed.
    #[error("a transfer that this one was to come after failed: {cause}")]
    Dependency {
        /// How that one ended.
        cause: Arc<Self>,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {reason}")]
    Protocol {
        /// What it did.
        reason: Arc<str>,
    },
    /// The way to the peer failed under this transfer; the peer may be there. Over RDMA: a queue pair gave up, and is built
    /// anew.
    #[error("the path to the peer failed on {device}: {reason}")]
    Path {
        /// The local device.
        device: Arc<str>,
        /// What it said.
        reason: Arc<str>,
    },
    /// A device of this side failed.
    #[error("the local device {device} failed: {reason}")]
    Device {
        /// Its name.
        device: Arc<str>,
        /// What it said.
        reason: Arc<str>,
    },
    /// The engine that drove the transfer is gone without having finished it. A defect; its memory is never given back.
    #[error("the engine was lost; this is a defect, and the memory of the transfer is leaked on purpose")]
    EngineLost,
}

impl TransferError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Cancelled | Self::Disconnected | Self::Device { .. } | Self::EngineLost => Fault::Ours,
            Self::PeerLost { .. } | Self::Path { .. } => Fault::Network,
            Self::Refused { .. } | Self::Stalled { .. } | Self::Protocol { .. } => Fault::Peer,
            Self::Dependency { cause } => cause.fault(),
        }
    }

    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::PeerLost { .. } | Self::Stalled { .. } | Self::Disconnected => Retry::AfterReconnect,
            Self::Path { .. } => Retry::Later,
            Self::Dependency { cause } => cause.retry(),
            _ => Retry::Never,
        }
    }
}
