//! Peers with a trusted key that break the protocol in every way: the node stays up, writes nothing that it should not, and
//! its other peers do not notice.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::time::Duration;

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use support::{Cluster, Node, hostile};
use tokio::time::timeout;
use transport_core::{
    Access, BatchOptions, Event, Memory, PeerId, RegionGrant, RegionId, Transport, WriteSlice, next_event,
};
use transport_quic::QuicConfig;

const LONG: Duration = Duration::from_secs(15);
const LEN: u64 = 64 << 10;

/// A node with one region that the attacker was granted and one that it was not, and an honest peer at work.
struct Victim {
    node: Node,
    granted: Memory,
    private: Memory,
    grant: RegionGrant,
    private_region: RegionId,
    honest: Honest,
    attacker: Attacker,
}

struct Attacker {
    _endpoint: Endpoint,
    connection: Connection,
    _control: [(SendStream, RecvStream); 2],
}

struct Honest {
    node: Node,
    peer: PeerId,
    source: RegionId,
    target: RegionId,
}

impl Victim {
    async fn start() -> Self {
        let cluster = Cluster::new();
        let config = || {
            QuicConfig::default()
                .with_stall_timeout(Duration::from_millis(700))
                .with_connect_timeout(Duration::from_secs(2))
                .with_max_in_flight(64)
        };
        let node = cluster.node(config());
        let memory = || Memory::host(LEN as usize).unwrap();
        let (granted, private) = (memory(), memory());
        let region = node.transport.register(granted.clone(), Access::REMOTE_WRITE).unwrap();
        let private_region = node.transport.register(private.clone(), Access::REMOTE_WRITE).unwrap();

        let other = cluster.node(config());
        let (dialled, accepted) =
            tokio::join!(other.transport.dial(node.transport.local_addr(), None), node.transport.accept());
        let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap());
        let (theirs, ours) = tokio::join!(other.transport.connect(dialled), node.transport.connect(accepted));
        let (theirs, ours) = (theirs.unwrap(), ours.unwrap());
        let target = node.transport.register(memory(), Access::REMOTE_WRITE).unwrap();
        let grant = node.transport.grant(ours, target).unwrap();
        other.transport.import(theirs, &grant).unwrap();
        let source = other.transport.register(memory(), Access::LOCAL).unwrap();
        let honest = Honest { node: other, peer: theirs, source, target };

        let identity = cluster.identity();
        let address = node.transport.local_addr();
        let attack = async {
            let (endpoint, connection) = hostile::connect(address, &identity, b"kvferry/1").await.unwrap();
            let mut control = hostile::control(&connection).await;
            // A message of one byte: it wants the data path.
            control[1].0.write_all(&[1, 0, 0, 0, 2]).await.unwrap();
            Attacker { _endpoint: endpoint, connection, _control: control }
        };
        let welcome = async {
            let channel = node.transport.accept().await.unwrap();
            let peer = node.transport.connect(channel).await.unwrap();
            node.transport.grant(peer, region).unwrap()
        };
        let (attacker, grant) = tokio::join!(attack, welcome);
        Self { node, granted, private, grant, private_region, honest, attacker }
    }

    /// Writes bytes on a batch stream, ends it if asked, and gives what the victim answers, if anything.
    async fn batch(&self, bytes: &[u8], finish: bool) -> Option<Vec<u8>> {
        let (mut send, mut answer) = self.attacker.connection.open_bi().await.ok()?;
        send.write_all(&[3]).await.ok()?;
        send.write_all(bytes).await.ok()?;
        if finish {
            send.finish().ok()?;
        }
        answer.read_to_end(1024).await.ok()
    }

    /// The honest peer still gets its bytes through, and the regions are as they were.
    async fn is_well(&self) {
        let Honest { node, peer, source, target } = &self.honest;
        let slice = WriteSlice { src: *source, src_offset: 0, dst: *target, dst_offset: 0, len: LEN };
        let options = BatchOptions::new().with_notification(b"well");
        let transfer = node.transport.batch_write(*peer, (&[slice]).into(), &options).unwrap();
        timeout(LONG, transfer).await.unwrap().unwrap();
        loop {
            match timeout(LONG, next_event(&self.node.transport)).await.unwrap().unwrap() {
                Event::Notification { payload, .. } if payload == "well" => break,
                Event::PeerLost { .. } => {}
                event => panic!("{event:?}"),
            }
        }
    }

    fn untouched(&self) {
        for memory in [&self.granted, &self.private] {
            let mut bytes = vec![0; LEN as usize];
            memory.read_at(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "something was written");
        }
    }

    async fn is_cut_off(&self) {
        timeout(LONG, self.attacker.connection.closed()).await.expect("the attacker is cut off");
    }
}

