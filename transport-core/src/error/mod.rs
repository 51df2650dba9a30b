//! Errors, one enum for each phase: register, grant, connect, submit, transfer.
//!
//! Each says what happened with all the numbers, whose fault it is ([`Fault`]) and whether trying again can help
//! ([`Retry`]). No type of a backend appears in them; where a backend has words of its own they are carried as text.

mod connect;
mod region;
mod submit;
mod transfer;

pub use self::{
    connect::{ChannelError, ConnectError},
    region::{GrantError, RegionError, RegisterError, RegisterFailure},
    submit::{Side, SliceError, SubmitError},
    transfer::TransferError,
};

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The program that called: a wrong argument, a configuration that does not fit, an exhausted limit of its own.
    Ours,
    /// The peer: it refused, misbehaved, died or restarted.
    Peer,
    /// What lies between the two.
    Network,
}

/// Whether and when doing the same again can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retry {
    /// Not without a change.
    Never,
    /// Once there is room again; see `Transport::room`.
    WhenRoom,
    /// After connecting to the peer again (and exchanging its grants again).
    AfterReconnect,
    /// After a pause; the cause may pass by itself.
    Later,
}
