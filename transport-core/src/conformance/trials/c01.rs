//! C1: a submit error means that nothing started.

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(1, "c01_a_submit_error_starts_nothing", a_submit_error_starts_nothing),
    Trial::new(1, "c01_a_refused_batch_takes_no_place", a_refused_batch_takes_no_place),
    Trial::new(1, "c01_a_notification_that_is_too_long_is_refused", a_notification_that_is_too_long_is_refused),
    Trial::new(1, "c01_a_batch_that_does_not_fit_64_bits_is_refused", a_batch_that_does_not_fit_64_bits_is_refused),
];

fn a_submit_error_starts_nothing(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    // The last slice is wrong; the others would be right.
    let slices = [
        slice(&source, 0, &target, 0, 1000),
        slice(&source, 1000, &target, 2000, 1000),
        slice(&source, 0, &target, 4000, 97),
    ];
    let options = BatchOptions::new().with_notification(b"never");
    let error = pair.a.transport.batch_write(pair.a.peer, (&slices).into(), &options).unwrap_err();
    assert!(matches!(error, SubmitError::Slice { index: 2, .. }), "{error}");
    suite.no_event(&pair.b);
    target.check("after a refused batch");
    // And the connection is as good as before.
    suite.write(&pair.a, (&slices[..2]).into());
    Passed
}

fn a_refused_batch_takes_no_place(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 64);
    let bad = [slice(&source, 0, &target, 60, 8)];
    suite.hold(&pair);
    let mut held = Vec::new();
    for _ in 0..suite.profile.max_in_flight {
        for _ in 0..3 {
            assert!(matches!(pair.a.submit((&bad).into()), Err(SubmitError::Slice { .. })));
        }
        held.push(suite.held(&pair, Batch::Slices(&[])));
    }
    suite.release(&pair, held.len());
    for transfer in &held {
        suite.delivered(transfer);
    }
    Passed
}

fn a_notification_that_is_too_long_is_refused(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let max = pair.a.transport.capabilities().max_notification;
    assert!(max >= 256, "every transport carries notifications of 256 bytes");
    let payload = vec![7; max + 1];
    let options = BatchOptions::new().with_notification(&payload);
    let error = pair.a.transport.batch_write(pair.a.peer, Batch::Slices(&[]), &options).unwrap_err();
    assert_eq!(error, SubmitError::NotificationTooLong { len: max + 1, max });
    suite.no_event(&pair.b);
    Passed
}

fn a_batch_that_does_not_fit_64_bits_is_refused(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 64);
    let slices = [slice(&source, 0, &target, 0, u64::MAX), slice(&source, 0, &target, 0, 2)];
    let error = pair.a.submit((&slices).into()).unwrap_err();
    assert!(matches!(error, SubmitError::TooLarge | SubmitError::Slice { index: 0, .. }), "{error}");
    let runs = [Run::new(0, 0, 1 << 40)];
    let table = TablePair { len: 1 << 40, ..TablePair::between(source.region, target.region) };
    let error = pair.a.submit((&Group { runs: &runs, tables: &[table] }).into()).unwrap_err();
    assert!(matches!(error, SubmitError::TooLarge | SubmitError::Slice { index: 0, .. }), "{error}");
    target.check("after refused batches");
    Passed
}
