//! C16: polling again, and the last waker.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::prelude::*;
use crate::Outcome;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(16, "c16_a_finished_transfer_answers_again_and_again", a_finished_transfer_answers_again_and_again),
    Trial::new(16, "c16_the_last_waker_is_woken", the_last_waker_is_woken),
    Trial::new(16, "c16_the_last_listener_is_woken", the_last_listener_is_woken),
];

fn poll(transfer: &mut Transfer, wakes: &Arc<WakeCount>) -> Poll<Outcome> {
    let waker = Waker::from(Arc::clone(wakes));
    Pin::new(transfer).poll(&mut Context::from_waker(&waker))
}

fn a_finished_transfer_answers_again_and_again(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let wakes = Arc::<WakeCount>::default();
    suite.hold(&pair);
    let mut cancelled = suite.held(&pair, Batch::Slices(&[]));
    cancelled.cancel();
    let mut delivered = suite.submit(&pair.a, Batch::Slices(&[]), &BatchOptions::new());
    for transfer in [&mut cancelled, &mut delivered] {
        let outcome = suite.outcome(transfer);
        for _ in 0..3 {
            assert_eq!(poll(transfer, &wakes), Poll::Ready(outcome.clone()));
            assert_eq!(transfer.outcome(), Some(outcome.clone()));
            assert_eq!(transfer.wait(), outcome);
            let waited = transfer.wait_timeout(std::time::Duration::ZERO);
            assert_eq!(waited, Waited::Finished(outcome.clone()));
            assert_eq!(suite.wait("awaiting what is over", &mut *transfer), outcome);
        }
    }
    Passed
}

fn the_last_waker_is_woken(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    suite.hold(&pair);
    let mut transfer = suite.held(&pair, Batch::Slices(&[]));
    let (first, last) = (Arc::<WakeCount>::default(), Arc::<WakeCount>::default());
    assert!(poll(&mut transfer, &first).is_pending());
    assert!(poll(&mut transfer, &last).is_pending());
    suite.release(&pair, 1);
    suite.see("waking the last waker", || last.get() > 0);
    assert!(poll(&mut transfer, &last).is_ready(), "it is woken when there is an outcome");
    Passed
}

fn the_last_listener_is_woken(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (first, last) = (Arc::<WakeCount>::default(), Arc::<WakeCount>::default());
    for wakes in [&first, &last] {
        let waker = Waker::from(Arc::clone(wakes));
        assert!(pair.b.transport.poll_event(&mut Context::from_waker(&waker)).is_pending());
    }
    let transfer = suite.submit(&pair.a, Batch::Slices(&[]), &BatchOptions::new().with_notification(b"wake"));
    suite.see("waking the last listener", || last.get() > 0);
    assert_eq!(suite.notification(&pair.b), "wake");
    suite.delivered(&transfer);
    // The end wakes the listener too.
    let end = Arc::<WakeCount>::default();
    let waker = Waker::from(Arc::clone(&end));
    assert!(pair.b.transport.poll_event(&mut Context::from_waker(&waker)).is_pending());
    suite.wait("shutting down", pair.b.transport.shutdown(Shutdown::Abort));
    suite.see("waking the listener at the end", || end.get() > 0);
    Passed
}
