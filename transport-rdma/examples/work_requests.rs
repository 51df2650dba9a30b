//! Writes batches of 1,024 pages of 4 KiB between two simulated hosts, so that the instructions of a work request can be counted:
//!
//! ```text
//! cargo build --release -p transport-rdma --features sim --example work_requests
//! valgrind --tool=callgrind --separate-threads=no target/release/examples/work_requests 20
//! callgrind_annotate --inclusive=yes callgrind.out.*
//! ```
//!
//! docs/benchmarks.md says what came of it.

use std::sync::Arc;

use futures_util::future::join;
use transport_core::{
    Access, Batch, BatchOptions, Memory, Transport, WriteSlice,
    conformance::block_on,
    mem::{MemConfig, MemFabric},
};
use transport_rdma::{RdmaConfig, RdmaTransport, sim::SimNetwork};

const PAGE: u64 = 4096;
const PAGES: u64 = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let batches: u64 = std::env::args().nth(1).map_or(Ok(20), |argument| argument.parse())?;
    let (network, fabric) = (SimNetwork::new(), MemFabric::new());
    let open = || RdmaTransport::open(network.host(), RdmaConfig::default());
    let (sender, receiver) = (open()?, open()?);
    // The control channel is one of an in-memory transport.
    let (one, two) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
    let (here, there) = fabric.channel_pair(&one, &two);
    let (to_receiver, to_sender) = block_on(join(sender.connect(here), receiver.connect(there)));
    let (to_receiver, to_sender) = (to_receiver?, to_sender?);

    let len = (PAGE * PAGES) as usize;
    let source = sender.register(Memory::host(len)?, Access::LOCAL)?;
    let target = receiver.register(Memory::host(len)?, Access::REMOTE_WRITE)?;
    sender.import(to_receiver, &receiver.grant(to_sender, target)?)?;
    // Backwards on one side, so that no two pages are neighbours on both.
    let slices: Vec<WriteSlice> = (0..PAGES)
        .map(|page| WriteSlice {
            src: source,
            src_offset: page * PAGE,
            dst: target,
            dst_offset: (PAGES - 1 - page) * PAGE,
            len: PAGE,
        })
        .collect();
    let transport: Arc<dyn Transport> = Arc::new(sender);
    for _ in 0..batches {
        transport.batch_write(to_receiver, Batch::from(&slices), &BatchOptions::new())?.wait()?;
    }
    println!("{} work requests", batches * PAGES);
    Ok(())
}
