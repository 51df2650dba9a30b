//! kvferry moves the KV-cache pages of large language models from the workers that run prefill to the workers that run decode.
#![forbid(unsafe_code)]

mod attempt;
mod builder;
mod choose;
mod config;
mod engine;
mod error;
mod handshake;
mod incoming;
mod origin;
mod outcome;
mod peer;
mod push;
mod request;
mod runtime;
mod session;
mod transports;
mod wire;

pub use kv_plan;
pub use transport_core;
pub use transport_quic;
#[cfg(feature = "rdma")]
pub use transport_rdma;

pub use self::{
    builder::EngineBuilder,
    config::{EngineConfig, Role},
    engine::Engine,
    error::{BuildError, ConnectError, ExpectError, PushError, ReceiveError},
    incoming::{Incoming, Received},
    origin::Origin,
    peer::Peer,
    push::{Push, PushParts, Pushed},
    request::Request,
    transports::PassedOver,
};
