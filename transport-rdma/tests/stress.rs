//! Many threads and random faults, for a few seconds: whatever happened, everything ends, the bytes are right, and nothing
//! is left over.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join;
use support::{
    Net, Node, config,
    link::{Buffer, Link, Random, Side, outcome, see, slice, wait},
};
use transport_core::{Access, Batch, BatchOptions, Event, Memory, Shutdown, SubmitError, Transfer, Transport};
use transport_rdma::{
    Rails, RdmaConfig,
    sim::{SimDeviceConfig, Stall},
};

const NODES: usize = 3;
const THREADS: usize = 3;
const BLOCK: u64 = 3000;
const BLOCKS: u64 = 16;

fn seed() -> u64 {
    let seed = std::env::var("KVFERRY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    println!("to run it again with the same choices set KVFERRY_SEED={seed}");
    seed
}

fn settings() -> RdmaConfig {
    config()
        .with_rails(Rails::Automatic { numa_node: None, max: 2 })
        .with_queue_depth(16)
        .with_completion_queue_depth(200)
        .with_max_in_flight(8)
        .with_connect_timeout(Duration::from_secs(2))
        .with_stall_timeout(Duration::from_millis(500))
}

struct World {
    net: Net,
    nodes: Vec<Node>,
    stop: AtomicBool,
    delivered: AtomicUsize,
    failed: AtomicUsize,
    /// All memory that was registered.
    memories: Mutex<Vec<Memory>>,
}

impl World {
    fn going(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn buffer(&self, node: &Node, access: Access) -> Option<Buffer> {
        let memory = Memory::host((BLOCK * BLOCKS) as usize).unwrap();
        self.memories.lock().unwrap().push(memory.clone());
        let region = node.transport.register(memory.clone(), access).ok()?;
        Some(Buffer { memory, region })
    }

    fn connect(&self, a: &Node, b: &Node) -> Option<Link> {
        let (dialling, listening) = self.net.channels(a, b);
        let (here, there) = wait("connecting", join(a.transport.connect(dialling), b.transport.connect(listening)));
        let side = |node: &Node, peer| Side { transport: Arc::clone(&node.transport), peer };
        match (here, there) {
            (Ok(here), Ok(there)) => Some(Link { a: side(a, here), b: side(b, there) }),
            (here, there) => {
                // Half a connection is taken down by the loss of the other side, or here.
                for (node, peer) in [(a, here), (b, there)] {
                    if let Ok(peer) = peer {
                        wait("disconnecting", node.transport.disconnect(peer));
                    }
                }
                None
            }
        }
    }
}

/// One thread: connections between two nodes, one after the other, with writes and whatever ends them.
fn work(world: &World, random: &mut Random) {
    while world.going() {
        let a = random.below(NODES as u64) as usize;
        let b = (a + 1 + random.below(NODES as u64 - 1) as usize) % NODES;
        let (a, b) = (&world.nodes[a], &world.nodes[b]);
        let Some(link) = world.connect(a, b) else { continue };
        let source = world.buffer(a, Access::LOCAL);
        let target = world.buffer(b, Access::REMOTE_WRITE);
        if let (Some(source), Some(target)) = (&source, &target) {
            let grant = link.b.transport.grant(link.b.peer, target.region);
            if grant.is_ok_and(|grant| link.a.transport.import(link.a.peer, &grant).is_ok()) {
                write(world, random, &link, source, target);
            }
        }
        match random.below(3) {
            0 => link.a.disconnect(),
            1 => link.b.disconnect(),
            _ => wait("both", async {
                join(link.a.transport.disconnect(link.a.peer), link.b.transport.disconnect(link.b.peer)).await;
            }),
        }
        for (node, buffer) in [(a, source), (b, target)] {
            let Some(buffer) = buffer else { continue };
            drop(wait("deregistering", node.transport.deregister(buffer.region)).unwrap());
        }
    }
}

fn write(world: &World, random: &mut Random, link: &Link, source: &Buffer, target: &Buffer) {
    let mut transfers: Vec<(u64, u8, Transfer)> = vec![];
    // Which value each block of the target may have: that of the source then, once it is delivered.
    for round in 0..random.below(40) {
        let block = round % BLOCKS;
        // A block is written again only when its last transfer is over.
        if let Some(place) = transfers.iter().position(|(used, ..)| *used == block) {
            let (_, value, transfer) = transfers.swap_remove(place);
            check(world, target, block, value, &transfer);
        }
        let value = 1 + (round % 250) as u8;
        source.memory.fill(block * BLOCK, BLOCK, value).unwrap();
        let slices = [slice(source, block * BLOCK, target, block * BLOCK, BLOCK)];
        let options = BatchOptions::new();
        let options = if random.below(3) == 0 { options.with_notification(b"note") } else { options };
        match link.a.transport.batch_write(link.a.peer, Batch::Slices(&slices), &options) {
            Ok(transfer) => {
                match random.below(10) {
                    0 => transfer.cancel(),
                    1 => thread::sleep(Duration::from_micros(random.below(500))),
                    _ => {}
                }
                transfers.push((block, value, transfer));
            }
            Err(SubmitError::Full { .. }) => drop(wait("room", link.a.transport.room(link.a.peer))),
            Err(SubmitError::NotConnected { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    if random.below(4) == 0 {
        // Nobody looks at these any more; they go on, or end with the connection.
        return;
    }
    for (block, value, transfer) in transfers {
        check(world, target, block, value, &transfer);
    }
}

fn check(world: &World, target: &Buffer, block: u64, value: u8, transfer: &Transfer) {
    match outcome(transfer) {
        Ok(_) => {
            world.delivered.fetch_add(1, Ordering::Relaxed);
            let bytes = target.range(block * BLOCK, BLOCK as usize);
            assert!(bytes.iter().all(|byte| *byte == value), "a delivered block is not what was written");
        }
        Err(_) => drop(world.failed.fetch_add(1, Ordering::Relaxed)),
    }
}

/// Faults that pass.
fn harm(world: &World, random: &mut Random) {
    while world.going() {
        let node = &world.nodes[random.below(NODES as u64) as usize];
        let other = &world.nodes[random.below(NODES as u64) as usize];
        let pause = Duration::from_millis(random.below(150));
        match random.below(8) {
            0 => {
                world.net.network.partition(&node.host, &other.host);
                thread::sleep(pause * 3);
                world.net.network.heal(&node.host, &other.host);
            }
            1 => {
                node.host.port_down("nic1", 1);
                thread::sleep(pause);
                node.host.port_up("nic1", 1);
            }
            2 => node.host.lose_acknowledgements(random.below(20)),
            3 => node.host.refuse_post_after(1 + random.below(50)),
            4 => {
                node.host.lose_packets(5, random.next());
                thread::sleep(pause);
                node.host.lose_packets(0, 0);
            }
            5 => {
                node.host.delay_completions(Duration::from_millis(2), random.next());
                thread::sleep(pause);
                node.host.delay_completions(Duration::ZERO, 0);
            }
            6 => {
                node.host.stall(if random.below(2) == 0 { Stall::Work } else { Stall::WorkAndFlush });
                thread::sleep(pause * 4);
                node.host.stall(Stall::None);
            }
            _ => node.host.fail_registration_after("nic0", 1 + random.below(10) as u32, 12),
        }
        thread::sleep(Duration::from_millis(random.below(30)));
    }
}

fn threads_of_this_process(name: &str) -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|comm| comm.trim() == name)
        .count()
}

#[test]
fn whatever_happens_everything_ends_and_nothing_is_left() {
    let seed = seed();
    let net = Net::default();
    let devices = || vec![SimDeviceConfig::named("nic0"), SimDeviceConfig::named("nic1")];
    let nodes = (0..NODES).map(|_| net.node_with(devices(), settings())).collect();
    let world = World {
        net,
        nodes,
        stop: AtomicBool::new(false),
        delivered: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
        memories: Mutex::default(),
    };
    thread::scope(|scope| {
        let world = &world;
        for number in 0..THREADS as u64 {
            scope.spawn(move || work(world, &mut Random::new(seed ^ number)));
        }
        scope.spawn(move || harm(world, &mut Random::new(seed ^ 0xbad)));
        // The programs' event loops.
        for node in &world.nodes {
            scope.spawn(move || {
                let side = Side {
                    transport: Arc::clone(&node.transport),
                    peer: transport_core::PeerId { index: 0, generation: 0 },
                };
                while world.going() {
                    if let Some(Event::PeerLost { peer, reason }) = side.event_within(Duration::from_millis(20)) {
                        assert!(!reason.is_empty(), "{peer}");
                    }
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(6);
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
        }
        world.stop.store(true, Ordering::Relaxed);
    });
    let World { nodes, delivered, failed, memories, net, .. } = world;
    let (delivered, failed) = (delivered.into_inner(), failed.into_inner());
    println!("{delivered} delivered, {failed} failed");
    assert!(delivered > 100, "next to nothing worked, so nothing was tried: {delivered}");
    for (number, node) in nodes.iter().enumerate() {
        let how = if number % 2 == 0 { Shutdown::Drain } else { Shutdown::Abort };
        wait("shutting down", node.transport.shutdown(how));
    }
    for memory in memories.into_inner().unwrap() {
        see("the memory to be free", || memory.holders() == 1);
    }
    drop(nodes);
    drop(net);
    see("the threads to end", || threads_of_this_process("kvferry-rdma") == 0);
}
