use std::time::Duration;

use super::{Fault, Retry};

/// Why a peer could not be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody answered in time.
    #[error("{address} did not answer within {timeout:?}; check that it listens there, or raise connect_timeout")]
    TimedOut {
        /// Who was dialled.
        address: String,
        /// The configured limit.
        timeout: Duration,
    },
    /// The peer's identity is not one that we trust, or ours is not one that it trusts.
    #[error("authentication with {address} failed: {reason}")]
    Authentication {
        /// The peer's address.
        address: String,
        /// Which side refused whom.
        reason: String,
    },
    /// The peer speaks another protocol version.
    #[error("{address} speaks protocol version {theirs}, this side {ours}; upgrade the older side")]
    Version {
        /// The peer's address.
        address: String,
        /// Our version.
        ours: u32,
        /// Its version.
        theirs: u32,
    },
    /// The peer refused, with its words.
    #[error("{address} refused: {reason}")]
    Refused {
        /// The peer's address.
        address: String,
        /// Its reason.
        reason: String,
    },
    /// The peer broke the protocol of the bootstrap.
    #[error("{address} broke the protocol: {reason}")]
    Protocol {
        /// The peer's address.
        address: String,
        /// What it did.
        reason: String,
    },
    /// The control channel is not one that this transport can use.
    #[error("the {transport} transport cannot use this control channel: {reason}")]
    Channel {
        /// The transport's name.
        transport: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The connection broke while it was being made.
    #[error("the connection to {address} broke: {reason}")]
    Broken {
        /// The peer's address.
        address: String,
        /// What the network or the peer said.
        reason: String,
    },
    /// A local limit or resource.
    #[error("this side cannot connect: {reason}")]
    Local {
        /// Which, and what to change.
        reason: String,
    },
    /// The transport was shut down.
    #[error("the transport is closed")]
    Closed,
}

impl ConnectError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::TimedOut { .. } | Self::Broken { .. } => Fault::Network,
            Self::Refused { .. } | Self::Protocol { .. } => Fault::Peer,
            Self::Authentication { .. } | Self::Version { .. } => Fault::Ours,
            Self::Channel { .. } | Self::Local { .. } | Self::Closed => Fault::Ours,
        }
    }

    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::TimedOut { .. } | Self::Broken { .. } => Retry::Later,
            _ => Retry::Never,
        }
    }
}

/// Why a control channel does not carry messages any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The peer closed it, with its words.
    #[error("the peer closed the channel: {reason}")]
    ClosedByPeer {
        /// Its reason.
        reason: String,
    },
    /// This side closed it.
    #[error("the channel was closed by this side")]
    Closed,
    /// The peer did not answer for as long as the configured bound on peer loss, or the network broke.
    #[error("the peer was lost: {reason}")]
    Lost {
        /// What was noticed.
        reason: String,
    },
    /// A message is longer than the channel carries.
    #[error("a message of {len} bytes is longer than the limit of {max}")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The peer does not read: the message could not be handed over in time.
    #[error("the peer did not take a message within {timeout:?}")]
    Stalled {
        /// The configured limit.
        timeout: Duration,
    },
    /// The peer broke the channel's protocol.
    #[error("the peer broke the protocol of the channel: {reason}")]
    Protocol {
        /// What it did.
        reason: String,
    },
}

impl ChannelError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::ClosedByPeer { .. } | Self::Stalled { .. } | Self::Protocol { .. } => Fault::Peer,
            Self::Lost { .. } => Fault::Network,
            Self::Closed | Self::TooLong { .. } => Fault::Ours,
        }
    }

    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::TooLong { .. } | Self::Closed => Retry::Never,
            _ => Retry::AfterReconnect,
        }
    }
}
