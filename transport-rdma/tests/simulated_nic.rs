//! The simulated NIC behaves as a real one does.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::{
    net::Ipv6Addr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use transport_core::Memory;
use transport_rdma::{
    sim::{SimDeviceConfig, SimHost, SimNetwork, SimPortConfig, Stall},
    verbs::{
        AddressVector, AsyncEvent, Completion, CompletionQueue, Device, GidKind, GlobalRoute, InitAttributes,
        LinkLayer, LocalSegment, MemoryRegion, Mtu, Operation, PortState, PostError, ProtectionDomain, QueuePair,
        QueuePairCapacity, QueuePairState, ReceiveAttributes, ReceiveRequest, SendAttributes, SendRequest, Status,
        Verbs,
    },
};

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
/// The entry of the default GID table that is routable RoCE v2.
const ROUTABLE: u32 = 3;
/// 67 ms.
const SLOW_TIMEOUT: u8 = 14;
/// 4 ms.
const QUICK_TIMEOUT: u8 = 10;
const FOR_EVER: u8 = 7;
const PATIENCE: Duration = Duration::from_secs(20);

/// What a test has on one host.
struct Node {
    host: Arc<SimHost>,
    device: Arc<dyn Device>,
    domain: Arc<dyn ProtectionDomain>,
    completions: Arc<dyn CompletionQueue>,
}

impl Node {
    fn new(network: &SimNetwork) -> Self {
        Self::of(network.host(), "sim0", 256)
    }

    fn with(network: &SimNetwork, config: SimDeviceConfig) -> Self {
        let name = config.name.clone();
        Self::of(network.host_with(vec![config]), &name, 256)
    }

    fn of(host: Arc<SimHost>, name: &str, depth: u32) -> Self {
        let device = host.open(name).unwrap();
        let domain = device.allocate_domain().unwrap();
        let completions = device.create_completion_queue(depth).unwrap();
        Self { host, device, domain, completions }
    }

    fn pair(&self) -> Box<dyn QueuePair> {
        self.pair_with(16, 16)
    }

    fn pair_with(&self, send: u32, receive: u32) -> Box<dyn QueuePair> {
        self.domain.create_queue_pair(&self.completions, QueuePairCapacity { send, receive, inline: 64 }).unwrap()
    }

    fn buffer(&self, len: usize) -> Buffer {
        self.buffer_with(len, true)
    }

    fn buffer_with(&self, len: usize, remote_write: bool) -> Buffer {
        let memory = Memory::host(len).unwrap();
        let region = self.domain.register(&memory, 0, len as u64, remote_write).unwrap();
        Buffer { memory, region }
    }

    fn gid(&self) -> Ipv6Addr {
        self.device.gid(1, ROUTABLE).unwrap().unwrap().gid
    }

    /// The next completions; fails the test where they do not come.
    fn take(&self, count: usize) -> Vec<Completion> {
        let mut taken = Vec::new();
        let end = Instant::now() + PATIENCE;
        while taken.len() < count {
            assert!(Instant::now() < end, "{} of {count} completions came: {taken:?}", taken.len());
            let mut buffer = [Completion::EMPTY; 16];
            let room = buffer.len().min(count - taken.len());
            let polled = self.completions.poll(&mut buffer[..room]).unwrap();
            taken.extend_from_slice(&buffer[..polled]);
            if polled == 0 {
                self.completions.arm().unwrap();
                self.host.wait(Some(Duration::from_millis(1)));
            }
        }
        taken
    }

    fn take_one(&self) -> Completion {
        self.take(1).remove(0)
    }

    /// Fails the test where a completion is there or comes soon.
    fn take_nothing(&self) {
        thread::sleep(Duration::from_millis(30));
        let mut buffer = [Completion::EMPTY];
        assert_eq!(self.completions.poll(&mut buffer).unwrap(), 0, "{buffer:?}");
    }

    fn event(&self) -> AsyncEvent {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.device.poll_async_event() {
                return event;
            }
            assert!(Instant::now() < end, "no event came");
            self.host.wait(Some(Duration::from_millis(1)));
        }
    }
}

struct Buffer {
    memory: Memory,
    region: Box<dyn MemoryRegion>,
}

impl Buffer {
    fn address(&self) -> u64 {
        self.memory.address().addr().get() as u64
    }

    fn local(&self, offset: u64, len: u32) -> LocalSegment {
        LocalSegment { address: self.address() + offset, len, key: self.region.local_key() }
    }

    fn remote(&self, offset: u64) -> Operation {
        Operation::Write { address: self.address() + offset, key: self.region.remote_key() }
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

fn request(id: u64, operation: Operation, local: LocalSegment) -> SendRequest {
    SendRequest { id, operation, local, signalled: true, inline: false }
}

fn write(id: u64, from: &Buffer, to: &Buffer, len: u32) -> SendRequest {
    request(id, to.remote(0), from.local(0, len))
}

fn receive(id: u64, into: &Buffer, len: u32) -> ReceiveRequest {
    ReceiveRequest { id, local: into.local(0, len) }
}

fn init() -> InitAttributes {
    InitAttributes { port: 1, pkey_index: 0, remote_write: true }
}

fn receive_from(gid: Ipv6Addr, remote_queue_pair: u32) -> ReceiveAttributes {
    ReceiveAttributes {
        path_mtu: Mtu::B4096,
        remote_queue_pair,
        remote_psn: 7,
        min_rnr_timer: 1,
        address: AddressVector {
            port: 1,
            lid: 0,
            service_level: 0,
            global: Some(GlobalRoute { gid, local_index: ROUTABLE, hop_limit: 64, traffic_class: 0 }),
        },
    }
}

fn send_with(timeout: u8, retry_count: u8) -> SendAttributes {
    SendAttributes { psn: 7, timeout, retry_count, rnr_retry: FOR_EVER }
}

fn connect_one(pair: &dyn QueuePair, peer: &Node, remote: u32, send: &SendAttributes) {
    pair.initialize(&init()).unwrap();
    pair.ready_to_receive(&receive_from(peer.gid(), remote)).unwrap();
    pair.ready_to_send(send).unwrap();
}

type Pair = Box<dyn QueuePair>;

fn connect_with(a: &Node, b: &Node, send: &SendAttributes) -> (Pair, Pair) {
    let (here, there) = (a.pair(), b.pair());
    connect_one(&*here, b, there.number(), send);
    connect_one(&*there, a, here.number(), send);
    (here, there)
}

fn connect(a: &Node, b: &Node) -> (Pair, Pair) {
    connect_with(a, b, &send_with(SLOW_TIMEOUT, FOR_EVER))
}

fn two() -> (SimNetwork, Node, Node) {
    let network = SimNetwork::new();
    let (a, b) = (Node::new(&network), Node::new(&network));
    (network, a, b)
}

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|completion| (completion.id, completion.status)).collect()
}

