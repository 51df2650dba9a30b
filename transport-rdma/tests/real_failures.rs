//! What goes wrong on the way, on real devices: links, loss, restarts, keys and memory that are gone, the end of a connection. See
//! `support/real.rs`. Each test keeps to the bound of the contract's clause C14.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

#[path = "support/ends.rs"]
mod ends;
#[path = "support/real.rs"]
mod real;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join;
use transport_core::{
    Access, BatchOptions, Event, Outcome, Shutdown, SliceError, State, SubmitError, Transfer, TransferError, Transport,
};

use self::{
    ends::{
        Disturbed, Field, Pair, SLACK, Traffic, Unplugged, alone, assert_in_bound, check_notifications, config_of,
        has_cable, outcome, scattered, slice, wait, whole,
    },
    real::{LOSS_BOUND, Net},
};

const MIB: usize = 1 << 20;

/// Waits until a transfer has moved something and is not over.
fn underway(transfer: &Transfer) {
    let began = Instant::now();
    while transfer.status().bytes_done == 0 {
        assert!(began.elapsed() < ends::LONG, "nothing moves");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(transfer.status().state, State::InFlight, "it was over before the test began; make it larger");
}

/// A failure that is the path's, with a reason; the transfer may be tried again.
fn is_of_the_path(outcome: &Outcome) -> bool {
    match outcome {
        Err(TransferError::Path { device, reason } | TransferError::Device { device, reason }) => {
            !device.is_empty() && !reason.is_empty()
        }
        _ => false,
    }
}

fn is_lost(outcome: &Outcome) -> bool {
    matches!(outcome, Err(TransferError::PeerLost { reason }) if !reason.is_empty())
}

// --- The link ---

#[test]
fn a_link_that_is_down_for_a_moment_costs_transfers_and_not_the_peer() {
    let _alone = alone();
    if !has_cable() {
        return;
    }
    let net = Net::default();
    // Unplugging and plugging take a second or two each where they are emulated.
    let bound = 3 * LOSS_BOUND;
    let pair = Pair::with(&net, |config| config.with_loss_bound(bound));
    let (source, mut target) = pair.fields(2 * MIB);
    let batch = scattered(&source, &target, 64 << 10);
    target.expect(&source, &batch);
    let mut outages = Vec::new();
    let (sent, events) = Traffic::during(&pair, &batch, |traffic| {
        // Again and again: the peer must not wear out.
        for _ in 0..3 {
            traffic.goes_on(2);
            let down = Instant::now();
            let unplugged = Unplugged::now();
            thread::sleep(Duration::from_millis(300));
            drop(unplugged);
            outages.push((down, Instant::now()));
            // What was under way, and what was submitted after it.
            traffic.goes_on(8);
        }
    });
    for batch in &sent {
        assert!(batch.outcome.is_ok() || is_of_the_path(&batch.outcome), "{batch:?}");
        assert!(batch.ended - batch.submitted <= bound + SLACK, "{batch:?}");
    }
    for (down, up) in outages {
        let failed = sent.iter().filter(|it| it.outcome.is_err() && it.ended > down).count();
        let next = sent.iter().filter(|it| it.outcome.is_ok() && it.ended > up).map(|it| it.ended).min().unwrap();
        println!(
            "down for {:?}; the next batch arrived {:?} after that; {failed} failed from then on",
            up - down,
            next - up
        );
    }
    assert!(sent.iter().any(|it| it.outcome.is_err()), "the link was down under nothing");
    assert!(events.iter().all(|event| matches!(event, Event::Notification { .. })), "{events:?}");
    assert_eq!(pair.a.event(Duration::from_millis(100)), None, "the peer was never lost");
    check_notifications(&sent, &events);
    pair.a.write(&batch);
    target.check("over the same connection");
    pair.end();
}

#[test]
fn a_link_that_stays_down_loses_the_peer_and_a_new_connection_works_later() {
    let _alone = alone();
    if !has_cable() {
        return;
    }
    let net = Net::default();
    let pair = Pair::new(&net);
    let (source, target) = pair.fields(2 * MIB);
    let batch = scattered(&source, &target, 64 << 10);
    let (mut down, mut unplugged) = (Instant::now(), None);
    let (sent, events) = Traffic::during(&pair, &batch, |traffic| {
        traffic.goes_on(2);
        down = Instant::now();
        unplugged = Some(Unplugged::now());
        println!("the link is down after {:?}", down.elapsed());
        let reason = pair.a.lost();
        assert_in_bound(down, "the sender lost the receiver");
        println!("{reason}");
    });
    for batch in &sent {
        assert!(batch.outcome.is_ok() || is_of_the_path(&batch.outcome) || is_lost(&batch.outcome), "{batch:?}");
        assert!(batch.ended - down.max(batch.submitted) <= LOSS_BOUND + SLACK, "{batch:?}");
    }
    check_notifications(&sent, &events);
    if !events.iter().any(|event| matches!(event, Event::PeerLost { .. })) {
        println!("{}", pair.b.lost());
        assert_in_bound(down, "the receiver lost the sender");
    }
    let refused = pair.a.try_submit(&batch, &BatchOptions::new());
    assert!(matches!(refused, Err(SubmitError::NotConnected { .. })), "{refused:?}");
    // Without a path there is no connection either, and connecting says so in time.
    let (here, there) = net.channels(&pair.a.node, &pair.b.node);
    let both = join(pair.a.transport().connect(here), pair.b.transport().connect(there));
    let since = Instant::now();
    let (here, there) = wait("connecting without a link", both);
    println!("after {:?}: {here:?} {there:?}", since.elapsed());
    assert!(here.is_err() && there.is_err());
    drop(unplugged);
    target.check_quiet("after the loss");

    let again = Pair::of(&net, &pair.a.node, &pair.b.node);
    let mut target = Field::new(&again.b, 2 * MIB, 3, Access::REMOTE_WRITE);
    again.grant(target.region);
    let batch = scattered(&source, &target, 64 << 10);
    target.expect(&source, &batch);
    again.a.write(&batch);
    target.check("over the new connection");
    again.end();
}

#[test]
fn what_is_submitted_to_an_idle_peer_without_a_link_ends_in_time() {
    let _alone = alone();
    if !has_cable() {
        return;
    }
    let net = Net::default();
    let pair = Pair::new(&net);
    let (source, mut target) = pair.fields(MIB);
    let batch = whole(&source, &target);
    let unplugged = Unplugged::now();
    let since = Instant::now();
    let outcome = outcome(&pair.a.submit(&batch, &BatchOptions::new()));
    assert_in_bound(since, "the transfer ended");
    assert!(is_of_the_path(&outcome) || is_lost(&outcome), "{outcome:?}");
    drop(unplugged);
    let again = Pair::of(&net, &pair.a.node, &pair.b.node);
    again.grant(target.region);
    target.expect(&source, &batch);
    again.a.write(&batch);
    target.check("over a new connection");
    again.end();
}

// --- A bad path ---

/// Moves `len` bytes in slices of some KiB, as several batches, each with a notification.
fn through_a_bad_path(netem: &str, len: usize) {
    let net = Net::default();
    let pair = Pair::new(&net);
    let (source, mut target) = pair.fields(len);
    let disturbed = Disturbed::by(netem);
    let began = Instant::now();
    let slices = scattered(&source, &target, 12 << 10);
    let batches: Vec<_> = slices.chunks(slices.len().div_ceil(6)).collect();
    let transfers: Vec<Transfer> = (0u8..)
        .zip(&batches)
        .map(|(number, batch)| pair.a.submit(batch, &BatchOptions::new().with_notification(&[number])))
        .collect();
    for (transfer, batch) in transfers.iter().zip(&batches) {
        outcome(transfer).expect("what is lost on the way is sent again");
        target.expect(&source, batch);
    }
    println!("{netem}: {len} bytes in {:?}", began.elapsed());
    target.check(netem);
    let notifications = pair.b.notifications(Duration::from_millis(500));
    let mut numbers: Vec<u8> = notifications.iter().flatten().copied().collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..batches.len() as u8).collect::<Vec<_>>(), "each notification comes once");
    drop(disturbed);
    pair.end();
}

