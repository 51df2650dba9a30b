//! Nodes of the RDMA transport on real devices: two of them, named by an environment variable, which `tests/softroce/run.sh` sets.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use transport_core::{
    ControlChannel, Memory, Transport,
    conformance::{Harness, Profile, Sizes},
    mem::{MemConfig, MemFabric, MemTransport},
};
use transport_rdma::{
    Rail, Rails, RdmaConfig, RdmaTransport,
    native::NativeVerbs,
    verbs::{
        AsyncEvent, CompletionQueue, Device, DeviceAttributes, DeviceInfo, GidEntry, InitAttributes, MemoryRegion,
        PortAttributes, PostError, ProtectionDomain, QueuePair, QueuePairCapacity, QueuePairState, ReceiveAttributes,
        ReceiveRequest, SendAttributes, SendRequest, Verbs, VerbsError,
    },
};

/// The bound on peer loss in the tests. An emulated machine takes its time.
pub const LOSS_BOUND: Duration = Duration::from_secs(4);

/// The devices to test with.
pub fn devices() -> Vec<String> {
    let names = std::env::var("KVFERRY_RDMA_DEVICES").unwrap_or_else(|_| {
        panic!("KVFERRY_RDMA_DEVICES names no RDMA device; run these tests with `bash tests/softroce/run.sh COMMAND`")
    });
    names.split(',').map(str::to_owned).collect()
}

pub fn config(device: &str) -> RdmaConfig {
    RdmaConfig::default()
        .with_rails(Rails::Manual(vec![Rail::new(device)]))
        .with_max_in_flight(16)
        .with_events_per_peer(6)
        .with_max_regions(64)
        .with_connect_timeout(Duration::from_secs(10))
        .with_loss_bound(LOSS_BOUND)
}

/// A process: a transport on a device. Its control channels are those of an in-memory transport.
pub struct Node {
    pub verbs: Arc<Mortal>,
    pub transport: Arc<RdmaTransport>,
    mem: Arc<MemTransport>,
}

impl Node {
    /// Falls silent as after `kill -9`: its queue pairs answer no packet, its control channels break.
    pub fn kill(&self) {
        self.verbs.kill();
        self.mem.kill();
    }
}

#[derive(Debug, Default)]
pub struct Net {
    fabric: MemFabric,
    started: AtomicUsize,
}

impl Net {
    /// A node on the next device, in turn.
    pub fn next(&self) -> Node {
        let devices = devices();
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        self.node(config(&devices[number % devices.len()]))
    }

    pub fn node(&self, config: RdmaConfig) -> Node {
        let verbs = Mortal::open();
        let transport = RdmaTransport::open(Arc::<Mortal>::clone(&verbs) as _, config).expect("the transport opens");
        Node { verbs, transport: Arc::new(transport), mem: self.fabric.transport(MemConfig::default()) }
    }

    pub fn channels(&self, dialler: &Node, listener: &Node) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        self.fabric.channel_pair(&dialler.mem, &listener.mem)
    }
}

/// The conformance suite's nodes on real devices.
#[derive(Debug, Default)]
pub struct RealHarness {
    net: Net,
}

impl Harness for RealHarness {
    type Node = Node;

    fn profile(&self) -> Profile {
        Profile::new(16, 6)
            .with_max_regions(64)
            .with_loss_bound(LOSS_BOUND)
            .with_patience(Duration::from_secs(60))
            .with_explains_refusals(false)
            .with_sizes(sizes())
    }

    fn start(&self) -> Node {
        self.net.next()
    }

    fn transport(&self, node: &Node) -> Arc<dyn Transport> {
        Arc::<RdmaTransport>::clone(&node.transport)
    }

    fn channels(&self, dialler: &Node, listener: &Node) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        self.net.channels(dialler, listener)
    }

    fn kill(&self, node: &Node) -> bool {
        node.kill();
        true
    }
}

/// An emulated machine moves some 25 MB/s.
fn sizes() -> Sizes {
    let mut sizes = Sizes::small();
    sizes.bulk = 1 << 20;
    sizes.rounds = 8;
    sizes
}

/// The real verbs, with a way to die: from then on nothing works, and no queue pair answers.
pub struct Mortal {
    inner: Arc<NativeVerbs>,
    life: Arc<Life>,
}

#[derive(Default)]
struct Life {
    dead: std::sync::atomic::AtomicBool,
    created: AtomicUsize,
    queue_pairs: Mutex<Vec<Weak<Box<dyn QueuePair>>>>,
}

