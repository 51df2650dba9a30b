//! Engines with more than one data transport: which one carries the pages, why not a better one, and what a failure leaves.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvferry::{
    BuildError, Engine, EngineBuilder, PassedOver, Peer, ReceiveError, Role,
    transport_core::{Memory, Shutdown, Transport, mem::MemConfig},
    transport_quic::{Authentication, Identity, TrustedKeys},
};
use support::{
    Keys, LONG, Node, config, layout, memories,
    named::{Connects, Named},
    pages,
};

/// A node of one rank with these transports.
fn node(keys: &Keys, role: Role, transports: &[&Arc<Named>]) -> Node {
    node_of(keys, role, |builder| {
        transports.iter().fold(builder, |builder, it| builder.transport(Arc::clone(it) as Arc<dyn Transport>))
    })
}

fn node_of(keys: &Keys, role: Role, more: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Node {
    let node = keys.node_of(role, layout("pages=8", 0), keys.identity(), |builder| {
        more(builder.config(config().with_transport_timeout(Duration::from_secs(1))))
    });
    if role == Role::Prefill {
        node.fill();
    }
    node
}

/// Connects, and waits until both sides have it: the handle of each side.
async fn meet(prefill: &Node, decode: &Node) -> (Peer, Peer) {
    let there = prefill.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    (there, decode.engine.peers().remove(0))
}

/// Pushes a request and looks at every page of the receiver's cache.
async fn push(prefill: &Node, decode: &Node, peer: &Peer, request: u64) {
    decode.memories.iter().for_each(|memory| memory.fill(0, memory.len(), 0).unwrap());
    let incoming = decode.engine.expect(request, "default", pages(&[5, 2])).unwrap();
    let pushed = peer.push(request, pages(&[1, 3]), pages(&[5, 2])).unwrap().await.unwrap();
    let received = incoming.await.unwrap();
    assert_eq!((pushed.bytes, pushed.transport), (received.bytes, peer.transport()));
    assert!(decode.holds(5, Some(1)) && decode.holds(2, Some(3)));
    assert!((0..8).filter(|page| ![5, 2].contains(page)).all(|page| decode.holds(page, None)));
    assert!(prefill.holds(1, Some(1)));
}

/// The reasons of a side, as (name, reason).
fn reasons(peer: &Peer) -> Vec<(&str, &str)> {
    peer.passed_over()
        .iter()
        .map(|PassedOver { transport, reason, .. }| (transport.as_str(), reason.as_str()))
        .collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_both_have_carries_the_pages_and_says_so() {
    let keys = Keys::new();
    let (one, two) = (Named::new("fast"), Named::new("fast"));
    let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
    let (there, here) = meet(&prefill, &decode).await;
    assert_eq!((there.transport(), here.transport()), ("fast", "fast"));
    assert!(there.passed_over().is_empty() && here.passed_over().is_empty());
    for request in 0..3 {
        push(&prefill, &decode, &there, request).await;
    }
    assert_eq!(one.batches(), 3);
    there.room().await.unwrap();
}

#[tokio::test]
async fn parts_aborts_and_failures_work_on_it_as_on_quic() {
    let keys = Keys::new();
    let (one, two) = (Named::new("fast"), Named::new("fast"));
    let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
    let (peer, _) = meet(&prefill, &decode).await;
    let incoming = decode.engine.expect(1, "default", pages(&[1, 2])).unwrap();
    let mut parts = peer.begin(1).unwrap();
    for layer in 0..6 {
        parts.send(Some(layer..layer + 1), pages(&[4, 6]), pages(&[1, 2])).unwrap();
    }
    parts.commit().unwrap().await.unwrap();
    incoming.await.unwrap();
    assert!(decode.holds(1, Some(4)) && decode.holds(2, Some(6)));

    let incoming = decode.engine.expect(2, "default", pages(&[3])).unwrap();
    let mut parts = peer.begin(2).unwrap();
    parts.send(Some(0..1), pages(&[4]), pages(&[3])).unwrap();
    assert!(matches!(incoming.abort("enough").await, Err(ReceiveError::Aborted { .. })));
    assert!(parts.send(Some(1..2), pages(&[4]), pages(&[3])).is_err());

    // A commit that comes early waits for the request, as on QUIC.
    peer.push(3, pages(&[4]), pages(&[7])).unwrap().await.unwrap();
    decode.engine.expect(3, "default", pages(&[7])).unwrap().await.unwrap();
    let incoming = decode.engine.expect(4, "default", pages(&[7])).unwrap();
    peer.begin(4).unwrap().fail("out of memory").await.unwrap_err();
    assert!(matches!(incoming.await, Err(ReceiveError::SenderFailed { .. })));
}

#[tokio::test]
async fn what_only_one_side_has_is_passed_over_on_both() {
    for sides in [Role::Prefill, Role::Decode] {
        let keys = Keys::new();
        let fast = Named::new("fast");
        let of = |role: Role| if role == sides { vec![&fast] } else { vec![] };
        let prefill = node(&keys, Role::Prefill, &of(Role::Prefill));
        let decode = node(&keys, Role::Decode, &of(Role::Decode));
        let (there, here) = meet(&prefill, &decode).await;
        assert_eq!((there.transport(), here.transport()), ("quic", "quic"));
        let (has, has_not) = if sides == Role::Prefill { (&there, &here) } else { (&here, &there) };
        assert_eq!(reasons(has), [("fast", "the peer does not have it")]);
        assert_eq!(reasons(has_not), [("fast", "this side does not have it")]);
        push(&prefill, &decode, &there, 1).await;
        assert_eq!(fast.batches(), 0);
    }
}

#[tokio::test]
async fn why_a_transport_could_not_be_had_is_known_on_both_sides() {
    let keys = Keys::new();
    let fast = Named::new("fast");
    let prefill = node(&keys, Role::Prefill, &[&fast]);
    let decode = node_of(&keys, Role::Decode, |builder| {
        builder.unavailable("fast", "libibverbs.so.1 was not found; install it")
    });
    let (there, here) = meet(&prefill, &decode).await;
    let why = "libibverbs.so.1 was not found; install it";
    assert_eq!(reasons(&there), [("fast", &*format!("the peer does not have it: {why}"))]);
    assert_eq!(reasons(&here), [("fast", &*format!("not available here: {why}"))]);
    push(&prefill, &decode, &there, 1).await;
}

#[tokio::test]
async fn a_side_that_cannot_connect_falls_back_together_with_the_other_and_at_once() {
    for fails in [Role::Prefill, Role::Decode] {
        let keys = Keys::new();
        let of = |role: Role| Named::that("fast", if role == fails { Connects::Fails(0) } else { Connects::Yes });
        let (one, two) = (of(Role::Prefill), of(Role::Decode));
        let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
        let started = Instant::now();
        let (there, here) = meet(&prefill, &decode).await;
        assert!(started.elapsed() < Duration::from_millis(900), "nobody waited for its bound: {:?}", started.elapsed());
        assert_eq!((there.transport(), here.transport()), ("quic", "quic"));
        let (failed, other) = if fails == Role::Prefill { (&there, &here) } else { (&here, &there) };
        let why = "this side cannot connect: port 1 of mlx5_0 is down";
        assert_eq!(reasons(failed), [("fast", &*format!("connecting failed: {why}"))]);
        assert_eq!(reasons(other), [("fast", &*format!("connecting failed at the peer: {why}"))]);
        push(&prefill, &decode, &there, 1).await;
    }
}

#[tokio::test]
async fn what_is_connected_on_one_side_only_is_taken_down() {
    for fails in [Role::Prefill, Role::Decode] {
        let keys = Keys::new();
        let of = |role: Role| Named::that("fast", if role == fails { Connects::FailsLate } else { Connects::Yes });
        let (one, two) = (of(Role::Prefill), of(Role::Decode));
        let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
        let (there, _) = meet(&prefill, &decode).await;
        assert_eq!(there.transport(), "quic");
        for side in [&one, &two] {
            assert!(side.mem.room(side.connections()[0]).await.is_err(), "still connected");
        }
        push(&prefill, &decode, &there, 1).await;
    }
}

#[tokio::test]
async fn a_path_that_is_lost_within_the_handshake_is_no_connection() {
    let keys = Keys::new();
    // The other side does not hear of it by itself.
    let (one, two) = (Named::that("fast", Connects::Loses), Named::that("fast", Connects::Deaf));
    let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
    let started = Instant::now();
    let error = prefill.engine.connect(decode.engine.local_addr(), None).await.unwrap_err();
    assert!(error.to_string().contains("fast was lost in the handshake"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2));
    until("neither side has a peer", || prefill.engine.peers().is_empty() && decode.engine.peers().is_empty()).await;
    one.set(Connects::Yes);
    let (there, _) = meet(&prefill, &decode).await;
    assert_eq!(there.transport(), "fast");
    push(&prefill, &decode, &there, 1).await;
}

#[tokio::test]
async fn a_transport_that_hangs_costs_its_bound_and_no_more() {
    let second = Duration::from_secs(1);
    let short = Duration::from_millis(200);
    for (one, two, least, most, says) in [
        (Connects::Hangs, Connects::Hangs, second, 2 * second, "within 1s"),
        (Connects::Hangs, Connects::Yes, second, 2 * second, "within 1s"),
        (Connects::Yes, Connects::Hangs, second, 2 * second, "within 1s"),
        (Connects::GivesUpAfter(short), Connects::Hangs, short, second, "within 200ms"),
    ] {
        let keys = Keys::new();
        let (one, two) = (Named::that("fast", one), Named::that("fast", two));
        let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
        let started = Instant::now();
        let (there, here) = meet(&prefill, &decode).await;
        let elapsed = started.elapsed();
        assert!((least..most).contains(&elapsed), "{elapsed:?} with {one:?} and {two:?}");
        assert_eq!((there.transport(), here.transport()), ("quic", "quic"));
        for peer in [&there, &here] {
            let [(name, reason)] = reasons(peer)[..] else { panic!("{:?}", peer.passed_over()) };
            assert!(name == "fast" && reason.contains("connecting failed") && reason.contains(says), "{reason}");
        }
        push(&prefill, &decode, &there, 1).await;
    }
}

#[tokio::test]
async fn a_handshake_with_hanging_transports_has_a_bound_of_its_own() {
    let keys = Keys::new();
    let hang = |name| Named::that(name, Connects::Hangs);
    let slow = config().with_transport_timeout(Duration::from_secs(3600));
    let quick = config().with_transport_timeout(Duration::from_millis(100));
    // The peer would wait for an hour; it stops when it hears that this side has given up.
    let prefill = keys.node_of(Role::Prefill, layout("pages=8", 0), keys.identity(), |builder| {
        builder.config(quick).transport(hang("a")).transport(hang("b"))
    });
    let decode = keys.node_of(Role::Decode, layout("pages=8", 0), keys.identity(), |builder| {
        builder.config(slow).transport(hang("a")).transport(hang("b"))
    });
    prefill.fill();
    let started = Instant::now();
    let (there, here) = meet(&prefill, &decode).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let names = |peer: &Peer| reasons(peer).iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!((names(&there), names(&here)), (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()]));
    push(&prefill, &decode, &there, 1).await;
}

#[tokio::test]
async fn the_order_of_the_side_that_dials_counts_and_what_is_worse_is_not_listed() {
    let keys = Keys::new();
    let [a, b, c, d] = ["a", "b", "b", "a"].map(Named::new);
    let only = Named::new("only-here");
    let prefill = node(&keys, Role::Prefill, &[&a, &b, &only]);
    let decode = node(&keys, Role::Decode, &[&c, &d]);
    let (there, here) = meet(&prefill, &decode).await;
    assert_eq!((there.transport(), here.transport()), ("a", "a"));
    assert!(there.passed_over().is_empty() && here.passed_over().is_empty());
    push(&prefill, &decode, &there, 1).await;
    there.disconnect().await;
    until("the other side knows", || decode.engine.peers().is_empty()).await;

    decode.engine.connect(prefill.engine.local_addr(), None).await.unwrap();
    until("both are there", || prefill.engine.peers().len() == 1).await;
    let there = prefill.engine.peers().remove(0);
    assert_eq!(there.transport(), "b");
    push(&prefill, &decode, &there, 2).await;
    assert_eq!((a.batches(), b.batches()), (1, 1));
}

#[tokio::test]
async fn what_a_failed_attempt_leaves_in_the_channel_is_not_taken_for_the_next_one() {
    for next in ["b", "quic"] {
        for (one, two) in [
            (Connects::Fails(300), Connects::Hangs),
            (Connects::Yes, Connects::Fails(3)),
            (Connects::Fails(3), Connects::Fails(300)),
        ] {
            let keys = Keys::new();
            let (one, two) = (Named::that("a", one), Named::that("a", two));
            let (good, fine) = (Named::new("b"), Named::new("b"));
            let with = |first| if next == "b" { vec![first, &good] } else { vec![first] };
            let prefill = node(&keys, Role::Prefill, &with(&one));
            let decode = node(&keys, Role::Decode, &if next == "b" { vec![&two, &fine] } else { vec![&two] });
            let (there, here) = meet(&prefill, &decode).await;
            assert_eq!((there.transport(), here.transport()), (next, next), "{:?}", there.passed_over());
            assert_eq!((reasons(&there).len(), reasons(&here).len()), (1, 1));
            push(&prefill, &decode, &there, 1).await;
        }
    }
}

#[tokio::test]
async fn a_lost_path_is_a_lost_peer_and_the_next_connection_chooses_again() {
    let keys = Keys::new();
    let (one, two) = (Named::new("fast"), Named::new("fast"));
    let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
    let (there, here) = meet(&prefill, &decode).await;
    let lost = decode.engine.expect(1, "default", pages(&[1])).unwrap();
    // The connection ends under the engine, which hears of it from the other end.
    one.mem.disconnect(one.connections()[0]).await;
    assert!(matches!(lost.await, Err(ReceiveError::SenderLost { .. })));
    until("both sides have lost it", || !there.is_connected() && !here.is_connected()).await;
    assert!(there.push(2, pages(&[1]), pages(&[1])).is_err());
    assert!(prefill.engine.peers().is_empty() && decode.engine.peers().is_empty());

    let (there, _) = meet(&prefill, &decode).await;
    assert_eq!(there.transport(), "fast");
    push(&prefill, &decode, &there, 3).await;

    // A transport that has died for good: the next connection does without.
    two.mem.kill();
    until("both sides have lost it", || prefill.engine.peers().is_empty() && decode.engine.peers().is_empty()).await;
    let (there, here) = meet(&prefill, &decode).await;
    assert_eq!((there.transport(), here.transport()), ("quic", "quic"));
    assert_eq!(reasons(&here), [("fast", "connecting failed: the transport is closed")]);
    push(&prefill, &decode, &there, 4).await;
}

#[tokio::test]
async fn whoever_is_refused_or_left_learns_why_though_the_path_ends_faster_than_the_words_come() {
    let keys = Keys::new();
    let [two, one, other] = [(); 3].map(|()| Named::new("fast"));
    let decode = node(&keys, Role::Decode, &[&two]);
    let (prefill, claims) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Prefill, &[&other]));
    let (there, _) = meet(&prefill, &decode).await;
    for _ in 0..10 {
        let error = claims.engine.connect(decode.engine.local_addr(), None).await.unwrap_err().to_string();
        assert!(error.contains("two engines claim one rank"), "{error}");
    }
    for request in 0..5 {
        let incoming = decode.engine.expect(request, "default", pages(&[1])).unwrap();
        prefill.engine.peers()[0].disconnect().await;
        match incoming.await {
            Err(ReceiveError::SenderLost { reason, .. }) => {
                assert!(reason.contains("this side disconnected"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
        meet(&prefill, &decode).await;
    }
    assert!(!there.is_connected());
}

#[tokio::test]
async fn one_peer_can_be_on_another_transport_than_the_next() {
    let keys = Keys::new();
    let (one, two) = (Named::new("fast"), Named::new("fast"));
    let decode = node(&keys, Role::Decode, &[&two]);
    let stages: Vec<Node> = (0..2)
        .map(|stage| {
            let node = keys.node_of(Role::Prefill, layout("pp=2,pages=8", stage), keys.identity(), |builder| {
                if stage == 0 { builder.config(config()).transport(one.clone()) } else { builder.config(config()) }
            });
            node.fill();
            node
        })
        .collect();
    let mut peers = Vec::new();
    for stage in &stages {
        peers.push(stage.engine.connect(decode.engine.local_addr(), None).await.unwrap());
    }
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    // Both transports number their peers from zero: the two must not be taken for each other.
    let transports: Vec<_> = decode.engine.peers().iter().map(Peer::transport).collect();
    assert_eq!(transports, ["fast", "quic"]);
    let incoming = decode.engine.expect(1, "default", pages(&[2])).unwrap();
    for peer in &peers {
        peer.push(1, pages(&[1]), pages(&[2])).unwrap().await.unwrap();
    }
    assert_eq!(incoming.await.unwrap().senders.len(), 2);
    assert!(decode.holds(2, Some(1)));
    let incoming = decode.engine.expect(2, "default", pages(&[2])).unwrap();
    peers[1].disconnect().await;
    match incoming.await {
        Err(ReceiveError::SenderLost { rank, .. }) => assert_eq!(rank.to_string(), "pp1.tp0"),
        other => panic!("{other:?}"),
    }
    assert!(peers[0].is_connected() && decode.engine.peers().len() == 1);
}

#[tokio::test]
async fn a_transport_that_cannot_register_the_cache_is_left_out_and_holds_nothing() {
    let keys = Keys::new();
    let whole = Named::new("fast");
    let prefill = node(&keys, Role::Prefill, &[&whole]);
    for registers in [0, prefill.memories.len() - 1] {
        let refuses = Named::with("fast", Connects::Yes, registers, MemConfig::default());
        let decode = node(&keys, Role::Decode, &[&refuses]);
        until("only QUIC and the test hold the memory", || decode.memories.iter().all(|memory| memory.holders() == 2))
            .await;
        let (there, here) = meet(&prefill, &decode).await;
        assert_eq!((there.transport(), here.transport()), ("quic", "quic"));
        let why = "could not be registered: registering";
        let [("fast", ours)] = reasons(&here)[..] else { panic!("{:?}", here.passed_over()) };
        assert!(ours.starts_with("not available here: region") && ours.contains(why), "{ours}");
        assert!(ours.ends_with("the limit on locked memory is 64 KiB"), "{ours}");
        let [("fast", theirs)] = reasons(&there)[..] else { panic!("{:?}", there.passed_over()) };
        assert!(theirs.starts_with("the peer does not have it: region") && theirs.contains(why), "{theirs}");
        push(&prefill, &decode, &there, 1).await;
        decode.engine.shutdown(Shutdown::Abort).await;
        until("the peer is gone", || prefill.engine.peers().is_empty()).await;
    }
}

#[tokio::test]
async fn shutting_down_ends_every_transport_and_gives_the_memory_back() {
    for how in [Shutdown::Drain, Shutdown::Abort] {
        let keys = Keys::new();
        let slow = || {
            Named::with("fast", Connects::Yes, usize::MAX, MemConfig::default().with_pace(Duration::from_millis(20)))
        };
        let (one, two, unused) = (slow(), slow(), Named::new("unused"));
        let (prefill, decode) = (node(&keys, Role::Prefill, &[&one, &unused]), node(&keys, Role::Decode, &[&two]));
        let (there, _) = meet(&prefill, &decode).await;
        assert!(prefill.memories.iter().all(|memory| memory.holders() == 4), "three transports and the test");
        let incoming = decode.engine.expect(1, "default", pages(&[1, 2])).unwrap();
        let pushing = there.push(1, pages(&[1, 2]), pages(&[1, 2])).unwrap();
        tokio::time::timeout(LONG, prefill.engine.shutdown(how)).await.unwrap();
        let free = |memories: &[Memory]| memories.iter().all(|memory| memory.holders() == 1);
        assert!(free(&prefill.memories));
        let (pushed, received) = (pushing.await, incoming.await);
        if how == Shutdown::Drain {
            assert!(pushed.is_ok() && received.is_ok(), "{pushed:?} {received:?}");
            assert!(decode.holds(1, Some(1)) && decode.holds(2, Some(2)));
        }
        tokio::time::timeout(LONG, decode.engine.shutdown(how)).await.unwrap();
        assert!(free(&decode.memories));
        for memory in prefill.memories.into_iter().chain(decode.memories) {
            assert!(memory.try_into_owner().is_ok());
        }
    }
}

#[tokio::test]
async fn dropping_the_engine_gives_the_memory_back_too() {
    let keys = Keys::new();
    let (one, two) = (Named::new("fast"), Named::new("fast"));
    let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
    let (there, here) = meet(&prefill, &decode).await;
    push(&prefill, &decode, &there, 1).await;
    let Node { engine, memories, .. } = decode;
    drop((engine, here));
    until("the memory is free", || memories.iter().all(|memory| memory.holders() == 1)).await;
    until("the peer is gone", || prefill.engine.peers().is_empty()).await;
}

#[test]
fn names_that_cannot_be_told_apart_are_refused_before_anything_is_registered() {
    let build = |more: &dyn Fn(EngineBuilder) -> EngineBuilder| {
        let layout = layout("pages=8", 0);
        let (keys, memory) = (TrustedKeys::new(), memories(&layout));
        let builder = Engine::builder(Role::Decode, Authentication::raw_keys(Identity::generate(), keys));
        let result = more(builder.cache(layout, memory.clone())).build();
        assert!(memory.iter().all(|memory| memory.holders() == 1));
        match result {
            Err(BuildError::Transports { reason }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let twice = build(&|builder| builder.transport(Named::new("fast")).transport(Named::new("fast")));
    assert!(twice.contains("\"fast\" was named twice"), "{twice}");
    let both = build(&|builder| builder.transport(Named::new("fast")).unavailable("fast", "no"));
    assert!(both.contains("\"fast\" was named twice"), "{both}");
    let quic = build(&|builder| builder.transport(Named::new("quic")));
    assert!(quic.contains("\"quic\" is there always"), "{quic}");
    let many = build(&|builder| (0..16).fold(builder, |builder, at| builder.unavailable(format!("t{at}"), "no")));
    assert!(many.contains("17 were named, and peers take 16"), "{many}");
    let long = build(&|builder| builder.unavailable("n".repeat(200), "no"));
    assert!(long.contains("200 bytes"), "{long}");
}

/// A path that ends between the choice and the end of the handshake is not taken for a connection.
#[tokio::test]
async fn connecting_many_times_under_losses_ends_connected_or_with_an_error() {
    let keys = Keys::new();
    let (one, two) = (Named::new("fast"), Named::new("fast"));
    let (prefill, decode) = (node(&keys, Role::Prefill, &[&one]), node(&keys, Role::Decode, &[&two]));
    let breaker = tokio::spawn({
        let two = Arc::clone(&two);
        async move {
            let mut broken = 0;
            while broken < 20 {
                let connections = two.connections();
                if let Some(peer) = connections.get(broken) {
                    two.mem.disconnect(*peer).await;
                    broken += 1;
                }
                tokio::task::yield_now().await;
            }
        }
    });
    let deadline = Instant::now() + LONG;
    while !breaker.is_finished() {
        assert!(Instant::now() < deadline);
        let _ = tokio::time::timeout(LONG, prefill.engine.connect(decode.engine.local_addr(), None)).await.unwrap();
    }
    breaker.await.unwrap();
    until("no dead connection is kept", || prefill.engine.peers().iter().all(Peer::is_connected)).await;
    let (there, _) = meet(&prefill, &decode).await;
    assert_eq!(there.transport(), "fast");
    push(&prefill, &decode, &there, 1).await;
}
