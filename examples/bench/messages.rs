//! What the two processes say to each other over pipes, one JSON document a line.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// From the sending process, which leads.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Command {
    /// Open all endpoints, for a sender with these public identities, one for each transport.
    Open { identities: Vec<Vec<u8>> },
    /// Let the sender connect to each endpoint in turn, and grant it all regions.
    Accept,
    /// How much processor time has been used?
    CpuSeconds,
    /// When did the last `count` writes by this lane reach the program?
    Arrivals { lane: String, count: usize },
    /// Is everything that came by this lane right?
    Verify { lane: String },
}

/// From the receiving process: one for each command, in order.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Reply {
    /// Where each endpoint can be reached.
    Opened { tcp: SocketAddr, invitations: Vec<Invitation> },
    /// The encoded grants of each transport, one for each table.
    Accepted { grants: Vec<Vec<Vec<u8>>> },
    /// Seconds since the process began.
    CpuSeconds(f64),
    /// In nanoseconds of the clock that both processes share, in order.
    Arrivals(Vec<u64>),
    /// Every byte is right.
    Verified,
    /// What went wrong.
    Failed(String),
}

/// What a sender must know to connect to an endpoint.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Invitation {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Whom the sender will find there.
    pub(crate) identity: Vec<u8>,
}
