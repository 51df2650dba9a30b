//! Sizes and numbers beyond every limit of QUIC: streams, windows, datagrams, idle time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::time::Duration;

use support::{Cluster, Node};
use tokio::time::timeout;
use transport_core::{
    Access, Batch, BatchOptions, Memory, PeerId, RegionId, SubmitError, Transfer, Transport, WriteSlice, next_event,
};
use transport_quic::QuicConfig;

const LONG: Duration = Duration::from_secs(60);

/// Two nodes that are connected, and `len` bytes to write from one to the other.
struct Pair {
    a: Node,
    b: Node,
    to_b: PeerId,
    source: (Memory, RegionId),
    target: (Memory, RegionId),
}

impl Pair {
    async fn new(a: QuicConfig, b: QuicConfig, len: usize) -> Self {
        let cluster = Cluster::new();
        let (a, b) = (cluster.node(a), cluster.node(b));
        let (here, there) =
            tokio::join!(a.transport.dial(b.transport.local_addr(), Some(&b.key)), b.transport.accept());
        let (here, there) = (here.unwrap(), there.unwrap());
        let (to_b, to_a) = tokio::join!(a.transport.connect(here), b.transport.connect(there));
        let (to_b, to_a) = (to_b.unwrap(), to_a.unwrap());
        let (source, target) = (Memory::host(len).unwrap(), Memory::host(len).unwrap());
        let pattern: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        source.write_at(0, &pattern).unwrap();
        let source = (source.clone(), a.transport.register(source, Access::LOCAL).unwrap());
        let target = (target.clone(), b.transport.register(target, Access::REMOTE_WRITE).unwrap());
        let grant = b.transport.grant(to_a, target.1).unwrap();
        a.transport.import(to_b, &grant).unwrap();
        Self { a, b, to_b, source, target }
    }

    fn slice(&self, offset: u64, len: u64) -> WriteSlice {
        WriteSlice { src: self.source.1, src_offset: offset, dst: self.target.1, dst_offset: offset, len }
    }

    async fn submit(&self, batch: &[WriteSlice], options: &BatchOptions<'_>) -> Transfer {
        loop {
            match self.a.transport.batch_write(self.to_b, Batch::Slices(batch), options) {
                Ok(transfer) => return transfer,
                Err(SubmitError::Full { .. }) => self.a.transport.room(self.to_b).await.unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn is_equal(&self) -> bool {
        let read = |memory: &Memory| {
            let mut bytes = vec![0; memory.len() as usize];
            memory.read_at(0, &mut bytes).unwrap();
            bytes
        };
        read(&self.source.0) == read(&self.target.0)
    }
}

/// The receiver lets a peer have a few streams open; the sender has far more batches in flight.
#[tokio::test]
async fn far_more_batches_than_the_peer_allows_streams_all_arrive() {
    let small = QuicConfig::default().with_max_in_flight(4).with_concurrent_batches(4);
    let pair = Pair::new(QuicConfig::default().with_max_in_flight(64), small, 64 << 10).await;
    // Round after round: the credit for streams comes back.
    for _ in 0..16 {
        let mut transfers = Vec::new();
        for part in 0..64 {
            transfers.push(pair.submit(&[pair.slice(part * 1024, 1024)], &BatchOptions::new()).await);
        }
        for transfer in transfers {
            timeout(LONG, transfer).await.unwrap().unwrap();
        }
    }
    assert!(pair.is_equal());
}

#[tokio::test]
async fn a_thousand_small_batches_one_after_the_other_arrive_with_their_notifications() {
    let pair = Pair::new(QuicConfig::default(), QuicConfig::default(), 1000 * 64).await;
    for part in 0..1000u64 {
        let payload = part.to_le_bytes();
        let options = BatchOptions::new().with_notification(&payload);
        let transfer = pair.submit(&[pair.slice(part * 64, 64)], &options).await;
        let event = timeout(LONG, next_event(&*pair.b.transport)).await.unwrap().unwrap();
        assert!(matches!(event, transport_core::Event::Notification { payload: found, .. } if found == payload[..]));
        timeout(LONG, transfer).await.unwrap().unwrap();
    }
    assert!(pair.is_equal());
}

/// Far beyond every window, and so long that discovery finds the path's largest datagrams: none of them counts as a black hole.
#[tokio::test]
async fn a_quarter_of_a_gigabyte_arrives_in_large_datagrams() {
    let len = 256 << 20;
    let pair = Pair::new(QuicConfig::default(), QuicConfig::default(), len).await;
    let transfer = pair.submit(&[pair.slice(0, len as u64)], &BatchOptions::new()).await;
    timeout(LONG, transfer).await.unwrap().unwrap();
    assert!(pair.is_equal());
    let path = pair.a.transport.path(pair.to_b).unwrap();
    assert!(path.mtu > 60_000, "discovery got to {} bytes", path.mtu);
    assert_eq!(path.black_holes, 0);
}

/// Keep-alives hold a connection on which nothing happens, for longer than any timeout.
#[tokio::test]
async fn a_connection_outlives_idleness() {
    let config = || QuicConfig::default().with_peer_loss_timeout(Duration::from_millis(400));
    let pair = Pair::new(config(), config(), 4096).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let transfer = pair.submit(&[pair.slice(0, 4096)], &BatchOptions::new()).await;
    timeout(LONG, transfer).await.unwrap().unwrap();
    assert!(pair.is_equal());
}
