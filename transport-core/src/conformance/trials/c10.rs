//! C10: backpressure, and no wake-up is lost.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(10, "c10_full_says_so_and_starts_nothing", full_says_so_and_starts_nothing),
    Trial::new(10, "c10_room_wakes_everyone_who_waits", room_wakes_everyone_who_waits),
    Trial::new(10, "c10_waiting_for_room_ends_with_the_connection", waiting_for_room_ends_with_the_connection),
    Trial::new(10, "c10_far_more_batches_than_room_all_arrive", far_more_batches_than_room_all_arrive),
];

fn full_says_so_and_starts_nothing(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    let max = suite.profile.max_in_flight;
    suite.hold(&pair);
    let held: Vec<Transfer> = (0..max).map(|_| suite.held(&pair, Batch::Slices(&[]))).collect();
    let options = BatchOptions::new().with_notification(b"never");
    for _ in 0..3 {
        let batch = [slice(&source, 0, &target, 0, 4096)];
        let error = pair.a.transport.batch_write(pair.a.peer, (&batch).into(), &options).unwrap_err();
        assert_eq!(error, SubmitError::Full { in_flight: max });
    }
    suite.release(&pair, max);
    for transfer in &held {
        suite.delivered(transfer);
    }
    suite.no_event(&pair.b);
    target.check("after refusals for lack of room");
    // Whoever has seen an outcome finds its place free.
    let again: Vec<Transfer> = (0..max).map(|_| pair.a.submit(Batch::Slices(&[])).expect("there is room")).collect();
    for transfer in &again {
        suite.delivered(transfer);
    }
    Passed
}

type Waiter<'a> = (Pin<Box<dyn Future<Output = Result<(), SubmitError>> + Send + 'a>>, Arc<WakeCount>);

/// Futures that wait for room, each polled once by a task of its own.
fn waiters<'a>(pair: &'a Pair, count: usize) -> Vec<Waiter<'a>> {
    (0..count)
        .map(|_| {
            let wakes = Arc::<WakeCount>::default();
            let mut room = Box::pin(async { pair.a.transport.room(pair.a.peer).await });
            let waker = Waker::from(Arc::clone(&wakes));
            assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "it is full");
            let room: Pin<Box<dyn Future<Output = _> + Send>> = room;
            (room, wakes)
        })
        .collect()
}

/// Polls each waiter when it was woken, and only then, until all have their answer.
fn answers(suite: &Suite, waiters: Vec<Waiter<'_>>) -> Vec<Result<(), SubmitError>> {
    waiters
        .into_iter()
        .map(|(mut room, wakes)| {
            let mut seen = 0;
            let mut answer = None;
            suite.see("waking whoever waits for room", || {
                if wakes.get() > seen {
                    seen = wakes.get();
                    let waker = Waker::from(Arc::clone(&wakes));
                    if let Poll::Ready(ready) = room.as_mut().poll(&mut Context::from_waker(&waker)) {
                        answer = Some(ready);
                    }
                }
                answer.is_some()
            });
            answer.expect("it was seen")
        })
        .collect()
}

fn room_wakes_everyone_who_waits(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    suite.hold(&pair);
    let held: Vec<Transfer> = (0..suite.profile.max_in_flight).map(|_| suite.held(&pair, Batch::Slices(&[]))).collect();
    let mut waiting = waiters(&pair, 8);
    // Waiters that go away take nobody's wake-up with them.
    drop(waiting.remove(0));
    drop(waiting.remove(3));
    suite.release(&pair, held.len());
    for answer in answers(suite, waiting) {
        assert_eq!(answer, Ok(()));
    }
    suite.wait("room when there is room", pair.a.transport.room(pair.a.peer)).expect("there is room");
    Passed
}

fn waiting_for_room_ends_with_the_connection(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    suite.hold(&pair);
    let _held: Vec<Transfer> =
        (0..suite.profile.max_in_flight).map(|_| suite.held(&pair, Batch::Slices(&[]))).collect();
    let waiting = waiters(&pair, 3);
    suite.wait("disconnecting", pair.a.transport.disconnect(pair.a.peer));
    for answer in answers(suite, waiting) {
        assert!(matches!(answer, Err(SubmitError::NotConnected { .. })), "{answer:?}");
    }
    let pair = suite.connect(&pair.a.node, &pair.b.node);
    // What the first connection left is taken, so that the second begins empty.
    for _ in 0..suite.profile.events_per_peer {
        assert!(matches!(suite.event(&pair.b), Event::Notification { .. }));
    }
    assert!(matches!(suite.event(&pair.b), Event::PeerLost { .. }));
    suite.hold(&pair);
    let _held: Vec<Transfer> =
        (0..suite.profile.max_in_flight).map(|_| suite.held(&pair, Batch::Slices(&[]))).collect();
    let waiting = waiters(&pair, 3);
    suite.wait("shutting down", pair.a.transport.shutdown(Shutdown::Abort));
    for answer in answers(suite, waiting) {
        let ended = matches!(answer, Err(SubmitError::Closed | SubmitError::NotConnected { .. }));
        assert!(ended, "{answer:?}");
    }
    let later = suite.wait("room after the end", pair.a.transport.room(pair.a.peer));
    assert_eq!(later, Err(SubmitError::Closed));
    Passed
}

fn far_more_batches_than_room_all_arrive(suite: &mut Suite) -> Verdict {
    const AREA: u64 = 512;
    let pair = suite.pair();
    let count = suite.profile.sizes.rounds as u64 * 10;
    let (source, mut target) = suite.fields(&pair, (count * AREA) as usize);
    let mut transfers = Vec::new();
    let mut full = 0;
    for area in suite.random.permutation(count) {
        let batch = [slice(&source, area * AREA, &target, area * AREA, AREA)];
        target.expect(&source, &batch);
        full += u64::from(matches!(pair.a.submit((&batch).into()), Err(SubmitError::Full { .. })));
        transfers.push(suite.submit(&pair.a, (&batch).into(), &BatchOptions::new()));
    }
    for transfer in &transfers {
        suite.delivered(transfer);
    }
    println!("{full} of {} submissions found no room", 2 * count);
    target.check("after all batches");
    Passed
}
