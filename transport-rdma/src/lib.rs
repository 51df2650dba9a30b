//! The RDMA transport: reliable-connected queue pairs that write into a peer's registered memory.
//!
//! [`RdmaTransport`] implements [`transport_core::Transport`] on the verbs of [`verbs`], a narrow seam with two
//! implementations: the real one (`native`, with the feature `verbs`, on libibverbs opened at run time) and a simulated NIC
//! (`sim`, with the feature `sim`). Everything but `native` is safe code.
//!
//! A walk through the house: [`choice`] says which device, port and GID; `rail` opens them; `region` registers memory and
//! knows the keys; `sender` makes work requests of batches and outcomes of completions, without I/O; `worker` is the thread
//! that polls, talks to peers over the control channel and builds queue pairs; `transport` is the handle on top.

// Only the binding may, and says so there.
#![deny(unsafe_code)]

pub mod choice;
mod config;
mod error;
mod host;
mod message;
#[cfg(feature = "verbs")]
#[allow(unsafe_code, reason = "the binding of libibverbs; docs/safety.md has its rules")]
pub mod native;
mod peer;
mod rail;
mod region;
mod sender;
mod signal;
#[cfg(feature = "sim")]
pub mod sim;
mod timing;
mod transport;
pub mod verbs;
mod worker;

pub use self::{
    config::{Completions, Rail, Rails, RdmaConfig},
    error::OpenError,
    timing::QueuePairTimers,
    transport::RdmaTransport,
};
