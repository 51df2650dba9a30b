//! The control channel: authenticated messages between two peers.
//!
//! Everything that must be believed travels on it: metadata, grants with their memory keys, the bootstrap of queue
//! pairs, aborts. QUIC implements it; a transport of any kind is connected over one.

use std::{any::Any, fmt};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::ChannelError;

/// Who a message is for. Each topic is a stream of its own: messages of one topic arrive in order, and a topic that is
/// not read holds up no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// The engine: metadata, commits, aborts.
    Engine,
    /// The transport that was connected over the channel: bootstrap and grants.
    Transport,
}

/// An authenticated, ordered, reliable channel of bounded messages to one peer.
#[async_trait]
pub trait ControlChannel: fmt::Debug + Send + Sync + 'static {
    /// The peer's authenticated identity, in the implementation's encoding (for QUIC: the public key, as SPKI). Two channels
    /// to the same node have the same.
    fn peer_identity(&self) -> &[u8];

    /// The peer's address, for messages to people.
    fn peer_address(&self) -> String;

    /// Whether this side dialled.
    fn is_initiator(&self) -> bool;

    /// The longest message, in bytes.
    fn max_message(&self) -> usize;

    /// Hands a message over. Waits while the peer has too many unread messages of this topic, but not longer than the
    /// configured bound.
    ///
    /// # Errors
    /// [`ChannelError::TooLong`] and nothing happened; else the channel is of no use any more.
    ///
    /// # Cancel safety
    /// Not safe: a message whose future was dropped may have been sent in part, and the channel is closed then.
    async fn send(&self, topic: Topic, message: &[u8]) -> Result<(), ChannelError>;

    /// The next message of a topic. One task at a time reads a topic.
    ///
    /// # Errors
    /// How the channel ended; the same each time.
    ///
    /// # Cancel safety
    /// Safe: no message is lost.
    async fn receive(&self, topic: Topic) -> Result<Bytes, ChannelError>;

    /// Waits until the channel has ended.
    ///
    /// # Cancel safety
    /// Safe.
    async fn closed(&self) -> ChannelError;

    /// Ends the channel; `reason` reaches the peer. Closing twice is harmless.
    fn close(&self, reason: &str);

    /// For a transport that must know its own kind of channel.
    fn as_any(&self) -> &dyn Any;
}
