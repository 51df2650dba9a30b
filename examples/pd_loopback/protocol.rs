//! What the program and its rank processes say to each other: one JSON document a line, over the children's standard input and
//! output. A child whose standard input ends, exits: so none outlives the program, however that ends.

use std::net::SocketAddr;

use kvferry::kv_plan::Rank;
use serde::{Deserialize, Serialize};

use crate::{
    args::Carrier,
    workload::{End, Refused, Workload},
};

/// From the program to a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Be this rank. Answered by [`Report::Identity`].
    Start { workload: Workload, end: End, rank: Rank, carrier: Carrier },
    /// Listen, and let these keys in. Answered by [`Report::Listening`].
    Listen { trusted: Vec<String> },
    /// Connect to these ranks. Answered by [`Report::Connected`].
    Connect { peers: Vec<(SocketAddr, String)> },
    /// A prefill rank: put the contents of these requests into their pages. A decode rank: expect the requests. Answered by
    /// [`Report::Done`].
    Prepare { requests: Vec<u64> },
    /// A prefill rank: push the requests. A decode rank: wait until they are complete. Answered by [`Report::Moved`].
    Move,
    /// A decode rank: check every byte of the requests. Answered by [`Report::Done`].
    Verify,
    /// A decode rank: check that nothing else was touched. Answered by [`Report::Done`], and the rank ends.
    Finish,
}

/// From a rank to the program.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Its public key.
    Identity { key: String },
    /// Where it listens.
    Listening { address: SocketAddr },
    /// What carries the pages to each rank, and why nothing better does.
    Connected { carriers: Vec<(String, String)> },
    /// What was ordered is done.
    Done,
    /// Bytes of the current requests that were handed to the network so far.
    Progress { bytes: u64 },
    /// What it sent or received, for how many requests.
    Moved { requests: u64, bytes: u64, slices: u64, seconds: f64 },
    /// The two sides do not fit: exit status 2.
    Refused(Refused),
    /// Something else went wrong: exit status 1.
    Failed { message: String },
}
