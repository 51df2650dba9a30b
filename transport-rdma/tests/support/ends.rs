//! Connections between real nodes, memory that knows what ought to be in it, and the cable of the virtual machine.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    pin::pin,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use futures_util::future::join;
use transport_core::{
    Access, BatchOptions, Event, Memory, Outcome, PeerId, RegionGrant, RegionId, Shutdown, SubmitError, Transfer,
    Transport, Waited, WriteSlice, next_event,
};
use transport_rdma::{RdmaConfig, RdmaTransport};

use crate::real::{LOSS_BOUND, Net, Node, config, devices};

/// No wait of a test is longer. An emulated machine takes its time.
pub const LONG: Duration = Duration::from_secs(40);
/// How much later than the bound a loss may be noticed: the slack of a busy emulated machine.
pub const SLACK: Duration = Duration::from_secs(2);

/// One test at a time: they share the devices, and some of them unplug the cable.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a future until it is ready or so much time has passed.
pub fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    struct Parker(Thread);
    impl Wake for Parker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let end = Instant::now() + limit;
    let waker = Waker::from(Arc::new(Parker(thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// Runs a future that has to become ready.
pub fn wait<F: Future>(what: &str, future: F) -> F::Output {
    within(LONG, future).unwrap_or_else(|| panic!("{what} does not come to an end within {LONG:?}"))
}

/// The settings of the numbered device; with a single one, both ends are on it.
pub fn config_of(number: usize) -> RdmaConfig {
    let devices = devices();
    config(&devices[number % devices.len()])
}

/// One end of a connection.
pub struct Side {
    pub node: Arc<Node>,
    /// The other end's name here.
    pub peer: PeerId,
}

impl Side {
    pub fn transport(&self) -> &RdmaTransport {
        &self.node.transport
    }

    /// Submits a batch, waiting for room as often as it takes.
    pub fn submit(&self, slices: &[WriteSlice], options: &BatchOptions<'_>) -> Transfer {
        self.try_submit(slices, options).expect("the batch is taken")
    }

    /// As [`Side::submit`], where the connection may end meanwhile.
    pub fn try_submit(&self, slices: &[WriteSlice], options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        loop {
            match self.transport().batch_write(self.peer, slices.into(), options) {
                Err(SubmitError::Full { .. }) => wait("waiting for room", self.transport().room(self.peer))?,
                other => return other,
            }
        }
    }

    /// Writes, and waits for the delivery.
    pub fn write(&self, slices: &[WriteSlice]) {
        outcome(&self.submit(slices, &BatchOptions::new())).expect("the batch is delivered");
    }

    /// The next event, if one comes in time.
    pub fn event(&self, limit: Duration) -> Option<Event> {
        within(limit, next_event(self.transport())).map(|event| event.expect("the transport is open"))
    }

    /// Waits for the loss of this peer; answers why. Others' events and notifications are passed over.
    pub fn lost(&self) -> String {
        loop {
            match self.event(LONG).expect("the loss is reported") {
                Event::PeerLost { peer, reason } if peer == self.peer => return reason,
                _ => {}
            }
        }
    }

    /// The payloads of all notifications that come until none comes for a while.
    pub fn notifications(&self, pause: Duration) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        while let Some(event) = self.event(pause) {
            match event {
                Event::Notification { peer, payload } if peer == self.peer => payloads.push(payload.to_vec()),
                other => panic!("a notification was expected, not {other:?}"),
            }
        }
        payloads
    }

    pub fn disconnect(&self) {
        wait("disconnecting", self.transport().disconnect(self.peer));
    }
}

/// A connection. Where a test moves bytes one way, they go from `a` to `b`.
pub struct Pair {
    pub a: Side,
    pub b: Side,
}

impl Pair {
    /// Two nodes on the two devices.
    pub fn new(net: &Net) -> Self {
        Self::with(net, |config| config)
    }

    pub fn with(net: &Net, configure: impl Fn(RdmaConfig) -> RdmaConfig) -> Self {
        let nodes = [0, 1].map(|number| Arc::new(net.node(configure(config_of(number)))));
        Self::of(net, &nodes[0], &nodes[1])
    }

    pub fn of(net: &Net, a: &Arc<Node>, b: &Arc<Node>) -> Self {
        let (here, there) = net.channels(a, b);
        let (to_b, to_a) = wait("connecting", join(a.transport.connect(here), b.transport.connect(there)));
        Self {
            a: Side { node: Arc::clone(a), peer: to_b.expect("the dialling side connects") },
            b: Side { node: Arc::clone(b), peer: to_a.expect("the listening side connects") },
        }
    }

    pub fn grant(&self, region: RegionId) -> RegionGrant {
        let grant = self.b.transport().grant(self.b.peer, region).expect("a region is granted");
        self.a.transport().import(self.a.peer, &grant).expect("a grant is imported");
        grant
    }

    /// Memory to send from at `a`, and memory granted to it at `b`.
    pub fn fields(&self, len: usize) -> (Field, Field) {
        let (source, target) =
            (Field::new(&self.a, len, 1, Access::LOCAL), Field::new(&self.b, len, 2, Access::REMOTE_WRITE));
        self.grant(target.region);
        (source, target)
    }

    pub fn reversed(self) -> Self {
        Self { a: self.b, b: self.a }
    }

    pub fn end(&self) {
        for side in [&self.a, &self.b] {
            wait("shutting down", side.transport().shutdown(Shutdown::Abort));
        }
    }
}

/// One batch of [`Traffic`]; its notification is its number in the list.
#[derive(Debug)]
pub struct Sent {
    pub submitted: Instant,
    pub ended: Instant,
    pub outcome: Outcome,
}

/// What went over a connection that was never idle.
#[derive(Debug, Default)]
pub struct Traffic {
    stop: AtomicBool,
    ended: AtomicUsize,
}

impl Traffic {
    /// Sends the same batch over and over from `a`, four at a time, while `meanwhile` runs, and takes the notifications at `b`.
    pub fn during(pair: &Pair, batch: &[WriteSlice], meanwhile: impl FnOnce(&Self)) -> (Vec<Sent>, Vec<Event>) {
        let traffic = Self::default();
        thread::scope(|scope| {
            let sender = scope.spawn(|| traffic.send(pair, batch));
            let receiver = scope.spawn(|| {
                let mut events = Vec::new();
                loop {
                    let stopping = traffic.stop.load(Ordering::Acquire);
                    match pair.b.event(Duration::from_millis(300)) {
                        Some(event) => events.push(event),
                        None if stopping => return events,
                        None => {}
                    }
                }
            });
            // The threads end even if this fails; else the test would hang.
            let result = catch_unwind(AssertUnwindSafe(|| meanwhile(&traffic)));
            let sent = {
                traffic.stop.store(true, Ordering::Release);
                sender.join()
            };
            let events = receiver.join();
            match result {
                Ok(()) => (sent.expect("sending goes on"), events.expect("receiving goes on")),
                Err(panic) => resume_unwind(panic),
            }
        })
    }

    fn send(&self, pair: &Pair, batch: &[WriteSlice]) -> Vec<Sent> {
        let (mut out, mut sent) = (VecDeque::new(), Vec::<Sent>::new());
        let mut number = 0_u32;
        let mut connected = true;
        loop {
            while connected && out.len() < 4 && !self.stop.load(Ordering::Acquire) {
                let payload = number.to_le_bytes();
                let submitted = Instant::now();
                match pair.a.try_submit(batch, &BatchOptions::new().with_notification(&payload)) {
                    Ok(transfer) => out.push_back((submitted, transfer)),
                    Err(error) => {
                        assert!(matches!(error, SubmitError::NotConnected { .. }), "{error}");
                        connected = false;
                    }
                }
                number += 1;
            }
            let Some((submitted, transfer)) = out.pop_front() else { return sent };
            let outcome = outcome(&transfer);
            let ended = transfer.status().times.finished.unwrap_or_else(Instant::now);
            sent.push(Sent { submitted, ended, outcome });
            self.ended.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits until so many more batches have ended.
    pub fn goes_on(&self, batches: usize) {
        let goal = self.ended.load(Ordering::Acquire) + batches;
        let began = Instant::now();
        while self.ended.load(Ordering::Acquire) < goal {
            assert!(began.elapsed() < LONG, "nothing is sent");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Asserts that each notification came at most once and all those of delivered batches did.
pub fn check_notifications(sent: &[Sent], events: &[Event]) {
    let mut counts = HashMap::<u32, usize>::new();
    for event in events {
        let Event::Notification { payload, .. } = event else { continue };
        let number = u32::from_le_bytes(payload.as_ref().try_into().expect("a number"));
        *counts.entry(number).or_default() += 1;
    }
    for (number, batch) in (0..).zip(sent) {
        let count = counts.get(&number).copied().unwrap_or_default();
        // A word whose acknowledgement was lost may have arrived.
        assert!(count == 1 || (count == 0 && batch.outcome.is_err()), "{count} notifications of {batch:?}");
    }
}

/// The outcome of a transfer, which has to come.
pub fn outcome(transfer: &Transfer) -> Outcome {
    match transfer.wait_timeout(LONG) {
        Waited::Finished(outcome) => outcome,
        Waited::StillInFlight(status) => panic!("still in flight after {LONG:?}: {status:?}"),
    }
}

/// Asserts that what happened at an instant was noticed within the bound on peer loss.
pub fn assert_in_bound(since: Instant, what: &str) {
    let elapsed = since.elapsed();
    println!("{what} after {elapsed:?}");
    assert!(elapsed <= LOSS_BOUND + SLACK, "{what} only after {elapsed:?}; the bound is {LOSS_BOUND:?}");
}

/// Registered memory and the bytes that belong into it. What no slice names is a canary.
pub struct Field {
    pub memory: Memory,
    pub region: RegionId,
    pub expected: Vec<u8>,
}

impl Field {
    pub fn new(side: &Side, len: usize, seed: u64, access: Access) -> Self {
        // A prime number of bytes again and again: what is misplaced by a round number shows, and an emulated machine is quick with it.
        let period = Random(seed).bytes(len.min(65_521));
        let mut expected = period.repeat(len.div_ceil(period.len()));
        expected.truncate(len);
        let memory = Memory::host(len).expect("the kernel gives memory");
        memory.write_at(0, &expected).expect("the bytes fit");
        let region = side.transport().register(memory.clone(), access).expect("memory is registered");
        Self { memory, region, expected }
    }

    pub fn len(&self) -> u64 {
        self.expected.len() as u64
    }

    /// What is there now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.expected.len()];
        self.memory.read_at(0, &mut bytes).expect("it is all there");
        bytes
    }

    /// Expects what the slices bring from `source`.
    pub fn expect(&mut self, source: &Self, slices: &[WriteSlice]) {
        for slice in slices {
            let from = slice.src_offset as usize..(slice.src_offset + slice.len) as usize;
            let to = slice.dst_offset as usize..(slice.dst_offset + slice.len) as usize;
            self.expected[to].copy_from_slice(&source.expected[from]);
        }
    }

    pub fn check(&self, when: &str) {
        let found = self.bytes();
        if found != self.expected {
            let first = found.iter().zip(&self.expected).position(|(found, wanted)| found != wanted);
            let wrong = found.iter().zip(&self.expected).filter(|(found, wanted)| found != wanted).count();
            panic!("{when}: {wrong} bytes are wrong, the first at {first:?}");
        }
    }

    /// Asserts that no byte lands any more.
    pub fn check_quiet(&self, when: &str) {
        let before = self.bytes();
        thread::sleep(Duration::from_millis(300));
        assert!(self.bytes() == before, "{when}: bytes landed late");
    }
}

pub fn slice(source: &Field, src_offset: u64, target: &Field, dst_offset: u64, len: u64) -> WriteSlice {
    WriteSlice { src: source.region, src_offset, dst: target.region, dst_offset, len }
}

/// The whole of both.
pub fn whole(source: &Field, target: &Field) -> [WriteSlice; 1] {
    [slice(source, 0, target, 0, source.len().min(target.len()))]
}

/// Slices of `len` bytes that together bring everything, each to another place, with no two neighbours at both ends.
pub fn scattered(source: &Field, target: &Field, len: u64) -> Vec<WriteSlice> {
    let count = source.len().min(target.len()) / len;
    let order = Random(len).permutation(count);
    (0..count).map(|number| slice(source, order[number as usize] * len, target, number * len, len)).collect()
}

/// A small generator (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for word in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
        bytes
    }

    pub fn permutation(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, (self.next() % (place as u64 + 1)) as usize);
        }
        order
    }
}

/// Whether the devices are those of the virtual machine, whose cable can be unplugged. Says why not.
pub fn has_cable() -> bool {
    let cable = devices().iter().all(|name| name.starts_with("rxe"));
    if !cable {
        let name = thread::current().name().unwrap_or_default().to_owned();
        println!("not run: {name}: nobody unplugs or disturbs the cables of real devices here");
    }
    cable
}

/// The cable is out until this is dropped, whatever becomes of the test.
pub struct Unplugged(());

impl Unplugged {
    pub fn now() -> Self {
        let unplugged = Self(());
        link("down");
        unplugged
    }
}

impl Drop for Unplugged {
    fn drop(&mut self) {
        link("up");
    }
}

fn link(what: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/softroce/guest/link.sh");
    run(Command::new("bash").arg(&script).args([what, "rxe0"]));
}

/// Both ends of the cable are disturbed until this is dropped.
pub struct Disturbed(());

impl Disturbed {
    /// What netem is to do, as `tc` takes it.
    pub fn by(netem: &str) -> Self {
        let disturbed = Self(());
        for end in ENDS {
            run(Command::new("tc")
                .args(["qdisc", "replace", "dev", end, "root", "netem"])
                .args(netem.split_whitespace()));
        }
        disturbed
    }
}

impl Drop for Disturbed {
    fn drop(&mut self) {
        for end in ENDS {
            // Not there when the first of the two failed.
            let _ = Command::new("tc").args(["qdisc", "del", "dev", end, "root"]).stdin(Stdio::null()).status();
        }
    }
}

const ENDS: [&str; 2] = ["v0", "v1"];

fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).status().expect("the command runs");
    // Not while a test fails already: that would hide why.
    assert!(status.success() || thread::panicking(), "{command:?}: {status}");
}
