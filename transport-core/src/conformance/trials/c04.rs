//! C4: delivered means exact, and not one byte beside it.

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(4, "c04_every_size_is_exact_between_canaries", every_size_is_exact_between_canaries),
    Trial::new(4, "c04_scattered_pages_are_exact", scattered_pages_are_exact),
    Trial::new(4, "c04_runs_times_tables_are_exact", runs_times_tables_are_exact),
    Trial::new(4, "c04_odd_slices_of_many_regions_are_exact", odd_slices_of_many_regions_are_exact),
    Trial::new(4, "c04_both_directions_at_once_are_exact", both_directions_at_once_are_exact),
];

const SIZES: [u64; 11] = [0, 1, 2, 1023, 1024, 1025, 4096, 65_536, 65_537, 1 << 20, 16 << 20];

fn every_size_is_exact_between_canaries(suite: &mut Suite) -> Verdict {
    let largest = suite.profile.sizes.largest_slice;
    for size in SIZES.into_iter().chain([largest]).filter(|size| *size <= largest) {
        let pair = suite.pair();
        let (source, mut target) = suite.fields(&pair, size as usize + 8192);
        // The last one ends at the ends of both regions.
        let ends = [(0, 0), (1, 4096), (4095, 63), (8192, 8192)];
        for (src, dst) in ends.into_iter().skip(if size > 1 << 20 { 2 } else { 0 }) {
            let batch = [slice(&source, src, &target, dst, size)];
            target.expect(&source, &batch);
            let delivered = suite.write(&pair.a, (&batch).into());
            assert_eq!(delivered.bytes, size);
            target.check(&format!("{size} bytes from {src} to {dst}"));
        }
    }
    Passed
}

fn scattered_pages_are_exact(suite: &mut Suite) -> Verdict {
    const PAGE: u64 = 4096;
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 300 * PAGE as usize);
    let (from, to) = (suite.random.permutation(300), suite.random.permutation(300));
    // A sixth of the pages stay as they are.
    let batch: Vec<WriteSlice> = from
        .iter()
        .zip(&to)
        .take(250)
        .map(|(from, to)| slice(&source, from * PAGE, &target, to * PAGE, PAGE))
        .collect();
    target.expect(&source, &batch);
    suite.write(&pair.a, (&batch).into());
    target.check("after scattered pages");
    Passed
}

fn runs_times_tables_are_exact(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (keys, values) =
        (suite.field(&pair.a, 256 << 10, Access::LOCAL), suite.field(&pair.a, 256 << 10, Access::LOCAL));
    let (mut key_target, mut value_target) = (suite.target(&pair, 256 << 10), suite.target(&pair, 256 << 10));
    let runs = [
        Run::new(3, 40, 1),
        Run::new(10, 0, 7),
        Run::new(50, 50, 0),
        Run { src_row: 2, dst_row: 1, ..Run::new(0, 20, 3) },
    ];
    let table = |source: &Field, target: &Field, layer: u64, stride: (u64, u64), len| TablePair {
        src_base: layer * 50_000 + 13,
        src_row_stride: 137,
        src_stride: stride.0,

        dst_base: layer * 50_000 + 7,
        dst_row_stride: 311,
        dst_stride: stride.1,
        len,
        ..TablePair::between(source.region, target.region)
    };
    // Contiguous on both sides, with gaps on one, on the other, on both.
    let strides = [(1000, 1000), (1000, 1024), (1024, 1000), (1001, 1003)];
    let key_tables: Vec<TablePair> =
        (0..4).map(|layer| table(&keys, &key_target, layer, strides[layer as usize], 1000)).collect();
    let value_tables: Vec<TablePair> =
        (0..4).map(|layer| table(&values, &value_target, layer, strides[3 - layer as usize], 999)).collect();
    let groups = [Group { runs: &runs, tables: &key_tables }, Group { runs: &runs[1..], tables: &value_tables }];
    key_target.expect_group(&keys, &groups[0]);
    value_target.expect_group(&values, &groups[1]);
    let batch = Batch::from(&groups[..]);
    let delivered = suite.write(&pair.a, batch);
    assert_eq!(Ok(delivered.bytes), batch.total_bytes());
    key_target.check("the first group");
    value_target.check("the second group");
    Passed
}

fn odd_slices_of_many_regions_are_exact(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let sources: Vec<Field> = (0..8).map(|_| suite.field(&pair.a, 40_000, Access::LOCAL)).collect();
    let mut targets: Vec<Field> = (0..8).map(|_| suite.target(&pair, 40_000)).collect();
    for _ in 0..4 {
        let mut batch = Vec::new();
        for (number, target) in targets.iter_mut().enumerate() {
            // Slices of one target do not overlap: each lies in a stripe of its own.
            for stripe in 0..16 {
                let source = &sources[suite.random.below(8) as usize];
                let len = suite.random.below(2400);
                let src = suite.random.below(source.len() - len + 1);
                let dst = stripe * 2500 + suite.random.below(2500 - len + 1);
                let slice = slice(source, src, target, dst, len);
                target.expect(source, &[slice]);
                batch.push(slice);
            }
            batch.rotate_left(number);
        }
        suite.write(&pair.a, (&batch).into());
        for target in &targets {
            target.check("slices of many regions");
        }
    }
    Passed
}

fn both_directions_at_once_are_exact(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let back = pair.reversed();
    let len = suite.profile.sizes.bulk as usize / 2;
    let (source, mut target) = suite.fields(&pair, len);
    let (back_source, mut back_target) = suite.fields(&back, len);
    let there = [slice(&source, 0, &target, 0, len as u64)];
    let here = [slice(&back_source, 0, &back_target, 0, len as u64)];
    target.expect(&source, &there);
    back_target.expect(&back_source, &here);
    let options = BatchOptions::new().with_notification(b"done");
    let one = suite.submit(&pair.a, (&there).into(), &options);
    let other = suite.submit(&back.a, (&here).into(), &options);
    assert_eq!(suite.notification(&pair.b), "done");
    assert_eq!(suite.notification(&back.b), "done");
    suite.delivered(&one);
    suite.delivered(&other);
    target.check("one direction");
    back_target.check("the other direction");
    Passed
}
