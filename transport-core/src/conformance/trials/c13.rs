//! C13: a batch of any size.

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(13, "c13_a_batch_of_very_many_slices_arrives", a_batch_of_very_many_slices_arrives),
    Trial::new(13, "c13_a_batch_beyond_every_window_arrives", a_batch_beyond_every_window_arrives),
    Trial::new(13, "c13_a_model_of_many_layers_arrives", a_model_of_many_layers_arrives),
];

fn a_batch_of_very_many_slices_arrives(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let count = suite.profile.sizes.most_slices as u64;
    let (source, mut target) = suite.fields(&pair, count as usize * 16);
    let to = suite.random.permutation(count);
    // A gap of one byte on either side of each.
    let batch: Vec<WriteSlice> = to
        .iter()
        .enumerate()
        .map(|(from, to)| slice(&source, from as u64 * 16 + 1, &target, to * 16 + 1, 14))
        .collect();
    target.expect(&source, &batch);
    let transfer = suite.submit(&pair.a, (&batch).into(), &BatchOptions::new().with_notification(b"many"));
    assert_eq!(suite.notification(&pair.b), "many");
    target.check("at the notification");
    assert_eq!(suite.delivered(&transfer).bytes, count * 14);
    Passed
}

fn a_batch_beyond_every_window_arrives(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let len = suite.profile.sizes.largest_batch;
    let (source, mut target) = suite.fields(&pair, len as usize + 2);
    let batch = [slice(&source, 0, &target, 1, len / 2), slice(&source, len / 2, &target, len / 2 + 1, len / 2)];
    target.expect(&source, &batch);
    let transfer = suite.submit(&pair.a, (&batch).into(), &BatchOptions::new().with_notification(b"large"));
    let mut done = 0;
    while !is_over(&transfer) && done < len {
        let now = transfer.status().bytes_done;
        assert!((done..=len).contains(&now), "progress goes up only: {done}, then {now}");
        done = now;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(suite.notification(&pair.b), "large");
    target.check("at the notification");
    assert_eq!(suite.delivered(&transfer).bytes, len);
    Passed
}

fn a_model_of_many_layers_arrives(suite: &mut Suite) -> Verdict {
    const LAYERS: u64 = 61;
    const PAGE: u64 = 512;
    let pages = suite.profile.sizes.most_slices as u64 / LAYERS / 2;
    let table_len = pages * 2 * PAGE;
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, (LAYERS * table_len) as usize);
    let (from, to) = (suite.random.permutation(pages * 2), suite.random.permutation(pages * 2));
    let runs: Vec<Run> = from.iter().zip(&to).take(pages as usize).map(|(&src, &dst)| Run::new(src, dst, 1)).collect();
    let tables: Vec<TablePair> = (0..LAYERS)
        .map(|layer| TablePair {
            src_base: layer * table_len,
            src_stride: PAGE,

            dst_base: (LAYERS - 1 - layer) * table_len,
            dst_stride: PAGE,
            len: PAGE,
            ..TablePair::between(source.region, target.region)
        })
        .collect();
    let group = Group { runs: &runs, tables: &tables };
    target.expect_group(&source, &group);
    let transfer = suite.submit(&pair.a, (&group).into(), &BatchOptions::new().with_notification(b"model"));
    assert_eq!(suite.notification(&pair.b), "model");
    target.check("at the notification");
    assert_eq!(suite.delivered(&transfer).bytes, LAYERS * pages * PAGE);
    Passed
}