/// A large write that is on its way: the first bytes have landed, and the rest takes long.
fn underway(a: &Node, b: &Node) -> (Pair, Pair, Buffer, Buffer) {
    let (here, there) = connect(a, b);
    let (source, target) = (a.buffer(64 << 20), b.buffer(64 << 20));
    source.memory.fill(0, 64 << 20, 1).unwrap();
    a.host.pace(Duration::from_millis(1));
    here.post_send(&[write(1, &source, &target, 64 << 20)]).unwrap();
    let end = Instant::now() + PATIENCE;
    while target.bytes(1 << 20, 1) != [1] {
        assert!(Instant::now() < end, "nothing lands");
        thread::sleep(Duration::from_micros(100));
    }
    (here, there, source, target)
}

fn assert_nothing_lands(target: &Memory) {
    let look = || {
        let mut bytes = vec![0; 64 << 20];
        target.read_at(0, &mut bytes).unwrap();
        // What lands late is a piece, and no piece is this short.
        bytes.iter().step_by(1024).filter(|byte| **byte == 1).count()
    };
    let before = look();
    assert!(before < 64 << 10, "it was over already");
    thread::sleep(Duration::from_millis(20));
    assert_eq!(look(), before);
}

// --- Devices and ports ---

#[test]
fn a_host_has_one_device_with_its_own_addresses() {
    let (_network, a, b) = two();
    assert_eq!(a.host.devices().unwrap().len(), 1);
    assert_eq!(a.host.open("sim9").unwrap_err().code, ENODEV);
    let port = a.device.port(1).unwrap();
    assert_eq!((port.state, port.link_layer, port.lid), (PortState::Active, LinkLayer::Ethernet, 0));
    assert_eq!((port.active_mtu, port.gid_table_len), (Mtu::B4096, 8));
    assert_eq!(a.device.attributes().unwrap().ports, 1);
    let entry = a.device.gid(1, ROUTABLE).unwrap().unwrap();
    assert!(entry.kind == GidKind::RoceV2 && entry.gid.to_ipv4_mapped().is_some());
    assert_ne!(a.gid(), b.gid());
    assert_eq!(a.device.gid(1, 7).unwrap(), None);
    assert_eq!(a.device.gid(1, 8).unwrap_err().code, EINVAL);
    assert_eq!(a.device.port(0).unwrap_err().code, EINVAL);
    assert_eq!(a.device.port(2).unwrap_err().code, EINVAL);
}

#[test]
fn a_device_refuses_more_than_its_limits() {
    let mut config = SimDeviceConfig { max_registered: 8192, ..SimDeviceConfig::default() };
    config.attributes.max_qp = 1;
    config.attributes.max_cq = 2;
    config.attributes.max_cqe = 256;
    config.attributes.max_qp_wr = 8;
    config.attributes.max_mr = 2;
    let network = SimNetwork::new();
    let (a, b) = (Node::with(&network, config), Node::new(&network));
    for depth in [0, 257] {
        assert_eq!(a.device.create_completion_queue(depth).unwrap_err().code, EINVAL);
    }
    let queue = a.device.create_completion_queue(1).unwrap();
    assert_eq!(a.device.create_completion_queue(1).unwrap_err().code, ENOMEM);
    drop(queue);
    a.device.create_completion_queue(1).unwrap();

    let capacity = QueuePairCapacity { send: 8, receive: 8, inline: 256 };
    let create = |capacity| a.domain.create_queue_pair(&a.completions, capacity).map(drop).map_err(|error| error.code);
    assert_eq!(create(QueuePairCapacity { send: 9, ..capacity }), Err(EINVAL));
    assert_eq!(create(QueuePairCapacity { receive: 9, ..capacity }), Err(EINVAL));
    assert_eq!(create(QueuePairCapacity { inline: 257, ..capacity }), Err(EINVAL));
    let elsewhere = a.domain.create_queue_pair(&b.completions, capacity);
    assert_eq!(elsewhere.unwrap_err().code, EINVAL, "a completion queue of another device");
    let pair = a.domain.create_queue_pair(&a.completions, capacity).unwrap();
    assert_eq!(create(capacity), Err(ENOMEM));
    drop(pair);
    create(capacity).unwrap();

    let memory = Memory::host(16384).unwrap();
    let register = |offset, len| a.domain.register(&memory, offset, len, false).map_err(|error| error.code);
    assert_eq!(register(0, 0).unwrap_err(), EINVAL);
    assert_eq!(register(16384, 1).unwrap_err(), EINVAL);
    assert_eq!(register(u64::MAX, 2).unwrap_err(), EINVAL);
    assert_eq!(register(0, 8193).unwrap_err(), ENOMEM);
    let one = register(0, 8192).unwrap();
    assert_eq!(register(0, 1).unwrap_err(), ENOMEM);
    drop(one);
    let _two = (register(0, 1).unwrap(), register(0, 1).unwrap());
    assert_eq!(register(0, 1).unwrap_err(), ENOMEM);
}

#[test]
fn a_registration_fails_on_demand_and_once() {
    let (_network, a, _) = two();
    a.host.fail_registration_after("sim0", 2, 11);
    let memory = Memory::host(4096).unwrap();
    let register = || a.domain.register(&memory, 0, 4096, false).map_err(|error| error.code);
    register().unwrap();
    assert_eq!(register().unwrap_err(), 11);
    register().unwrap();
}

#[test]
fn the_keys_of_regions_are_all_different() {
    let (_network, a, _) = two();
    let memory = Memory::host(4096).unwrap();
    let mut keys = Vec::new();
    for _ in 0..100 {
        let region = a.domain.register(&memory, 0, 4096, true).unwrap();
        keys.extend([region.local_key(), region.remote_key()]);
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 200);
    assert_eq!(memory.holders(), 1, "a deregistered region lets go of its memory");
}

// --- States and attributes ---

#[test]
fn a_queue_pair_goes_through_its_states_in_order() {
    let (_network, a, b) = two();
    let buffer = a.buffer(4096);
    let (pair, peer) = (a.pair(), b.pair());
    let attributes = receive_from(b.gid(), peer.number());
    let send = send_with(SLOW_TIMEOUT, 3);
    let post_send = || pair.post_send(&[write(1, &buffer, &buffer, 0)]).map_err(|error| error.code);
    let post_receive = || pair.post_receive(&[receive(1, &buffer, 64)]).map_err(|error| error.code);

    assert_eq!(pair.state().unwrap(), QueuePairState::Reset);
    assert_eq!(pair.ready_to_receive(&attributes).unwrap_err().code, EINVAL);
    assert_eq!(pair.ready_to_send(&send).unwrap_err().code, EINVAL);
    assert_eq!(pair.fail().unwrap_err().code, EINVAL);
    assert_eq!((post_send(), post_receive()), (Err(EINVAL), Err(EINVAL)));
    pair.initialize(&init()).unwrap();
    assert_eq!(pair.state().unwrap(), QueuePairState::Init);
    assert_eq!(pair.initialize(&init()).unwrap_err().code, EINVAL);
    assert_eq!(pair.ready_to_send(&send).unwrap_err().code, EINVAL);
    assert_eq!((post_send(), post_receive()), (Err(EINVAL), Ok(())));
    pair.ready_to_receive(&attributes).unwrap();
    assert_eq!(pair.state().unwrap(), QueuePairState::ReadyToReceive);
    assert_eq!(pair.ready_to_receive(&attributes).unwrap_err().code, EINVAL);
    assert_eq!((post_send(), post_receive()), (Err(EINVAL), Ok(())));
    pair.ready_to_send(&send).unwrap();
    assert_eq!(pair.state().unwrap(), QueuePairState::ReadyToSend);
    assert_eq!(pair.ready_to_send(&send).unwrap_err().code, EINVAL);
    pair.fail().unwrap();
    assert_eq!(pair.state().unwrap(), QueuePairState::Error);
    assert_eq!((post_send(), post_receive()), (Ok(()), Ok(())));
    pair.fail().unwrap();
    assert_eq!(pair.initialize(&init()).unwrap_err().code, EINVAL);
    assert_eq!(a.take(4).iter().filter(|completion| completion.status == Status::Flushed).count(), 4);
}

