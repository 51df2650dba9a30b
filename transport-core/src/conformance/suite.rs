//! The nodes of one trial, and what trials do with them again and again.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::join;

use super::{
    field::Field,
    harness::{Harness, Profile},
    random::Random,
    wait::{look_until, poll_until},
};
use crate::{
    Access, Batch, BatchOptions, ConnectError, ControlChannel, Delivered, Event, Memory, Outcome, PeerId, RegionId,
    Shutdown, State, SubmitError, Transfer, Transport, Waited, WriteSlice, next_event,
};

/// A harness whose nodes are numbers, so that the trials are compiled once.
trait Nodes: Send + Sync {
    fn profile(&self) -> Profile;
    fn start(&self) -> Node;
    fn channels(&self, dialler: &Node, listener: &Node) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>);
    fn kill(&self, node: &Node) -> bool;
    fn forget(&self, node: &Node);
}

struct Numbered<H: Harness> {
    harness: H,
    nodes: Mutex<Vec<Option<Arc<H::Node>>>>,
}

impl<H: Harness> Numbered<H> {
    fn node(&self, node: &Node) -> Arc<H::Node> {
        self.nodes.lock().unwrap()[node.number].clone().expect("the node was not abandoned")
    }
}

impl<H: Harness> Nodes for Numbered<H> {
    fn profile(&self) -> Profile {
        self.harness.profile()
    }

    fn start(&self) -> Node {
        let node = Arc::new(self.harness.start());
        let transport = self.harness.transport(&node);
        let mut nodes = self.nodes.lock().unwrap();
        nodes.push(Some(node));
        Node { number: nodes.len() - 1, transport }
    }

    fn channels(&self, dialler: &Node, listener: &Node) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        self.harness.channels(&self.node(dialler), &self.node(listener))
    }

    fn kill(&self, node: &Node) -> bool {
        self.harness.kill(&self.node(node))
    }

    fn forget(&self, node: &Node) {
        self.nodes.lock().unwrap()[node.number] = None;
    }
}

/// One node of a trial.
#[derive(Clone)]
pub(super) struct Node {
    number: usize,
    pub(super) transport: Arc<dyn Transport>,
}

/// What a trial has to work with.
pub(super) struct Suite {
    nodes: Box<dyn Nodes>,
    pub(super) profile: Profile,
    pub(super) random: Random,
    started: Vec<Node>,
    channels: Vec<Arc<dyn ControlChannel>>,
}

impl Suite {
    pub(super) fn new<H: Harness>(harness: H, seed: u64) -> Self {
        let nodes = Box::new(Numbered { harness, nodes: Mutex::default() });
        let profile = nodes.profile();
        Self { nodes, profile, random: Random::new(seed), started: Vec::new(), channels: Vec::new() }
    }

    /// Waits for a future, but not for ever.
    pub(super) fn wait<F: Future>(&self, what: &str, future: F) -> F::Output {
        let patience = self.profile.patience;
        poll_until(future, Instant::now() + patience)
            .unwrap_or_else(|| panic!("{what} did not come to an end within {patience:?}"))
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.profile.patience
    }

    /// Waits for something that can only be looked at.
    pub(super) fn see(&self, what: &str, done: impl FnMut() -> bool) {
        assert!(look_until(self.deadline(), done), "{what} did not happen within {:?}", self.profile.patience);
    }

    pub(super) fn start(&mut self) -> Node {
        let node = self.nodes.start();
        self.started.push(node.clone());
        node
    }

