//! C15: shutting down leaves nothing in flight.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use futures_util::future::join;

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(15, "c15_draining_lets_everything_arrive", draining_lets_everything_arrive),
    Trial::new(15, "c15_aborting_leaves_nothing_in_flight", aborting_leaves_nothing_in_flight),
    Trial::new(15, "c15_after_the_end_everything_answers_closed", after_the_end_everything_answers_closed),
    Trial::new(15, "c15_a_receiver_that_shuts_down_is_quiet", a_receiver_that_shuts_down_is_quiet),
    Trial::new(15, "c15_shutting_down_twice_waits_for_one_end", shutting_down_twice_waits_for_one_end),
    Trial::new(15, "c15_a_dropped_shutdown_goes_on", a_dropped_shutdown_goes_on),
];

fn draining_lets_everything_arrive(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let count = suite.profile.max_in_flight.min(8) as u64;
    let len = suite.profile.sizes.bulk / count;
    let (source, mut target) = suite.fields(&pair, (count * len) as usize);
    let transfers: Vec<Transfer> = (0..count)
        .map(|part| {
            let batch = [slice(&source, part * len, &target, part * len, len)];
            target.expect(&source, &batch);
            pair.a.submit((&batch).into()).expect("there is room")
        })
        .collect();
    suite.wait("draining", pair.a.transport.shutdown(Shutdown::Drain));
    for transfer in &transfers {
        assert!(is_over(transfer), "nothing is in flight after draining");
        suite.delivered(transfer);
    }
    target.check("after draining");
    suite.peer_lost(&pair.b);
    Passed
}

fn aborting_leaves_nothing_in_flight(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let third = suite.start();
    let other = suite.connect(&pair.a.node, &third);
    let (source, target) = suite.fields(&pair, suite.profile.sizes.bulk as usize);
    let batch = [slice(&source, 0, &target, 0, source.len())];
    suite.hold(&pair);
    suite.hold(&other);
    let held = [
        suite.held(&pair, Batch::Slices(&[])),
        suite.held(&pair, (&batch).into()),
        suite.held(&other, Batch::Slices(&[])),
    ];
    suite.wait("aborting", pair.a.transport.shutdown(Shutdown::Abort));
    for transfer in &held {
        assert!(is_over(transfer), "nothing is in flight after aborting");
        assert_eq!(suite.outcome(transfer), Err(TransferError::Cancelled));
    }
    source.poison();
    let at_the_end = target.bytes();
    thread::sleep(Duration::from_millis(20));
    assert!(target.bytes() == at_the_end, "bytes landed after the end");
    suite.peer_lost(&pair.b);
    suite.peer_lost(&other.b);
    Passed
}

fn after_the_end_everything_answers_closed(suite: &mut Suite) -> Verdict {
    for how in [Shutdown::Drain, Shutdown::Abort] {
        let pair = suite.pair();
        let (source, target) = suite.fields(&pair, 64);
        let grant = pair.b.transport.grant(pair.b.peer, target.region).expect("it is granted");
        let (here, there) = suite.channels(&pair.a.node, &pair.b.node);
        suite.wait("shutting down", pair.a.transport.shutdown(how));
        let batch = [slice(&source, 0, &target, 0, 64)];
        assert_eq!(pair.a.submit((&batch).into()).unwrap_err(), SubmitError::Closed);
        assert_eq!(suite.wait("room", pair.a.transport.room(pair.a.peer)), Err(SubmitError::Closed));
        let failure = pair.a.transport.register(Memory::host(64).expect("memory"), Access::LOCAL).unwrap_err();
        assert_eq!((failure.cause, failure.memory.len()), (RegisterError::Closed, 64));
        assert_eq!(pair.a.transport.grant(pair.a.peer, source.region), Err(GrantError::Closed));
        assert_eq!(pair.a.transport.import(pair.a.peer, &grant), Err(GrantError::Closed));
        assert_eq!(suite.wait("connecting", pair.a.transport.connect(here)), Err(ConnectError::Closed));
        drop(there);
        suite.wait("disconnecting", pair.a.transport.disconnect(pair.a.peer));
        for _ in 0..2 {
            assert_eq!(suite.wait("the end of the events", next_event(&*pair.a.transport)), None);
        }
        target.check("after the end");
    }
    Passed
}

fn a_receiver_that_shuts_down_is_quiet(suite: &mut Suite) -> Verdict {
    for how in [Shutdown::Drain, Shutdown::Abort] {
        let pair = suite.pair();
        let (source, target) = suite.fields(&pair, suite.profile.sizes.bulk as usize);
        let batch = [slice(&source, 0, &target, 0, source.len())];
        let transfers: Vec<Transfer> =
            (0..suite.profile.max_in_flight.min(4)).map_while(|_| pair.a.submit((&batch).into()).ok()).collect();
        thread::sleep(Duration::from_micros(suite.random.below(2000)));
        suite.wait("shutting down", pair.b.transport.shutdown(how));
        let at_the_end = target.bytes();
        thread::sleep(Duration::from_millis(20));
        assert!(target.bytes() == at_the_end, "bytes landed after the end");
        for transfer in &transfers {
            match suite.outcome(transfer) {
                Ok(_) | Err(TransferError::PeerLost { .. }) => {}
                Err(other) => panic!("a transfer whose receiver is gone fails so: {other}"),
            }
        }
        suite.peer_lost(&pair.a);
    }
    Passed
}

fn shutting_down_twice_waits_for_one_end(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    suite.hold(&pair);
    let held = suite.held(&pair, Batch::Slices(&[]));
    let transport = &pair.a.transport;
    // The drain alone would wait for a receiver that does not listen.
    suite.wait("both", join(transport.shutdown(Shutdown::Drain), transport.shutdown(Shutdown::Abort)));
    assert!(is_over(&held));
    suite.wait("once more", transport.shutdown(Shutdown::Drain));
    Passed
}

fn a_dropped_shutdown_goes_on(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    suite.hold(&pair);
    let held = suite.held(&pair, Batch::Slices(&[]));
    {
        let wakes = Arc::<WakeCount>::default();
        let waker = Waker::from(wakes);
        let mut shutdown = pin!(pair.a.transport.shutdown(Shutdown::Abort));
        let _ = shutdown.as_mut().poll(&mut Context::from_waker(&waker));
    }
    assert!(suite.outcome(&held).is_err());
    assert_eq!(pair.a.submit(Batch::Slices(&[])).unwrap_err(), SubmitError::Closed);
    Passed
}