#[test]
fn each_state_can_fail() {
    let (_network, a, b) = two();
    let (one, two, peer) = (a.pair(), a.pair(), b.pair());
    one.initialize(&init()).unwrap();
    two.initialize(&init()).unwrap();
    two.ready_to_receive(&receive_from(b.gid(), peer.number())).unwrap();
    for pair in [one, two] {
        pair.fail().unwrap();
        assert_eq!(pair.state().unwrap(), QueuePairState::Error);
    }
}

#[test]
fn wrong_init_attributes_are_refused() {
    let (_network, a, _) = two();
    let pair = a.pair();
    for wrong in [
        InitAttributes { port: 0, ..init() },
        InitAttributes { port: 2, ..init() },
        InitAttributes { pkey_index: 1, ..init() },
    ] {
        assert_eq!(pair.initialize(&wrong).unwrap_err().code, EINVAL, "{wrong:?}");
    }
    pair.initialize(&init()).unwrap();
}

#[test]
fn wrong_receive_attributes_are_refused() {
    let network = SimNetwork::new();
    let port = SimPortConfig { active_mtu: Mtu::B1024, ..SimPortConfig::default() };
    let a = Node::with(&network, SimDeviceConfig { ports: vec![port; 2], ..SimDeviceConfig::default() });
    let pair = a.pair();
    pair.initialize(&init()).unwrap();
    let right = ReceiveAttributes { path_mtu: Mtu::B1024, ..receive_from(a.gid(), 99) };
    let route = right.address.global.unwrap();
    let addressed = |address| ReceiveAttributes { address, ..right };
    let routed = |route| addressed(AddressVector { global: Some(route), ..right.address });
    for wrong in [
        addressed(AddressVector { global: None, ..right.address }),
        addressed(AddressVector { global: None, lid: 1, ..right.address }),
        addressed(AddressVector { port: 2, ..right.address }),
        addressed(AddressVector { port: 3, ..right.address }),
        routed(GlobalRoute { local_index: 7, ..route }),
        routed(GlobalRoute { local_index: 8, ..route }),
        ReceiveAttributes { path_mtu: Mtu::B2048, ..right },
        ReceiveAttributes { remote_queue_pair: 1 << 24, ..right },
        ReceiveAttributes { remote_psn: 1 << 24, ..right },
        ReceiveAttributes { min_rnr_timer: 32, ..right },
    ] {
        assert_eq!(pair.ready_to_receive(&wrong).unwrap_err().code, EINVAL, "{wrong:?}");
    }
    a.host.port_down("sim0", 1);
    assert_eq!(pair.ready_to_receive(&right).unwrap_err().code, EINVAL, "the port has no link");
    a.host.port_up("sim0", 1);
    pair.ready_to_receive(&right).unwrap();
}

#[test]
fn wrong_send_attributes_are_refused() {
    let (_network, a, b) = two();
    let pair = a.pair();
    pair.initialize(&init()).unwrap();
    pair.ready_to_receive(&receive_from(b.gid(), 99)).unwrap();
    let right = send_with(31, 7);
    for wrong in [
        SendAttributes { psn: 1 << 24, ..right },
        SendAttributes { timeout: 32, ..right },
        SendAttributes { retry_count: 8, ..right },
        SendAttributes { rnr_retry: 8, ..right },
    ] {
        assert_eq!(pair.ready_to_send(&wrong).unwrap_err().code, EINVAL, "{wrong:?}");
    }
    pair.ready_to_send(&right).unwrap();
}

#[test]
fn infiniband_ports_are_reached_by_lid_and_by_gid() {
    let network = SimNetwork::new();
    let node = || Node::with(&network, SimDeviceConfig::infiniband("ib0"));
    let (a, b) = (node(), node());
    let lid = |node: &Node| node.device.port(1).unwrap().lid;
    let gid = |node: &Node| node.device.gid(1, 0).unwrap().unwrap().gid;
    assert!(lid(&a) != 0 && lid(&a) != lid(&b));
    let by_lid = |peer: &Node| AddressVector { port: 1, lid: lid(peer), service_level: 0, global: None };
    let by_gid = |peer: &Node| AddressVector {
        lid: 0,
        global: Some(GlobalRoute { gid: gid(peer), local_index: 0, hop_limit: 1, traffic_class: 0 }),
        ..by_lid(peer)
    };
    let (source, target) = (a.buffer(64), b.buffer(64));
    let none = AddressVector { lid: 0, ..by_lid(&a) };
    for (to_b, to_a) in [(by_lid(&b), by_lid(&a)), (by_gid(&b), by_gid(&a))] {
        let (here, there) = (a.pair(), b.pair());
        for (pair, address, remote) in [(&here, to_b, there.number()), (&there, to_a, here.number())] {
            pair.initialize(&init()).unwrap();
            let attributes = receive_from(Ipv6Addr::UNSPECIFIED, remote);
            let nowhere = ReceiveAttributes { address: none, ..attributes };
            assert_eq!(pair.ready_to_receive(&nowhere).unwrap_err().code, EINVAL);
            pair.ready_to_receive(&ReceiveAttributes { address, ..attributes }).unwrap();
            pair.ready_to_send(&send_with(QUICK_TIMEOUT, 3)).unwrap();
        }
        here.post_send(&[write(1, &source, &target, 64)]).unwrap();
        assert_eq!(a.take_one().status, Status::Success);
    }
}

// --- Writes and keys ---

#[test]
fn a_write_lands_and_completes_and_tells_the_peer_nothing() {
    let (_network, a, b) = two();
    let (here, there) = connect(&a, &b);
    let (source, target) = (a.buffer(1 << 20), b.buffer(1 << 20));
    source.memory.fill(0, 1 << 20, 0xa5).unwrap();
    here.post_send(&[write(9, &source, &target, (1 << 20) - 1)]).unwrap();
    let completion = a.take_one();
    assert_eq!((completion.id, completion.status), (9, Status::Success));
    assert_eq!(completion.queue_pair, here.number());
    assert_eq!(target.bytes((1 << 20) - 3, 3), [0xa5, 0xa5, 0]);
    b.take_nothing();
    assert_eq!(there.state().unwrap(), QueuePairState::ReadyToSend);
}

