//! C14: a lost peer, and the fence of disconnecting.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::prelude::*;
use crate::PeerId;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(14, "c14_a_lost_receiver_ends_its_transfers_in_time", a_lost_receiver_ends_its_transfers_in_time),
    Trial::new(14, "c14_a_lost_sender_is_reported_and_quiet", a_lost_sender_is_reported_and_quiet),
    Trial::new(14, "c14_other_peers_go_on", other_peers_go_on),
    Trial::new(14, "c14_after_disconnecting_no_byte_lands", after_disconnecting_no_byte_lands),
    Trial::new(14, "c14_disconnecting_ends_what_was_in_flight", disconnecting_ends_what_was_in_flight),
    Trial::new(14, "c14_the_other_side_hears_of_a_disconnection", the_other_side_hears_of_a_disconnection),
    Trial::new(14, "c14_disconnecting_nobody_is_fine", disconnecting_nobody_is_fine),
    Trial::new(14, "c14_connecting_alone_comes_to_an_end", connecting_alone_comes_to_an_end),
];

/// How much later than the bound a loss may be reported: a busy machine's slack, not the transport's.
const SLACK: Duration = Duration::from_secs(3);

fn a_lost_receiver_ends_its_transfers_in_time(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 64 << 10);
    suite.hold(&pair);
    let batch = [slice(&source, 0, &target, 0, source.len())];
    let held: Vec<Transfer> = (0..3).map(|_| suite.held(&pair, (&batch).into())).collect();
    let start = Instant::now();
    if !suite.kill(&pair.b.node) {
        return Skipped(CANNOT_KILL.into());
    }
    for transfer in &held {
        let outcome = suite.outcome(transfer);
        assert!(matches!(outcome, Err(TransferError::PeerLost { .. })), "{outcome:?}");
    }
    let bound = suite.profile.loss_bound;
    assert!(start.elapsed() <= bound + SLACK, "{:?} went by; the bound is {bound:?}", start.elapsed());
    let reason = suite.peer_lost(&pair.a);
    assert!(!reason.is_empty(), "the loss has a reason");
    suite.no_event(&pair.a);
    let error = pair.a.submit((&batch).into()).unwrap_err();
    assert!(matches!(error, SubmitError::NotConnected { peer, .. } if peer == pair.a.peer), "{error}");
    let room = suite.wait("room at a lost peer", pair.a.transport.room(pair.a.peer));
    assert!(matches!(room, Err(SubmitError::NotConnected { .. })), "{room:?}");
    // And a new process in its place works.
    let restarted = suite.start();
    let again = suite.connect(&pair.a.node, &restarted);
    let mut target = suite.target(&again, 64 << 10);
    let batch = [slice(&source, 0, &target, 0, source.len())];
    target.expect(&source, &batch);
    suite.write(&again.a, (&batch).into());
    target.check("the new process");
    Passed
}

fn a_lost_sender_is_reported_and_quiet(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, suite.profile.sizes.bulk as usize);
    let batch = [slice(&source, 0, &target, 0, source.len())];
    let _bulk: Vec<_> = (0..suite.profile.max_in_flight.min(4)).map(|_| pair.a.submit((&batch).into())).collect();
    let start = Instant::now();
    if !suite.kill(&pair.a.node) {
        return Skipped(CANNOT_KILL.into());
    }
    suite.peer_lost(&pair.b);
    let bound = suite.profile.loss_bound;
    assert!(start.elapsed() <= bound + SLACK, "{:?} went by; the bound is {bound:?}", start.elapsed());
    let at_the_loss = target.bytes();
    thread::sleep(Duration::from_millis(20));
    assert!(target.bytes() == at_the_loss, "bytes of a lost peer landed");
    suite.no_event(&pair.b);
    Passed
}

fn other_peers_go_on(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let third = suite.start();
    let other = suite.connect(&pair.a.node, &third);
    let (source, mut target) = suite.fields(&other, 16 << 10);
    suite.hold(&pair);
    let held = suite.held(&pair, Batch::Slices(&[]));
    let killed = suite.kill(&pair.b.node);
    if !killed {
        suite.wait("disconnecting", pair.b.transport.disconnect(pair.b.peer));
    }
    // Before, while and after the loss is noticed.
    let mut rounds = 0;
    while rounds < 20 || !is_over(&held) {
        rounds += 1;
        let batch = [slice(&source, 0, &target, rounds % 2, 16_000)];
        target.expect(&source, &batch);
        let options = BatchOptions::new().with_notification(b"on");
        let transfer = suite.submit(&other.a, (&batch).into(), &options);
        assert_eq!(suite.notification(&other.b), "on");
        target.check("at another peer");
        suite.delivered(&transfer);
        thread::sleep(Duration::from_millis(1));
    }
    let outcome = suite.outcome(&held);
    assert!(matches!(outcome, Err(TransferError::PeerLost { .. })), "{outcome:?}");
    Passed
}

