use std::fmt;

use crate::id::{PeerId, RegionId};

use super::{Fault, RegionError, Retry};

/// Which end of a slice is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// What is read, on the sender.
    Source,
    /// What is written, on the receiver.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}

/// What is wrong with one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SliceError {
    /// The range does not lie inside its region.
    #[error("{len} bytes at offset {offset} do not lie inside the {side} {region} of {region_len} bytes")]
    OutOfBounds {
        /// Which end.
        side: Side,
        /// The region.
        region: RegionId,
        /// Where the range begins, in bytes.
        offset: u64,
        /// How long it is, in bytes.
        len: u64,
        /// How long the region is, in bytes.
        region_len: u64,
    },
    /// The source region is not registered here.
    #[error("{0}")]
    Source(RegionError),
    /// The destination was deregistered by the peer, or belongs to an earlier process of it.
    #[error("the destination {asked} is stale: the peer deregistered it; take its grant again")]
    StaleDestination {
        /// The name that was used.
        asked: RegionId,
    },
    /// The peer's NIC refused the write; it says no more than that.
    #[error(
        "the peer's NIC refused it (remote access error): the region was deregistered there, or the peer is gone; take its grant again"
    )]
    RemoteAccess,
    /// The peer did not grant the destination.
    #[error("the destination {asked} was not granted to this side by the peer; import its grant first")]
    NotGranted {
        /// The name that was used.
        asked: RegionId,
    },
}

/// Why a batch was not started. Nothing has moved and nothing is in flight (contract clause C1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many transfers to this peer are in flight as the configuration allows. Not a failure: wait for room.
    #[error(
        "{in_flight} transfers to the peer are in flight, which is the limit; wait for room or raise max_in_flight"
    )]
    Full {
        /// How many are in flight.
        in_flight: usize,
    },
    /// One slice is wrong.
    #[error("slice {index}: {cause}")]
    Slice {
        /// Its index in the batch; for groups counted by group, then table, then run.
        index: u64,
        /// What is wrong.
        cause: SliceError,
    },
    /// The peer is not connected, or this is the id of an earlier connection to it.
    #[error("{peer} is not connected: {reason}")]
    NotConnected {
        /// The peer.
        peer: PeerId,
        /// How the connection ended.
        reason: String,
    },
    /// The notification is longer than the transport carries.
    #[error("a notification of {len} bytes is longer than the limit of {max}")]
    NotificationTooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The lengths add up to more than 64 bits hold.
    #[error("the slices of the batch add up to more than 2^64 bytes")]
    TooLarge,
    /// This transport does not have the operation.
    #[error("the {transport} transport does not support {operation}")]
    Unsupported {
        /// Its name.
        transport: &'static str,
        /// What was asked for.
        operation: &'static str,
    },
    /// The transport was shut down.
    #[error("the transport is closed")]
    Closed,
}

impl SubmitError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotConnected { .. } => Fault::Network,
            Self::Slice { cause: SliceError::StaleDestination { .. }, .. } => Fault::Peer,
            _ => Fault::Ours,
        }
    }

    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Full { .. } => Retry::WhenRoom,
            Self::NotConnected { .. } => Retry::AfterReconnect,
            _ => Retry::Never,
        }
    }
}