#[test]
fn two_queue_pairs_of_one_host_reach_each_other() {
    let (_network, a, _) = two();
    let (here, _there) = connect(&a, &a);
    let buffer = a.buffer(8192);
    buffer.memory.fill(0, 4096, 3).unwrap();
    here.post_send(&[request(1, buffer.remote(4096), buffer.local(0, 4096))]).unwrap();
    assert_eq!(a.take_one().status, Status::Success);
    assert_eq!(buffer.bytes(8191, 1), [3]);
}

/// Does one write that the peer refuses, and checks what that does to both ends.
fn assert_refused(a: &Node, b: &Node, operation: Operation, local: LocalSegment, status: Status) {
    let (here, there) = connect(a, b);
    there.post_receive(&[ReceiveRequest { id: 5, local: LocalSegment::default() }]).unwrap();
    here.post_send(&[request(1, operation, local), request(2, operation, local)]).unwrap();
    assert_eq!(statuses(&a.take(2)), [(1, status), (2, Status::Flushed)]);
    assert_eq!(here.state().unwrap(), QueuePairState::Error);
    assert_eq!(b.event(), AsyncEvent::QueuePairFatal(there.number()));
    assert_eq!(there.state().unwrap(), QueuePairState::Error);
    assert_eq!(statuses(&b.take(1)), [(5, Status::Flushed)]);
}

#[test]
fn a_write_with_a_wrong_key_or_range_is_refused_and_fails_both_ends() {
    let (_network, a, b) = two();
    let (source, target) = (a.buffer(4096), b.buffer(4096));
    let (start, key, own) = (target.address(), target.region.remote_key(), target.region.local_key());
    let closed = b.buffer_with(4096, false);
    let stranger = b.device.allocate_domain().unwrap();
    let foreign = stranger.register(&target.memory, 0, 4096, true).unwrap();
    for (address, key) in [
        (start, key ^ 1),
        (start, own),
        (start, source.region.remote_key()),
        (start, foreign.remote_key()),
        (closed.address(), closed.region.remote_key()),
        (start + 4033, key),
        (start - 1, key),
        (u64::MAX - 10, key),
        (0, key),
    ] {
        assert_refused(&a, &b, Operation::Write { address, key }, source.local(0, 64), Status::RemoteAccess);
    }
    assert_eq!(target.bytes(0, 4096), [0; 4096]);
}

#[test]
fn the_key_of_a_deregistered_region_is_stale() {
    let (_network, a, b) = two();
    let (source, target) = (a.buffer(4096), b.buffer(4096));
    let operation = target.remote(0);
    drop(target.region);
    assert_eq!(target.memory.holders(), 1);
    assert_refused(&a, &b, operation, source.local(0, 64), Status::RemoteAccess);
    assert_eq!(target.memory.try_into_owner().unwrap().len(), 4096);
}

#[test]
fn a_wrong_local_segment_fails_the_sender_only() {
    let (_network, a, b) = two();
    let (source, target) = (a.buffer(4096), b.buffer(4096));
    let elsewhere = a.device.allocate_domain().unwrap().register(&source.memory, 0, 4096, false).unwrap();
    let right = source.local(0, 64);
    for wrong in [
        LocalSegment { key: source.region.remote_key(), ..right },
        LocalSegment { key: elsewhere.local_key(), ..right },
        LocalSegment { len: 4097, ..right },
        LocalSegment { address: u64::MAX, ..right },
    ] {
        let (here, there) = connect(&a, &b);
        here.post_send(&[request(1, target.remote(0), wrong)]).unwrap();
        assert_eq!(a.take_one().status, Status::LocalProtection, "{wrong:?}");
        assert_eq!(there.state().unwrap(), QueuePairState::ReadyToSend);
    }
}

#[test]
fn a_message_longer_than_the_port_allows_fails() {
    let network = SimNetwork::new();
    let port = SimPortConfig { max_message: 4096, ..SimPortConfig::default() };
    let a = Node::with(&network, SimDeviceConfig { ports: vec![port], ..SimDeviceConfig::default() });
    let b = Node::new(&network);
    let (source, target) = (a.buffer(8192), b.buffer(8192));
    let (here, _there) = connect(&a, &b);
    here.post_send(&[write(1, &source, &target, 4096), write(2, &source, &target, 4097)]).unwrap();
    assert_eq!(statuses(&a.take(2)), [(1, Status::Success), (2, Status::LocalLength)]);
}

#[test]
fn a_write_needs_a_queue_pair_that_takes_writes() {
    let (_network, a, b) = two();
    let (here, there) = (a.pair(), b.pair());
    there.initialize(&InitAttributes { remote_write: false, ..init() }).unwrap();
    there.ready_to_receive(&receive_from(a.gid(), here.number())).unwrap();
    connect_one(&*here, &b, there.number(), &send_with(SLOW_TIMEOUT, 3));
    let (source, target) = (a.buffer(64), b.buffer(64));
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    assert_eq!(a.take_one().status, Status::RemoteInvalidRequest);
}

#[test]
fn a_write_of_nothing_needs_no_key() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let nowhere = Operation::Write { address: 0, key: 0 };
    here.post_send(&[request(1, nowhere, LocalSegment::default())]).unwrap();
    assert_eq!(a.take_one().status, Status::Success);
}

#[test]
fn inline_bytes_may_change_after_posting() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    source.memory.fill(0, 64, 1).unwrap();
    let inline = SendRequest { inline: true, ..write(1, &source, &target, 64) };
    a.host.stall(Stall::Work);
    here.post_send(&[inline]).unwrap();
    source.memory.fill(0, 64, 2).unwrap();
    a.host.stall(Stall::None);
    a.take_one();
    assert_eq!(target.bytes(0, 64), [1; 64]);
    let long = SendRequest { local: LocalSegment { len: 65, ..inline.local }, ..inline };
    assert_eq!(here.post_send(&[long]).unwrap_err(), PostError { posted: 0, code: EINVAL });
}

#[test]
fn different_path_mtus_fail_what_is_longer_than_a_packet() {
    let (_network, a, b) = two();
    let (here, there) = (a.pair(), b.pair());
    let attributes = ReceiveAttributes { path_mtu: Mtu::B1024, ..receive_from(a.gid(), here.number()) };
    there.initialize(&init()).unwrap();
    there.ready_to_receive(&attributes).unwrap();
    connect_one(&*here, &b, there.number(), &send_with(SLOW_TIMEOUT, 3));
    let (source, target) = (a.buffer(4096), b.buffer(4096));
    here.post_send(&[write(1, &source, &target, 1024), write(2, &source, &target, 1025)]).unwrap();
    assert_eq!(statuses(&a.take(2)), [(1, Status::Success), (2, Status::RemoteInvalidRequest)]);
}