#[test]
fn a_path_that_loses_one_packet_in_twenty_delivers_exactly() {
    let _alone = alone();
    if has_cable() {
        through_a_bad_path("loss 5%", 4 * MIB);
    }
}

#[test]
fn a_path_that_loses_delays_and_swaps_packets_delivers_exactly() {
    let _alone = alone();
    if has_cable() {
        through_a_bad_path("delay 1ms loss 1% reorder 2% 25% duplicate 1%", 4 * MIB);
    }
}

// --- The peer ---

#[test]
fn a_restarted_peer_at_the_same_address_is_a_new_one() {
    let _alone = alone();
    let net = Net::default();
    let pair = Pair::new(&net);
    let (source, old_target) = pair.fields(2 * MIB);
    let transfers: Vec<Transfer> =
        (0..4).map(|_| pair.a.submit(&scattered(&source, &old_target, 64 << 10), &BatchOptions::new())).collect();
    underway(&transfers[0]);
    pair.b.node.kill();
    let killed = Instant::now();
    // The new process connects before the loss of the old one is noticed.
    let restarted = Arc::new(net.node(config_of(1)));
    let again = Pair::of(&net, &pair.a.node, &restarted);
    println!("connected {:?} after the kill", killed.elapsed());
    assert_ne!(again.a.peer, pair.a.peer);
    let mut target = Field::new(&again.b, 2 * MIB, 3, Access::REMOTE_WRITE);
    again.grant(target.region);
    let batch = scattered(&source, &target, 64 << 10);
    target.expect(&source, &batch);
    again.a.write(&batch);
    target.check("at the new process");
    for transfer in &transfers {
        let outcome = outcome(transfer);
        assert!(outcome.is_ok() || is_lost(&outcome) || is_of_the_path(&outcome), "{outcome:?}");
    }
    println!("{}", pair.a.lost());
    assert_in_bound(killed, "the old process is lost");
    // The old names are refused, whatever the new process has in their places.
    let refused = pair.a.try_submit(&whole(&source, &old_target), &BatchOptions::new());
    assert!(matches!(refused, Err(SubmitError::NotConnected { .. })), "{refused:?}");
    if old_target.region != target.region {
        let refused = again.a.try_submit(&whole(&source, &old_target), &BatchOptions::new());
        assert!(matches!(refused, Err(SubmitError::Slice { .. })), "{refused:?}");
    }
    old_target.check_quiet("at the old process");
    again.a.write(&batch);
    target.check("after the loss of the old process");
    again.end();
}

