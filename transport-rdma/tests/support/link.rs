//! Two connected nodes, their buffers, and waiting that comes to an end.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::join;
use transport_core::{
    Access, Batch, BatchOptions, ConnectError, Event, Memory, Outcome, PeerId, RegionId, Transfer, TransferError,
    Transport, Waited, WriteSlice, next_event,
};
use transport_rdma::RdmaTransport;

use super::{Net, Node};

/// How long anything may take that must come to an end by itself.
pub const PATIENCE: Duration = Duration::from_secs(20);

struct Parker(Thread);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future until the deadline.
pub fn wait_until<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Parker(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// Waits for a future; fails the test where it does not come.
pub fn wait<F: Future>(what: &str, future: F) -> F::Output {
    wait_until(Instant::now() + PATIENCE, future).unwrap_or_else(|| panic!("{what} takes more than {PATIENCE:?}"))
}

/// Looks every millisecond until it is so; fails the test where it never is.
pub fn see(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} is not seen within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// How a transfer ends; fails the test where it does not.
pub fn outcome(transfer: &Transfer) -> Outcome {
    match transfer.wait_timeout(PATIENCE) {
        Waited::Finished(outcome) => outcome,
        Waited::StillInFlight(status) => panic!("a transfer is still in flight after {PATIENCE:?}: {status:?}"),
    }
}

pub fn delivered(transfer: &Transfer) {
    outcome(transfer).expect("the transfer is delivered");
}

pub fn failed(transfer: &Transfer) -> TransferError {
    outcome(transfer).expect_err("the transfer fails")
}

/// Numbers that look random: the same ones for the same seed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A registered buffer.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub memory: Memory,
    pub region: RegionId,
}

impl Buffer {
    pub fn new(transport: &RdmaTransport, len: usize, access: Access) -> Self {
        let memory = Memory::host(len).expect("the kernel gives memory");
        let region = transport.register(memory.clone(), access).expect("memory is registered");
        Self { memory, region }
    }

    pub fn fill_random(self, seed: u64) -> Self {
        let bytes = Random::new(seed).bytes(self.memory.len() as usize);
        self.memory.write_at(0, &bytes).unwrap();
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.range(0, self.memory.len() as usize)
    }

    pub fn range(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

pub fn slice(source: &Buffer, src_offset: u64, target: &Buffer, dst_offset: u64, len: u64) -> WriteSlice {
    WriteSlice { src: source.region, src_offset, dst: target.region, dst_offset, len }
}

/// One side of a connection.
#[derive(Clone, Debug)]
pub struct Side {
    pub transport: Arc<RdmaTransport>,
    /// The other side's name here.
    pub peer: PeerId,
}

impl Side {
    pub fn source(&self, len: usize, seed: u64) -> Buffer {
        Buffer::new(&self.transport, len, Access::LOCAL).fill_random(seed)
    }

    pub fn submit(&self, slices: &[WriteSlice]) -> Transfer {
        self.submit_with(slices, &BatchOptions::new())
    }

    pub fn notify(&self, slices: &[WriteSlice], payload: &[u8]) -> Transfer {
        self.submit_with(slices, &BatchOptions::new().with_notification(payload))
    }

    /// Submits, waiting for room as often as it takes.
    pub fn submit_with(&self, slices: &[WriteSlice], options: &BatchOptions<'_>) -> Transfer {
        loop {
            match self.transport.batch_write(self.peer, Batch::Slices(slices), options) {
                Ok(transfer) => return transfer,
                Err(transport_core::SubmitError::Full { .. }) => {
                    wait("room", self.transport.room(self.peer)).expect("the peer is connected");
                }
                Err(error) => panic!("a batch is refused: {error}"),
            }
        }
    }

    pub fn event(&self) -> Event {
        wait("an event", next_event(&*self.transport)).expect("the transport is open")
    }

    /// An event that comes within this time.
    pub fn event_within(&self, time: Duration) -> Option<Event> {
        wait_until(Instant::now() + time, next_event(&*self.transport)).flatten()
    }

    pub fn notification(&self) -> Bytes {
        match self.event() {
            Event::Notification { peer, payload } => {
                assert_eq!(peer, self.peer, "a notification names its sender");
                payload
            }
            other => panic!("a notification was expected, not {other:?}"),
        }
    }

    /// Why the peer was lost, passing over notifications.
    pub fn peer_lost(&self) -> String {
        loop {
            if let Event::PeerLost { peer, reason } = self.event() {
                assert_eq!(peer, self.peer, "the loss names the peer");
                return reason;
            }
        }
    }

    pub fn disconnect(&self) {
        wait("disconnecting", self.transport.disconnect(self.peer));
    }
}

/// A connection; where bytes go one way, they go from `a` to `b`.
#[derive(Clone, Debug)]
pub struct Link {
    pub a: Side,
    pub b: Side,
}

impl Link {
    /// A buffer of `b`'s that `a` may write.
    pub fn target(&self, len: usize) -> Buffer {
        let buffer = Buffer::new(&self.b.transport, len, Access::REMOTE_WRITE);
        self.grant(buffer.region);
        buffer
    }

    pub fn grant(&self, region: RegionId) {
        let grant = self.b.transport.grant(self.b.peer, region).expect("a region is granted");
        self.a.transport.import(self.a.peer, &grant).expect("a grant is imported");
    }

    pub fn reversed(&self) -> Self {
        Self { a: self.b.clone(), b: self.a.clone() }
    }

    /// Writes a few bytes each way until it works: the peer is usable (again).
    pub fn works_again(&self) {
        for link in [self.clone(), self.reversed()] {
            let (source, target) = (link.a.source(5000, 11), link.target(5000));
            let deadline = Instant::now() + PATIENCE;
            while let Err(error) = outcome(&link.a.submit(&[slice(&source, 0, &target, 0, 5000)])) {
                assert!(Instant::now() < deadline, "the peer is not usable again: {error}");
                assert!(
                    matches!(error, TransferError::Path { .. }),
                    "the way may fail again, and nothing else: {error}"
                );
            }
            assert_eq!(source.bytes(), target.bytes());
            for buffer in [(&link.a, source), (&link.b, target)] {
                wait("deregistering", buffer.0.transport.deregister(buffer.1.region)).unwrap();
            }
        }
    }

    /// Exactly this way works at once.
    pub fn works(&self) {
        let (source, target) = (self.a.source(5000, 12), self.target(5000));
        delivered(&self.a.submit(&[slice(&source, 0, &target, 0, 5000)]));
        assert_eq!(source.bytes(), target.bytes());
    }
}

impl Net {
    /// Connects; `a` dials.
    pub fn try_connect(&self, a: &Node, b: &Node) -> (Result<PeerId, ConnectError>, Result<PeerId, ConnectError>) {
        let (dialling, listening) = self.channels(a, b);
        let both = join(a.transport.connect(dialling), b.transport.connect(listening));
        wait("connecting", both)
    }

    pub fn connect(&self, a: &Node, b: &Node) -> Link {
        let (here, there) = self.try_connect(a, b);
        Link {
            a: Side { transport: Arc::clone(&a.transport), peer: here.expect("a is connected") },
            b: Side { transport: Arc::clone(&b.transport), peer: there.expect("b is connected") },
        }
    }

    /// Two connected nodes with these settings.
    pub fn pair(&self, config: &transport_rdma::RdmaConfig) -> (Node, Node, Link) {
        let (a, b) = (self.node(config.clone()), self.node(config.clone()));
        let link = self.connect(&a, &b);
        (a, b, link)
    }
}
