//! Work requests, completions and asynchronous events.

use std::fmt;

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalSegment {
    /// Its address.
    pub address: u64,
    /// Bytes; zero is a work request without a segment.
    pub len: u32,
    /// The local key of the memory region that it lies in.
    pub key: u32,
}

/// A work request for the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Comes back in the completion (`wr_id`).
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// What is read.
    pub local: LocalSegment,
    /// Whether its success makes a completion; its failure always does.
    pub signalled: bool,
    /// Whether the bytes are copied when it is posted, so that they may change at once.
    pub inline: bool,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes to the peer's memory.
    Write {
        /// Where.
        address: u64,
        /// The remote key of the memory region there.
        key: u32,
    },
    /// Fills the peer's next receive.
    Send,
}

/// A work request for the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// What is written.
    pub local: LocalSegment,
}

/// The end of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's.
    pub id: u64,
    /// Number of the local queue pair.
    pub queue_pair: u32,
    /// How it ended.
    pub status: Status,
    /// The vendor's code for an error; for messages only.
    pub vendor: u32,
    /// Received bytes; set only for receives that succeeded.
    pub bytes: u32,
}

impl Completion {
    /// An entry of a buffer to poll into.
    pub const EMPTY: Self = Self { id: 0, queue_pair: 0, status: Status::Success, vendor: 0, bytes: 0 };
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    Success,
    /// The message is longer than the port or the receive allows.
    LocalLength,
    /// The queue pair was set up in a way that does not allow it.
    LocalOperation,
    /// The local key does not cover the segment.
    LocalProtection,
    /// Flushed: the queue pair was in error.
    Flushed,
    /// The peer's answer made no sense.
    BadResponse,
    /// The peer's queue pair does not do this operation, or the message is longer than its receive.
    RemoteInvalidRequest,
    /// The peer's memory region refuses: wrong key, range or right.
    RemoteAccess,
    /// The peer could not complete it.
    RemoteOperation,
    /// The peer did not answer.
    RetryExceeded,
    /// The peer had no receive posted for too long.
    RnrRetryExceeded,
    /// Any other error, by its number in `ibv_wc_status`.
    Other(u32),
}

impl Status {
    /// Whether the peer's NIC gave it as an answer, so that the path to it works.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, Self::Success | Self::RemoteInvalidRequest | Self::RemoteAccess | Self::RemoteOperation)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "flushed with the queue pair",
            Self::BadResponse => "bad response",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "receiver-not-ready retry counter exceeded",
            Self::Other(code) => return write!(f, "work completion status {code}"),
        })
    }
}

/// Something that happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A port has no link any more.
    PortDown(u8),
    /// A port has a link.
    PortActive(u8),
    /// A port's GID table changed.
    GidChange(u8),
    /// A queue pair failed; its number.
    QueuePairFatal(u32),
    /// A completion queue overran or failed.
    CompletionQueueError,
    /// The device is gone.
    DeviceFatal,
    /// Anything else, by its number in `ibv_event_type`.
    Other(u32),
}