    pub(super) fn channels(
        &mut self,
        dialler: &Node,
        listener: &Node,
    ) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        let (here, there) = self.nodes.channels(dialler, listener);
        // A program keeps a channel for as long as the connection over it; so does the suite.
        self.channels.extend([Arc::clone(&here), Arc::clone(&there)]);
        (here, there)
    }

    pub(super) fn try_connect(
        &mut self,
        a: &Node,
        b: &Node,
    ) -> (Result<PeerId, ConnectError>, Result<PeerId, ConnectError>) {
        let (here, there) = self.channels(a, b);
        self.wait("connecting", join(a.transport.connect(here), b.transport.connect(there)))
    }

    /// A connection: `b`'s name at `a`, and `a`'s at `b`.
    pub(super) fn connect(&mut self, a: &Node, b: &Node) -> Pair {
        let (to_b, to_a) = self.try_connect(a, b);
        Pair {
            a: Side {
                transport: Arc::clone(&a.transport),
                node: a.clone(),
                peer: to_b.expect("the dialling side connects"),
            },
            b: Side {
                transport: Arc::clone(&b.transport),
                node: b.clone(),
                peer: to_a.expect("the listening side connects"),
            },
        }
    }

    /// Two new nodes and a connection.
    pub(super) fn pair(&mut self) -> Pair {
        let (a, b) = (self.start(), self.start());
        self.connect(&a, &b)
    }

    pub(super) fn kill(&self, node: &Node) -> bool {
        self.nodes.kill(node)
    }

    /// Drops both nodes and the channels between them, without a word: first the sender, or first the receiver.
    pub(super) fn abandon(&mut self, pair: Pair, receiver_first: bool) {
        let Pair { a, b } = pair;
        let sides = if receiver_first { [b, a] } else { [a, b] };
        self.channels.clear();
        for side in sides {
            self.started.retain(|node| node.number != side.node.number);
            self.nodes.forget(&side.node);
        }
    }

    /// A registered piece of memory full of random bytes.
    pub(super) fn field(&mut self, side: &Side, len: usize, access: Access) -> Field {
        Field::new(&*side.transport, self.random.bytes(len), access)
    }

    /// A source at `pair.a` and a granted target at `pair.b`.
    pub(super) fn fields(&mut self, pair: &Pair, len: usize) -> (Field, Field) {
        (self.field(&pair.a, len, Access::LOCAL), self.target(pair, len))
    }

    /// A target at `pair.b`, granted to `pair.a`.
    pub(super) fn target(&mut self, pair: &Pair, len: usize) -> Field {
        let target = self.field(&pair.b, len, Access::REMOTE_WRITE);
        pair.grant(target.region);
        target
    }

    /// Waits for an outcome, but not for ever.
    pub(super) fn outcome(&self, transfer: &Transfer) -> Outcome {
        match transfer.wait_timeout(self.profile.patience) {
            Waited::Finished(outcome) => outcome,
            Waited::StillInFlight(status) => {
                panic!("a transfer is still in flight after {:?}: {status:?}", self.profile.patience)
            }
        }
    }

    pub(super) fn delivered(&self, transfer: &Transfer) -> Delivered {
        self.outcome(transfer).expect("the transfer is delivered")
    }

    /// Submits, waiting for room as often as it takes.
    pub(super) fn submit(&self, side: &Side, batch: Batch<'_>, options: &BatchOptions<'_>) -> Transfer {
        let deadline = self.deadline();
        loop {
            match side.transport.batch_write(side.peer, batch, options) {
                Ok(transfer) => return transfer,
                Err(SubmitError::Full { .. }) if Instant::now() < deadline => {
                    self.wait("waiting for room", side.transport.room(side.peer)).expect("the peer is connected");
                }
                Err(error) => panic!("a batch is refused: {error}"),
            }
        }
    }

    /// Submits and waits for the delivery.
    pub(super) fn write(&self, side: &Side, batch: Batch<'_>) -> Delivered {
        self.delivered(&self.submit(side, batch, &BatchOptions::new()))
    }

    /// The next event, which has to come.
    pub(super) fn event(&self, side: &Side) -> Event {
        self.wait("the next event", next_event(&*side.transport)).expect("the transport is open")
    }

    /// The payload of the next event, which has to be a notification of the side's peer.
    pub(super) fn notification(&self, side: &Side) -> Bytes {
        match self.event(side) {
            Event::Notification { peer, payload } => {
                assert_eq!(peer, side.peer, "a notification names its sender");
                payload
            }
            other => panic!("a notification was expected, not {other:?}"),
        }
    }

    /// Waits until the loss of the side's peer is reported, passing over notifications.
    pub(super) fn peer_lost(&self, side: &Side) -> String {
        loop {
            if let Event::PeerLost { peer, reason } = self.event(side) {
                assert_eq!(peer, side.peer, "the loss names the peer");
                return reason;
            }
        }
    }

    /// Asserts that no event comes for a while.
    pub(super) fn no_event(&self, side: &Side) {
        let event = poll_until(next_event(&*side.transport), Instant::now() + Duration::from_millis(50));
        assert_eq!(event, None, "no event was to come");
    }

    /// Makes further notifications from `pair.a` wait: transfers with one stay in flight until [`Suite::release`].
    pub(super) fn hold(&self, pair: &Pair) {
        for _ in 0..self.profile.events_per_peer {
            let options = BatchOptions::new().with_notification(b"filler");
            self.delivered(&self.submit(&pair.a, Batch::Slices(&[]), &options));
        }
    }

    /// A transfer of `batch` that stays in flight until [`Suite::release`], after [`Suite::hold`]. Its bytes move.
    pub(super) fn held(&self, pair: &Pair, batch: Batch<'_>) -> Transfer {
        let options = BatchOptions::new().with_notification(b"held");
        pair.a.transport.batch_write(pair.a.peer, batch, &options).expect("a held batch is submitted")
    }

    /// Takes what [`Suite::hold`] left, and then the notifications of so many held transfers.
    pub(super) fn release(&self, pair: &Pair, held: usize) {
        for _ in 0..self.profile.events_per_peer {
            assert_eq!(self.notification(&pair.b), "filler");
        }
        for _ in 0..held {
            assert_eq!(self.notification(&pair.b), "held");
        }
    }

    /// Takes memory back once nobody else holds it: what is in it, and what was to be.
    pub(super) fn reclaim(&self, what: &str, field: Field) -> (Vec<u8>, Vec<u8>) {
        let Field { memory, expected, .. } = field;
        let (mut memory, mut owner) = (Some(memory), None);
        self.see(what, || {
            match memory.take().map(Memory::try_into_owner) {
                Some(Ok(reclaimed)) => owner = Some(reclaimed),
                Some(Err(held)) => memory = Some(held),
                None => {}
            }
            owner.is_some()
        });
        let mut found = vec![0; expected.len()];
        owner.expect("it was seen").copy_out(0, &mut found);
        (found, expected)
    }

    /// Ends all nodes, which must work whatever the trial did.
    pub(super) fn finish(self) {
        for node in &self.started {
            self.wait("shutting down after the trial", node.transport.shutdown(Shutdown::Abort));
        }
    }
}

