//! The ways on which the same bytes are moved, measured in turn.

mod memcpy;
#[cfg(feature = "rdma")]
mod perftest;
mod tcp;
mod transport;
#[cfg(feature = "rdma")]
mod verbs;

pub(crate) use self::{
    memcpy::MemcpyLane,
    tcp::{TcpLane, TcpServer},
    transport::{TransportLane, TransportSink},
};
#[cfg(feature = "rdma")]
pub(crate) use self::{perftest::PerftestLane, verbs::VerbsLane};
use crate::{Result, measure::Run, peer::Peer, workload::Workload};

/// One way of moving a workload's blocks, seen from the sending process.
pub(crate) trait Lane {
    /// Its name in the results.
    fn name(&self) -> &'static str;

    /// Moves all blocks once, and returns when they are in place and this side knows.
    fn batch(&mut self) -> Result<()>;

    /// For a way that times itself: a whole run.
    fn run_alone(&mut self, workload: &Workload) -> Option<Result<Run>> {
        let _ = workload;
        None
    }

    /// What the way was like, where that explains the figures.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Compares every byte that has arrived.
    fn verify(&self, workload: &Workload, peer: &mut Peer) -> Result<()>;
}
