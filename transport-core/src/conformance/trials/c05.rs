//! C5: a notification exactly once, after the bytes, and never for a failure.

use std::{collections::HashSet, thread, time::Duration};

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(5, "c05_the_bytes_are_there_before_the_notification", the_bytes_are_there_before_the_notification),
    Trial::new(5, "c05_every_notification_arrives_once", every_notification_arrives_once),
    Trial::new(5, "c05_payloads_of_every_length_arrive", payloads_of_every_length_arrive),
    Trial::new(5, "c05_a_failed_batch_notifies_nobody", a_failed_batch_notifies_nobody),
    Trial::new(5, "c05_one_commit_comes_after_all_its_batches", one_commit_comes_after_all_its_batches),
    Trial::new(
        5,
        "c05_a_commit_waits_for_a_slow_batch_to_another_peer",
        a_commit_waits_for_a_slow_batch_to_another_peer,
    ),
    Trial::new(5, "c05_a_batch_that_failed_fails_the_commit", a_batch_that_failed_fails_the_commit),
    Trial::new(5, "c05_a_receiver_that_does_not_listen_holds_up_no_other", a_deaf_receiver_holds_up_no_other),
];

fn the_bytes_are_there_before_the_notification(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 128 << 10);
    for round in 0..suite.profile.sizes.rounds as u64 {
        let batch: Vec<WriteSlice> = (0..8)
            .map(|stripe| {
                let len = 1 + suite.random.below(16_000);
                slice(&source, suite.random.below(source.len() - len), &target, stripe * 16_384, len)
            })
            .collect();
        target.expect(&source, &batch);
        let payload = round.to_le_bytes();
        let options = BatchOptions::new().with_notification(&payload);
        let transfer = suite.submit(&pair.a, (&batch).into(), &options);
        // The receiver looks as soon as it is told, whatever the sender knows by then.
        assert_eq!(suite.notification(&pair.b), &payload[..]);
        target.check("at the notification");
        suite.delivered(&transfer);
    }
    Passed
}

fn every_notification_arrives_once(suite: &mut Suite) -> Verdict {
    const AREA: u64 = 16 << 10;
    let pair = suite.pair();
    let count = suite.profile.sizes.rounds as u64;
    let (source, mut target) = suite.fields(&pair, (count * AREA) as usize);
    let batches: Vec<Vec<WriteSlice>> = (0..count)
        .map(|area| {
            let piece = |part: u64| slice(&source, area * AREA + part * 4096, &target, area * AREA + part * 4096, 4000);
            [2, 0, 3, 1].map(piece).to_vec()
        })
        .collect();
    batches.iter().for_each(|batch| target.expect(&source, batch));
    let (suite, pair, target) = (&*suite, &pair, &target);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut seen = HashSet::new();
            while (seen.len() as u64) < count {
                let payload = suite.notification(&pair.b);
                let area = u64::from_le_bytes(payload[..].try_into().expect("eight bytes"));
                assert!(seen.insert(area), "notification {area} came twice");
                let mut bytes = vec![0; AREA as usize];
                target.memory.read_at(area * AREA, &mut bytes).expect("an area is read");
                let expected = &target.expected[(area * AREA) as usize..][..AREA as usize];
                assert!(bytes == expected, "the bytes of batch {area} are there when it is notified");
            }
        });
        let transfers: Vec<Transfer> = batches
            .iter()
            .enumerate()
            .map(|(area, batch)| {
                let payload = (area as u64).to_le_bytes();
                suite.submit(&pair.a, batch.into(), &BatchOptions::new().with_notification(&payload))
            })
            .collect();
        for transfer in &transfers {
            suite.delivered(transfer);
        }
    });
    suite.no_event(&pair.b);
    Passed
}

fn payloads_of_every_length_arrive(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let max = pair.a.transport.capabilities().max_notification;
    for len in [0, 1, 255, 256, max - 1, max] {
        let payload = suite.random.bytes(len);
        let options = BatchOptions::new().with_notification(&payload);
        let transfer = suite.submit(&pair.a, Batch::Slices(&[]), &options);
        assert_eq!(suite.notification(&pair.b), payload);
        suite.delivered(&transfer);
    }
    Passed
}

fn a_failed_batch_notifies_nobody(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    let private = suite.field(&pair.b, 4096, Access::REMOTE_WRITE);
    let forged = forge(&pair, &target, private.region, private.len());
    let good = slice(&source, 0, &target, 0, 4096);
    let options = BatchOptions::new().with_notification(b"never");
    if forged && suite.profile.explains_refusals {
        let refused = [good, slice(&source, 0, &private, 0, 64)];
        let refused = suite.submit(&pair.a, (&refused).into(), &options);
        assert!(matches!(suite.outcome(&refused), Err(TransferError::Refused { .. })));
        let follower = suite.submit(&pair.a, Batch::Slices(&[]), &options.with_after(&[&refused]));
        assert!(matches!(suite.outcome(&follower), Err(TransferError::Dependency { .. })));
    }
    suite.hold(&pair);
    let cancelled = suite.held(&pair, (&[good]).into());
    cancelled.cancel();
    assert!(suite.outcome(&cancelled).is_err());
    suite.release(&pair, 0);
    suite.no_event(&pair.b);
    let sound = suite.submit(&pair.a, (&[good]).into(), &options.with_notification(b"sound"));
    assert_eq!(suite.notification(&pair.b), "sound");
    suite.delivered(&sound);
    suite.no_event(&pair.b);
    Passed
}

