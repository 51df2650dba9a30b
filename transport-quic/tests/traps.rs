//! Traps of QUIC as a carrier of bulk data, each of which has been seen to spring.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::time::Duration;

use support::{Cluster, Node};
use tokio::time::timeout;
use transport_core::{Access, BatchOptions, Memory, PeerId, RegionId, Transport, WriteSlice};
use transport_quic::QuicConfig;

const LONG: Duration = Duration::from_secs(20);

/// Two connected nodes, and a region of `len` bytes on either side.
async fn connected(sender: QuicConfig, receiver: QuicConfig, len: u64) -> (Node, Node, PeerId, [RegionId; 2]) {
    let cluster = Cluster::new();
    let (a, b) = (cluster.node(sender), cluster.node(receiver));
    let (dialled, accepted) = tokio::join!(a.transport.dial(b.transport.local_addr(), None), b.transport.accept());
    let (theirs, ours) = tokio::join!(a.transport.connect(dialled.unwrap()), b.transport.connect(accepted.unwrap()));
    let (peer, back) = (theirs.unwrap(), ours.unwrap());
    let source = a.transport.register(Memory::host(len as usize).unwrap(), Access::LOCAL).unwrap();
    let target = b.transport.register(Memory::host(len as usize).unwrap(), Access::REMOTE_WRITE).unwrap();
    a.transport.import(peer, &b.transport.grant(back, target).unwrap()).unwrap();
    (a, b, peer, [source, target])
}

fn whole([src, dst]: [RegionId; 2], len: u64) -> WriteSlice {
    WriteSlice { src, src_offset: 0, dst, dst_offset: 0, len }
}

/// A window smaller than a datagram never sends, and a segmented send above 64 KiB is lost in silence: both end in datagrams of
/// 1,200 bytes or none. On loopback discovery comes to the largest datagram, and stays there.
#[tokio::test]
async fn datagrams_grow_to_what_loopback_carries_and_stay_there() {
    let len = 32 << 20;
    let (a, _b, peer, regions) = connected(QuicConfig::default(), QuicConfig::default(), len).await;
    for _ in 0..4 {
        let transfer = a.transport.batch_write(peer, (&[whole(regions, len)]).into(), &BatchOptions::new()).unwrap();
        timeout(LONG, transfer).await.unwrap().unwrap();
    }
    let path = a.transport.path(peer).unwrap();
    assert!(path.mtu > 60_000, "{path:?}");
    assert_eq!(path.black_holes, 0, "{path:?}");
}

#[tokio::test]
async fn datagrams_do_not_grow_beyond_what_is_configured() {
    let len = 8 << 20;
    let config = || QuicConfig::default().with_max_mtu(1452);
    let (a, _b, peer, regions) = connected(config(), config(), len).await;
    let transfer = a.transport.batch_write(peer, (&[whole(regions, len)]).into(), &BatchOptions::new()).unwrap();
    timeout(LONG, transfer).await.unwrap().unwrap();
    assert!(a.transport.path(peer).unwrap().mtu <= 1452);
}

/// Opening a stream beyond the peer's limit waits; streams that are over give their place back.
#[tokio::test]
async fn far_more_batches_than_streams_all_arrive() {
    let sender = QuicConfig::default().with_concurrent_batches(64);
    let receiver = QuicConfig::default().with_concurrent_batches(1);
    let (a, _b, peer, regions) = connected(sender, receiver, 4096).await;
    for _ in 0..5 {
        let transfers: Vec<_> = (0..200)
            .map(|_| a.transport.batch_write(peer, (&[whole(regions, 4096)]).into(), &BatchOptions::new()).unwrap())
            .collect();
        for transfer in transfers {
            timeout(LONG, transfer).await.unwrap().unwrap();
        }
    }
}

/// Keep-alives hold a connection that nobody uses, far beyond the bound on peer loss.
#[tokio::test]
async fn an_idle_connection_stays_up() {
    let config = || QuicConfig::default().with_peer_loss_timeout(Duration::from_millis(400));
    let (a, _b, peer, regions) = connected(config(), config(), 4096).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let transfer = a.transport.batch_write(peer, (&[whole(regions, 4096)]).into(), &BatchOptions::new()).unwrap();
    timeout(LONG, transfer).await.unwrap().unwrap();
}