fn entry(region: RegionId, offset: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&region.index.to_le_bytes());
    out.extend_from_slice(&region.generation.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out
}

fn segment(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut out = (entries.len() as u32).to_le_bytes().to_vec();
    entries.iter().for_each(|entry| out.extend_from_slice(entry));
    out
}

#[tokio::test]
async fn slices_that_were_not_granted_or_lie_outside_are_refused_before_a_byte_is_written() {
    let victim = Victim::start().await;
    let region = victim.grant.region;
    let stale = RegionId { generation: region.generation.wrapping_sub(1000), ..region };
    let good = entry(region, 0, 8);
    for bad in [
        entry(victim.private_region, 0, 8),
        entry(RegionId { index: 4_000_000, generation: 1 }, 0, 8),
        entry(stale, 0, 8),
        entry(region, LEN, 1),
        entry(region, LEN - 7, 8),
        entry(region, u64::MAX - 3, 8),
        entry(region, 1, u64::MAX),
    ] {
        // The segment is checked as a whole: its good slice is not written either.
        let mut bytes = segment(&[good.clone(), bad]);
        bytes.extend_from_slice(&[0xaa; 16]);
        let answer = timeout(LONG, victim.batch(&bytes, false)).await.unwrap().expect("an answer");
        assert_eq!((answer[0], &answer[1..9]), (2, &1u64.to_le_bytes()[..]), "slice 1 is refused");
        victim.untouched();
    }
    victim.is_well().await;
}

#[tokio::test]
async fn frames_that_are_too_long_cut_short_or_senseless_cost_the_peer_its_connection() {
    let region_of = |victim: &Victim| victim.grant.region;
    type Make = fn(RegionId) -> (Vec<u8>, bool);
    let attacks: [(&str, Make); 6] = [
        ("a segment of too many slices", |_| (16_385u32.to_le_bytes().to_vec(), false)),
        ("a segment of four billion slices", |_| (u32::MAX.to_le_bytes().to_vec(), false)),
        ("entries that break off", |region| (segment(&[entry(region, 0, 8)])[..20].to_vec(), true)),
        ("a batch without its end", |region| (segment(&[entry(region, 0, 0)]), true)),
        ("a notification that is too long", |_| ([&[0; 4][..], &[1], &1025u16.to_le_bytes()].concat(), false)),
        ("a flag that is none", |_| (vec![0, 0, 0, 0, 7], false)),
    ];
    for (name, make) in attacks {
        let victim = Victim::start().await;
        let (bytes, finish) = make(region_of(&victim));
        let _ = timeout(LONG, victim.batch(&bytes, finish)).await.unwrap_or_else(|_| panic!("{name}"));
        victim.is_cut_off().await;
        victim.untouched();
        victim.is_well().await;
    }
}

