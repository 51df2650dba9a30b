//! C11: no order is promised, so nothing may depend on one.

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(11, "c11_batches_in_any_order_give_the_same_bytes", batches_in_any_order_give_the_same_bytes),
    Trial::new(11, "c11_overlapping_slices_harm_only_the_overlap", overlapping_slices_harm_only_the_overlap),
];

fn batches_in_any_order_give_the_same_bytes(suite: &mut Suite) -> Verdict {
    const PAGE: u64 = 1024;
    let pair = suite.pair();
    let pages = 512;
    let (source, mut target) = suite.fields(&pair, (pages * PAGE) as usize);
    for _ in 0..3 {
        let (from, to) = (suite.random.permutation(pages), suite.random.permutation(pages));
        let all: Vec<WriteSlice> =
            from.iter().zip(&to).map(|(from, to)| slice(&source, from * PAGE, &target, to * PAGE, PAGE)).collect();
        target.expect(&source, &all);
        let mut transfers = Vec::new();
        let mut rest = &all[..];
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(1 + suite.random.below(rest.len().min(60) as u64) as usize);
            transfers.push(suite.submit(&pair.a, batch.into(), &BatchOptions::new()));
            rest = later;
        }
        // Waited for in an order that has nothing to do with theirs.
        for place in suite.random.permutation(transfers.len() as u64) {
            suite.delivered(&transfers[place as usize]);
        }
        target.check("after batches in any order");
    }
    Passed
}

fn overlapping_slices_harm_only_the_overlap(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 100_000);
    let batch = [slice(&source, 0, &target, 1000, 60_000), slice(&source, 30_000, &target, 41_000, 50_000)];
    target.expect(&source, &batch);
    suite.write(&pair.a, (&batch).into());
    // The overlap has unspecified bytes: the contract says nothing about them.
    let found = target.bytes();
    target.expected[41_000..61_000].copy_from_slice(&found[41_000..61_000]);
    target.check("outside the overlap");
    Passed
}
