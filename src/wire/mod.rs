//! What engines say to each other, and how much of it is believed.
//!
//! The hazard: bytes from the network that make the decoder panic, allocate or believe. The hello has a fixed length and is
//! decoded by hand, so that any version can read it. Everything after is postcard in messages whose length the control
//! channel bounds; collections are decoded one element at a time out of those bytes, so a claimed billion of elements
//! ends with the bytes. What was decoded is then checked by [`Metadata::check`] before anything uses it.

mod commit;
mod hello;
mod message;

pub(crate) use self::{
    commit::Commit,
    hello::Hello,
    message::{Grant, Message, Metadata, Tried, WireError, decode, encode, reason},
};

/// Longest message that an engine sends or takes, in bytes.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;
