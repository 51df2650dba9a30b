//! The upper bound: the same scattered blocks, copied within one process.

use std::sync::Arc;

use super::Lane;
use crate::{
    Result,
    peer::Peer,
    placement::{Block, Placement},
    tables::Tables,
    workload::Workload,
};

/// Copies from the sender's tables into tables of the same process.
pub(crate) struct MemcpyLane {
    source: Arc<Tables>,
    target: Tables,
    placement: Placement,
    blocks: Vec<Block>,
}

impl MemcpyLane {
    pub(crate) fn new(workload: &Workload, placement: Placement, source: Arc<Tables>) -> Result<Self> {
        Ok(Self { source, target: Tables::new(workload)?, blocks: placement.blocks(workload), placement })
    }
}

impl Lane for MemcpyLane {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn batch(&mut self) -> Result<()> {
        for block in &self.blocks {
            let from = self.source.block(block.table, block.src_offset, block.len)?;
            self.target.block_mut(block.table, block.dst_offset, block.len)?.copy_from_slice(from);
        }
        Ok(())
    }

    fn verify(&self, workload: &Workload, _: &mut Peer) -> Result<()> {
        self.target.verify(workload, &self.placement)
    }
}
