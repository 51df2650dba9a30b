//! The engine over loopback QUIC, both sides in one process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::time::{Duration, Instant};

use kvferry::{
    ConnectError, ExpectError, PushError, ReceiveError, Request, Role,
    kv_plan::{Dtype, ModelShape, Side},
    transport_core::Shutdown,
    transport_quic::QuicConfig,
};
use support::{Keys, LONG, Node, config, layout, layouts, pages};

/// Two prefill stages and one decode rank, connected.
async fn two_stages(keys: &Keys) -> (Vec<Node>, Node, Vec<kvferry::Peer>) {
    let decode = keys.node(Role::Decode, layout("pages=64", 0));
    let (mut stages, mut peers) = (Vec::new(), Vec::new());
    for layout in layouts("pp=2,pages=64") {
        let stage = keys.node(Role::Prefill, layout);
        stage.fill();
        peers.push(stage.engine.connect(decode.engine.local_addr(), None).await.unwrap());
        stages.push(stage);
    }
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    (stages, decode, peers)
}

#[tokio::test]
async fn a_request_is_complete_after_the_last_stage_and_not_before() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    let mut incoming = decode.engine.expect(1, "default", pages(&[9, 3, 4])).unwrap();
    let first = peers[0].push(1, pages(&[1, 2, 5]), pages(&[9, 3, 4])).unwrap().await.unwrap();
    assert_eq!(first.bytes, 3 * 3 * 16 * 128);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut incoming).await.is_err(), "one stage is missing");
    peers[1].push(1, pages(&[1, 2, 5]), pages(&[9, 3, 4])).unwrap().await.unwrap();
    let received = incoming.await.unwrap();
    assert_eq!((received.bytes, received.senders.len()), (2 * first.bytes, 2));
    assert!(decode.holds(9, Some(1)) && decode.holds(3, Some(2)) && decode.holds(4, Some(5)));
    assert!((0..64).filter(|page| ![9, 3, 4].contains(page)).all(|page| decode.holds(page, None)));
}

#[tokio::test]
async fn parts_by_layer_and_by_page_share_one_commit() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    let mut incoming = decode.engine.expect(2, "default", pages(&[10, 11, 12])).unwrap();
    // The first stage goes layer by layer, the second page by page and back to front.
    let mut push = peers[0].begin(2).unwrap();
    for layer in 0..3 {
        push.send(Some(layer..layer + 1), pages(&[1, 2, 3]), pages(&[10, 11, 12])).unwrap();
    }
    let first = push.commit().unwrap();
    let mut push = peers[1].begin(2).unwrap();
    push.send(None, pages(&[3]), pages(&[12])).unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut incoming).await.is_err(), "not committed");
    let second = push.send_and_commit(None, pages(&[1, 2]), pages(&[10, 11])).unwrap();
    assert_eq!(first.await.unwrap().bytes, second.await.unwrap().bytes);
    incoming.await.unwrap();
    assert!(decode.holds(10, Some(1)) && decode.holds(11, Some(2)) && decode.holds(12, Some(3)));
}