// --- Sends and receives ---

#[test]
fn a_send_fills_the_oldest_receive() {
    let (_network, a, b) = two();
    let (here, there) = connect(&a, &b);
    let (source, target) = (a.buffer(4096), b.buffer(8192));
    source.memory.fill(0, 4096, 9).unwrap();
    let second = ReceiveRequest { id: 2, local: target.local(4096, 4096) };
    there.post_receive(&[receive(1, &target, 4096), second]).unwrap();
    for (id, len) in [(1, 4096), (2, 0)] {
        here.post_send(&[request(id, Operation::Send, source.local(0, len))]).unwrap();
        assert_eq!(a.take_one().status, Status::Success);
        let received = b.take_one();
        assert_eq!((received.id, received.status, received.bytes), (id, Status::Success, len));
        assert_eq!(received.queue_pair, there.number());
    }
    assert_eq!(target.bytes(4095, 2), [9, 0]);
}

#[test]
fn a_send_longer_than_its_receive_fails_both_ends() {
    let (_network, a, b) = two();
    let (here, there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    there.post_receive(&[receive(1, &target, 63), receive(2, &target, 64)]).unwrap();
    here.post_send(&[request(3, Operation::Send, source.local(0, 64))]).unwrap();
    assert_eq!(a.take_one().status, Status::RemoteInvalidRequest);
    assert_eq!(statuses(&b.take(2)), [(1, Status::LocalLength), (2, Status::Flushed)]);
}

#[test]
fn a_receive_with_a_wrong_key_fails_both_ends() {
    let (_network, a, b) = two();
    let (here, there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    let mut wrong = receive(1, &target, 64);
    wrong.local.key ^= 1;
    there.post_receive(&[wrong]).unwrap();
    here.post_send(&[request(3, Operation::Send, source.local(0, 64))]).unwrap();
    assert_eq!(a.take_one().status, Status::RemoteOperation);
    assert_eq!(b.take_one().status, Status::LocalProtection);
}

#[test]
fn a_send_waits_for_a_receive() {
    let (_network, a, b) = two();
    let (here, there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    here.post_send(&[request(1, Operation::Send, source.local(0, 64))]).unwrap();
    a.take_nothing();
    there.post_receive(&[receive(2, &target, 64)]).unwrap();
    assert_eq!((a.take_one().status, b.take_one().status), (Status::Success, Status::Success));
}

#[test]
fn a_send_without_a_receive_fails_after_its_retries() {
    let (_network, a, b) = two();
    let (here, there) = (a.pair(), b.pair());
    // 10.24 ms, three times.
    let attributes = ReceiveAttributes { min_rnr_timer: 20, ..receive_from(a.gid(), here.number()) };
    there.initialize(&init()).unwrap();
    there.ready_to_receive(&attributes).unwrap();
    connect_one(&*here, &b, there.number(), &SendAttributes { rnr_retry: 3, ..send_with(SLOW_TIMEOUT, 3) });
    let source = a.buffer(64);
    let begin = Instant::now();
    here.post_send(&[request(1, Operation::Send, source.local(0, 64))]).unwrap();
    assert_eq!(a.take_one().status, Status::RnrRetryExceeded);
    assert!(begin.elapsed() >= Duration::from_micros(3 * 10_240));
    assert_eq!(there.state().unwrap(), QueuePairState::ReadyToReceive);
}

// --- Queues ---

#[test]
fn a_full_send_queue_says_how_much_of_the_chain_it_took() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    let chain: Vec<_> = (0..20).map(|id| write(id, &source, &target, 64)).collect();
    let error = here.post_send(&chain).unwrap_err();
    assert_eq!(error, PostError { posted: 16, code: ENOMEM });
    assert!(error.is_full());
    let done: Vec<_> = (0..16).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.take(16)), done);
    here.post_send(&chain[..16]).unwrap();
}

#[test]
fn a_refused_work_request_in_the_middle_of_a_chain_leaves_those_before_it_under_way() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    let chain: Vec<_> = (0..5).map(|id| write(id, &source, &target, 64)).collect();
    a.host.refuse_post_after(3);
    assert_eq!(here.post_send(&chain).unwrap_err(), PostError { posted: 2, code: ENOMEM });
    here.post_send(&chain[2..]).unwrap();
    let done: Vec<_> = (0..5).map(|id| (id, Status::Success)).collect();
    assert_eq!(statuses(&a.take(5)), done);
}

#[test]
fn unsignalled_work_requests_keep_their_slots_until_a_later_completion_is_polled() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    let quiet = SendRequest { signalled: false, ..write(1, &source, &target, 64) };
    here.post_send(&[quiet; 15]).unwrap();
    a.take_nothing();
    here.post_send(&[write(2, &source, &target, 64)]).unwrap();
    let full = PostError { posted: 0, code: ENOMEM };
    assert_eq!(here.post_send(&[quiet]).unwrap_err(), full);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(here.post_send(&[quiet]).unwrap_err(), full, "the completion was not polled");
    assert_eq!(statuses(&a.take(1)), [(2, Status::Success)]);
    here.post_send(&[quiet; 16]).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(here.post_send(&[quiet]).unwrap_err(), full, "no completion will ever come");
}

#[test]
fn a_full_receive_queue_refuses() {
    let (_network, a, b) = two();
    let (here, there) = connect(&a, &b);
    let target = b.buffer(64);
    let chain: Vec<_> = (0..17).map(|id| receive(id, &target, 64)).collect();
    assert_eq!(there.post_receive(&chain).unwrap_err(), PostError { posted: 16, code: ENOMEM });
    here.post_send(&[request(1, Operation::Send, LocalSegment::default())]).unwrap();
    a.take_one();
    assert_eq!(there.post_receive(&chain[..1]).unwrap_err().posted, 0, "the completion was not polled");
    b.take_one();
    there.post_receive(&chain[..1]).unwrap();
}

#[test]
fn a_completion_queue_that_overruns_fails_with_its_queue_pairs() {
    let network = SimNetwork::new();
    let (a, b) = (Node::of(network.host(), "sim0", 2), Node::new(&network));
    let (here, _there) = connect(&a, &b);
    let (other, _peer) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    here.post_send(&[write(1, &source, &target, 64); 3]).unwrap();
    let events = [a.event(), a.event(), a.event()];
    assert!(events.contains(&AsyncEvent::CompletionQueueError), "{events:?}");
    for pair in [&here, &other] {
        assert!(events.contains(&AsyncEvent::QueuePairFatal(pair.number())), "{events:?}");
        assert_eq!(pair.state().unwrap(), QueuePairState::Error);
    }
    assert_eq!(a.completions.poll(&mut [Completion::EMPTY]).unwrap_err().code, EIO);
}

#[test]
fn an_armed_completion_queue_ends_the_wait_and_an_unarmed_one_does_not() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    let begin = Instant::now();
    a.host.wait(Some(Duration::from_millis(50)));
    assert!(begin.elapsed() >= Duration::from_millis(50));
    a.take_one();
    a.completions.arm().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            here.post_send(&[write(2, &source, &target, 64)]).unwrap();
        });
        a.host.wait(None);
    });
    a.take_one();
    a.host.wake();
    a.host.wait(None);
}

