//! Peers that die and come back, connections that are taken down, devices that are stuck: what was posted ends, in time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use support::{
    LOSS_BOUND, Net, Node, config,
    link::{Buffer, Link, delivered, failed, outcome, slice, wait},
};
use transport_core::{Batch, BatchOptions, Event, Shutdown, State, Transfer, TransferError, Transport};
use transport_rdma::{
    RdmaConfig,
    sim::{SimDeviceConfig, Stall},
};

/// What a busy machine may add to a bound of the contract.
const SLACK: Duration = Duration::from_secs(4);

fn gid_of(node: &Node, rail: usize) -> std::net::Ipv6Addr {
    node.transport.rails()[rail].gid.as_ref().unwrap().gid
}

fn write(link: &Link, source: &Buffer, target: &Buffer) -> Transfer {
    link.a.submit(&[slice(source, 0, target, 0, source.memory.len())])
}

// The peer.

fn at_fixed_gids(net: &Net, config: RdmaConfig) -> Node {
    let mut device = SimDeviceConfig::named("sim0");
    let gid = ("::ffff:10.9.9.9".parse().unwrap(), transport_rdma::verbs::GidKind::RoceV2);
    device.ports[0].gids = Some(vec![Some(gid)]);
    net.node_with(vec![device], config)
}

/// A process that died and its successor at the same address.
#[test]
fn a_killed_peer_is_lost_in_time_and_its_successor_connects() {
    for killed_is_the_receiver in [true, false] {
        let net = Net::default();
        let (a, b) = (net.node(config()), at_fixed_gids(&net, config()));
        let link = if killed_is_the_receiver { net.connect(&a, &b) } else { net.connect(&b, &a) };
        let (source, target) = (link.a.source(8 << 20, 1), link.target(8 << 20));
        a.host.pace(Duration::from_millis(5));
        b.host.pace(Duration::from_millis(5));
        let transfers: Vec<Transfer> = (0..8).map(|_| write(&link, &source, &target)).collect();
        thread::sleep(Duration::from_millis(30));
        let begin = Instant::now();
        b.kill();
        let survivor = if killed_is_the_receiver { &link.a } else { &link.b };
        survivor.peer_lost();
        assert!(begin.elapsed() < LOSS_BOUND + SLACK, "{:?}", begin.elapsed());
        if killed_is_the_receiver {
            for transfer in &transfers {
                let error = failed(transfer);
                assert!(matches!(error, TransferError::PeerLost { .. } | TransferError::Path { .. }), "{error:?}");
            }
        }
        let there = target.bytes();
        a.host.pace(Duration::ZERO);
        let successor = at_fixed_gids(&net, config());
        assert_eq!(gid_of(&successor, 0), gid_of(&b, 0));
        let anew = net.connect(&a, &successor);
        anew.works();
        anew.reversed().works();
        assert!(target.bytes() == there, "a late byte of the dead");
    }
}

/// An attempt that nobody waits for any more does not spoil the next one over the same channel.
#[test]
fn a_dropped_attempt_leaves_the_channel_for_the_next_one() {
    let net = Net::default();
    let (a, b) = (net.node(config()), net.node(config()));
    for round in 0..30 {
        let (dialling, listening) = net.channels(&a, &b);
        // The listener tries until it is connected, as a program does.
        let listener = thread::spawn({
            let (transport, listening) = (Arc::clone(&b.transport), Arc::clone(&listening));
            move || {
                let deadline = Instant::now() + support::link::PATIENCE;
                loop {
                    match wait("listening", transport.connect(Arc::clone(&listening))) {
                        // One that the other side has dropped since is lost again.
                        Ok(peer) => {
                            let side = support::link::Side { transport: Arc::clone(&transport), peer };
                            match side.event() {
                                Event::Notification { peer: from, .. } if from == peer => return peer,
                                _ => {}
                            }
                        }
                        Err(error) => assert!(Instant::now() < deadline, "{error}"),
                    }
                }
            }
        });
        let patience = Duration::from_micros(round * 200);
        let first = support::link::wait_until(Instant::now() + patience, a.transport.connect(Arc::clone(&dialling)));
        let peer = match first {
            Some(peer) => peer.expect("the first attempt is fine"),
            None => wait("the second attempt", a.transport.connect(Arc::clone(&dialling)))
                .unwrap_or_else(|error| panic!("round {round}: {error}")),
        };
        let hello = a.transport.batch_write(peer, Batch::Slices(&[]), &BatchOptions::new().with_notification(b"hello"));
        delivered(&hello.unwrap());
        let there = listener.join().unwrap();
        let side = |node: &Node, peer| support::link::Side { transport: Arc::clone(&node.transport), peer };
        let link = Link { a: side(&a, peer), b: side(&b, there) };
        link.works();
        link.a.disconnect();
        link.b.peer_lost();
    }
}

// The end.

/// Whatever tears the connection down, what was posted ends at once and not with a time-out.
#[test]
fn posted_writes_end_at_once_when_the_connection_is_torn_down() {
    type TearDown = fn(&Node, &Node, &Link);
    let ways: [(&str, TearDown); 4] = [
        ("disconnect", |_, _, link| link.a.disconnect()),
        ("disconnect there", |_, _, link| link.b.disconnect()),
        ("abort", |a, _, _| wait("shutting down", a.transport.shutdown(Shutdown::Abort))),
        ("kill", |_, b, _| b.kill()),
    ];
    for (name, tear_down) in ways {
        for stall in [false, true] {
            let net = Net::default();
            let slow = config().with_loss_bound(Duration::from_secs(60)).with_stall_timeout(Duration::from_secs(60));
            let (a, b, link) = net.pair(&slow);
            let (source, target) = (link.a.source(4 << 20, 1), link.target(4 << 20));
            if stall {
                a.host.stall(Stall::Work);
            } else {
                net.network.unreachable(gid_of(&b, 0));
            }
            let transfers: Vec<Transfer> = (0..8).map(|_| write(&link, &source, &target)).collect();
            let begin = Instant::now();
            tear_down(&a, &b, &link);
            for transfer in &transfers {
                let error = failed(transfer);
                let ended = matches!(
                    error,
                    TransferError::Disconnected | TransferError::PeerLost { .. } | TransferError::Cancelled
                );
                assert!(ended, "{name}: {error:?}");
            }
            assert!(begin.elapsed() < SLACK, "{name}: {:?}", begin.elapsed());
        }
    }
}