#[test]
fn a_stale_key_is_refused_and_costs_only_the_queue_pair_that_used_it() {
    let _alone = alone();
    let net = Net::default();
    let pair = Pair::new(&net);
    let third = Arc::new(net.node(config_of(1)));
    let other = Pair::of(&net, &pair.a.node, &third);
    let (source, stale) = pair.fields(64 << 10);
    let mut elsewhere = Field::new(&other.b, 2 * MIB, 3, Access::REMOTE_WRITE);
    other.grant(elsewhere.region);
    let from = Field::new(&other.a, 2 * MIB, 4, Access::LOCAL);
    let grant = pair.grant(stale.region);
    let memory = wait("deregistering", pair.b.transport().deregister(stale.region)).unwrap();

    let made = [&pair.a, &pair.b, &other.b].map(|side| side.node.verbs.created());
    let batch = scattered(&from, &elsewhere, 64 << 10);
    let (sent, events) = Traffic::during(&other, &batch, |traffic| {
        traffic.goes_on(1);
        // The transport knows that the grant was taken back; a sender that does not is what this is about.
        pair.a.transport().import(pair.a.peer, &grant).unwrap();
        let options = BatchOptions::new().with_notification(b"never");
        let refused = outcome(&pair.a.submit(&whole(&source, &stale), &options));
        assert!(
            matches!(refused, Err(TransferError::Refused { index: 0, cause: SliceError::RemoteAccess })),
            "{refused:?}"
        );
        traffic.goes_on(5);
    });
    assert!(sent.iter().all(|it| it.outcome.is_ok()), "another peer's transfers are untouched: {sent:?}");
    check_notifications(&sent, &events);
    elsewhere.expect(&from, &batch);
    elsewhere.check("at another peer");

    let mut found = vec![0; memory.len() as usize];
    memory.read_at(0, &mut found).unwrap();
    assert!(found == stale.expected, "bytes landed in memory that was taken back");
    // A fresh grant, and a queue pair in the place of the one that failed.
    let mut fresh = Field::new(&pair.b, 64 << 10, 5, Access::REMOTE_WRITE);
    pair.grant(fresh.region);
    let batch = scattered(&source, &fresh, 1 << 10);
    fresh.expect(&source, &batch);
    for _ in 0..8 {
        pair.a.write(&batch);
    }
    fresh.check("with a fresh grant");
    let began = Instant::now();
    let rebuilt = || {
        let now = [&pair.a, &pair.b, &other.b].map(|side| side.node.verbs.created());
        [0, 1, 2].map(|at| now[at] - made[at])
    };
    while rebuilt() != [1, 1, 0] && began.elapsed() < LOSS_BOUND {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(rebuilt(), [1, 1, 0], "queue pairs that were built anew here, at the peer, and at the other peer");
    assert!(pair.b.notifications(Duration::from_millis(100)).is_empty());
    pair.end();
    other.end();
}

#[test]
fn a_region_that_its_owner_frees_under_a_transfer_is_quiet_then() {
    let _alone = alone();
    let net = Net::default();
    let pair = Pair::new(&net);
    for round in 0..3u64 {
        let (source, target) = pair.fields(8 * MIB);
        // More than the queues hold.
        let transfer =
            pair.a.submit(&scattered(&source, &target, 4 << 10), &BatchOptions::new().with_notification(b"never"));
        underway(&transfer);
        thread::sleep(Duration::from_millis(20 * round));
        let since = Instant::now();
        let memory = wait("deregistering", pair.b.transport().deregister(target.region)).unwrap();
        assert_in_bound(since, "the region is free");
        target.check_quiet("after deregistering");
        drop(memory);
        assert!(target.memory.try_into_owner().is_ok(), "somebody holds memory that was given back");
        let outcome = outcome(&transfer);
        println!("{outcome:?} with {} bytes done", transfer.status().bytes_done);
        assert!(
            matches!(outcome, Err(TransferError::Refused { cause: SliceError::StaleDestination { .. }, .. })),
            "{outcome:?}"
        );
    }
    // Both are still there for each other, and by the same queue pairs.
    assert!(pair.b.notifications(Duration::from_millis(50)).is_empty());
    let (source, mut target) = pair.fields(MIB);
    let batch = scattered(&source, &target, 32 << 10);
    target.expect(&source, &batch);
    pair.a.write(&batch);
    target.check("in another region");
    assert_eq!(pair.a.node.verbs.created(), 2, "no queue pair failed");
    pair.end();
}

// --- The end of a connection ---

#[test]
fn what_is_posted_before_a_disconnect_is_over_when_it_returns() {
    let _alone = alone();
    let net = Net::default();
    let pair = Pair::new(&net);
    let (source, target) = pair.fields(MIB);
    let transfers: Vec<Transfer> =
        (0..8).map(|_| pair.a.submit(&whole(&source, &target), &BatchOptions::new())).collect();
    let since = Instant::now();
    pair.a.disconnect();
    for transfer in &transfers {
        let outcome = transfer.outcome().expect("it is over");
        assert!(matches!(outcome, Ok(_) | Err(TransferError::Disconnected)), "{outcome:?}");
    }
    assert_in_bound(since, "disconnected");
    assert!(transfers.iter().any(|transfer| transfer.outcome().unwrap().is_err()), "nothing was in flight");
    assert!(!pair.b.lost().is_empty());
    target.check_quiet("after the sender disconnected");
    pair.end();
}

#[test]
fn what_is_posted_before_a_shutdown_is_over_when_it_returns() {
    let _alone = alone();
    for how in [Shutdown::Abort, Shutdown::Drain] {
        let net = Net::default();
        let pair = Pair::new(&net);
        let (source, mut target) = pair.fields(MIB);
        let batch = whole(&source, &target);
        let transfers: Vec<Transfer> = (0..8).map(|_| pair.a.submit(&batch, &BatchOptions::new())).collect();
        let since = Instant::now();
        wait("shutting down", pair.a.transport().shutdown(how));
        let outcomes: Vec<Outcome> = transfers.iter().map(|it| it.outcome().expect("it is over")).collect();
        if how == Shutdown::Drain {
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            target.expect(&source, &batch);
            target.check("after draining");
        } else {
            assert_in_bound(since, "shut down");
            assert!(outcomes.iter().all(|it| matches!(it, Ok(_) | Err(TransferError::Cancelled))), "{outcomes:?}");
        }
        target.check_quiet("after the sender shut down");
        assert!(!pair.b.lost().is_empty());
        pair.end();
    }
}

#[test]
fn after_a_disconnect_in_the_middle_no_byte_lands() {
    let _alone = alone();
    for round in 0..4 {
        let net = Net::default();
        let pair = Pair::new(&net);
        let (source, target) = pair.fields(4 * MIB);
        let transfers: Vec<Transfer> =
            (0..4).map(|_| pair.a.submit(&scattered(&source, &target, 32 << 10), &BatchOptions::new())).collect();
        underway(&transfers[0]);
        thread::sleep(Duration::from_millis(10 * round));
        let since = Instant::now();
        pair.b.disconnect();
        // Whatever lands from here on is seen.
        target.memory.fill(0, target.len(), 0xdd).unwrap();
        target.check_quiet("after the receiver disconnected");
        assert!(target.bytes().iter().all(|byte| *byte == 0xdd), "bytes landed late");
        for transfer in &transfers {
            let outcome = outcome(transfer);
            assert!(outcome.is_ok() || is_lost(&outcome) || is_of_the_path(&outcome), "{outcome:?}");
        }
        assert_in_bound(since, "the sender noticed");
        match pair.a.event(ends::LONG) {
            Some(Event::PeerLost { peer, .. }) => assert_eq!(peer, pair.a.peer),
            other => panic!("{other:?}"),
        }
        pair.end();
    }
}

#[test]
fn slices_of_a_region_that_was_never_granted_are_refused_before_they_are_sent() {
    let _alone = alone();
    let net = Net::default();
    let pair = Pair::new(&net);
    let (source, _) = pair.fields(4096);
    let secret = Field::new(&pair.b, 4096, 3, Access::REMOTE_WRITE);
    let refused = pair.a.try_submit(&[slice(&source, 0, &secret, 0, 4096)], &BatchOptions::new());
    assert!(matches!(refused, Err(SubmitError::Slice { .. })), "{refused:?}");
    secret.check("never granted");
    pair.end();
}