// --- Flushing ---

#[test]
fn a_failed_queue_pair_flushes_everything_that_is_posted_and_goes_on_flushing() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(4096), b.buffer(4096));
    a.host.stall(Stall::Work);
    let unsignalled = SendRequest { signalled: false, ..write(2, &source, &target, 64) };
    here.post_send(&[write(1, &source, &target, 64), unsignalled, write(3, &source, &target, 64)]).unwrap();
    here.post_receive(&[receive(4, &source, 64)]).unwrap();
    a.take_nothing();
    here.fail().unwrap();
    let flushed: Vec<_> = (1..=4).map(|id| (id, Status::Flushed)).collect();
    assert_eq!(statuses(&a.take(4)), flushed);
    here.post_send(&[unsignalled]).unwrap();
    assert_eq!(statuses(&a.take(1)), [(2, Status::Flushed)]);
    here.post_receive(&[receive(5, &source, 64)]).unwrap();
    assert_eq!(statuses(&a.take(1)), [(5, Status::Flushed)]);
    a.take_nothing();
}

#[test]
fn work_requests_before_and_after_an_error_end_as_they_should() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    let quiet = |id| SendRequest { signalled: false, ..write(id, &source, &target, 64) };
    let wrong = SendRequest { operation: Operation::Write { address: 0, key: 1 }, ..quiet(4) };
    let chain = [quiet(1), write(2, &source, &target, 64), quiet(3), wrong, quiet(5), write(6, &source, &target, 64)];
    here.post_send(&chain).unwrap();
    let ends = [(2, Status::Success), (4, Status::RemoteAccess), (5, Status::Flushed), (6, Status::Flushed)];
    assert_eq!(statuses(&a.take(4)), ends);
    a.take_nothing();
}

#[test]
fn a_nic_that_does_not_even_flush_does_so_when_it_works_again() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    a.host.stall(Stall::WorkAndFlush);
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    here.fail().unwrap();
    a.take_nothing();
    a.host.stall(Stall::None);
    assert_eq!(statuses(&a.take(1)), [(1, Status::Flushed)]);
}

#[test]
fn nothing_lands_after_the_sender_failed() {
    let (_network, a, b) = two();
    let (here, _there, _source, target) = underway(&a, &b);
    here.fail().unwrap();
    assert_nothing_lands(&target.memory);
    assert_eq!(statuses(&a.take(1)), [(1, Status::Flushed)]);
}

#[test]
fn nothing_lands_after_the_receiver_failed() {
    let (_network, a, b) = two();
    let (_here, there, _source, target) = underway(&a, &b);
    there.fail().unwrap();
    assert_nothing_lands(&target.memory);
}

#[test]
fn nothing_lands_after_a_queue_pair_was_dropped() {
    for sender in [true, false] {
        let (_network, a, b) = two();
        let (here, there, _source, target) = underway(&a, &b);
        drop(if sender { here } else { there });
        assert_nothing_lands(&target.memory);
        a.take_nothing();
    }
}

#[test]
fn nothing_lands_after_the_region_was_deregistered() {
    let (_network, a, b) = two();
    let (_here, _there, _source, target) = underway(&a, &b);
    let Buffer { memory, region } = target;
    drop(region);
    assert_eq!(memory.holders(), 1);
    assert_nothing_lands(&memory);
    assert_eq!(a.take_one().status, Status::RemoteAccess);
}

#[test]
fn nothing_is_read_after_the_region_was_deregistered() {
    let (_network, a, b) = two();
    let (_here, _there, source, target) = underway(&a, &b);
    drop(source.region);
    assert_eq!(source.memory.holders(), 1);
    assert_nothing_lands(&target.memory);
    assert_eq!(a.take_one().status, Status::LocalProtection);
}

#[test]
fn nothing_lands_after_a_host_was_killed() {
    for sender in [true, false] {
        let (_network, a, b) = two();
        let (_here, _there, _source, target) = underway(&a, &b);
        if sender {
            a.host.kill()
        } else {
            b.host.kill()
        }
        assert_nothing_lands(&target.memory);
    }
}

// --- What goes wrong on the wire ---

#[test]
fn a_killed_host_completes_nothing_and_is_not_heard_but_flushes() {
    let (_network, a, b) = two();
    let (here, there) = connect_with(&a, &b, &send_with(QUICK_TIMEOUT, 1));
    let (source, target) = (a.buffer(4096), b.buffer(4096));
    b.host.kill();
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    assert_eq!(a.take_one().status, Status::RetryExceeded);
    there.post_send(&[write(2, &target, &source, 64)]).unwrap();
    b.take_nothing();
    there.fail().unwrap();
    assert_eq!(statuses(&b.take(1)), [(2, Status::Flushed)]);
}