/// C14: no byte of the peer lands once `disconnect` has returned, on either side.
#[test]
fn nothing_lands_after_a_disconnection_in_the_middle() {
    for by_the_receiver in [true, false] {
        for round in 0..10 {
            let net = Net::default();
            let (a, _b, link) = net.pair(&config());
            let (source, target) = (link.a.source(8 << 20, 1), link.target(8 << 20));
            a.host.pace(Duration::from_millis(1));
            let transfers: Vec<Transfer> = (0..3).map(|_| write(&link, &source, &target)).collect();
            thread::sleep(Duration::from_millis(round * 3));
            let side = if by_the_receiver { &link.b } else { &link.a };
            side.disconnect();
            if !by_the_receiver {
                assert!(transfers.iter().all(|transfer| transfer.status().state != State::InFlight));
            }
            let there = target.bytes();
            thread::sleep(Duration::from_millis(30));
            assert!(target.bytes() == there, "a byte landed after the disconnection");
            for transfer in &transfers {
                let error = failed(transfer);
                let ended = matches!(
                    error,
                    TransferError::Disconnected | TransferError::PeerLost { .. } | TransferError::Path { .. }
                );
                assert!(ended, "{error:?}");
            }
        }
    }
}

#[test]
fn a_stuck_device_fails_its_transfers_at_the_stall_timeout() {
    for stall in [Stall::Work, Stall::WorkAndFlush] {
        let net = Net::default();
        let stall_timeout = Duration::from_millis(300);
        // The connection itself is given up later than that.
        let (a, _b, link) =
            net.pair(&config().with_stall_timeout(stall_timeout).with_loss_bound(Duration::from_secs(8)));
        let (source, target) = (link.a.source(1 << 20, 1), link.target(1 << 20));
        a.host.stall(stall);
        let begin = Instant::now();
        let transfers: Vec<Transfer> = (0..4).map(|_| write(&link, &source, &target)).collect();
        for transfer in &transfers {
            let error = failed(transfer);
            let TransferError::Stalled { timeout, total, .. } = error else { panic!("{error:?}") };
            assert_eq!((timeout, total), (stall_timeout, 1 << 20));
        }
        assert!(begin.elapsed() >= stall_timeout);
        assert!(begin.elapsed() < stall_timeout + SLACK, "{:?}", begin.elapsed());
        // Quiet: what a device that works again does, it does not do with these.
        source.memory.fill(0, 1 << 20, 0xee).unwrap();
        a.host.stall(Stall::None);
        link.works_again();
        assert!(!target.bytes().contains(&0xee) || source.bytes() != target.bytes());
    }
}

#[test]
fn a_device_that_stays_stuck_loses_the_peer() {
    for stall in [Stall::Work, Stall::WorkAndFlush] {
        let net = Net::default();
        let (a, b, link) = net.pair(&config().with_stall_timeout(Duration::from_millis(300)));
        let (source, target) = (link.a.source(1 << 20, 1), link.target(1 << 20));
        a.host.stall(stall);
        let begin = Instant::now();
        assert!(outcome(&write(&link, &source, &target)).is_err());
        let reason = link.a.peer_lost();
        assert!(reason.contains("sim0"), "{reason}");
        link.b.peer_lost();
        assert!(begin.elapsed() < LOSS_BOUND + 2 * SLACK, "{:?}", begin.elapsed());
        wait("deregistering", link.a.transport.deregister(source.region)).unwrap();
        assert_eq!(source.memory.holders(), 1);
        a.host.stall(Stall::None);
        net.connect(&a, &b).works();
    }
}

// Bounds, and the end of the transport.

#[test]
fn bounds_without_end_are_no_trap() {
    let endless = [
        config().with_connect_timeout(Duration::MAX),
        config().with_loss_bound(Duration::MAX),
        config().with_stall_timeout(Duration::MAX),
    ];
    for config in endless {
        let net = Net::default();
        let link = net.connect(&net.node(config.clone()), &net.node(config));
        link.works();
    }
}

/// A region that a submission holds at the moment when the transport ends is given back as well.
#[test]
fn a_region_that_is_held_at_the_end_is_given_back() {
    for round in 0..10 {
        let net = Net::default();
        let link = net.connect(&net.node(config()), &net.node(config()));
        let (source, target) = (link.a.source(4096, 1), link.target(4096));
        let slices: Vec<_> = (0..1_000_000).map(|n| slice(&source, n * 3 % 4000, &target, n * 7 % 4000, 1)).collect();
        let (transport, peer) = (&link.a.transport, link.a.peer);
        thread::scope(|scope| {
            scope.spawn(|| transport.batch_write(peer, Batch::from(&slices), &BatchOptions::new()).map(drop));
            thread::sleep(Duration::from_millis(10 * round));
            let region = scope.spawn(|| wait("deregistering", transport.deregister(source.region)));
            thread::sleep(Duration::from_millis(5));
            wait("shutting down", transport.shutdown(Shutdown::Abort));
            // The memory, or an error because the transport had ended before.
            drop(region.join().unwrap());
        });
    }
}