#[tokio::test]
async fn a_part_left_out_sent_twice_or_sent_elsewhere_fails_the_request() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    type Parts = &'static [(Option<std::ops::Range<u32>>, &'static [i32], &'static [i32])];
    let cases: [Parts; 3] = [
        &[(Some(0..2), &[1, 2], &[5, 6])],
        &[(None, &[1, 2], &[5, 6]), (Some(0..1), &[1, 2], &[5, 6])],
        &[(None, &[1, 2], &[5, 7])],
    ];
    for (id, parts) in (10..).zip(cases) {
        let incoming = decode.engine.expect(id, "default", pages(&[5, 6])).unwrap();
        let mut push = peers[0].begin(id).unwrap();
        for (layers, src, dst) in parts {
            push.send(layers.clone(), pages(src), pages(dst)).unwrap();
        }
        push.commit().unwrap().await.unwrap();
        match incoming.await {
            Err(ReceiveError::Incomplete { rank, .. }) => assert_eq!(rank.to_string(), "pp0.tp0"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_commit_that_comes_before_it_is_expected_counts() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    for peer in &peers {
        peer.push(3, pages(&[7]), pages(&[8])).unwrap().await.unwrap();
    }
    decode.engine.expect(3, "default", pages(&[8])).unwrap().await.unwrap();
    assert!(decode.holds(8, Some(7)));
}

#[tokio::test]
async fn a_full_prefix_hit_sends_no_pages_and_still_completes() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    let incoming = decode.engine.expect(4, "default", &[]).unwrap();
    for peer in &peers {
        peer.push(4, &[], &[]).unwrap().await.unwrap();
    }
    assert_eq!(incoming.await.unwrap().bytes, 0);
}

#[tokio::test]
async fn a_sender_that_gives_up_is_heard_at_once() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    let incoming = decode.engine.expect(5, "default", pages(&[1])).unwrap();
    let started = Instant::now();
    let mut push = peers[0].begin(5).unwrap();
    push.send(Some(0..1), pages(&[1]), pages(&[1])).unwrap();
    let outcome = push.fail("the model ran out of memory").await;
    assert!(matches!(outcome, Err(PushError::GivenUp { .. })), "{outcome:?}");
    match incoming.await {
        Err(ReceiveError::SenderFailed { rank, reason, .. }) => {
            assert_eq!(rank.to_string(), "pp0.tp0");
            assert!(reason.contains("the model ran out of memory"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(1));
    // The other stage was fenced: what it pushes late is refused there, and lands nowhere.
    match peers[1].push(5, pages(&[1]), pages(&[1])) {
        Err(PushError::AbortedByReceiver { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(decode.engine.expect(5, "default", pages(&[1])), Err(ExpectError::Failed { .. })));
    let again = decode.engine.expect(Request::new(5, 1), "default", pages(&[1])).unwrap();
    for peer in &peers {
        peer.push(Request::new(5, 1), pages(&[1]), pages(&[1])).unwrap().await.unwrap();
    }
    again.await.unwrap();
}

#[tokio::test]
async fn dropping_a_push_before_its_commit_fails_the_request() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    let incoming = decode.engine.expect(6, "default", pages(&[1])).unwrap();
    drop(peers[1].begin(6).unwrap());
    assert!(matches!(incoming.await, Err(ReceiveError::SenderFailed { .. })));
}

#[tokio::test]
async fn an_abort_returns_when_every_sender_is_quiet() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    let incoming = decode.engine.expect(7, "default", pages(&[1, 2])).unwrap();
    let mut push = peers[0].begin(7).unwrap();
    push.send(Some(0..1), pages(&[1, 2]), pages(&[1, 2])).unwrap();
    let outcome = incoming.abort("the client went away").await;
    assert!(matches!(outcome, Err(ReceiveError::Aborted { .. })), "{outcome:?}");
    let late = push.send(Some(1..2), pages(&[1, 2]), pages(&[1, 2]));
    match late {
        Err(PushError::AbortedByReceiver { reason, .. }) => {
            assert!(reason.contains("the client went away"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    // The pages may be used again: nothing lands in them any more.
    decode.memories.iter().for_each(|memory| memory.fill(0, memory.len(), 0).unwrap());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!((0..64).all(|page| decode.holds(page, None)));
}

#[tokio::test]
async fn a_request_that_nobody_sends_ends_at_its_deadline() {
    let keys = Keys::new();
    let decode = keys.node_with(
        Role::Decode,
        layout("pages=64", 0),
        keys.identity(),
        config().with_request_timeout(Duration::from_millis(300)),
    );
    let stage = keys.node(Role::Prefill, layout("pages=64", 0));
    let _peer = stage.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    match decode.engine.expect(8, "default", pages(&[1])).unwrap().await {
        Err(ReceiveError::TimedOut { missing, .. }) => assert_eq!(missing, "pp0.tp0"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_the_same_words_on_both_sides() {
    let keys = Keys::new();
    let decode = keys.node(Role::Decode, layout("layers=5,pages=64", 0));
    for stage in layouts("pp=2,pages=64") {
        let prefill = keys.node(Role::Prefill, stage);
        // Whoever dials, and whichever ranks meet, the error is the same.
        let ours = prefill.engine.connect(decode.engine.local_addr(), None).await.unwrap_err();
        let theirs = decode.engine.connect(prefill.engine.local_addr(), None).await.unwrap_err();
        assert_eq!(ours, theirs);
        assert_eq!(ours.mismatch_kind(), Some("missing_layer"));
        let text = ours.to_string();
        assert!(
            text.contains("layer 5 (latent)") && text.contains("pp1.tp0") && text.contains("5 latent tables"),
            "{text}"
        );
        assert!(prefill.engine.peers().is_empty() && decode.engine.peers().is_empty());
    }
}

#[tokio::test]
async fn two_sides_of_the_same_role_or_of_another_model_are_refused() {
    let keys = Keys::new();
    let (one, two) = (keys.node(Role::Decode, layout("pages=8", 0)), keys.node(Role::Decode, layout("pages=8", 0)));
    let error = one.engine.connect(two.engine.local_addr(), None).await.unwrap_err();
    assert_eq!(error, ConnectError::SameRole { role: Role::Decode });
    let other = ModelShape::from_config_json(&support::MODEL.replace("48", "40")).unwrap();
    let other = "pages=8".parse::<Side>().unwrap().layouts(&other, 16, Dtype::Bf16).unwrap().remove(0);
    let other = keys.node(Role::Prefill, other);
    let error = other.engine.connect(two.engine.local_addr(), None).await.unwrap_err();
    assert_eq!(error.mismatch_kind(), Some("model"));
}

#[tokio::test]
async fn two_engines_that_claim_one_rank_are_told_so() {
    let keys = Keys::new();
    let decode = keys.node(Role::Decode, layout("pages=8", 0));
    let (one, two) = (keys.node(Role::Prefill, layout("pages=8", 0)), keys.node(Role::Prefill, layout("pages=8", 0)));
    one.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    let error = two.engine.connect(decode.engine.local_addr(), None).await.unwrap_err().to_string();
    assert!(error.contains("two engines claim one rank"), "{error}");
}

#[tokio::test]
async fn a_request_from_senders_that_are_not_there_is_refused_by_name() {
    let keys = Keys::new();
    let decode = keys.node(Role::Decode, layout("pages=8", 0));
    assert!(matches!(decode.engine.expect(1, "default", pages(&[1])), Err(ExpectError::UnknownDeployment { .. })));
    let stage = keys.node(Role::Prefill, layout("pp=3,pages=8", 1));
    stage.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    let missing = decode.engine.wait_for_senders("default", Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(missing.len(), 2);
    match decode.engine.expect(1, "default", pages(&[1])) {
        Err(ExpectError::MissingSenders { missing, .. }) => assert_eq!(missing, "pp0.tp0, pp2.tp0"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn wrong_pages_are_refused_on_either_side_and_the_engine_lives_on() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    for wrong in [&[64][..], &[-1], &[5, 5]] {
        assert!(
            matches!(decode.engine.expect(9, "default", pages(wrong)), Err(ExpectError::Pages { .. })),
            "{wrong:?}"
        );
        let src: Vec<i32> = (0..wrong.len() as i32).collect();
        assert!(matches!(peers[0].push(9, pages(&src), pages(wrong)), Err(PushError::Plan { .. })), "{wrong:?}");
    }
    assert!(matches!(peers[0].push(9, pages(&[1, 2]), pages(&[1])), Err(PushError::Plan { .. })));
    // Nothing was sent, and the receiver has heard nothing: the same attempt works.
    let request = Request::new(9, 0);
    let incoming = decode.engine.expect(request, "default", pages(&[2])).unwrap();
    for peer in &peers {
        peer.push(request, pages(&[1]), pages(&[2])).unwrap().await.unwrap();
    }
    incoming.await.unwrap();
}

#[tokio::test]
async fn a_restarted_peer_is_a_new_incarnation_and_works_at_once() {
    let keys = Keys::new();
    let decode = keys.node(Role::Decode, layout("pages=8", 0));
    let identity = keys.identity();
    let first = keys.node_with(Role::Prefill, layout("pages=8", 0), identity.clone(), config());
    let old = first.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    let lost = decode.engine.expect(1, "default", pages(&[1])).unwrap();
    // The same node comes back while the old connection still looks alive.
    let second = keys.node_with(Role::Prefill, layout("pages=8", 0), identity, config());
    second.fill();
    let started = Instant::now();
    let new = second.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(1));
    match lost.await {
        Err(ReceiveError::SenderLost { reason, .. }) => assert!(reason.contains("restarted"), "{reason}"),
        other => panic!("{other:?}"),
    }
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    let incoming = decode.engine.expect(2, "default", pages(&[3])).unwrap();
    new.push(2, pages(&[2]), pages(&[3])).unwrap().await.unwrap();
    incoming.await.unwrap();
    assert!(decode.holds(3, Some(2)));
    assert!(old.push(3, pages(&[2]), pages(&[3])).is_err() || !old.is_connected());
}

#[tokio::test]
async fn shutting_down_with_requests_open_ends_all_of_them() {
    for how in [Shutdown::Abort, Shutdown::Drain] {
        let keys = Keys::new();
        let (stages, decode, peers) = two_stages(&keys).await;
        let incoming = decode.engine.expect(1, "default", pages(&[1])).unwrap();
        let push = peers[0].push(1, pages(&[1]), pages(&[1])).unwrap();
        tokio::time::timeout(LONG, decode.engine.shutdown(how)).await.unwrap();
        assert!(matches!(incoming.await, Err(ReceiveError::Closed)));
        assert!(decode.engine.expect(2, "default", pages(&[1])).is_err());
        let _ = tokio::time::timeout(LONG, push).await.unwrap();
        for stage in stages {
            tokio::time::timeout(LONG, stage.engine.shutdown(how)).await.unwrap();
        }
        assert!(peers[0].push(2, pages(&[1]), pages(&[1])).is_err());
    }
}

#[tokio::test]
async fn dropping_and_forgetting_everything_is_safe() {
    let keys = Keys::new();
    for round in 0..4 {
        let (stages, decode, peers) = two_stages(&keys).await;
        let incoming = decode.engine.expect(1, "default", pages(&[1, 2, 3])).unwrap();
        let push = peers[0].push(1, pages(&[1, 2, 3]), pages(&[1, 2, 3])).unwrap();
        let parts = peers[1].begin(1).unwrap();
        match round {
            0 => drop((incoming, push, parts, peers)),
            1 => std::mem::forget((incoming, push, parts, peers)),
            2 => drop((stages, parts, decode, incoming, push)),
            _ => {
                drop(decode);
                std::mem::forget(parts);
                assert!(tokio::time::timeout(LONG, push).await.is_ok());
            }
        }
    }
}

/// What the receiver has reported as failed is never written again, however the sender comes to push it.
#[tokio::test]
async fn a_push_after_a_failure_that_was_reported_lands_nowhere() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    // The sender has failed by itself and tries the same attempt again.
    let incoming = decode.engine.expect(1, "default", pages(&[1])).unwrap();
    peers[0].begin(1).unwrap().fail("out of memory").await.unwrap_err();
    incoming.await.unwrap_err();
    assert!(matches!(peers[0].push(1, pages(&[5]), pages(&[1])), Err(PushError::AbortedByReceiver { .. })));
    // A sender that had committed before the request was aborted.
    let incoming = decode.engine.expect(2, "default", pages(&[1])).unwrap();
    peers[0].push(2, pages(&[5]), pages(&[1])).unwrap().await.unwrap();
    incoming.abort("no longer wanted").await.unwrap_err();
    decode.memories.iter().for_each(|memory| memory.fill(0, memory.len(), 0).unwrap());
    let deadline = Instant::now() + LONG;
    // It hears of the abort side by side with the other one, and may have begun before that.
    while !matches!(peers[0].push(2, pages(&[5]), pages(&[1])), Err(PushError::AbortedByReceiver { .. })) {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_failed_on_an_old_connection_is_refused_on_the_new_one() {
    let keys = Keys::new();
    let decode = keys.node(Role::Decode, layout("pages=8", 0));
    let identity = keys.identity();
    let first = keys.node_with(Role::Prefill, layout("pages=8", 0), identity.clone(), config());
    first.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    let incoming = decode.engine.expect(1, "default", pages(&[1])).unwrap();
    first.engine.shutdown(Shutdown::Abort).await;
    incoming.await.unwrap_err();
    let second = keys.node_with(Role::Prefill, layout("pages=8", 0), identity, config());
    second.fill();
    let peer = second.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    assert!(matches!(peer.push(1, pages(&[2]), pages(&[1])), Err(PushError::AbortedByReceiver { .. })));
    assert!(decode.holds(1, None));
}

#[tokio::test]
async fn ranks_of_one_deployment_have_one_configuration() {
    let keys = Keys::new();
    let decode = keys.node(Role::Decode, layout("pages=8", 0));
    let one = keys.node(Role::Prefill, layout("pp=3,pages=8", 0));
    one.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", Duration::from_millis(100)).await.unwrap_err();
    let other = keys.node(Role::Prefill, layout("pp=2,pages=8", 1));
    let error = other.engine.connect(decode.engine.local_addr(), None).await.unwrap_err().to_string();
    assert!(error.contains("layers=2+2+2") && error.contains("layers=3+3"), "{error}");
}

#[tokio::test]
async fn of_two_engines_that_claim_one_rank_at_the_same_time_one_is_refused() {
    for _ in 0..5 {
        let keys = Keys::new();
        let decode = keys.node(Role::Decode, layout("pages=8", 0));
        let (one, two) =
            (keys.node(Role::Prefill, layout("pages=8", 0)), keys.node(Role::Prefill, layout("pages=8", 0)));
        let address = decode.engine.local_addr();
        let (first, second) = tokio::join!(one.engine.connect(address, None), two.engine.connect(address, None));
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        assert_eq!(decode.engine.peers().len(), 1);
    }
}

#[tokio::test]
async fn two_sides_that_dial_each_other_end_with_one_connection_that_works() {
    for _ in 0..5 {
        let keys = Keys::new();
        let decode = keys.node(Role::Decode, layout("pages=8", 0));
        let prefill = keys.node(Role::Prefill, layout("pages=8", 0));
        prefill.fill();
        let (there, here) = (decode.engine.local_addr(), prefill.engine.local_addr());
        let results = tokio::join!(
            prefill.engine.connect(there, None),
            decode.engine.connect(here, None),
            prefill.engine.connect(there, None)
        );
        assert!(results.0.is_ok() || results.1.is_ok() || results.2.is_ok(), "{results:?}");
        let deadline = Instant::now() + LONG;
        let settled = |node: &Node| node.engine.peers().len() == 1;
        while !(settled(&decode) && settled(&prefill)) {
            assert!(Instant::now() < deadline, "{:?} {:?}", decode.engine.peers(), prefill.engine.peers());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let incoming = decode.engine.expect(1, "default", pages(&[3])).unwrap();
        prefill.engine.peers()[0].push(1, pages(&[2]), pages(&[3])).unwrap().await.unwrap();
        incoming.await.unwrap();
        assert!(decode.holds(3, Some(2)));
    }
}

#[tokio::test]
async fn a_reason_without_end_is_cut_and_the_failure_is_heard() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    let endless = "no ".repeat(2 << 20);
    let incoming = decode.engine.expect(1, "default", pages(&[1])).unwrap();
    peers[0].begin(1).unwrap().fail(&endless).await.unwrap_err();
    match incoming.await {
        Err(ReceiveError::SenderFailed { reason, .. }) => assert!(reason.len() < 1024),
        other => panic!("{other:?}"),
    }
    let incoming = decode.engine.expect(2, "default", pages(&[1])).unwrap();
    incoming.abort(&endless).await.unwrap_err();
    assert!(peers.iter().all(kvferry::Peer::is_connected), "nobody was cut off for it");
}

#[tokio::test]
async fn a_commit_that_finds_no_room_can_be_tried_again() {
    let keys = Keys::new();
    let quic = QuicConfig::default().with_max_in_flight(1);
    let decode = keys.node(Role::Decode, layout("pages=64", 0));
    let stage = keys.node_with(Role::Prefill, layout("pages=64", 0), keys.identity(), config().with_quic(quic));
    let peer = stage.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    let incoming = decode.engine.expect(1, "default", pages(&[1])).unwrap();
    let mut push = peer.begin(1).unwrap();
    push.send(None, pages(&[1]), pages(&[1])).unwrap();
    let push = loop {
        match push.commit() {
            Ok(push) => break push,
            Err(PushError::Submit { .. }) => peer.room().await.unwrap(),
            Err(error) => panic!("{error}"),
        }
    };
    push.await.unwrap();
    incoming.await.unwrap();
}

#[tokio::test]
async fn bounds_without_end_are_no_trap() {
    let keys = Keys::new();
    let config = config().with_drain_timeout(Duration::MAX).with_request_timeout(Duration::MAX);
    let decode = keys.node_with(Role::Decode, layout("pages=8", 0), keys.identity(), config);
    let stage = keys.node(Role::Prefill, layout("pages=8", 0));
    let _peer = stage.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    let incoming = decode.engine.expect(1, "default", pages(&[1])).unwrap();
    let outcome = tokio::time::timeout(LONG, incoming.abort("enough")).await.unwrap();
    assert!(matches!(outcome, Err(ReceiveError::Aborted { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_page_is_expected_by_one_request_at_a_time() {
    let keys = Keys::new();
    let (_stages, decode, peers) = two_stages(&keys).await;
    let first = decode.engine.expect(1, "default", pages(&[1, 2])).unwrap();
    match decode.engine.expect(2, "default", pages(&[2, 3])) {
        Err(ExpectError::PageInUse { page, other, .. }) => assert_eq!((page.0, other.id), (2, 1)),
        other => panic!("{other:?}"),
    }
    for peer in &peers {
        peer.push(1, pages(&[4, 5]), pages(&[1, 2])).unwrap().await.unwrap();
    }
    first.await.unwrap();
    decode.engine.expect(2, "default", pages(&[2, 3])).unwrap().abort("only a test").await.unwrap_err();
    drop(decode.engine.expect(3, "default", pages(&[3])).unwrap());
}
