//! The native verbs on real queue pairs, through the seam.
//!
//! Needs an RDMA device or two (`KVFERRY_RDMA_DEVICES`), so these tests are ignored by default. With Soft-RoCE:
//!
//! ```text
//! CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="bash $PWD/tests/softroce/run.sh" \
//!     cargo test -p transport-rdma --features verbs --test native_verbs -- --ignored
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::{
    env,
    io::{BufRead, BufReader, Write as _},
    net::Ipv6Addr,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use transport_core::Memory;
use transport_rdma::{
    native::NativeVerbs,
    verbs::{
        AddressVector, AsyncEvent, Completion, CompletionQueue, Device, GidEntry, GlobalRoute, InitAttributes,
        LinkLayer, LocalSegment, MemoryRegion, Mtu, Operation, PortState, ProtectionDomain, QueuePair,
        QueuePairCapacity, QueuePairState, ReceiveAttributes, ReceiveRequest, SendAttributes, SendRequest, Status,
        Verbs,
    },
};

/// Longer than anything here takes, also emulated.
const LONG: Duration = Duration::from_secs(30);

/// One test at a time: they share the devices, and one of them takes a link down.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names of the devices for the two ends; the same one twice where there is only one.
fn names() -> [String; 2] {
    let names = env::var("KVFERRY_RDMA_DEVICES").expect("KVFERRY_RDMA_DEVICES is set: see tests/softroce/run.sh");
    let (first, second) = names.split_once(',').unwrap_or((&names, &names));
    [first.to_owned(), second.to_owned()]
}

fn soft_roce() -> bool {
    names().iter().all(|name| name.starts_with("rxe"))
}

const CAPACITY: QueuePairCapacity = QueuePairCapacity { send: 64, receive: 64, inline: 64 };

/// Writes nothing: only asks whether the peer answers.
const PROBE: SendRequest = SendRequest {
    id: 1,
    operation: Operation::Write { address: 0, key: 0 },
    local: LocalSegment { address: 0, len: 0, key: 0 },
    signalled: true,
    inline: false,
};

/// One end: an open device with a completion queue and a queue pair.
struct End {
    device: Arc<dyn Device>,
    domain: Arc<dyn ProtectionDomain>,
    completions: Arc<dyn CompletionQueue>,
    pair: Box<dyn QueuePair>,
    gid: GidEntry,
}

/// What the other end must know of one.
#[derive(Clone, Copy)]
struct Address {
    number: u32,
    gid: Ipv6Addr,
    lid: u16,
    mtu: Mtu,
    psn: u32,
}

impl End {
    fn new(verbs: &NativeVerbs, name: &str, capacity: QueuePairCapacity) -> Self {
        let device = verbs.open(name).unwrap();
        let domain = device.allocate_domain().unwrap();
        let completions = device.create_completion_queue(256).unwrap();
        let pair = domain.create_queue_pair(&completions, capacity).unwrap();
        let gid = gid(&*device);
        Self { device, domain, completions, pair, gid }
    }

    fn address(&self) -> Address {
        let port = self.device.port(1).unwrap();
        // Near the wrap, so that sequence numbers pass it.
        let psn = 0x00ff_fff0 | (self.pair.number() & 15);
        Address { number: self.pair.number(), gid: self.gid.gid, lid: port.lid, mtu: port.active_mtu, psn }
    }

    fn connect(&self, to: Address) {
        self.pair.initialize(&InitAttributes { port: 1, pkey_index: 0, remote_write: true }).unwrap();
        let here = self.address();
        let global = GlobalRoute { gid: to.gid, local_index: self.gid.index, hop_limit: 64, traffic_class: 0 };
        self.pair
            .ready_to_receive(&ReceiveAttributes {
                path_mtu: here.mtu.min(to.mtu),
                remote_queue_pair: to.number,
                remote_psn: to.psn,
                min_rnr_timer: 12,
                address: AddressVector { port: 1, lid: to.lid, service_level: 0, global: Some(global) },
            })
            .unwrap();
        self.pair.ready_to_send(&SendAttributes { psn: here.psn, timeout: 14, retry_count: 6, rnr_retry: 6 }).unwrap();
        assert_eq!(self.pair.state().unwrap(), QueuePairState::ReadyToSend);
    }

    fn region(&self, memory: &Memory) -> Box<dyn MemoryRegion> {
        self.domain.register(memory, 0, memory.len(), true).unwrap()
    }

    /// Polls until there are `count` completions.
    fn completions(&self, count: usize) -> Vec<Completion> {
        poll(&*self.completions, count)
    }

    /// The one completion that there is.
    fn completion(&self) -> Completion {
        let completion = self.completions(1)[0];
        assert_eq!(completion.queue_pair, self.pair.number());
        completion
    }

    fn nothing_more(&self) {
        assert_eq!(self.completions.poll(&mut [Completion::EMPTY; 4]).unwrap(), 0);
    }
}

fn poll(queue: &dyn CompletionQueue, count: usize) -> Vec<Completion> {
    let began = Instant::now();
    let mut all = Vec::new();
    while all.len() < count {
        let mut batch = [Completion::EMPTY; 32];
        let taken = queue.poll(&mut batch).unwrap();
        all.extend_from_slice(&batch[..taken]);
        assert!(began.elapsed() < LONG, "{} of {count} completions in {LONG:?}: {all:?}", all.len());
        if taken == 0 {
            // One emulated processor: the device needs it.
            thread::sleep(Duration::from_micros(100));
        }
    }
    assert_eq!(all.len(), count, "{all:?}");
    all
}

/// The GID of a routable address: IPv4 before IPv6, RoCE v2 before the others.
fn gid(device: &dyn Device) -> GidEntry {
    let entries = device.port(1).unwrap().gid_table_len;
    let mut all: Vec<GidEntry> = (0..entries).filter_map(|index| device.gid(1, index).unwrap()).collect();
    all.sort_by_key(|entry| (entry.gid.to_ipv4_mapped().is_some(), entry.kind));
    all.pop().expect("the port has a GID")
}

/// Two connected ends.
fn pair() -> (Arc<NativeVerbs>, End, End) {
    pair_with(CAPACITY)
}

fn pair_with(capacity: QueuePairCapacity) -> (Arc<NativeVerbs>, End, End) {
    let verbs = NativeVerbs::open().unwrap();
    let [first, second] = names();
    let (a, b) = (End::new(&verbs, &first, capacity), End::new(&verbs, &second, CAPACITY));
    a.connect(b.address());
    b.connect(a.address());
    (verbs, a, b)
}

fn segment(memory: &Memory, region: &dyn MemoryRegion, offset: u64, len: u32) -> LocalSegment {
    LocalSegment { address: memory.address().addr().get() as u64 + offset, len, key: region.local_key() }
}

fn write_to(memory: &Memory, region: &dyn MemoryRegion, offset: u64) -> Operation {
    Operation::Write { address: memory.address().addr().get() as u64 + offset, key: region.remote_key() }
}

fn request(id: u64, operation: Operation, local: LocalSegment) -> SendRequest {
    SendRequest { id, operation, local, signalled: true, inline: false }
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn bytes(memory: &Memory, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_at(offset, &mut bytes).unwrap();
    bytes
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn devices_ports_and_gids_are_described() {
    let _alone = alone();
    let verbs = NativeVerbs::open().unwrap();
    assert_eq!(verbs.name(), "libibverbs");
    let devices = verbs.devices().unwrap();
    println!("devices: {devices:?}");
    for name in names() {
        assert!(devices.iter().any(|device| device.name == name), "{name}");
        let device = verbs.open(&name).unwrap();
        assert_eq!(device.name(), name);
        let attributes = device.attributes().unwrap();
        println!("{name}: {attributes:?}");
        assert!(attributes.ports >= 1 && attributes.max_qp_wr >= 64 && attributes.max_cqe >= 64);
        assert!(attributes.max_mr_size >= 1 << 30 && attributes.max_sge >= 1);
        let port = device.port(1).unwrap();
        println!("{name} port 1: {port:?}");
        assert_eq!(port.state, PortState::Active);
        assert!(port.active_mtu <= port.max_mtu && port.max_message >= 1 << 20);
        let gid = gid(&*device);
        println!("{name} GID: {gid:?}");
        if port.link_layer == LinkLayer::Ethernet {
            assert!(gid.interface.is_some());
        }
        if soft_roce() {
            let interface = name.replace("rxe", "v");
            assert_eq!((gid.index, gid.interface.as_deref()), (1, Some(&*interface)));
            assert!(gid.gid.to_ipv4_mapped().is_some());
            assert_eq!(device.gid(1, port.gid_table_len - 1).unwrap(), None, "the table's end is empty");
        }
        let error = device.gid(1, port.gid_table_len).unwrap_err();
        assert!(error.to_string().contains(&format!("is not below {}", port.gid_table_len)), "{error}");
        let error = device.port(attributes.ports + 1).unwrap_err();
        assert_eq!((error.operation, &*error.device), ("ibv_query_port", &*name));
        for depth in [0, attributes.max_cqe + 1] {
            let error = device.create_completion_queue(depth).unwrap_err();
            assert!(error.to_string().contains(&attributes.max_cqe.to_string()), "{error}");
        }
    }
    let error = verbs.open("nothing0").unwrap_err();
    assert_eq!(error.code, Errno::NODEV.raw_os_error());
    assert!(error.to_string().contains(&names()[0]), "{error}");
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn writes_of_all_lengths_arrive_byte_by_byte() {
    let _alone = alone();
    let (_verbs, a, b) = pair();
    let longest = a.device.port(1).unwrap().max_message.min(b.device.port(1).unwrap().max_message);
    let lengths = [1_u32, 1023, 1024, 1025, 4096, 65_536, 65_537, 1 << 20, 16 << 20].map(|len| len.min(longest));
    let room = u64::from(*lengths.iter().max().unwrap()) + 128;
    let (from, into) = (Memory::host(room as usize).unwrap(), Memory::host(room as usize).unwrap());
    let began = Instant::now();
    let (source, target) = (a.region(&from), b.region(&into));
    println!("two registrations of {room} bytes: {:?}", began.elapsed());
    for (seed, len) in lengths.into_iter().enumerate() {
        let expected = pattern(len as usize, seed as u64);
        from.write_at(3, &expected).unwrap();
        into.fill(0, room, 0xee).unwrap();
        let began = Instant::now();
        let write = request(u64::from(len), write_to(&into, &*target, 64), segment(&from, &*source, 3, len));
        a.pair.post_send(&[write]).unwrap();
        let completion = a.completion();
        println!("{len} bytes: {:?}", began.elapsed());
        assert_eq!((completion.id, completion.status), (u64::from(len), Status::Success), "{len}");
        assert!(bytes(&into, 64, len as usize) == expected, "{len} bytes arrive as they were");
        assert_eq!(bytes(&into, 0, 64), [0xee; 64], "{len}: nothing before");
        assert_eq!(bytes(&into, 64 + u64::from(len), 64), [0xee; 64], "{len}: nothing behind");
    }
    b.nothing_more();
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn sends_fill_receives_in_order() {
    let _alone = alone();
    let (_verbs, a, b) = pair();
    let (from, into) = (Memory::host(8192).unwrap(), Memory::host(8192).unwrap());
    let (source, target) = (a.region(&from), b.region(&into));
    let receive = |id, offset, len| ReceiveRequest { id, local: segment(&into, &*target, offset, len) };
    b.pair.post_receive(&(0..4).map(|id| receive(100 + id, id * 1024, 1024)).collect::<Vec<_>>()).unwrap();
    let expected = pattern(4096, 9);
    from.write_at(0, &expected).unwrap();
    let send =
        |id: u32, len| request(u64::from(id), Operation::Send, segment(&from, &*source, u64::from(id) * 1024, len));
    a.pair.post_send(&(0..4).map(|id| send(id, 1024 - id * 100)).collect::<Vec<_>>()).unwrap();
    for (id, completion) in a.completions(4).into_iter().enumerate() {
        assert_eq!((completion.id, completion.status, completion.bytes), (id as u64, Status::Success, 0));
    }
    for (id, completion) in b.completions(4).into_iter().enumerate() {
        let len = 1024 - id * 100;
        assert_eq!((completion.id, completion.status), (100 + id as u64, Status::Success));
        assert_eq!((completion.bytes as usize, completion.queue_pair), (len, b.pair.number()));
        assert_eq!(bytes(&into, id as u64 * 1024, len), expected[id * 1024..][..len]);
    }
    // One that is longer than its receive.
    b.pair.post_receive(&[receive(7, 0, 16)]).unwrap();
    a.pair.post_send(&[send(0, 17)]).unwrap();
    let (here, there) = (a.completion(), b.completion());
    println!("a send that is too long: sender {:?}, receiver {:?}", here.status, there.status);
    // Soft-RoCE has other words for it than the specification.
    assert!(matches!(here.status, Status::RemoteInvalidRequest | Status::RemoteOperation));
    assert!(matches!(there.status, Status::LocalLength | Status::LocalOperation));
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn a_full_queue_says_exactly_how_much_it_took() {
    let _alone = alone();
    let (_verbs, a, b) = pair_with(QueuePairCapacity { send: 200, ..CAPACITY });
    let room = a.pair.capacity().send;
    println!("asked for 200 sends, got {:?}", a.pair.capacity());
    assert!(room >= 200);
    let (from, into) = (Memory::host(4096).unwrap(), Memory::host(1 << 20).unwrap());
    let (source, target) = (a.region(&from), b.region(&into));
    from.write_at(0, &pattern(4096, 4)).unwrap();
    let chain: Vec<SendRequest> = (0..1000)
        .map(|id| {
            let write = request(id, write_to(&into, &*target, (id % 100) * 4096), segment(&from, &*source, 0, 4096));
            SendRequest { signalled: id % 10 == 9, ..write }
        })
        .collect();
    let (mut next, mut refusals, mut signals) = (0, Vec::new(), Vec::new());
    let began = Instant::now();
    while next < chain.len() {
        match a.pair.post_send(&chain[next..]) {
            Ok(()) => next = chain.len(),
            Err(error) => {
                assert!(error.is_full(), "{error}");
                refusals.push(error.posted);
                next += error.posted;
            }
        }
        let mut batch = [Completion::EMPTY; 32];
        let taken = a.completions.poll(&mut batch).unwrap();
        signals.extend_from_slice(&batch[..taken]);
        thread::sleep(Duration::from_micros(100));
        assert!(began.elapsed() < LONG);
    }
    println!(
        "1000 writes: {} refusals, the first ones after {:?}",
        refusals.len(),
        &refusals[..refusals.len().min(10)]
    );
    assert!(!refusals.is_empty());
    let left = 100 - signals.len();
    signals.extend(a.completions(left));
    // Each signalled one completes once, in order: none was posted twice and none was lost.
    let ids: Vec<u64> = signals.iter().map(|completion| completion.id).collect();
    assert_eq!(ids, (0..100).map(|n| n * 10 + 9).collect::<Vec<u64>>());
    assert!(signals.iter().all(|completion| completion.status == Status::Success));
    a.nothing_more();
    assert_eq!(bytes(&into, 99 * 4096, 4096), pattern(4096, 4));
    // Receives stay where they are, so here the number is known beforehand.
    let room = b.pair.capacity().receive as usize;
    let receive = ReceiveRequest { id: 1, local: segment(&into, &*target, 0, 8) };
    let error = b.pair.post_receive(&vec![receive; room + 70]).unwrap_err();
    assert!(error.is_full() && error.posted >= room, "{error}");
    assert_eq!(b.pair.post_receive(&[receive]).unwrap_err().posted, 0);
    b.pair.fail().unwrap();
    println!("a receive queue of {room} took {}", error.posted);
    b.completions(error.posted);
    b.nothing_more();
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn a_write_of_nothing_probes_the_peer() {
    let _alone = alone();
    let (_verbs, a, b) = pair();
    a.pair.post_send(&[PROBE]).unwrap();
    assert_eq!(a.completion().status, Status::Success);
    b.pair.fail().unwrap();
    let began = Instant::now();
    a.pair.post_send(&[PROBE]).unwrap();
    let status = a.completion().status;
    println!("a probe of a failed queue pair: {status:?} after {:?}", began.elapsed());
    assert_eq!(status, Status::RetryExceeded);
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn inline_bytes_are_copied_when_they_are_posted() {
    let _alone = alone();
    let (_verbs, a, b) = pair();
    println!("capacity: {:?}", a.pair.capacity());
    let most = a.pair.capacity().inline;
    assert!(most >= 64);
    let (from, into) = (Memory::host(8192).unwrap(), Memory::host(8192).unwrap());
    let (source, target) = (a.region(&from), b.region(&into));
    from.write_at(0, &[1; 64]).unwrap();
    let inline = |id, local| SendRequest { inline: true, ..request(id, write_to(&into, &*target, 0), local) };
    a.pair.post_send(&[inline(1, segment(&from, &*source, 0, 64))]).unwrap();
    from.write_at(0, &[2; 64]).unwrap();
    assert_eq!(a.completion().status, Status::Success);
    assert_eq!(bytes(&into, 0, 64), [1; 64]);
    b.pair.post_receive(&[ReceiveRequest { id: 5, local: segment(&into, &*target, 128, 64) }]).unwrap();
    let send = SendRequest { operation: Operation::Send, ..inline(2, segment(&from, &*source, 0, 33)) };
    a.pair.post_send(&[send]).unwrap();
    assert_eq!((a.completion().status, b.completion().bytes), (Status::Success, 33));
    assert_eq!(bytes(&into, 128, 34), [&[2; 33][..], &[0]].concat());
    // The library would read these without asking: too long, not registered, by another key.
    let good = inline(3, segment(&from, &*source, 0, 8));
    let long = segment(&from, &*source, 0, most + 1);
    let stranger = LocalSegment { address: 16, len: 8, key: source.local_key() };
    let keyless = LocalSegment { key: source.local_key() ^ 1, ..good.local };
    for bad in [long, stranger, keyless] {
        let error = a.pair.post_send(&[good, inline(4, bad), good]).unwrap_err();
        assert_eq!((error.posted, error.code), (1, Errno::INVAL.raw_os_error()));
        assert_eq!(a.completion().id, 3);
    }
    drop(source);
    assert_eq!(a.pair.post_send(&[good]).unwrap_err().posted, 0);
    a.nothing_more();
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn a_wrong_key_fails_the_pair_and_flushes_the_rest() {
    let _alone = alone();
    let (_verbs, a, b) = pair();
    let (from, into) = (Memory::host(4096).unwrap(), Memory::host(4096).unwrap());
    let (source, target) = (a.region(&from), b.region(&into));
    a.pair.post_receive(&[ReceiveRequest { id: 50, local: segment(&from, &*source, 0, 64) }]).unwrap();
    let local = segment(&from, &*source, 0, 100);
    let Operation::Write { address, key } = write_to(&into, &*target, 0) else { unreachable!() };
    let wrong = request(1, Operation::Write { address, key: key ^ 0x55 }, local);
    let right = |id| SendRequest { signalled: false, ..request(id, write_to(&into, &*target, 0), local) };
    a.pair.post_send(&[wrong, right(2), right(3), right(4)]).unwrap();
    let all = a.completions(5);
    println!("a wrong key: {all:?}");
    let mut flushed: Vec<u64> =
        all.iter().filter(|completion| completion.status == Status::Flushed).map(|completion| completion.id).collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [2, 3, 4, 50], "unsignalled ones and receives too");
    assert!(all.iter().any(|completion| (completion.id, completion.status) == (1, Status::RemoteAccess)));
    assert!(all.iter().all(|completion| completion.queue_pair == a.pair.number()));
    assert_eq!(a.pair.state().unwrap(), QueuePairState::Error);
    println!("the peer's state then: {:?}, its event: {:?}", b.pair.state().unwrap(), b.device.poll_async_event());
    // In ERR they are taken and flushed.
    a.pair.post_send(&[right(9)]).unwrap();
    let late = a.completion();
    assert_eq!((late.id, late.status), (9, Status::Flushed));
    assert_eq!(bytes(&into, 0, 100), [0; 100]);
}

/// Makes a region, or none, and a write that it must refuse.
type SetUp<'a> = dyn Fn(&End, &Memory) -> (Option<Box<dyn MemoryRegion>>, Operation) + 'a;

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn regions_refuse_what_they_do_not_allow() {
    let _alone = alone();
    let verdict = |set_up: &SetUp<'_>| {
        let (_verbs, a, b) = pair();
        let (from, into) = (Memory::host(4096).unwrap(), Memory::host(8192).unwrap());
        from.fill(0, 4096, 1).unwrap();
        let source = a.region(&from);
        let (_region, operation) = set_up(&b, &into);
        a.pair.post_send(&[request(1, operation, segment(&from, &*source, 0, 100))]).unwrap();
        let status = a.completion().status;
        assert_eq!(bytes(&into, 0, 8192), [0; 8192]);
        status
    };
    let deregistered = verdict(&|b, into| {
        let region = b.region(into);
        let operation = write_to(into, &*region, 0);
        drop(region);
        (None, operation)
    });
    assert_eq!(deregistered, Status::RemoteAccess);
    let read_only = verdict(&|b, into| {
        let region = b.domain.register(into, 0, 4096, false).unwrap();
        let operation = write_to(into, &*region, 0);
        (Some(region), operation)
    });
    assert_eq!(read_only, Status::RemoteAccess);
    // A region of the second page: before it, across its beginning, across its end.
    for offset in [0, 4096 - 50, 8192 - 99] {
        let outside = verdict(&|b, into| {
            let region = b.domain.register(into, 4096, 4096, true).unwrap();
            let operation = write_to(into, &*region, offset);
            (Some(region), operation)
        });
        assert_eq!(outside, Status::RemoteAccess, "{offset}");
    }
    let (_verbs, a, b) = pair();
    let into = Memory::host(4096).unwrap();
    let target = b.region(&into);
    let local = LocalSegment { address: 4096, len: 8, key: 1 };
    a.pair.post_send(&[request(1, write_to(&into, &*target, 0), local)]).unwrap();
    // Soft-RoCE does not tell what was wrong on this side.
    let status = a.completion().status;
    println!("a local key that is none: {status:?}");
    assert!(matches!(status, Status::LocalProtection | Status::Flushed), "{status:?}");
    assert_eq!(a.pair.state().unwrap(), QueuePairState::Error);
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn a_part_of_memory_is_registered_at_its_own_address() {
    let _alone = alone();
    let (_verbs, a, b) = pair();
    let (from, into) = (Memory::host(4096).unwrap(), Memory::host(16_384).unwrap());
    let source = a.region(&from);
    let target = b.domain.register(&into, 4100, 5000, true).unwrap();
    from.write_at(0, &pattern(500, 3)).unwrap();
    a.pair.post_send(&[request(1, write_to(&into, &*target, 4100), segment(&from, &*source, 0, 500))]).unwrap();
    assert_eq!(a.completion().status, Status::Success);
    assert_eq!(bytes(&into, 4100, 500), pattern(500, 3));
    for (offset, len) in [(0, 0), (1, 16_384), (u64::MAX, 2), (16_385, 1)] {
        let error = b.domain.register(&into, offset, len, true).unwrap_err();
        assert_eq!(error.code, Errno::INVAL.raw_os_error());
        assert!(error.to_string().contains("16384"), "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn an_armed_queue_ends_a_wait() {
    let _alone = alone();
    let (verbs, a, b) = pair();
    b.pair.post_receive(&[ReceiveRequest { id: 1, local: LocalSegment::default() }; 8]).unwrap();
    let send = SendRequest { operation: Operation::Send, ..PROBE };
    for round in 0..3 {
        b.completions.arm().unwrap();
        b.nothing_more();
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(30));
                a.pair.post_send(&[send]).unwrap();
            });
            let mut taken = 0;
            while taken == 0 {
                verbs.wait(Some(LONG));
                taken = b.completions.poll(&mut [Completion::EMPTY; 4]).unwrap();
                assert!(began.elapsed() < LONG / 2, "woken by the event, not by the clock");
            }
            assert_eq!(taken, 1);
        });
        println!("round {round}: woken after {:?}, 30 ms of them before the send", began.elapsed());
        a.completions(1);
    }
    // Not armed any more: a completion wakes nobody.
    a.pair.post_send(&[send]).unwrap();
    b.completions(1);
    a.completions(1);
    let began = Instant::now();
    verbs.wait(Some(Duration::from_millis(50)));
    assert!(began.elapsed() >= Duration::from_millis(50));
    // An event that nobody took does not hold up the queue's end.
    a.completions.arm().unwrap();
    a.pair.post_send(&[PROBE]).unwrap();
    a.completions(1);
    let began = Instant::now();
    drop((a, b));
    assert!(began.elapsed() < LONG / 2);
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn a_wake_ends_a_wait_beside_open_devices() {
    let _alone = alone();
    let (verbs, a, _b) = pair();
    a.completions.arm().unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            verbs.wake();
        });
        verbs.wait(Some(LONG));
    });
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn too_much_memory_is_refused_with_the_limit() {
    const LIMIT: u64 = 1 << 20;
    let _alone = alone();
    if env::var_os("KVFERRY_TEST_LIMITED").is_none() {
        // In a process of its own, where the limit counts: without the privilege to pass it.
        let limit = format!("--memlock={LIMIT}:{LIMIT}");
        let mut command = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            command.arg("--bounding-set=-ipc_lock");
        }
        let status = command
            .args(["prlimit", &limit])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "too_much_memory_is_refused_with_the_limit", "--ignored", "--nocapture"])
            .env("KVFERRY_TEST_LIMITED", "1")
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let verbs = NativeVerbs::open().unwrap();
    let device = verbs.open(&names()[0]).unwrap();
    let domain = device.allocate_domain().unwrap();
    let memory = Memory::host(4 << 20).unwrap();
    let error = domain.register(&memory, 4096, 2 << 20, true).unwrap_err();
    println!("{error}");
    assert_eq!(error.code, Errno::NOMEM.raw_os_error());
    let text = error.to_string();
    for part in [(2 << 20).to_string(), LIMIT.to_string(), "ulimit -l".to_owned(), "register less".to_owned()] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    assert_eq!(memory.holders(), 1, "nothing is held");
    let region = domain.register(&memory, 4096, LIMIT / 2, true).unwrap();
    assert_eq!(memory.holders(), 2);
    drop(region);
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn failing_a_pair_flushes_what_is_posted() {
    let _alone = alone();
    let (_verbs, _a, b) = pair();
    let into = Memory::host(4096).unwrap();
    let target = b.region(&into);
    let receives: Vec<ReceiveRequest> =
        (0..20).map(|id| ReceiveRequest { id, local: segment(&into, &*target, 0, 64) }).collect();
    b.pair.post_receive(&receives).unwrap();
    b.pair.fail().unwrap();
    let all = b.completions(20);
    assert!(all.iter().zip(0..).all(|(done, id)| done.id == id && done.status == Status::Flushed), "{all:?}");
    assert!(all.iter().all(|done| done.queue_pair == b.pair.number()));
    assert_eq!(b.pair.state().unwrap(), QueuePairState::Error);
    b.pair.fail().unwrap();
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn pairs_refuse_what_cannot_be() {
    let _alone = alone();
    let (_verbs, a, b) = pair();
    let fresh = a.domain.create_queue_pair(&a.completions, CAPACITY).unwrap();
    assert_eq!(fresh.state().unwrap(), QueuePairState::Reset);
    let attributes = SendAttributes { psn: 0, timeout: 14, retry_count: 6, rnr_retry: 6 };
    let error = fresh.ready_to_send(&attributes).unwrap_err();
    assert_eq!(error.code, Errno::INVAL.raw_os_error());
    assert!(error.operation.contains("RTR to RTS"), "{error}");
    let error = a.domain.create_queue_pair(&b.completions, CAPACITY).unwrap_err();
    assert!(error.to_string().contains("not one of this open device"), "{error}");
    let wanted = a.device.attributes().unwrap().max_qp_wr + 1;
    let error = a.domain.create_queue_pair(&a.completions, QueuePairCapacity { send: wanted, ..CAPACITY }).unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains(&wanted.to_string()), "{error}");
    // What the device gives at most, found by asking.
    let inline = (0..16)
        .map(|bits| 1_u32 << bits)
        .take_while(|inline| {
            a.domain.create_queue_pair(&a.completions, QueuePairCapacity { inline: *inline, ..CAPACITY }).is_ok()
        })
        .last();
    println!("most inline bytes, as a power of two: {inline:?}");
    let global = |index| GlobalRoute { gid: b.gid.gid, local_index: index, hop_limit: 1, traffic_class: 0 };
    fresh.initialize(&InitAttributes { port: 1, pkey_index: 0, remote_write: true }).unwrap();
    for index in [255, 256] {
        let address = AddressVector { port: 1, lid: 0, service_level: 0, global: Some(global(index)) };
        let error = fresh
            .ready_to_receive(&ReceiveAttributes {
                path_mtu: Mtu::B1024,
                remote_queue_pair: 1,
                remote_psn: 0,
                min_rnr_timer: 12,
                address,
            })
            .unwrap_err();
        println!("{error}");
        assert!(error.to_string().contains(&index.to_string()), "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn owners_may_go_in_any_order() {
    let _alone = alone();
    let memory = Memory::host(4096).unwrap();
    for order in 0..6 {
        let (verbs, a, b) = pair();
        let region = a.region(&memory);
        assert_eq!(memory.holders(), 2);
        let End { device, domain, completions, pair, .. } = a;
        match order {
            0 => {
                drop((device, domain, verbs));
                pair.post_send(&[PROBE]).unwrap();
                assert_eq!(poll(&*completions, 1)[0].status, Status::Success, "it works without its makers");
                drop((completions, pair, region));
            }
            1 => drop((completions, device, pair, domain, region, verbs)),
            2 => drop((region, pair, completions, domain, device, verbs)),
            3 => drop((verbs, completions, domain, device, region, pair)),
            4 => {
                // With work on its way.
                pair.post_send(&[PROBE; 30]).unwrap();
                drop((pair, completions, region, domain, device, verbs));
            }
            _ => {
                drop((device, verbs, domain, pair, completions));
                assert_eq!(memory.holders(), 2, "the region still holds it");
                drop(region);
            }
        }
        assert_eq!(memory.holders(), 1, "order {order}");
        drop(b);
    }
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn a_link_that_goes_down_is_told() {
    let _alone = alone();
    if !soft_roce() {
        println!("not Soft-RoCE: nobody unplugs the cables of real devices here");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/softroce/guest/link.sh");
    let link = |what: &str| {
        let status = Command::new("bash").arg(&script).args([what, "rxe0"]).stdin(Stdio::null()).status().unwrap();
        assert!(status.success());
    };
    /// Plugs the link in again for the other tests, whatever becomes of this one.
    struct Plug<F: Fn(&str)>(F);
    impl<F: Fn(&str)> Drop for Plug<F> {
        fn drop(&mut self) {
            (self.0)("up");
        }
    }
    let (verbs, a, b) = pair();
    let awaited = |expected: AsyncEvent| {
        let began = Instant::now();
        loop {
            match a.device.poll_async_event() {
                Some(event) if event == expected => return,
                Some(event) => println!("event: {event:?}"),
                None => verbs.wait(Some(Duration::from_millis(100))),
            }
            while b.device.poll_async_event().is_some() {}
            assert!(began.elapsed() < LONG, "{expected:?}");
        }
    };
    let plug = Plug(link);
    (plug.0)("down");
    awaited(AsyncEvent::PortDown(1));
    assert_eq!(a.device.port(1).unwrap().state, PortState::Down);
    let began = Instant::now();
    a.pair.post_send(&[PROBE]).unwrap();
    let status = a.completion().status;
    println!("a write without a link: {status:?} after {:?}", began.elapsed());
    // Without a route Soft-RoCE fails the pair at once and flushes, where a device would send again.
    assert!(matches!(status, Status::RetryExceeded | Status::Flushed), "{status:?}");
    assert_eq!(a.pair.state().unwrap(), QueuePairState::Error);
    drop(plug);
    awaited(AsyncEvent::PortActive(1));
    assert_eq!(a.device.port(1).unwrap().state, PortState::Active);
    drop((a, b));
    let (_verbs, a, _b) = pair();
    a.pair.post_send(&[PROBE]).unwrap();
    assert_eq!(a.completion().status, Status::Success, "a new pair works at once");
}

#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn a_killed_peer_is_noticed() {
    let _alone = alone();
    for round in 0..3 {
        let verbs = NativeVerbs::open().unwrap();
        let a = End::new(&verbs, &names()[0], CAPACITY);
        let here = a.address();
        let mut victim = Command::new(env::current_exe().unwrap())
            .args(["--exact", "victim", "--ignored", "--nocapture"])
            .env("KVFERRY_TEST_PEER", format!("{} {} {} {}", here.number, here.gid, here.lid, here.psn))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with("victim ")).expect("the victim comes up");
        let words: Vec<&str> = line.split(' ').collect();
        let there = Address {
            number: words[1].parse().unwrap(),
            gid: words[2].parse().unwrap(),
            lid: words[3].parse().unwrap(),
            psn: words[4].parse().unwrap(),
            mtu: here.mtu,
        };
        let write = Operation::Write { address: words[5].parse().unwrap(), key: words[6].parse().unwrap() };
        a.connect(there);
        let from = Memory::host(4096).unwrap();
        let source = a.region(&from);
        let local = segment(&from, &*source, 0, 4096);
        a.pair.post_send(&[request(1, write, local)]).unwrap();
        assert_eq!(a.completion().status, Status::Success);
        victim.kill().unwrap();
        let killed = Instant::now();
        let mut writes = 0;
        let status = loop {
            a.pair.post_send(&[request(2, write, local)]).unwrap();
            let status = a.completion().status;
            if status != Status::Success {
                break status;
            }
            writes += 1;
            assert!(killed.elapsed() < LONG);
        };
        println!("round {round}: {writes} writes after the kill, then {status:?}, {:?} after it", killed.elapsed());
        assert!(matches!(status, Status::RetryExceeded | Status::RemoteAccess), "{status:?}");
        victim.wait().unwrap();
    }
}

/// The other process of [`a_killed_peer_is_noticed`], and no test by itself: makes an end, tells of it, and waits.
#[test]
#[ignore = "needs an RDMA device: tests/softroce/run.sh"]
fn victim() {
    let Ok(peer) = env::var("KVFERRY_TEST_PEER") else { return };
    let words: Vec<&str> = peer.split(' ').collect();
    let verbs = NativeVerbs::open().unwrap();
    let end = End::new(&verbs, &names()[1], CAPACITY);
    let here = end.address();
    end.connect(Address {
        number: words[0].parse().unwrap(),
        gid: words[1].parse().unwrap(),
        lid: words[2].parse().unwrap(),
        psn: words[3].parse().unwrap(),
        mtu: here.mtu,
    });
    let into = Memory::host(1 << 20).unwrap();
    let target = end.region(&into);
    let Operation::Write { address, key } = write_to(&into, &*target, 0) else { unreachable!() };
    println!("\nvictim {} {} {} {} {address} {key}", here.number, here.gid, here.lid, here.psn);
    std::io::stdout().flush().unwrap();
    thread::sleep(LONG * 4);
}
