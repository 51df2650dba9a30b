//! Engines whose data goes over RDMA, on simulated NICs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{sync::Arc, time::Duration};

use kvferry::{Peer, PushError, Role, transport_core::Transport};
use support::{Keys, LONG, Node, config, layout, pages};
use transport_rdma::{
    RdmaConfig, RdmaTransport,
    sim::{SimHost, SimNetwork},
};

fn node(keys: &Keys, role: Role, host: &Arc<SimHost>) -> Node {
    let settings = RdmaConfig::default().with_loss_bound(Duration::from_secs(1));
    let rdma = RdmaTransport::open(Arc::<SimHost>::clone(host), settings).unwrap();
    let node = keys.node_of(role, layout("pages=8", 0), keys.identity(), |builder| {
        builder
            .config(config().with_transport_timeout(Duration::from_secs(5)))
            .transport(Arc::new(rdma) as Arc<dyn Transport>)
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

async fn push(decode: &Node, peer: &Peer, request: u64) {
    decode.memories.iter().for_each(|memory| memory.fill(0, memory.len(), 0).unwrap());
    let incoming = decode.engine.expect(request, "default", pages(&[5, 2])).unwrap();
    let pushed = peer.push(request, pages(&[1, 3]), pages(&[5, 2])).unwrap().await.unwrap();
    let received = incoming.await.unwrap();
    assert_eq!((pushed.bytes, pushed.transport), (received.bytes, peer.transport()));
    assert!(decode.holds(5, Some(1)) && decode.holds(2, Some(3)));
    assert!((0..8).filter(|page| ![5, 2].contains(page)).all(|page| decode.holds(page, None)));
}

#[tokio::test]
async fn pages_go_over_rdma_where_both_sides_have_it() {
    let (keys, network) = (Keys::new(), SimNetwork::new());
    let (prefill, decode) = (node(&keys, Role::Prefill, &network.host()), node(&keys, Role::Decode, &network.host()));
    let (there, here) = meet(&prefill, &decode).await;
    assert_eq!((there.transport(), here.transport()), ("rdma", "rdma"));
    for request in 0..20 {
        push(&decode, &there, request).await;
    }
}

#[tokio::test]
async fn what_rdma_does_not_reach_goes_over_quic_and_says_why() {
    let (keys, network) = (Keys::new(), SimNetwork::new());
    let (one, two) = (network.host(), network.host());
    network.partition(&one, &two);
    let (prefill, decode) = (node(&keys, Role::Prefill, &one), node(&keys, Role::Decode, &two));
    let (there, here) = meet(&prefill, &decode).await;
    assert_eq!((there.transport(), here.transport()), ("quic", "quic"));
    for peer in [&there, &here] {
        let [passed] = peer.passed_over() else { panic!("{:?}", peer.passed_over()) };
        assert_eq!(passed.transport, "rdma");
        assert!(passed.reason.contains("transport retry counter exceeded"), "{}", passed.reason);
        assert!(passed.reason.contains("GID index 3"), "{}", passed.reason);
    }
    push(&decode, &there, 1).await;
}

#[tokio::test]
async fn a_nic_that_falls_silent_fails_the_push_and_the_next_connection_takes_quic() {
    let (keys, network) = (Keys::new(), SimNetwork::new());
    let (one, two) = (network.host(), network.host());
    let (prefill, decode) = (node(&keys, Role::Prefill, &one), node(&keys, Role::Decode, &two));
    let (there, _) = meet(&prefill, &decode).await;
    push(&decode, &there, 1).await;
    two.kill();
    let _incoming = decode.engine.expect(2, "default", pages(&[5, 2])).unwrap();
    let error = there.push(2, pages(&[1, 3]), pages(&[5, 2])).unwrap().await.unwrap_err();
    assert!(matches!(error, PushError::Transfer { .. }), "{error}");
    // The control channel lives: both sides part, and meet again over what works.
    let mut again = None;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if prefill.engine.peers().is_empty() && decode.engine.peers().is_empty() {
            again = Some(meet(&prefill, &decode).await);
            break;
        }
    }
    let (there, _) = again.expect("both sides notice within the bound");
    assert_eq!(there.transport(), "quic");
    push(&decode, &there, 3).await;
}
