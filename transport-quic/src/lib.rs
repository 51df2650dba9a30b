//! kvferry's transport over QUIC: the authenticated control channel, and a data path that works on any network.
//!
//! [`QuicTransport`] listens on a UDP port. [`QuicTransport::dial`] and [`QuicTransport::accept`] make control channels, TLS 1.3
//! connections on which both sides have proved who they are ([`Authentication`]); `Transport::connect` takes the data path of one
//! into use. The wire format is in `frame`.
//!
//! Everything runs on one thread of the transport's own. Submitting and polling need no runtime, and the futures can be awaited
//! on any.
#![forbid(unsafe_code)]

mod auth;
mod channel;
mod config;
mod frame;
mod identity;
mod node;
mod peer;
mod receive;
mod send;
mod socket;
mod staging;
mod tracker;
mod transport;

pub use self::{
    auth::{AuthError, Authentication, ClusterCa},
    channel::QuicChannel,
    config::{ConfigError, QuicConfig},
    identity::{Identity, KeyError, PublicKey, TrustedKeys},
    node::BindError,
    transport::{PathStats, QuicTransport},
};
