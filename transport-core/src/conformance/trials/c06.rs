//! C6: dropping a handle detaches the transfer.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    thread,
};

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(6, "c06_a_dropped_handle_stops_nothing", a_dropped_handle_stops_nothing),
    Trial::new(6, "c06_a_forgotten_handle_stops_nothing", a_forgotten_handle_stops_nothing),
    Trial::new(6, "c06_an_awaited_and_dropped_handle_stops_nothing", an_awaited_and_dropped_handle_stops_nothing),
    Trial::new(6, "c06_a_dropped_handle_still_counts_for_its_commit", a_dropped_handle_still_counts_for_its_commit),
];

fn dispose(suite: &mut Suite, dispose: impl Fn(Transfer)) -> Verdict {
    let pair = suite.pair();
    let rounds = suite.profile.max_in_flight as u64;
    let (source, mut target) = suite.fields(&pair, rounds as usize * 8192);
    suite.hold(&pair);
    for round in 0..rounds {
        let batch = [slice(&source, round * 8192, &target, round * 8192 + 1, 8000)];
        target.expect(&source, &batch);
        dispose(suite.held(&pair, (&batch).into()));
    }
    suite.release(&pair, rounds as usize);
    target.check("with nobody holding a handle");
    suite.no_event(&pair.b);
    // All places are free again.
    suite.see("room for all", || pair.a.submit(Batch::Slices(&[])).is_ok());
    Passed
}

fn a_dropped_handle_stops_nothing(suite: &mut Suite) -> Verdict {
    dispose(suite, drop)
}

fn a_forgotten_handle_stops_nothing(suite: &mut Suite) -> Verdict {
    dispose(suite, std::mem::forget)
}

fn an_awaited_and_dropped_handle_stops_nothing(suite: &mut Suite) -> Verdict {
    let wakes = Arc::<WakeCount>::default();
    dispose(suite, |mut transfer| {
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(Pin::new(&mut transfer).poll(&mut Context::from_waker(&waker)).is_pending());
        thread::spawn(move || drop(transfer)).join().expect("dropping does not panic");
    })
}

fn a_dropped_handle_still_counts_for_its_commit(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let third = suite.start();
    let other = suite.connect(&pair.a.node, &third);
    suite.hold(&other);
    let slow = suite.held(&other, Batch::Slices(&[]));
    let options = BatchOptions::new().with_notification(b"commit");
    let after = [&slow];
    drop(suite.submit(&pair.a, Batch::Slices(&[]), &options.with_after(&after)));
    drop(slow);
    suite.no_event(&pair.b);
    suite.release(&other, 1);
    assert_eq!(suite.notification(&pair.b), "commit");
    Passed
}