fn after_disconnecting_no_byte_lands(suite: &mut Suite) -> Verdict {
    for _ in 0..4 {
        let pair = suite.pair();
        let (source, target) = suite.fields(&pair, suite.profile.sizes.bulk as usize);
        let batch = [slice(&source, 0, &target, 0, source.len())];
        let pause = Duration::from_micros(suite.random.below(4000));
        let (stop, suite, pair) = (&AtomicBool::new(false), &*suite, &pair);
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut transfers = Vec::new();
                // As fast as it can, until it hears that it was disconnected.
                while !stop.load(Ordering::Acquire) {
                    match pair.a.submit((&batch).into()) {
                        Ok(transfer) => transfers.push(transfer),
                        Err(SubmitError::Full { .. }) => thread::sleep(Duration::from_micros(50)),
                        Err(SubmitError::NotConnected { .. }) => break,
                        Err(other) => panic!("{other}"),
                    }
                    if transfers.len() > 1000 {
                        transfers.remove(0);
                    }
                }
                transfers
            });
            // Also when the trial fails here: the sender would go on for ever.
            let ending = SetOnDrop(stop);
            thread::sleep(pause);
            suite.wait("disconnecting", pair.b.transport.disconnect(pair.b.peer));
            let at_the_fence = target.bytes();
            thread::sleep(Duration::from_millis(30));
            assert!(target.bytes() == at_the_fence, "bytes landed after the fence");
            drop(ending);
            for transfer in sender.join().expect("the sender does not panic") {
                match suite.outcome(&transfer) {
                    Ok(_) | Err(TransferError::PeerLost { .. }) => {}
                    Err(other) => panic!("a transfer whose receiver has disconnected fails so: {other}"),
                }
            }
        });
    }
    Passed
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn disconnecting_ends_what_was_in_flight(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, suite.profile.sizes.bulk as usize);
    let batch = [slice(&source, 0, &target, 0, source.len())];
    suite.hold(&pair);
    let held = suite.held(&pair, Batch::Slices(&[]));
    let bulk = suite.held(&pair, (&batch).into());
    suite.wait("disconnecting", pair.a.transport.disconnect(pair.a.peer));
    for transfer in [&held, &bulk] {
        assert!(is_over(transfer), "nothing is in flight after disconnecting");
        assert_eq!(suite.outcome(transfer), Err(TransferError::Disconnected));
    }
    source.poison();
    suite.no_event(&pair.a);
    assert!(matches!(pair.a.submit((&batch).into()), Err(SubmitError::NotConnected { .. })));
    Passed
}

fn the_other_side_hears_of_a_disconnection(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    suite.hold(&pair);
    let held = suite.held(&pair, Batch::Slices(&[]));
    suite.wait("disconnecting", pair.b.transport.disconnect(pair.b.peer));
    let outcome = suite.outcome(&held);
    assert!(matches!(outcome, Err(TransferError::PeerLost { .. })), "{outcome:?}");
    suite.peer_lost(&pair.a);
    suite.no_event(&pair.a);
    let again = suite.connect(&pair.a.node, &pair.b.node);
    let (source, mut target) = suite.fields(&again, 4096);
    let batch = [slice(&source, 0, &target, 0, 4096)];
    target.expect(&source, &batch);
    suite.write(&again.a, (&batch).into());
    target.check("over a new connection");
    Passed
}

fn disconnecting_nobody_is_fine(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 4096);
    suite.wait("disconnecting nobody", pair.a.transport.disconnect(PeerId { index: 1 << 20, generation: 3 }));
    let former = PeerId { generation: pair.a.peer.generation.wrapping_sub(1), ..pair.a.peer };
    suite.wait("disconnecting a former peer", pair.a.transport.disconnect(former));
    let batch = [slice(&source, 0, &target, 0, 4096)];
    target.expect(&source, &batch);
    suite.write(&pair.a, (&batch).into());
    target.check("a connection that was not meant");
    suite.wait("disconnecting", pair.a.transport.disconnect(pair.a.peer));
    suite.wait("disconnecting twice", pair.a.transport.disconnect(pair.a.peer));
    Passed
}

fn connecting_alone_comes_to_an_end(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (here, there) = suite.channels(&pair.a.node, &pair.b.node);
    let error = suite.wait("connecting alone", pair.a.transport.connect(here)).unwrap_err();
    assert!(!error.to_string().is_empty());
    drop(there);
    // It has harmed nothing.
    suite.write(&pair.a, Batch::Slices(&[]));
    Passed
}
