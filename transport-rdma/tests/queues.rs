//! Send queues and completion queues: what is full waits, nothing overruns, and every place comes back.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use support::{
    LOSS_BOUND, Net, config,
    link::{Buffer, Link, delivered, failed, outcome, see, slice, wait},
};
use transport_core::{Access, Transfer, TransferError, Transport};
use transport_rdma::{
    Rails, RdmaConfig,
    sim::{SimDeviceConfig, Stall},
};

const EVENTS: usize = 2;

/// Settings under which the queues are what is short.
fn small() -> RdmaConfig {
    config().with_events_per_peer(EVENTS).with_max_in_flight(1024)
}

/// A batch of `count` slices of `len` bytes, no two of which are neighbours.
fn scattered(source: &Buffer, target: &Buffer, count: u64, len: u64) -> Vec<transport_core::WriteSlice> {
    (0..count).map(|number| slice(source, number * len, target, (count - 1 - number) * len, len)).collect()
}

fn assert_reversed(source: &Buffer, target: &Buffer, len: usize) {
    let expected: Vec<u8> = source.bytes().rchunks(len).flatten().copied().collect();
    assert!(target.bytes() == expected, "bytes are not where they should be");
}

/// A full send queue is no failure; there is room a moment later.
#[test]
fn a_thousand_batches_pass_a_send_queue_of_128() {
    let net = Net::default();
    let (_a, _b, link) = net.pair(&small().with_queue_pairs(1).with_queue_depth(128));
    let (source, target) = (link.a.source(8 * 1000, 1), link.target(8 * 1000));
    let transfers: Vec<Transfer> =
        (0..1000).map(|number| link.a.submit(&[slice(&source, number * 8, &target, number * 8, 8)])).collect();
    transfers.iter().for_each(delivered);
    assert_eq!(source.bytes(), target.bytes());
}

/// A send queue that does not move fails at the stall timeout, with all that was behind it.
#[test]
fn a_thousand_batches_behind_a_stuck_send_queue_all_fail() {
    let net = Net::default();
    let stall_timeout = Duration::from_millis(300);
    let (a, _b, link) = net.pair(&small().with_queue_pairs(1).with_queue_depth(128).with_stall_timeout(stall_timeout));
    let (source, target) = (link.a.source(8 * 1000, 1), link.target(8 * 1000));
    a.host.stall(Stall::Work);
    let begin = Instant::now();
    let transfers: Vec<Transfer> =
        (0..1000).map(|number| link.a.submit(&[slice(&source, number * 8, &target, number * 8, 8)])).collect();
    let (mut stalled, mut lost) = (0, 0);
    for transfer in &transfers {
        match failed(transfer) {
            TransferError::Stalled { .. } => stalled += 1,
            TransferError::PeerLost { .. } => lost += 1,
            error => panic!("{error:?}"),
        }
    }
    assert_eq!(stalled, 128, "those that were posted; {lost} were lost with the peer");
    let most = stall_timeout + LOSS_BOUND + Duration::from_secs(5);
    assert!(begin.elapsed() < most, "{:?}", begin.elapsed());
    assert_eq!(target.bytes(), [0; 8000]);
}

/// Connections from one host to many, each of whose lanes could fill its send queue.
fn fan(net: &Net, config: &RdmaConfig, peers: usize) -> (support::Node, Vec<(support::Node, Link)>) {
    let a = net.node(config.clone());
    let links = (0..peers)
        .map(|_| {
            let b = net.node(config.clone());
            let link = net.connect(&a, &b);
            (b, link)
        })
        .collect();
    (a, links)
}

/// 64 queue pairs with send queues of 128 share a completion queue that is smaller than all of them, or much
/// smaller. It never overruns: that would be the end of the device.
#[test]
fn queue_pairs_that_share_a_completion_queue_never_overrun_it() {
    for (depth, peers, queue_pairs) in [(4096, 16, 4), (200, 16, 4), (64, 4, 2), (16, 2, 1), (3, 1, 1)] {
        let net = Net::default();
        let config = small().with_queue_pairs(queue_pairs).with_queue_depth(128).with_completion_queue_depth(depth);
        let (a, links) = fan(&net, &config, peers);
        let source = Buffer::new(&a.transport, 2000 * 16, Access::LOCAL).fill_random(1);
        let targets: Vec<Buffer> = links.iter().map(|(_, link)| link.target(2000 * 16)).collect();
        // Late completions keep the queue as full as it gets.
        a.host.delay_completions(Duration::from_millis(1), 3);
        let transfers: Vec<Transfer> = links
            .iter()
            .zip(&targets)
            .flat_map(|((_, link), target)| {
                scattered(&source, target, 2000, 16)
                    .chunks(500)
                    .map(|part| link.a.notify(part, b"part"))
                    .collect::<Vec<_>>()
            })
            .collect();
        for (_, link) in &links {
            for _ in 0..4 {
                assert_eq!(link.b.notification(), "part");
            }
        }
        transfers.iter().for_each(delivered);
        targets.iter().for_each(|target| assert_reversed(&source, target, 16));
        a.host.delay_completions(Duration::ZERO, 0);
        links.iter().for_each(|(_, link)| link.works());
    }
}

