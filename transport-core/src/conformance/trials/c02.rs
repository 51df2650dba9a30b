//! C2: one outcome, and it never changes.

use std::{thread, time::Duration};

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(2, "c02_a_delivery_stays_a_delivery", a_delivery_stays_a_delivery),
    Trial::new(2, "c02_a_failure_stays_a_failure", a_failure_stays_a_failure),
    Trial::new(2, "c02_cancelling_ends_what_is_in_flight", cancelling_ends_what_is_in_flight),
    Trial::new(2, "c02_cancelling_at_any_moment_gives_one_outcome", cancelling_at_any_moment_gives_one_outcome),
];

fn a_delivery_stays_a_delivery(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    let options = BatchOptions::new().with_label(77);
    let transfer = suite.submit(&pair.a, (&[slice(&source, 0, &target, 0, 4096)]).into(), &options);
    let outcome = suite.outcome(&transfer);
    assert_eq!(outcome.as_ref().map(|delivered| delivered.bytes), Ok(4096));
    let status = transfer.status();
    assert_eq!((status.state, status.bytes_done, status.bytes_total), (State::Delivered, 4096, 4096));
    assert_eq!(status.label, 77);
    transfer.cancel();
    assert_eq!(suite.outcome(&transfer), outcome, "after cancelling");
    suite.wait("disconnecting", pair.a.transport.disconnect(pair.a.peer));
    assert_eq!(suite.outcome(&transfer), outcome, "after disconnecting");
    suite.wait("shutting down", pair.a.transport.shutdown(Shutdown::Abort));
    assert_eq!(suite.outcome(&transfer), outcome, "after shutting down");
    assert_eq!(transfer.status(), status);
    Passed
}

fn a_failure_stays_a_failure(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    let good = [slice(&source, 0, &target, 0, 4096)];
    suite.hold(&pair);
    let failed = suite.held(&pair, (&good).into());
    suite.wait("disconnecting", pair.a.transport.disconnect(pair.a.peer));
    let outcome = suite.outcome(&failed);
    assert_eq!(outcome, Err(TransferError::Disconnected));
    // A later success of another transfer, in a place that may be the same, changes nothing.
    let again = suite.connect(&pair.a.node, &pair.b.node);
    again.grant(target.region);
    suite.write(&again.a, (&good).into());
    assert_eq!(suite.outcome(&failed), outcome);
    assert_eq!(failed.status().state, State::Failed);
    Passed
}

fn cancelling_ends_what_is_in_flight(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    suite.hold(&pair);
    let cancelled = suite.held(&pair, (&[slice(&source, 0, &target, 0, 4096)]).into());
    let other = suite.held(&pair, (&[slice(&source, 0, &target, 0, 4096)]).into());
    cancelled.cancel();
    assert_eq!(suite.outcome(&cancelled), Err(TransferError::Cancelled));
    assert_eq!(cancelled.status().state, State::Cancelled);
    cancelled.cancel();
    suite.release(&pair, 1);
    suite.delivered(&other);
    suite.no_event(&pair.b);
    assert_eq!(suite.outcome(&cancelled), Err(TransferError::Cancelled));
    Passed
}

fn cancelling_at_any_moment_gives_one_outcome(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 256 << 10);
    target.expected.copy_from_slice(&source.expected);
    let batch = [slice(&source, 0, &target, 0, source.len())];
    for round in 0..suite.profile.sizes.rounds {
        let payload = round.to_le_bytes();
        let options = BatchOptions::new().with_notification(&payload);
        let transfer = suite.submit(&pair.a, (&batch).into(), &options);
        thread::sleep(Duration::from_micros(suite.random.below(600)));
        transfer.cancel();
        let outcome = suite.outcome(&transfer);
        match &outcome {
            Ok(_) => assert_eq!(suite.notification(&pair.b), &payload[..]),
            Err(error) => assert_eq!(*error, TransferError::Cancelled),
        }
        assert_eq!(suite.outcome(&transfer), outcome);
    }
    suite.no_event(&pair.b);
    suite.write(&pair.a, (&batch).into());
    target.check("after the last delivery");
    Passed
}