#[test]
fn an_unanswered_write_fails_after_the_time_of_its_attributes() {
    for (timeout, retry_count) in [(QUICK_TIMEOUT, 0), (QUICK_TIMEOUT, 4), (SLOW_TIMEOUT, 1)] {
        let (network, a, b) = two();
        let (here, there) = connect_with(&a, &b, &send_with(timeout, retry_count));
        network.partition(&a.host, &b.host);
        let (source, target) = (a.buffer(64), b.buffer(64));
        let begin = Instant::now();
        here.post_send(&[write(1, &source, &target, 64), write(2, &source, &target, 64)]).unwrap();
        assert_eq!(statuses(&a.take(2)), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
        let least = Duration::from_nanos(4096 << timeout) * (u32::from(retry_count) + 1);
        assert!(begin.elapsed() >= least, "{:?} is less than {least:?}", begin.elapsed());
        assert_eq!(here.state().unwrap(), QueuePairState::Error);
        assert_eq!(there.state().unwrap(), QueuePairState::ReadyToSend, "the peer has heard nothing");
    }
}

#[test]
fn some_attributes_retry_for_ever() {
    for (timeout, retry_count) in [(1, FOR_EVER), (0, 0)] {
        let (network, a, b) = two();
        let (here, _there) = connect_with(&a, &b, &send_with(timeout, retry_count));
        network.partition(&a.host, &b.host);
        let (source, target) = (a.buffer(64), b.buffer(64));
        here.post_send(&[write(1, &source, &target, 64)]).unwrap();
        a.take_nothing();
        assert_eq!(here.state().unwrap(), QueuePairState::ReadyToSend);
    }
}

#[test]
fn a_write_goes_on_when_a_partition_heals() {
    let (network, a, b) = two();
    let (_here, _there, _source, target) = underway(&a, &b);
    network.partition(&a.host, &b.host);
    assert_nothing_lands(&target.memory);
    a.host.pace(Duration::ZERO);
    network.heal(&a.host, &b.host);
    assert_eq!(a.take_one().status, Status::Success);
    assert_eq!(target.bytes((64 << 20) - 1, 1), [1]);
}

#[test]
fn an_unreachable_gid_neither_hears_nor_is_heard() {
    let (network, a, b) = two();
    let (source, target) = (a.buffer(64), b.buffer(64));
    let attempt = || {
        let (here, _there) = connect_with(&a, &b, &send_with(QUICK_TIMEOUT, 0));
        here.post_send(&[write(1, &source, &target, 64)]).unwrap();
        let (_here, there) = connect_with(&a, &b, &send_with(QUICK_TIMEOUT, 0));
        there.post_send(&[write(1, &target, &source, 64)]).unwrap();
        (a.take_one().status, b.take_one().status)
    };
    network.unreachable(b.gid());
    assert_eq!(attempt(), (Status::RetryExceeded, Status::RetryExceeded));
    network.reachable(b.gid());
    assert_eq!(attempt(), (Status::Success, Status::Success));
}

#[test]
fn a_queue_pair_that_is_not_connected_to_the_sender_answers_nothing() {
    let (_network, a, b) = two();
    let (source, target) = (a.buffer(64), b.buffer(64));
    let send = send_with(QUICK_TIMEOUT, 0);
    let (here, there) = (a.pair(), b.pair());
    let right = receive_from(a.gid(), here.number());
    let route = right.address.global.unwrap();
    let routed = |route| ReceiveAttributes { address: AddressVector { global: Some(route), ..right.address }, ..right };
    for wrong in [
        ReceiveAttributes { remote_queue_pair: here.number() ^ 1, ..right },
        ReceiveAttributes { remote_psn: 8, ..right },
        routed(GlobalRoute { gid: b.gid(), ..route }),
        routed(GlobalRoute { local_index: ROUTABLE - 1, ..route }),
    ] {
        let (here, there) = (a.pair(), b.pair());
        connect_one(&*here, &b, there.number(), &send);
        let remote = if wrong.remote_queue_pair == right.remote_queue_pair { here.number() } else { 99 };
        there.initialize(&init()).unwrap();
        there.ready_to_receive(&ReceiveAttributes { remote_queue_pair: remote, ..wrong }).unwrap();
        here.post_send(&[write(1, &source, &target, 64)]).unwrap();
        assert_eq!(a.take_one().status, Status::RetryExceeded, "{wrong:?}");
    }
    // One that is not ready to receive, and one that is no more.
    connect_one(&*here, &b, there.number(), &send);
    there.initialize(&init()).unwrap();
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    assert_eq!(a.take_one().status, Status::RetryExceeded);
    let (here, there) = connect_with(&a, &b, &send);
    drop(there);
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    assert_eq!(a.take_one().status, Status::RetryExceeded);
}

#[test]
fn a_packet_without_a_hop_left_does_not_arrive() {
    let (_network, a, b) = two();
    let (here, there) = (a.pair(), b.pair());
    connect_one(&*there, &a, here.number(), &send_with(QUICK_TIMEOUT, 0));
    let mut attributes = receive_from(b.gid(), there.number());
    attributes.address.global = attributes.address.global.map(|route| GlobalRoute { hop_limit: 0, ..route });
    here.initialize(&init()).unwrap();
    here.ready_to_receive(&attributes).unwrap();
    here.ready_to_send(&send_with(QUICK_TIMEOUT, 0)).unwrap();
    let (source, target) = (a.buffer(64), b.buffer(64));
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    assert_eq!(a.take_one().status, Status::RetryExceeded);
}

#[test]
fn a_write_whose_acknowledgement_is_lost_lands_and_completes_late() {
    let (_network, a, b) = two();
    let (here, there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    there.post_receive(&[receive(1, &target, 64), receive(2, &target, 64)]).unwrap();
    a.host.lose_acknowledgements_of("sim0", here.number(), 1);
    let begin = Instant::now();
    here.post_send(&[request(3, Operation::Send, source.local(0, 64))]).unwrap();
    assert_eq!(statuses(&b.take(1)), [(1, Status::Success)]);
    assert_eq!(statuses(&a.take(1)), [(3, Status::Success)]);
    assert!(begin.elapsed() >= Duration::from_nanos(4096 << SLOW_TIMEOUT));
    b.take_nothing();
}

#[test]
fn a_later_acknowledgement_covers_a_lost_one() {
    let (_network, a, b) = two();
    let (here, _there) = connect_with(&a, &b, &send_with(0, 0));
    let (source, target) = (a.buffer(64), b.buffer(64));
    a.host.lose_acknowledgements(1);
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    a.take_nothing();
    here.post_send(&[write(2, &source, &target, 64)]).unwrap();
    assert_eq!(statuses(&a.take(2)), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_write_may_land_and_fail() {
    let (_network, a, b) = two();
    let (here, _there) = connect_with(&a, &b, &send_with(QUICK_TIMEOUT, 1));
    let (source, target) = (a.buffer(128), b.buffer(128));
    source.memory.fill(0, 128, 4).unwrap();
    a.host.lose_acknowledgements(u64::MAX);
    let second = request(2, target.remote(64), source.local(64, 64));
    here.post_send(&[write(1, &source, &target, 64), second]).unwrap();
    assert_eq!(statuses(&a.take(2)), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    assert_eq!(target.bytes(0, 128), [4; 128], "the flushed one has landed too");
}

#[test]
fn losses_cost_time_only() {
    let (_network, a, b) = two();
    let (here, _there) = connect_with(&a, &b, &send_with(1, FOR_EVER));
    let (source, target) = (a.buffer(4 << 20), b.buffer(4 << 20));
    source.memory.fill(0, 4 << 20, 6).unwrap();
    a.host.lose_packets(30, 1);
    here.post_send(&[write(1, &source, &target, 4 << 20), write(2, &source, &target, 64)]).unwrap();
    assert_eq!(statuses(&a.take(2)), [(1, Status::Success), (2, Status::Success)]);
    assert!(target.bytes(0, 4 << 20).iter().all(|byte| *byte == 6));
}

#[test]
fn late_completions_keep_their_order_within_a_queue_pair_only() {
    let (_network, a, b) = two();
    let pairs: Vec<_> = (0..4).map(|_| connect(&a, &b)).collect();
    let (source, target) = (a.buffer(64), b.buffer(64));
    a.host.delay_completions(Duration::from_millis(20), 1);
    for round in 0..4 {
        for (number, (here, _)) in (0..).zip(&pairs) {
            here.post_send(&[write(round * 4 + number, &source, &target, 64)]).unwrap();
        }
    }
    let taken = statuses(&a.take(16));
    let order: Vec<u64> = taken.iter().map(|(id, _)| *id).collect();
    for number in 0..4 {
        let own: Vec<_> = order.iter().filter(|id| **id % 4 == number).copied().collect();
        assert!(own.is_sorted(), "{order:?}");
    }
    assert!(!order.is_sorted(), "{order:?}");
}

#[test]
fn late_completions_come_before_the_flushed_ones() {
    let (_network, a, b) = two();
    let (here, _there) = connect(&a, &b);
    let (source, target) = (a.buffer(64), b.buffer(64));
    a.host.delay_completions(Duration::from_millis(50), 3);
    here.post_send(&[write(1, &source, &target, 64)]).unwrap();
    thread::sleep(Duration::from_millis(5));
    here.fail().unwrap();
    here.post_send(&[write(2, &source, &target, 64)]).unwrap();
    assert_eq!(a.take(2).iter().map(|completion| completion.id).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_port_without_a_link_says_so_and_transfers_resume_with_the_link() {
    let (_network, a, b) = two();
    let (_here, _there, _source, target) = underway(&a, &b);
    b.host.port_down("sim0", 1);
    assert_eq!(b.event(), AsyncEvent::PortDown(1));
    assert_eq!(b.device.port(1).unwrap().state, PortState::Down);
    assert_nothing_lands(&target.memory);
    a.host.pace(Duration::ZERO);
    b.host.port_up("sim0", 1);
    assert_eq!(b.event(), AsyncEvent::PortActive(1));
    assert_eq!(b.device.port(1).unwrap().state, PortState::Active);
    assert_eq!(a.take_one().status, Status::Success);
    assert_eq!(target.bytes((64 << 20) - 1, 1), [1]);
}

#[test]
fn a_device_that_is_gone_answers_every_verb_with_an_error() {
    let (_network, a, b) = two();
    let (here, _there, source, target) = underway(&a, &b);
    a.host.remove_device("sim0");
    assert_nothing_lands(&target.memory);
    assert_eq!(a.event(), AsyncEvent::DeviceFatal);
    assert_eq!(a.host.devices().unwrap(), []);
    assert_eq!(a.host.open("sim0").unwrap_err().code, ENODEV);
    assert_eq!(a.device.attributes().unwrap_err().code, EIO);
    assert_eq!(a.device.port(1).unwrap_err().code, EIO);
    assert_eq!(a.device.gid(1, 0).unwrap_err().code, EIO);
    assert_eq!(a.device.allocate_domain().unwrap_err().code, EIO);
    assert_eq!(a.device.create_completion_queue(1).unwrap_err().code, EIO);
    assert_eq!(a.domain.register(&source.memory, 0, 1, false).unwrap_err().code, EIO);
    assert_eq!(a.completions.poll(&mut [Completion::EMPTY]).unwrap_err().code, EIO);
    assert_eq!(a.completions.arm().unwrap_err().code, EIO);
    assert_eq!(here.state().unwrap_err().code, EIO);
    assert_eq!(here.fail().unwrap_err().code, EIO);
    assert_eq!(here.post_send(&[]).unwrap_err().code, EIO);
    assert_eq!(here.post_receive(&[]).unwrap_err().code, EIO);
    let Buffer { memory, region } = source;
    drop(region);
    assert_eq!(memory.holders(), 1);
}

// --- All together ---

/// Numbers that look random.
fn next(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize
}

/// Writes random ranges from one host to the other, several at a time, and checks the whole target.
fn write_at_random(a: &Node, b: &Node, pairs: &[Pair], seed: u64) {
    const LEN: usize = 1 << 20;
    const SLOT: usize = LEN / 32;
    let mut seed = seed;
    let (source, target) = (a.buffer(LEN), b.buffer(LEN));
    let mut bytes = vec![0; LEN];
    bytes.fill_with(|| next(&mut seed) as u8);
    source.memory.write_at(0, &bytes).unwrap();
    let mut expected = vec![0; LEN];
    for _ in 0..20 {
        // One range in each slot of the target, so that none overlaps another in flight.
        for slot in 0..32 {
            let len = next(&mut seed) % SLOT;
            let from = next(&mut seed) % (LEN - len);
            let to = slot * SLOT + next(&mut seed) % (SLOT - len);
            expected[to..to + len].copy_from_slice(&bytes[from..from + len]);
            let write = request(slot as u64, target.remote(to as u64), source.local(from as u64, len as u32));
            pairs[slot % pairs.len()].post_send(&[write]).unwrap();
        }
        assert!(a.take(32).iter().all(|completion| completion.status == Status::Success));
        assert!(target.bytes(0, LEN) == expected);
    }
}

#[test]
fn random_writes_both_ways_land_where_they_should() {
    let (_network, a, b) = two();
    let send = send_with(2, FOR_EVER);
    let (here, there): (Vec<_>, Vec<_>) = (0..4).map(|_| connect_with(&a, &b, &send)).unzip();
    a.host.lose_packets(5, 1);
    b.host.delay_completions(Duration::from_millis(1), 2);
    thread::scope(|scope| {
        scope.spawn(|| write_at_random(&a, &b, &here, 1));
        scope.spawn(|| write_at_random(&b, &a, &there, 2));
    });
}

#[test]
fn queue_pairs_and_regions_may_go_away_at_any_moment() {
    let (_network, a, b) = two();
    let end = Instant::now() + Duration::from_millis(300);
    thread::scope(|scope| {
        for seed in 0..3 {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let mut seed = seed;
                while Instant::now() < end {
                    let (here, there) = connect(a, b);
                    let (one, two) = (a.buffer(1 << 20), b.buffer(1 << 20));
                    here.post_send(&[write(1, &one, &two, 1 << 20); 2]).unwrap();
                    there.post_send(&[write(1, &two, &one, 1 << 20); 2]).unwrap();
                    thread::sleep(Duration::from_micros(next(&mut seed) as u64 % 500));
                    match next(&mut seed) % 4 {
                        0 => drop(one.region),
                        1 => drop(two.region),
                        2 => drop(here),
                        _ => drop(there),
                    }
                    while a.completions.poll(&mut [Completion::EMPTY; 8]).unwrap() > 0 {}
                    while b.completions.poll(&mut [Completion::EMPTY; 8]).unwrap() > 0 {}
                }
            });
        }
    });
}

#[cfg(target_os = "linux")]
#[test]
fn the_thread_of_a_host_ends_with_the_last_object_of_the_host() {
    let running = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks
            .flatten()
            .any(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|found| found.trim_end() == name))
    };
    let network = SimNetwork::new();
    // A number that the hosts of no other test have.
    let mut hosts: Vec<_> = (0..41).map(|_| network.host()).collect();
    let (a, b) = (Node::of(hosts.pop().unwrap(), "sim0", 16), Node::new(&network));
    drop(hosts);
    let (here, _there) = connect(&a, &b);
    network.partition(&a.host, &b.host);
    let source = a.buffer(64);
    here.post_send(&[request(1, Operation::Send, source.local(0, 64))]).unwrap();
    let Node { host, device, domain, completions } = a;
    drop((host, device, domain, completions, source));
    thread::sleep(Duration::from_millis(20));
    assert!(running("sim-nic-40"));
    drop(here);
    let end = Instant::now() + PATIENCE;
    while running("sim-nic-40") {
        assert!(Instant::now() < end, "the thread does not end");
        thread::sleep(Duration::from_millis(1));
    }
}