/// The same with failing lanes: flushed work requests take a place each, also those that nobody asked a completion of.
#[test]
fn failing_lanes_do_not_overrun_the_completion_queue() {
    let net = Net::default();
    let config = small().with_queue_pairs(4).with_queue_depth(128).with_completion_queue_depth(128);
    let (a, links) = fan(&net, &config, 4);
    let source = Buffer::new(&a.transport, 2000 * 16, Access::LOCAL).fill_random(1);
    for round in 0..8 {
        let targets: Vec<Buffer> = links.iter().map(|(_, link)| link.target(2000 * 16)).collect();
        let (cut, _) = &links[round % 4];
        net.network.partition(&a.host, &cut.host);
        let transfers: Vec<Vec<Transfer>> = links
            .iter()
            .zip(&targets)
            .map(|((_, link), target)| {
                scattered(&source, target, 2000, 16).chunks(500).map(|part| link.a.submit(part)).collect()
            })
            .collect();
        assert!(outcome(&transfers[round % 4][0]).is_err());
        net.network.heal(&a.host, &cut.host);
        for (place, transfers) in transfers.iter().enumerate() {
            for transfer in transfers {
                assert!(outcome(transfer).is_ok() || place == round % 4, "another peer's transfers go on");
            }
        }
        links.iter().for_each(|(_, link)| link.works_again());
    }
}

/// Sends that fill the completion queue all the time do not keep a new peer, or a lane that is built anew, away.
#[test]
fn a_busy_completion_queue_lets_new_lanes_in() {
    let net = Net::default();
    let config = small().with_queue_pairs(2).with_queue_depth(128).with_completion_queue_depth(100);
    let (a, links) = fan(&net, &config, 4);
    let source = Buffer::new(&a.transport, 2000 * 16, Access::LOCAL).fill_random(1);
    let targets: Vec<Buffer> = links.iter().map(|(_, link)| link.target(2000 * 16)).collect();
    let end = Instant::now() + Duration::from_secs(3);
    thread::scope(|scope| {
        for ((_, link), target) in links.iter().zip(&targets) {
            let source = &source;
            scope.spawn(move || {
                while Instant::now() < end {
                    let slices = scattered(source, target, 2000, 16);
                    let transfers: Vec<Transfer> = slices.chunks(500).map(|part| link.a.submit(part)).collect();
                    transfers.iter().for_each(|transfer| drop(outcome(transfer)));
                }
            });
        }
        a.host.delay_completions(Duration::from_millis(3), 5);
        thread::sleep(Duration::from_millis(50));
        for round in 0..10 {
            let b = net.node(config.clone());
            let (here, there) = net.try_connect(&a, &b);
            let (here, there) = (here.unwrap_or_else(|error| panic!("round {round}: {error}")), there.unwrap());
            let side =
                |node: &support::Node, peer| support::link::Side { transport: Arc::clone(&node.transport), peer };
            let link = Link { a: side(&a, here), b: side(&b, there) };
            link.works();
            link.a.disconnect();
        }
    });
    a.host.delay_completions(Duration::ZERO, 0);
    links.iter().for_each(|(_, link)| link.works_again());
}