/// One side of a connection.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) node: Node,
    /// The other side's name here.
    pub(super) peer: PeerId,
}

impl Side {
    pub(super) fn submit(&self, batch: Batch<'_>) -> Result<Transfer, SubmitError> {
        self.transport.batch_write(self.peer, batch, &BatchOptions::new())
    }

    pub(super) fn register(&self, len: usize, access: Access) -> (Memory, RegionId) {
        let memory = Memory::host(len).expect("the kernel gives memory");
        let region = self.transport.register(memory.clone(), access).expect("memory is registered");
        (memory, region)
    }
}

/// A connection. Where a trial moves bytes one way, they go from `a` to `b`.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) a: Side,
    pub(super) b: Side,
}

impl Pair {
    /// Lets `a` write a region of `b`'s.
    pub(super) fn grant(&self, region: RegionId) {
        let grant = self.b.transport.grant(self.b.peer, region).expect("a region is granted");
        self.a.transport.import(self.a.peer, &grant).expect("a grant is imported");
    }

    pub(super) fn reversed(&self) -> Self {
        Self { a: self.b.clone(), b: self.a.clone() }
    }
}

/// A slice between two fields.
pub(super) fn slice(source: &Field, src_offset: u64, target: &Field, dst_offset: u64, len: u64) -> WriteSlice {
    WriteSlice { src: source.region, src_offset, dst: target.region, dst_offset, len }
}

/// Whether a transfer is over.
pub(super) fn is_over(transfer: &Transfer) -> bool {
    transfer.status().state != State::InFlight
}
