//! The ways on which the same bytes are moved, measured in turn.

mod memcpy;
mod tcp;
mod transport;

pub(crate) use self::{
    memcpy::MemcpyLane,
    tcp::{TcpLane, TcpServer},
    transport::{TransportLane, TransportSink},
};
use crate::{Result, peer::Peer, workload::Workload};

/// One way of moving a workload's blocks, seen from the sending process.
pub(crate) trait Lane {
    /// Its name in the results.
    fn name(&self) -> &'static str;

    /// Moves all blocks once, and returns when they are in place and this side knows.
    fn batch(&mut self) -> Result<()>;

    /// What the way was like, where that explains the figures.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Compares every byte that has arrived.
    fn verify(&self, workload: &Workload, peer: &mut Peer) -> Result<()>;
}