impl Life {
    fn check(&self) -> Result<(), VerbsError> {
        if self.dead.load(Ordering::Acquire) {
            return Err(VerbsError::new("anything", "a dead process", 5, "it was killed"));
        }
        Ok(())
    }
}

impl Mortal {
    fn open() -> Arc<Self> {
        let inner = NativeVerbs::open().expect("libibverbs is installed");
        Arc::new(Self { inner, life: Arc::default() })
    }

    /// How many queue pairs were ever made.
    pub fn created(&self) -> usize {
        self.life.created.load(Ordering::Acquire)
    }

    pub fn kill(&self) {
        self.life.dead.store(true, Ordering::Release);
        for queue_pair in self.life.queue_pairs.lock().unwrap().iter().filter_map(Weak::upgrade) {
            // One that is not connected yet cannot fail.
            let _ = queue_pair.fail();
        }
    }
}

impl fmt::Debug for Mortal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Verbs for Mortal {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        self.inner.devices()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        Ok(Arc::new(MortalDevice { inner: self.inner.open(name)?, life: Arc::clone(&self.life) }))
    }

    fn wait(&self, timeout: Option<Duration>) {
        self.inner.wait(timeout);
    }

    fn wake(&self) {
        self.inner.wake();
    }
}

struct MortalDevice {
    inner: Arc<dyn Device>,
    life: Arc<Life>,
}

impl fmt::Debug for MortalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Device for MortalDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn attributes(&self) -> Result<DeviceAttributes, VerbsError> {
        self.inner.attributes()
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.inner.port(port)
    }

    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, VerbsError> {
        self.inner.gid(port, index)
    }

    fn allocate_domain(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Arc::new(MortalDomain { inner: self.inner.allocate_domain()?, life: Arc::clone(&self.life) }))
    }

    fn create_completion_queue(&self, depth: u32) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.inner.create_completion_queue(depth)
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.inner.poll_async_event()
    }
}

struct MortalDomain {
    inner: Arc<dyn ProtectionDomain>,
    life: Arc<Life>,
}

impl fmt::Debug for MortalDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl ProtectionDomain for MortalDomain {
    fn register(
        &self,
        memory: &Memory,
        offset: u64,
        len: u64,
        remote_write: bool,
    ) -> Result<Box<dyn MemoryRegion>, VerbsError> {
        self.life.check()?;
        self.inner.register(memory, offset, len, remote_write)
    }

    fn create_queue_pair(
        &self,
        completions: &Arc<dyn CompletionQueue>,
        capacity: QueuePairCapacity,
    ) -> Result<Box<dyn QueuePair>, VerbsError> {
        self.life.check()?;
        let queue_pair = Arc::new(self.inner.create_queue_pair(completions, capacity)?);
        self.life.created.fetch_add(1, Ordering::AcqRel);
        let mut all = self.life.queue_pairs.lock().unwrap();
        all.retain(|queue_pair| queue_pair.strong_count() > 0);
        all.push(Arc::downgrade(&queue_pair));
        Ok(Box::new(MortalQueuePair { inner: queue_pair, life: Arc::clone(&self.life) }))
    }
}

struct MortalQueuePair {
    inner: Arc<Box<dyn QueuePair>>,
    life: Arc<Life>,
}

impl fmt::Debug for MortalQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl QueuePair for MortalQueuePair {
    fn number(&self) -> u32 {
        self.inner.number()
    }

    fn capacity(&self) -> QueuePairCapacity {
        self.inner.capacity()
    }

    fn state(&self) -> Result<QueuePairState, VerbsError> {
        self.inner.state()
    }

    fn initialize(&self, attributes: &InitAttributes) -> Result<(), VerbsError> {
        self.life.check()?;
        self.inner.initialize(attributes)
    }

    fn ready_to_receive(&self, attributes: &ReceiveAttributes) -> Result<(), VerbsError> {
        self.life.check()?;
        self.inner.ready_to_receive(attributes)
    }

    fn ready_to_send(&self, attributes: &SendAttributes) -> Result<(), VerbsError> {
        self.life.check()?;
        self.inner.ready_to_send(attributes)
    }

    fn fail(&self) -> Result<(), VerbsError> {
        self.inner.fail()
    }

    fn post_send(&self, chain: &[SendRequest]) -> Result<(), PostError> {
        self.inner.post_send(chain)
    }

    fn post_receive(&self, chain: &[ReceiveRequest]) -> Result<(), PostError> {
        self.inner.post_receive(chain)
    }
}
