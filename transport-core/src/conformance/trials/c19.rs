//! C19: the steady state allocates nothing.

use std::{
    pin::Pin,
    task::{Context, Waker},
};

use super::prelude::*;
use crate::conformance::CountingAllocator;

pub(super) const TRIALS: &[Trial] =
    &[Trial::new(19, "c19_submitting_and_polling_allocates_nothing_by_slice", allocates_nothing_by_slice)];

const BATCHES: u64 = 64;

fn allocates_nothing_by_slice(suite: &mut Suite) -> Verdict {
    if !CountingAllocator::is_installed() {
        return Skipped("the test binary has not installed the counting allocator".into());
    }
    let pair = suite.pair();
    if !pair.a.transport.capabilities().allocation_free {
        return Skipped("the transport does not claim to be free of allocations".into());
    }
    let (source, mut target) = suite.fields(&pair, 512 * 64);
    let slices: Vec<WriteSlice> = (0..512).map(|i| slice(&source, i * 64, &target, (511 - i) * 64, 63)).collect();
    let runs: Vec<Run> = (0..512).map(|i| Run::new(i, 511 - i, 1)).collect();
    let tables =
        [TablePair { src_stride: 64, dst_stride: 64, len: 63, ..TablePair::between(source.region, target.region) }];
    target.expect(&source, &slices);
    let write = |count: usize| {
        let group = Group { runs: &runs[..count], tables: &tables };
        for batch in [Batch::from(&slices[..count]), Batch::from(&group)] {
            // What is measured is this thread's part: the submission and the polls.
            let mut transfer = pair.a.submit(batch).expect("there is room");
            let mut context = Context::from_waker(Waker::noop());
            while Pin::new(&mut transfer).poll(&mut context).is_pending() {
                assert!(transfer.status().bytes_done <= transfer.status().bytes_total);
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
            assert!(transfer.outcome().is_some_and(|outcome| outcome.is_ok()));
        }
    };
    let measure = |count: usize| {
        let before = CountingAllocator::of_this_thread();
        (0..BATCHES).for_each(|_| write(count));
        CountingAllocator::of_this_thread() - before
    };
    // Until every slot has met the longest batch, buffers grow.
    for _ in 0..4 {
        measure(512);
    }
    let (few, many) = (measure(4), measure(512));
    println!("{} batches: {few} allocations with 4 slices each, {many} with 512", 2 * BATCHES);
    // A queue may grow now and then, by batches and not by slices.
    assert!(few <= BATCHES / 4, "{few} allocations for {} batches of 4 slices", 2 * BATCHES);
    assert!(many <= BATCHES / 4, "{many} allocations for {} batches of 512 slices", 2 * BATCHES);
    target.check("after all batches");
    Passed
}