#[tokio::test]
async fn a_peer_that_stops_in_the_middle_of_a_batch_is_cut_off_and_lets_go_of_the_memory() {
    let victim = Victim::start().await;
    let (mut send, _answer) = victim.attacker.connection.open_bi().await.unwrap();
    send.write_all(&[3]).await.unwrap();
    send.write_all(&segment(&[entry(victim.grant.region, 0, LEN)])).await.unwrap();
    send.write_all(&[1; 100]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The region is in use by the attacker, which does not go on: it is cut off and the memory comes back.
    let memory = timeout(LONG, victim.node.transport.deregister(victim.grant.region)).await.unwrap().unwrap();
    assert_eq!(memory.len(), LEN);
    victim.is_cut_off().await;
    victim.is_well().await;
}

#[tokio::test]
async fn a_peer_cannot_open_more_streams_than_it_may() {
    let victim = Victim::start().await;
    let mut open = Vec::new();
    while let Ok(stream) = timeout(Duration::from_millis(300), victim.attacker.connection.open_bi()).await {
        open.push(stream.unwrap());
        assert!(open.len() < 64, "the number of streams is bounded");
    }
    victim.is_well().await;
}

#[tokio::test]
async fn control_messages_without_end_or_with_false_lengths_do_not_grow_the_node() {
    for (len, expected) in [(u32::MAX, "longer than the limit"), ((4 << 20) + 1, "longer than the limit")] {
        let mut victim = Victim::start().await;
        let stream = &mut victim.attacker._control[0].0;
        stream.write_all(&len.to_le_bytes()).await.unwrap();
        let closed = timeout(LONG, victim.attacker.connection.closed()).await.unwrap().to_string();
        assert!(closed.contains(expected), "{closed}");
        victim.is_well().await;
    }
    // Nobody takes the attacker's messages: after a few, it can write no more.
    let mut victim = Victim::start().await;
    let message = [&(1u32 << 20).to_le_bytes()[..], &vec![7; 1 << 20]].concat();
    let stream = &mut victim.attacker._control[0].0;
    let mut taken = 0;
    while timeout(Duration::from_millis(500), stream.write_all(&message)).await.is_ok() {
        taken += 1;
        assert!(taken < 40, "the node takes messages that nobody receives without a bound");
    }
    victim.is_well().await;
}

#[tokio::test]
async fn a_peer_that_never_reads_costs_itself_its_connection_and_nobody_else() {
    let victim = Victim::start().await;
    // Answers that are never read: the attacker opens batch after batch and reads nothing.
    for _ in 0..200 {
        let Ok(Ok((mut send, answer))) =
            timeout(Duration::from_millis(200), victim.attacker.connection.open_bi()).await
        else {
            break;
        };
        let _ = send.write_all(&[3, 0, 0, 0, 0, 0]).await;
        let _ = send.finish();
        std::mem::forget(answer);
    }
    victim.is_well().await;
}

#[tokio::test]
async fn other_versions_and_other_protocols_are_refused_by_name() {
    let cluster = Cluster::new();
    let node = cluster.node(QuicConfig::default().with_connect_timeout(Duration::from_secs(1)));
    let address = node.transport.local_addr();
    let identity = cluster.identity();
    let error = hostile::connect(address, &identity, b"h3").await.unwrap_err();
    assert!(matches!(error, quinn::ConnectionError::ConnectionClosed(_)), "{error:?}");

    for (hello, expected) in
        [(*b"KVFq\x09\0\0\0", "speaks protocol version 9, this side 1"), (*b"HTTP/1.1", "not a hello")]
    {
        let (_endpoint, connection) = hostile::connect(address, &identity, b"kvferry/1").await.unwrap();
        let (mut send, mut answer) = connection.open_bi().await.unwrap();
        send.write_all(&[1]).await.unwrap();
        send.write_all(&hello).await.unwrap();
        // A peer of another version learns ours; a stranger need not.
        let mut ours = [0; 8];
        if answer.read_exact(&mut ours).await.is_ok() {
            assert_eq!(ours, hostile::HELLO);
        } else {
            assert!(!hello.starts_with(b"KVFq"));
        }
        let closed = timeout(LONG, connection.closed()).await.unwrap().to_string();
        assert!(closed.contains(expected), "{closed}");
    }
    // A peer that connects and says nothing gives its place back.
    let (_endpoint, connection) = hostile::connect(address, &identity, b"kvferry/1").await.unwrap();
    timeout(LONG, connection.closed()).await.unwrap();
}

/// Random bytes on random streams, one victim for all of them as long as it keeps the connection.
#[test]
fn random_streams_never_harm_the_node() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let victim = std::cell::RefCell::new(runtime.block_on(Victim::start()));
    let prefixes = prop_oneof![
        Just(Vec::new()),
        Just(vec![3]),
        Just(vec![3, 0, 0, 0, 0]),
        Just(vec![3, 1, 0, 0, 0]),
        Just(vec![1]),
        Just(vec![2]),
    ];
    // The closure of a property may not change what it captures.
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let strategy = (prefixes, prop::collection::vec(any::<u8>(), 0..200), any::<bool>());
    let result = runner.run(&strategy, |(prefix, noise, finish)| {
        let connection = victim.borrow().attacker.connection.clone();
        runtime.block_on(async {
            if let Ok(Ok((mut send, _answer))) = timeout(Duration::from_secs(5), connection.open_bi()).await {
                let _ = send.write_all(&prefix).await;
                let _ = send.write_all(&noise).await;
                if finish {
                    let _ = send.finish();
                }
            }
        });
        if connection.close_reason().is_some() {
            victim.borrow().untouched();
            victim.replace(runtime.block_on(Victim::start()));
        }
        Ok(())
    });
    result.unwrap();
    let victim = victim.into_inner();
    victim.untouched();
    runtime.block_on(victim.is_well());
}
