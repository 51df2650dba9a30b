//! C3: terminal means quiescent; a deadline is not an outcome.

use std::{thread, time::Duration};

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(3, "c03_a_deadline_is_not_an_outcome", a_deadline_is_not_an_outcome),
    Trial::new(3, "c03_after_the_outcome_nothing_reads_the_source", after_the_outcome_nothing_reads_the_source),
    Trial::new(3, "c03_after_a_cancellation_nothing_lands", after_a_cancellation_nothing_lands),
];

fn a_deadline_is_not_an_outcome(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 4096);
    let batch = [slice(&source, 0, &target, 1, 4095)];
    target.expect(&source, &batch);
    suite.hold(&pair);
    let transfer = suite.held(&pair, (&batch).into());
    for _ in 0..3 {
        match transfer.wait_timeout(Duration::from_millis(15)) {
            Waited::StillInFlight(status) => assert_eq!(status.state, State::InFlight),
            Waited::Finished(outcome) => panic!("nobody has taken the notification: {outcome:?}"),
        }
        assert_eq!(transfer.outcome(), None);
    }
    suite.release(&pair, 1);
    suite.delivered(&transfer);
    target.check("after the delivery");
    Passed
}

/// The sender overwrites its memory the moment that it has the outcome: whatever arrives is what was submitted.
fn after_the_outcome_nothing_reads_the_source(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let len = suite.profile.sizes.bulk as usize / 4;
    let (source, mut target) = suite.fields(&pair, len);
    let batch: Vec<WriteSlice> =
        (0..len as u64 / 4096).rev().map(|page| slice(&source, page * 4096, &target, page * 4096, 4096)).collect();
    for round in 0..8 {
        let before = target.bytes();
        let transfer = suite.submit(&pair.a, (&batch).into(), &BatchOptions::new());
        if round % 2 == 1 {
            thread::sleep(Duration::from_micros(suite.random.below(1000)));
            transfer.cancel();
        }
        let outcome = suite.outcome(&transfer);
        source.poison();
        if outcome.is_ok() {
            target.expect(&source, &batch);
            target.check("after the delivery");
        } else {
            let after = target.bytes();
            let wrong = (0..len).find(|&at| after[at] != before[at] && after[at] != source.expected[at]);
            assert_eq!(wrong, None, "a byte that was written after the cancellation has arrived");
        }
        source.memory.write_at(0, &source.expected).expect("the bytes fit");
    }
    Passed
}

fn after_a_cancellation_nothing_lands(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, suite.profile.sizes.bulk as usize);
    let batch = [slice(&source, 0, &target, 0, source.len())];
    for _ in 0..8 {
        let transfer = suite.submit(&pair.a, (&batch).into(), &BatchOptions::new());
        thread::sleep(Duration::from_micros(suite.random.below(1500)));
        transfer.cancel();
        let _ = suite.outcome(&transfer);
        let at_the_outcome = target.bytes();
        thread::sleep(Duration::from_millis(10));
        assert!(target.bytes() == at_the_outcome, "bytes landed after the outcome");
    }
    Passed
}
