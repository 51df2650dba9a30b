//! Registered memory: its keys, its pieces, and what is said where it cannot be had.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use support::{
    Net, Node, config,
    link::{Buffer, Link, Random, delivered, slice, wait},
};
use transport_core::{
    Access, GrantError, Memory, RegionGrant, RegisterError, RegisterFailure, SliceError, SubmitError, Transport,
};
use transport_rdma::{Rails, sim::SimDeviceConfig, verbs::DeviceAttributes};

const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;

fn with_limits(name: &str, change: impl FnOnce(&mut DeviceAttributes)) -> SimDeviceConfig {
    let mut device = SimDeviceConfig::named(name);
    change(&mut device.attributes);
    device
}

/// A device whose memory regions are at most so long.
fn pieces_of(name: &str, max_mr_size: u64) -> SimDeviceConfig {
    with_limits(name, |attributes| attributes.max_mr_size = max_mr_size)
}

fn two_rails() -> Rails {
    Rails::Automatic { numa_node: None, max: 2 }
}

fn refusal(node: &Node, len: usize) -> (Memory, String) {
    let memory = Memory::host(len).unwrap();
    let RegisterFailure { memory, cause } = node.transport.register(memory, Access::REMOTE_WRITE).unwrap_err();
    let RegisterError::Refused { len: named, reason } = cause else { panic!("{cause:?}") };
    assert_eq!(named, len as u64);
    (memory, reason)
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Nothing stays registered, and the error says which piece it was.
#[test]
fn a_failed_piece_takes_the_others_back_and_is_named() {
    let net = Net::default();
    let device = with_limits("sim0", |attributes| (attributes.max_mr_size, attributes.max_mr) = (4096, 4));
    let node = net.node_with(vec![device], config());
    for third in 0..5 {
        node.host.fail_registration_after("sim0", 3, EINVAL);
        let (memory, reason) = refusal(&node, 4 * 4096);
        assert_says(&reason, &["piece 3 of 4", "4096 bytes at offset 8192", "ibv_reg_mr on sim0", "code 22"]);
        assert_eq!(memory.holders(), 1, "round {third}: nothing holds the memory");
    }
    // All four memory regions that the device takes are free.
    let buffer = Buffer::new(&node.transport, 4 * 4096, Access::REMOTE_WRITE);
    wait("deregistering", node.transport.deregister(buffer.region)).unwrap();
}

/// The same across rails: the pieces of the first are taken back when the second refuses.
#[test]
fn a_rail_that_refuses_takes_the_other_back() {
    let net = Net::default();
    let node = net.node_with(vec![pieces_of("one", 4096), pieces_of("two", 4096)], config().with_rails(two_rails()));
    node.host.fail_registration_after("two", 2, ENOMEM);
    let (memory, reason) = refusal(&node, 2 * 4096);
    assert_says(&reason, &["piece 2 of 2", "two", "code 12"]);
    assert_eq!(memory.holders(), 1);
    node.transport.register(memory, Access::REMOTE_WRITE).unwrap();
}

/// A limit of the device is told from one on locked memory, with the numbers of both.
#[test]
fn an_exhausted_device_names_its_limits() {
    let net = Net::default();
    let device = with_limits("sim0", |attributes| attributes.max_mr = 2);
    let node = net.node_with(vec![device], config());
    let kept: Vec<Buffer> = (0..2).map(|_| Buffer::new(&node.transport, 4096, Access::LOCAL)).collect();
    let (_, reason) = refusal(&node, 4096);
    assert_says(&reason, &["piece 1 of 1", "4096 bytes", "Host memory", "code 12"]);
    // Which of the two it is depends on the limits of the process that tests.
    let locked = reason.contains("may lock") && reason.contains("ulimit -l");
    let device = reason.contains("2 regions are registered") && reason.contains("sim0 takes 2 memory regions");
    assert!(locked || device, "{reason}");
    // The table of names has kept no place either.
    wait("deregistering", node.transport.deregister(kept[0].region)).unwrap();
    Buffer::new(&node.transport, 4096, Access::LOCAL);
}

/// As few memory regions as the limits of the device allow.
#[test]
fn a_region_is_one_memory_region_where_the_device_allows_it() {
    let net = Net::default();
    let device = with_limits("sim0", |attributes| attributes.max_mr = 3);
    let node = net.node_with(vec![device], config());
    for _ in 0..3 {
        Buffer::new(&node.transport, 10 << 20, Access::REMOTE_WRITE);
    }
    refusal(&node, 1);
}

/// A range that ends with its region is fine, one that wraps around is not.
#[test]
fn ranges_that_wrap_around_are_refused_with_their_numbers() {
    let net = Net::default();
    let (_a, _b, link) = net.pair(&config());
    let (source, target) = (link.a.source(0x1000, 1), link.target(0x1000));
    delivered(&link.a.submit(&[slice(&source, 0xff0, &target, 0xff0, 16)]));
    delivered(&link.a.submit(&[slice(&source, 0x1000, &target, 0x1000, 0)]));
    let wrong = [
        slice(&source, u64::MAX - 10, &target, 0, 100),
        slice(&source, 0, &target, u64::MAX - 10, 100),
        slice(&source, 0xff0, &target, 0, 17),
        slice(&source, 0, &target, 0xff0, 17),
        slice(&source, 0, &target, 0x1001, 0),
    ];
    for wrong in wrong {
        let batch = transport_core::Batch::Slices(std::slice::from_ref(&wrong));
        let error = link.a.transport.batch_write(link.a.peer, batch, &Default::default()).unwrap_err();
        let SubmitError::Slice { index: 0, cause: SliceError::OutOfBounds { region_len: 0x1000, .. } } = error else {
            panic!("{error:?}")
        };
    }
    let mut expected = vec![0; 0x1000];
    expected[0xff0..].copy_from_slice(&source.range(0xff0, 16));
    assert_eq!(target.bytes(), expected);
}

/// Writes slices of all sorts and compares the whole target, borders and what lies beside the slices included.
fn assert_exact(link: &Link, len: usize, seed: u64) {
    let mut random = Random::new(seed);
    let (source, target) = (link.a.source(len, seed), link.target(len));
    let bytes = source.bytes();
    let mut expected = vec![0; len];
    let mut slices = vec![];
    // One after the other in the target, so that they do not overlap; from anywhere in the source.
    let mut at = random.below(100) as usize;
    while at < len {
        let length = (random.below(len as u64 / 4 + 1) as usize).min(len - at);
        let from = random.below((len - length) as u64 + 1) as usize;
        slices.push(slice(&source, from as u64, &target, at as u64, length as u64));
        expected[at..at + length].copy_from_slice(&bytes[from..from + length]);
        at += length + random.below(50) as usize;
    }
    delivered(&link.a.submit(&slices));
    assert!(target.bytes() == expected, "seed {seed}, {len} bytes");
    for (side, buffer) in [(&link.a, source), (&link.b, target)] {
        wait("deregistering", side.transport.deregister(buffer.region)).unwrap();
        assert_eq!(buffer.memory.holders(), 1);
    }
}

/// Pieces end at different places here and there, and the writes go across both borders.
#[test]
fn writes_across_the_borders_of_pieces_are_exact() {
    for (here, there) in
        [(8192, 8192), (8192, 4096), (4096, 12288), (1 << 40, 4096), (4096, 1 << 40), (1100, 1500), (1024, 4096)]
    {
        let net = Net::default();
        let a = net.node_with(vec![pieces_of("sim0", here)], config());
        let b = net.node_with(vec![pieces_of("sim0", there)], config());
        let link = net.connect(&a, &b);
        for (seed, len) in [(1, 1), (2, 100), (3, 1000), (4, 8192)] {
            assert_exact(&link, len, seed);
            assert_exact(&link.reversed(), len, seed);
        }
        if here.min(there) >= 4096 {
            for (seed, len) in [(5, 8193), (6, 40_000), (7, 100_000)] {
                assert_exact(&link, len, seed);
                assert_exact(&link.reversed(), len, seed);
            }
        }
    }
}

#[test]
fn a_device_whose_memory_regions_are_too_short_for_a_notification_is_named() {
    let net = Net::default();
    let (a, b) = (net.node_with(vec![pieces_of("sim0", 1023)], config()), net.node(config()));
    let (here, _) = net.try_connect(&a, &b);
    let text = here.unwrap_err().to_string();
    assert_says(&text, &["this side cannot connect", "shorter than a notification"]);
}

/// Each rail has its own keys, and local ones are not remote ones. Any mix-up is a refusal of the simulated NIC.
#[test]
fn each_rail_uses_its_own_keys() {
    for (here, there) in [(1, 1), (2, 2), (2, 1), (1, 3), (3, 2)] {
        let net = Net::default();
        let node = |rails: usize| {
            let devices = (0..rails).map(|rail| pieces_of(&format!("nic{rail}"), 4096 << rail)).collect();
            net.node_with(devices, config().with_rails(Rails::Automatic { numa_node: None, max: rails }))
        };
        let (a, b) = (node(here), node(there));
        assert_eq!(a.transport.rails().len(), here);
        let link = net.connect(&a, &b);
        for seed in 0..10 {
            assert_exact(&link, 60_000, seed);
            assert_exact(&link.reversed(), 60_000, seed);
        }
    }
}

/// Keys are for a connection that is there, and say how many rails they are for.
#[test]
fn a_grant_needs_a_connection_and_fits_its_rails() {
    let net = Net::default();
    let (a, b, link) = net.pair(&config());
    let target = link.target(4096);
    let other = Net::default();
    let node =
        |net: &Net| net.node_with(vec![pieces_of("x", 4096), pieces_of("y", 4096)], config().with_rails(two_rails()));
    let (c, d) = (node(&other), node(&other));
    let strange = other.connect(&c, &d);
    let grant = link.b.transport.grant(link.b.peer, target.region).unwrap();
    let error = strange.a.transport.import(strange.a.peer, &grant).unwrap_err();
    assert!(matches!(error, GrantError::Malformed { reason, .. } if reason.contains("rails")), "{error:?}");
    link.b.disconnect();
    let error = link.b.transport.grant(link.b.peer, target.region).unwrap_err();
    assert!(matches!(error, GrantError::NotConnected { .. }), "{error:?}");
    drop((a, b));
}

#[test]
fn a_region_whose_keys_fit_no_grant_is_refused_with_the_remedy() {
    let net = Net::default();
    let node = net.node_with(vec![pieces_of("sim0", 4096)], config());
    // 17 bytes of head, and 4 for each key.
    let most = (RegionGrant::MAX_KEYS - 17) / 4;
    Buffer::new(&node.transport, most * 4096, Access::REMOTE_WRITE);
    let (memory, reason) = refusal(&node, most * 4096 + 1);
    assert_says(&reason, &["252 pieces of 4096 bytes", "1 rails", "several regions"]);
    assert_eq!(memory.holders(), 1);
    // A source is granted to nobody, so its keys may be as many as they like.
    Buffer::new(&node.transport, most * 4096 + 1, Access::LOCAL);
}

/// The regions of different sizes and rights of one connection, all used in one batch.
#[test]
fn a_batch_of_many_regions_is_exact() {
    let net = Net::default();
    let node = || net.node_with(vec![pieces_of("sim0", 4096)], config());
    let link = net.connect(&node(), &node());
    let buffers: Vec<(Buffer, Buffer)> =
        (1..20).map(|number| (link.a.source(number * 777, number as u64), link.target(number * 777))).collect();
    let slices: Vec<_> =
        buffers.iter().map(|(source, target)| slice(source, 0, target, 0, source.memory.len())).collect();
    delivered(&link.a.submit(&slices));
    for (source, target) in &buffers {
        assert_eq!(source.bytes(), target.bytes());
    }
}

/// Offsets beyond 32 bits, and a length that does not fit them.
#[test]
fn offsets_and_lengths_beyond_32_bits_are_exact() {
    const FAR: u64 = (5 << 30) + 64;
    const BORDER: u64 = (4 << 30) - 4096;
    let net = Net::default();
    let (_a, _b, link) = net.pair(&config());
    // Only what is written is there: the kernel gives pages when they are touched.
    let big = |access| {
        let memory = Memory::host(6 << 30).ok()?;
        Some(memory).map(|memory| {
            let transport = if access == Access::LOCAL { &link.a.transport } else { &link.b.transport };
            Buffer { region: transport.register(memory.clone(), access).unwrap(), memory }
        })
    };
    let (Some(source), Some(target)) = (big(Access::LOCAL), big(Access::REMOTE_WRITE)) else {
        eprintln!("SKIPPED: this machine has no 12 GiB of addresses to give");
        return;
    };
    link.grant(target.region);
    let bytes = Random::new(9).bytes(10_000);
    for offset in [0, FAR, BORDER - 5000, (4 << 30) - 5000, (6 << 30) - 10_000] {
        source.memory.write_at(offset, &bytes).unwrap();
        delivered(&link.a.submit(&[slice(&source, offset, &target, offset, 10_000)]));
        assert!(target.range(offset, 10_000) == bytes, "at {offset}");
        // Not where 32 bits would have put it.
        if offset == FAR {
            assert_eq!(target.range(FAR - (4 << 30), 10_000), vec![0; 10_000]);
        }
    }
}
