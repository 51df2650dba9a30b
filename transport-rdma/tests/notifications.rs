//! Notifications when things go wrong: never two, none lost, and their room comes back.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{collections::HashMap, thread, time::Duration};

use support::{
    Net, config,
    link::{Link, Random, delivered, outcome, see, slice, wait},
};
use transport_core::{Event, State, Transfer, Transport};

/// What is delivered is in the queue of events, also when the sender leaves at once and its goodbye is faster than the
/// completion at the receiver.
#[test]
fn a_delivered_notification_outlives_the_connection() {
    let net = Net::default();
    for round in 0..20 {
        let (_a, b, link) = net.pair(&config());
        b.host.delay_completions(Duration::from_millis(10), round);
        let count = 5;
        let transfers: Vec<Transfer> = (0..count).map(|number| link.a.notify(&[], &[number])).collect();
        transfers.iter().for_each(delivered);
        link.a.disconnect();
        let mut seen = vec![];
        loop {
            match link.b.event() {
                Event::Notification { payload, .. } => seen.push(payload[0]),
                Event::PeerLost { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..count).collect::<Vec<u8>>(), "round {round}");
    }
}

/// With several lanes and late completions a notification is never before the bytes, and they are looked at when it is there.
#[test]
fn a_notification_comes_after_the_bytes_of_all_lanes() {
    let net = Net::default();
    let (a, b, link) = net.pair(&config().with_queue_pairs(4).with_max_work_request(10_000));
    a.host.delay_completions(Duration::from_millis(2), 1);
    b.host.delay_completions(Duration::from_millis(2), 2);
    let len = 300_000;
    let (source, target) = (link.a.source(len, 1), link.target(len));
    for round in 0..20_u8 {
        source.memory.fill(0, len as u64, round + 1).unwrap();
        let mut random = Random::new(u64::from(round));
        let mut slices: Vec<_> =
            (0..30).map(|part| slice(&source, part * 10_000, &target, part * 10_000, 10_000)).collect();
        for place in (1..slices.len()).rev() {
            slices.swap(place, random.below(place as u64 + 1) as usize);
        }
        let transfer = link.a.notify(&slices, &[round]);
        assert_eq!(link.b.notification()[0], round);
        assert!(target.bytes().iter().all(|byte| *byte == round + 1), "round {round}");
        delivered(&transfer);
    }
}

/// Acknowledgements are lost: the bytes and the notification are there, the completion is late, and nothing comes twice.
#[test]
fn a_lost_acknowledgement_doubles_no_notification() {
    let net = Net::default();
    let (a, _b, link) = net.pair(&config());
    let (source, target) = (link.a.source(1000, 1), link.target(1000));
    for round in 0..10 {
        a.host.lose_acknowledgements(3);
        let transfer = link.a.notify(&[slice(&source, 0, &target, 0, 1000)], &[round]);
        delivered(&transfer);
        assert_eq!(link.b.notification(), [round].as_slice());
        assert_eq!(source.bytes(), target.bytes());
        a.host.lose_acknowledgements(0);
    }
    assert_eq!(link.b.event_within(Duration::from_millis(50)), None);
}

/// As many notifications as there is room for are delivered to a program that does not look, and the next one waits.
fn assert_full_room(link: &Link, room: usize) {
    let transfers: Vec<Transfer> = (0..room).map(|_| link.a.notify(&[], b"room")).collect();
    transfers.iter().for_each(delivered);
    let beyond = link.a.notify(&[], b"beyond");
    thread::sleep(Duration::from_millis(30));
    assert_eq!(beyond.status().state, State::InFlight, "there is more room than was said");
    for _ in 0..room {
        assert_eq!(link.b.notification(), "room");
    }
    assert_eq!(link.b.notification(), "beyond");
    delivered(&beyond);
}

/// What was lost with a lane gives its room back; what was received is counted once, whatever the sender was told.
#[test]
fn room_for_notifications_survives_failing_lanes() {
    const ROOM: usize = 3;
    for dialled_by_the_writer in [true, false] {
        let net = Net::default();
        let config = config().with_events_per_peer(ROOM);
        let (a, b) = (net.node(config.clone()), net.node(config));
        let link = if dialled_by_the_writer { net.connect(&a, &b) } else { net.connect(&b, &a).reversed() };
        let (mut sent, mut seen) = (HashMap::new(), HashMap::new());
        let mut random = Random::new(5);
        for round in 0..60_u32 {
            // Either the message or only its acknowledgement is lost.
            if round % 3 == 0 {
                net.network.partition(&a.host, &b.host);
            } else if round % 3 == 1 {
                a.host.lose_acknowledgements(u64::MAX);
            }
            let transfers: Vec<(u32, Transfer)> = (0..2)
                .map(|number| (round * 10 + number, link.a.notify(&[], &(round * 10 + number).to_le_bytes())))
                .collect();
            thread::sleep(Duration::from_millis(random.below(200)));
            net.network.heal(&a.host, &b.host);
            a.host.lose_acknowledgements(0);
            while let Some(event) = link.b.event_within(Duration::from_millis(1)) {
                let Event::Notification { payload, .. } = event else { panic!("{event:?}") };
                *seen.entry(u32::from_le_bytes(payload[..].try_into().unwrap())).or_insert(0) += 1;
            }
            for (number, transfer) in transfers {
                sent.insert(number, outcome(&transfer).is_ok());
            }
        }
        while let Some(event) = link.b.event_within(Duration::from_millis(100)) {
            let Event::Notification { payload, .. } = event else { panic!("{event:?}") };
            *seen.entry(u32::from_le_bytes(payload[..].try_into().unwrap())).or_insert(0) += 1;
        }
        for (number, delivered) in &sent {
            let times = seen.get(number).copied().unwrap_or(0);
            assert!(times == 1 || (!delivered && times == 0), "{number} (delivered: {delivered}) came {times} times");
        }
        assert!(sent.values().any(|delivered| !delivered), "nothing failed, so nothing was tried");
        see("the lanes to work", || outcome(&link.a.notify(&[], b"again")).is_ok());
        while link.b.event_within(Duration::from_millis(50)).is_some() {}
        // One that is sent and received on each side of every credit that was returned.
        for _ in 0..3 {
            assert_full_room(&link, ROOM);
        }
        wait("disconnecting", link.a.transport.disconnect(link.a.peer));
    }
}