#[test]
fn a_completion_queue_without_room_for_the_receives_is_named() {
    let net = Net::default();
    let config = config().with_queue_pairs(2).with_completion_queue_depth(8);
    let (a, b) = (net.node(config.clone()), net.node(config.with_events_per_peer(8)));
    let (here, _) = net.try_connect(&a, &b);
    let error = here.unwrap_err().to_string();
    for part in ["sim0", "completion_queue_depth", "events_per_peer"] {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// A rail whose completion queue is full does not hold up one that has room.
#[test]
fn the_other_rail_carries_what_one_has_no_room_for() {
    let net = Net::default();
    let rails = |max| Rails::Automatic { numa_node: None, max };
    let devices = || vec![SimDeviceConfig::named("nic0"), SimDeviceConfig::named("nic1")];
    let config = small().with_queue_depth(16).with_queue_pairs(1).with_completion_queue_depth(20);
    let (a, b) = (
        net.node_with(devices(), config.clone().with_rails(rails(2))),
        net.node_with(devices(), config.with_rails(rails(2))),
    );
    let link = net.connect(&a, &b);
    let (source, target) = (link.a.source(5000 * 16, 1), link.target(5000 * 16));
    for _ in 0..3 {
        delivered(&link.a.submit(&scattered(&source, &target, 5000, 16)));
        assert_reversed(&source, &target, 16);
    }
}

/// A work request is refused at every place of 128 once: each is sent once, and nothing hangs.
#[test]
fn a_refused_work_request_anywhere_is_sent_later() {
    let net = Net::default();
    for len in [32, 5000] {
        let (a, _b, link) = net.pair(&config().with_queue_pairs(2).with_queue_depth(64));
        let (source, target) = (link.a.source(128 * len, 1), link.target(128 * len));
        for place in 1..=132 {
            target.memory.fill(0, 128 * len as u64, 0).unwrap();
            a.host.refuse_post_after(place);
            delivered(&link.a.notify(&scattered(&source, &target, 128, len as u64), b"all"));
            assert_eq!(link.b.notification(), "all");
            assert_reversed(&source, &target, len);
        }
        a.host.refuse_post_after(0);
        assert_eq!(link.b.event_within(Duration::from_millis(20)), None);
    }
}

/// Ranges of all sizes, many at a time.
#[test]
fn ranges_of_all_sizes_are_exact() {
    let net = Net::default();
    let (_a, _b, link) = net.pair(&config().with_queue_depth(16));
    for (count, len) in
        [(128, 32), (128, 1023), (128, 1024), (128, 1025), (128, 4096), (128, 65_537), (4, 4 << 20), (1, 20 << 20)]
    {
        let (source, target) = (link.a.source(count * len, 1), link.target(count * len));
        delivered(&link.a.submit(&scattered(&source, &target, count as u64, len as u64)));
        assert_reversed(&source, &target, len);
        wait("deregistering", link.a.transport.deregister(source.region)).unwrap();
        wait("deregistering", link.b.transport.deregister(target.region)).unwrap();
    }
}

/// The sizes at which other stacks broke.
#[test]
fn sizes_about_the_mtu_and_64_kib_are_exact() {
    let net = Net::default();
    let (_a, _b, link) = net.pair(&config());
    let len = (16 << 20) + 64;
    let (source, target) = (link.a.source(len, 1), link.target(len));
    for size in [1, 1023, 1024, 1025, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 16 << 20] {
        target.memory.fill(0, len as u64, 0).unwrap();
        delivered(&link.a.submit(&[slice(&source, 3, &target, 5, size)]));
        let mut expected = vec![0; len];
        let size = size as usize;
        expected[5..5 + size].copy_from_slice(&source.range(3, size));
        assert!(target.bytes() == expected, "{size} bytes");
    }
}

/// Bytes and completions come in any order across lanes.
#[test]
fn late_completions_across_lanes_end_each_transfer_once() {
    let net = Net::default();
    let config = small().with_queue_pairs(8).with_queue_depth(8).with_max_work_request(3000);
    let (a, b, link) = net.pair(&config);
    a.host.delay_completions(Duration::from_millis(4), 11);
    b.host.delay_completions(Duration::from_millis(4), 12);
    for round in 0..5 {
        let (source, target) = (link.a.source(64 * 5000, round), link.target(64 * 5000));
        let slices = scattered(&source, &target, 64, 5000);
        let transfers: Vec<Transfer> = slices.chunks(7).map(|part| link.a.notify(part, b"x")).collect();
        for _ in &transfers {
            assert_eq!(link.b.notification(), "x");
        }
        assert_reversed(&source, &target, 5000);
        transfers.iter().for_each(delivered);
        wait("deregistering", link.b.transport.deregister(target.region)).unwrap();
        wait("deregistering", link.a.transport.deregister(source.region)).unwrap();
    }
    assert_eq!(link.b.event_within(Duration::from_millis(20)), None);
}

/// A failed completion in the middle of many takes none of the others with it.
#[test]
fn completions_behind_a_failed_one_are_taken() {
    let net = Net::default();
    let config = small().with_queue_pairs(1);
    let (a, links) = fan(&net, &config, 4);
    let source = Buffer::new(&a.transport, 100_000, Access::LOCAL).fill_random(1);
    let targets: Vec<Buffer> = links.iter().map(|(_, link)| link.target(100_000)).collect();
    // All that comes while the device is stuck is posted, and completes together when it works again.
    for round in 0..10 {
        a.host.stall(Stall::Work);
        let (gone, _) = &links[round % 4];
        net.network.partition(&a.host, &gone.host);
        let transfers: Vec<Transfer> = links
            .iter()
            .zip(&targets)
            .map(|((_, link), target)| link.a.submit(&[slice(&source, 0, target, 0, 100_000)]))
            .collect();
        a.host.stall(Stall::None);
        for (place, transfer) in transfers.iter().enumerate() {
            assert_eq!(outcome(transfer).is_ok(), place != round % 4, "peer {place}");
        }
        net.network.heal(&a.host, &gone.host);
        see("the peer again", || {
            outcome(&links[round % 4].1.a.submit(&[slice(&source, 0, &targets[round % 4], 0, 10)])).is_ok()
        });
    }
}