fn one_commit_comes_after_all_its_batches(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let len = suite.profile.sizes.bulk;
    let (source, mut target) = suite.fields(&pair, len as usize + 8192);
    for _ in 0..4 {
        let source_bytes = suite.random.bytes(source.len() as usize);
        source.memory.write_at(0, &source_bytes).expect("the bytes fit");
        let slow = [slice(&source, 0, &target, 0, len)];
        let quick = [slice(&source, len, &target, len + 10, 4096)];
        let last = [slice(&source, len + 4096, &target, len + 4200, 1000)];
        for slice in [slow, quick, last].as_flattened() {
            let (from, to) = (slice.src_offset as usize, slice.dst_offset as usize);
            let len = slice.len as usize;
            target.expected[to..to + len].copy_from_slice(&source_bytes[from..from + len]);
        }
        let none = BatchOptions::new();
        let slow = suite.submit(&pair.a, (&slow).into(), &none);
        let quick = suite.submit(&pair.a, (&quick).into(), &none);
        let after = [&slow, &quick];
        let options = BatchOptions::new().with_notification(b"commit").with_after(&after);
        let commit = suite.submit(&pair.a, (&last).into(), &options);
        assert_eq!(suite.notification(&pair.b), "commit");
        target.check("at the commit");
        for transfer in [&slow, &quick, &commit] {
            suite.delivered(transfer);
        }
    }
    suite.no_event(&pair.b);
    Passed
}

fn a_commit_waits_for_a_slow_batch_to_another_peer(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let third = suite.start();
    let other = suite.connect(&pair.a.node, &third);
    suite.hold(&other);
    let slow = suite.held(&other, Batch::Slices(&[]));
    let after = [&slow];
    let options = BatchOptions::new().with_notification(b"commit").with_after(&after);
    let commit = suite.submit(&pair.a, Batch::Slices(&[]), &options);
    suite.no_event(&pair.b);
    assert!(!is_over(&commit), "what it comes after is in flight");
    suite.release(&other, 1);
    assert_eq!(suite.notification(&pair.b), "commit");
    suite.delivered(&commit);
    suite.delivered(&slow);
    Passed
}

fn a_batch_that_failed_fails_the_commit(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let third = suite.start();
    let other = suite.connect(&pair.a.node, &third);
    suite.hold(&other);
    let slow = suite.held(&other, Batch::Slices(&[]));
    let sound = suite.submit(&pair.a, Batch::Slices(&[]), &BatchOptions::new());
    let after = [&sound, &slow];
    let options = BatchOptions::new().with_notification(b"never").with_after(&after);
    let commit = suite.submit(&pair.a, Batch::Slices(&[]), &options);
    thread::sleep(Duration::from_millis(5));
    slow.cancel();
    let dependency = |outcome| match outcome {
        Err(TransferError::Dependency { cause }) => assert_eq!(*cause, TransferError::Cancelled),
        other => panic!("the commit fails with its dependency, not with {other:?}"),
    };
    dependency(suite.outcome(&commit));
    // A dependency that is over already counts as well, and that of a dependency too.
    let late = suite.submit(&pair.a, Batch::Slices(&[]), &options);
    dependency(suite.outcome(&late));
    let after = [&late];
    let later = suite.submit(&pair.a, Batch::Slices(&[]), &options.with_after(&after));
    dependency(suite.outcome(&later));
    suite.no_event(&pair.b);
    Passed
}

fn a_deaf_receiver_holds_up_no_other(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let third = suite.start();
    let from_third = suite.connect(&third, &pair.b.node);
    let to_third = suite.connect(&pair.a.node, &third);
    suite.hold(&pair);
    let held = suite.held(&pair, Batch::Slices(&[]));
    // The deaf node has room for notifications of others, and its sender goes on with others.
    let options = BatchOptions::new().with_notification(b"other");
    suite.delivered(&suite.submit(&from_third.a, Batch::Slices(&[]), &options));
    suite.delivered(&suite.submit(&to_third.a, Batch::Slices(&[]), &options));
    assert_eq!(suite.notification(&to_third.b), "other");
    assert!(!is_over(&held));
    let (mut fillers, mut others, mut holds) = (0, 0, 0);
    for _ in 0..suite.profile.events_per_peer + 2 {
        let Event::Notification { peer, payload } = suite.event(&pair.b) else { panic!("nobody is lost") };
        match &payload[..] {
            b"filler" => fillers += 1,
            b"held" => holds += 1,
            _ => {
                assert_eq!((&payload[..], peer), (&b"other"[..], from_third.b.peer));
                others += 1;
            }
        }
    }
    assert_eq!((fillers, holds, others), (suite.profile.events_per_peer, 1, 1));
    suite.delivered(&held);
    Passed
}
