//! The steady state of the in-memory transport allocates nothing, on any thread. Alone in its program, because it counts
//! what all threads do.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    thread,
};

use futures_util::future::join;
use transport_core::{
    Access, Batch, BatchOptions, Group, Memory, Run, TablePair, Transport, WriteSlice,
    conformance::{CountingAllocator, block_on},
    mem::{MemConfig, MemFabric},
};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

#[test]
fn the_steady_state_allocates_nothing_on_any_thread() {
    let fabric = MemFabric::new();
    let (a, b) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
    let (here, there) = fabric.channel_pair(&a, &b);
    let (to_b, to_a) = block_on(join(a.connect(here), b.connect(there)));
    let (to_b, to_a) = (to_b.unwrap(), to_a.unwrap());
    let src = a.register(Memory::host(1 << 20).unwrap(), Access::LOCAL).unwrap();
    let dst = b.register(Memory::host(1 << 20).unwrap(), Access::REMOTE_WRITE).unwrap();
    a.import(to_b, &b.grant(to_a, dst).unwrap()).unwrap();
    let a: Arc<dyn Transport> = a;

    let slices: Vec<WriteSlice> =
        (0..1000).map(|i| WriteSlice { src, src_offset: i * 1000, dst, dst_offset: i * 1001, len: 999 }).collect();
    let runs: Vec<Run> = (0..500).map(|i| Run::new(i, 499 - i, 1)).collect();
    let table = |base| TablePair {
        src_base: base,
        src_stride: 1000,
        dst_base: base,
        dst_stride: 1000,
        len: 900,
        ..TablePair::between(src, dst)
    };
    let tables = [table(0), table(500_000)];
    let group = Group { runs: &runs, tables: &tables };

    let mut in_flight = Vec::with_capacity(8);
    let mut round = || {
        for batch in [Batch::from(&slices), Batch::from(&group)] {
            in_flight.extend((0..4).map(|_| a.batch_write(to_b, batch, &BatchOptions::new()).unwrap()));
        }
        let mut context = Context::from_waker(Waker::noop());
        for mut transfer in in_flight.drain(..) {
            while Pin::new(&mut transfer).poll(&mut context).is_pending() {
                thread::yield_now();
            }
            assert!(transfer.status().state.is_terminal());
        }
    };
    // Until every slot that is used has its buffers.
    (0..60).for_each(|_| round());
    // The harness that runs this test has threads too and may allocate at any moment. What the transport allocated for a batch
    // would show in every window.
    let windows: Vec<u64> = (0..5)
        .map(|_| {
            let before = CountingAllocator::of_all_threads();
            (0..20).for_each(|_| round());
            CountingAllocator::of_all_threads() - before
        })
        .collect();
    assert!(windows.contains(&0), "allocations in windows of 160 batches of 1000 slices: {windows:?}");
}
