//! Which device, port and GID are chosen, and what is said where none can be.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::net::Ipv6Addr;

use support::{Net, config};
use transport_core::ConnectError;
use transport_rdma::{
    OpenError, Rail, Rails, RdmaConfig, RdmaTransport,
    choice::choose_gid,
    sim::{SimDeviceConfig, SimPortConfig},
    verbs::{GidEntry, GidKind, LinkLayer, Mtu, PortState},
};

type Gids = Vec<Option<(Ipv6Addr, GidKind)>>;

fn gid(text: &str, kind: GidKind) -> Option<(Ipv6Addr, GidKind)> {
    Some((text.parse().unwrap(), kind))
}

fn device(name: &str, port: SimPortConfig) -> SimDeviceConfig {
    SimDeviceConfig { ports: vec![port], ..SimDeviceConfig::named(name) }
}

fn with_gids(name: &str, gids: Gids) -> SimDeviceConfig {
    device(name, SimPortConfig { gids: Some(gids), ..SimPortConfig::default() })
}

fn open(devices: Vec<SimDeviceConfig>, rails: Rails) -> Result<RdmaTransport, OpenError> {
    let net = Net::default();
    RdmaTransport::open(net.network.host_with(devices), config().with_rails(rails))
}

fn automatic(numa_node: Option<u32>, max: usize) -> Rails {
    Rails::Automatic { numa_node, max }
}

fn names(transport: &RdmaTransport) -> Vec<String> {
    transport.rails().into_iter().map(|rail| rail.device).collect()
}

fn manual(device: &str, port: Option<u8>, gid_index: Option<u32>) -> Rails {
    let mut rail = Rail::new(device);
    (rail.port, rail.gid_index) = (port, gid_index);
    Rails::Manual(vec![rail])
}

fn assert_says(error: &OpenError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// The routable RoCE v2 GID, wherever in the table it is; empty entries and what is beyond the table are not asked for.
#[test]
fn the_routable_roce_v2_gid_is_chosen() {
    let table = vec![
        gid("fe80::1", GidKind::RoceV1),
        gid("fe80::1", GidKind::RoceV2),
        None,
        gid("2001:db8::1", GidKind::RoceV1),
        gid("2001:db8::1", GidKind::RoceV2),
    ];
    let transport = open(vec![with_gids("rxe0", table)], automatic(None, 1)).unwrap();
    let rail = transport.rails().remove(0);
    assert_eq!(rail.gid.unwrap().index, 4);
    assert_eq!(rail.warning, None);
}

/// What is less good is used with a warning that says what to change.
#[test]
fn a_link_local_gid_and_a_v1_gid_are_used_with_a_warning() {
    let cases = [
        (vec![gid("fe80::1", GidKind::RoceV1), gid("fe80::1", GidKind::RoceV2)], 1, "link-local"),
        (vec![gid("fe80::1", GidKind::RoceV1), gid("2001:db8::1", GidKind::RoceV1)], 1, "enable RoCE v2"),
    ];
    for (table, index, warning) in cases {
        let transport = open(vec![with_gids("rxe0", table)], automatic(None, 1)).unwrap();
        let rail = transport.rails().remove(0);
        assert_eq!(rail.gid.unwrap().index, index);
        let found = rail.warning.expect("there is a warning");
        assert!(found.contains(warning) && found.contains("rxe0 port 1"), "{found}");
    }
}

#[test]
fn an_unspecified_gid_is_none() {
    let entry =
        |index, text: &str| GidEntry { index, gid: text.parse().unwrap(), kind: GidKind::RoceV2, interface: None };
    assert!(choose_gid(&[entry(0, "::")]).is_none());
    assert_eq!(choose_gid(&[entry(0, "::"), entry(1, "fe80::1")]).unwrap().entry.index, 1);
}

/// Ethernet without a GID is refused when the transport is opened, not at the first write.
#[test]
fn ethernet_without_a_gid_is_refused_by_name_when_it_is_opened() {
    for table in [vec![], vec![None, None]] {
        let error = open(vec![with_gids("bond0", table)], automatic(None, 1)).unwrap_err();
        assert!(matches!(error, OpenError::NoDevice { .. }), "{error:?}");
        assert_says(&error, &["bond0 port 1", "empty GID table", "Ethernet", "IP address"]);
    }
}

/// InfiniBand goes by LID, and needs no GID within a subnet.
#[test]
fn infiniband_without_a_gid_goes_by_lid_and_carries_bytes() {
    let net = Net::default();
    let port = SimPortConfig { link_layer: LinkLayer::InfiniBand, gids: Some(vec![]), ..SimPortConfig::default() };
    let node = || net.node_with(vec![device("ib0", port.clone())], config());
    let (a, b) = (node(), node());
    let rail = a.transport.rails().remove(0);
    assert_eq!(rail.gid, None);
    assert_ne!(rail.lid, 0);
    assert!(rail.describe().contains("LID"), "{}", rail.describe());
    net.connect(&a, &b).works();
}

#[test]
fn infiniband_with_gids_carries_bytes() {
    let net = Net::default();
    let node = || net.node_with(vec![SimDeviceConfig::infiniband("ib0")], config());
    let link = net.connect(&node(), &node());
    link.works();
    link.reversed().works();
}

#[test]
fn a_host_without_devices_says_what_to_check() {
    let error = open(vec![], automatic(None, 1)).unwrap_err();
    assert!(matches!(error, OpenError::NoDevice { .. }), "{error:?}");
    assert_says(&error, &["driver", "rdma link add"]);
}

#[test]
fn each_unusable_device_is_named_with_its_remedy() {
    let down = SimPortConfig { state: PortState::Down, ..SimPortConfig::default() };
    let error = open(vec![device("nic0", down), with_gids("nic1", vec![])], automatic(None, 1)).unwrap_err();
    assert_says(&error, &["nic0 port 1 is Down", "ip link", "nic1 port 1", "IP address"]);
}

#[test]
fn a_device_with_a_dead_port_uses_its_other_one() {
    let down = SimPortConfig { state: PortState::Initializing, ..SimPortConfig::default() };
    let two = SimDeviceConfig { ports: vec![down, SimPortConfig::default()], ..SimDeviceConfig::named("nic0") };
    let net = Net::default();
    let (a, b) = (net.node_with(vec![two], config()), net.node(config()));
    assert_eq!(a.transport.rails().remove(0).port, 2);
    net.connect(&a, &b).works();
}

fn on(name: &str, numa_node: Option<u32>, speed: u32) -> SimDeviceConfig {
    let port = SimPortConfig { speed_mbps: Some(speed), ..SimPortConfig::default() };
    SimDeviceConfig { numa_node, ..device(name, port) }
}

#[test]
fn rails_are_those_of_the_numa_node_and_the_fastest_first() {
    let devices = || {
        vec![
            on("far", Some(1), 400_000),
            on("slow", Some(0), 10_000),
            on("fast", Some(0), 200_000),
            on("lost", None, 1),
        ]
    };
    let chosen = |numa_node, max| names(&open(devices(), automatic(numa_node, max)).unwrap());
    assert_eq!(chosen(Some(0), 4), ["fast", "slow"], "a far device would hold up the near ones");
    assert_eq!(chosen(Some(0), 1), ["fast"]);
    assert_eq!(chosen(Some(1), 4), ["far"]);
    assert_eq!(chosen(None, 2), ["far", "fast"]);
    // No device there: any will do.
    assert_eq!(chosen(Some(7), 1), ["far"]);
    assert_eq!(chosen(None, 0), ["far"], "there is at least one");
}

#[test]
fn a_choice_by_hand_is_kept_in_its_order() {
    let devices = vec![on("one", Some(0), 100), on("two", Some(1), 200), on("three", None, 300)];
    let rails = Rails::Manual(vec![Rail::new("two"), Rail::new("one")]);
    assert_eq!(names(&open(devices, rails).unwrap()), ["two", "one"]);
}

/// The index of the local GID is in the address vector; with another one the peers would not hear each other.
#[test]
fn a_gid_chosen_by_hand_is_the_one_that_is_used() {
    for index in 0..4 {
        let net = Net::default();
        let node = || net.node(config().with_rails(manual("sim0", Some(1), Some(index))));
        let (a, b) = (node(), node());
        let link = net.connect(&a, &b);
        link.works();
        // Its GID is cut off: if the bytes went by another one, they would still arrive.
        let gid = b.transport.rails().remove(0).gid.unwrap();
        assert_eq!(gid.index, index);
        net.network.unreachable(gid.gid);
        let (source, target) = (link.a.source(100, 1), link.target(100));
        let lost = link.a.submit(&[support::link::slice(&source, 0, &target, 0, 100)]);
        assert!(support::link::outcome(&lost).is_err());
        assert_eq!(target.bytes(), [0; 100]);
    }
}

#[test]
fn a_wrong_choice_by_hand_names_the_device_and_the_remedy() {
    let devices = || vec![with_gids("sim0", vec![gid("2001:db8::1", GidKind::RoceV2), None])];
    let cases: [(Rails, &[&str]); 5] = [
        (manual("mlx5_9", None, None), &["mlx5_9", "no such device", "this host has: sim0"]),
        (manual("sim0", Some(9), None), &["sim0", "ibv_query_port"]),
        (manual("sim0", None, Some(5)), &["sim0 port 1", "no GID index 5", "2 entries", "smaller"]),
        (manual("sim0", None, Some(1)), &["sim0 port 1", "GID index 1 is empty", "address"]),
        (Rails::Manual(vec![]), &["list of rails is empty", "name a device"]),
    ];
    for (rails, parts) in cases {
        let error = open(devices(), rails).unwrap_err();
        assert!(matches!(error, OpenError::Choice { .. }), "{error:?}");
        assert_says(&error, parts);
    }
}

#[test]
fn settings_that_cannot_be_kept_are_named() {
    let cases = [
        (config().with_queue_pairs(0), "queue_pairs"),
        (config().with_queue_pairs(1000), "queue_pairs"),
        (config().with_queue_depth(0), "queue_depth"),
        (config().with_completion_queue_depth(0), "completion_queue_depth"),
        (config().with_max_work_request(0), "max_work_request"),
        (config().with_events_per_peer(0), "events_per_peer"),
        (config().with_events_per_peer(1 << 20), "events_per_peer"),
    ];
    for (config, setting) in cases {
        let error = RdmaTransport::open(Net::default().network.host(), config).unwrap_err();
        assert_says(&error, &[setting, "it must be at"]);
    }
    let many = (0..9).map(|number| device(&format!("sim{number}"), SimPortConfig::default())).collect();
    let config = config().with_rails(Rails::Automatic { numa_node: None, max: 16 });
    let error = RdmaTransport::open(Net::default().network.host_with(many), config).unwrap_err();
    assert_says(&error, &["rails", "9", "it must be at most 8"]);
}

fn with_mtu(mtu: Mtu) -> SimDeviceConfig {
    device("sim0", SimPortConfig { active_mtu: mtu, ..SimPortConfig::default() })
}

/// A path MTU above the port's active one would be refused, and two different ones would lose what is longer than a packet.
#[test]
fn the_path_mtu_is_the_smaller_of_both_ports() {
    for (here, there) in [(Mtu::B1024, Mtu::B4096), (Mtu::B4096, Mtu::B1024), (Mtu::B256, Mtu::B2048)] {
        let net = Net::default();
        let (a, b) = (net.node_with(vec![with_mtu(here)], config()), net.node_with(vec![with_mtu(there)], config()));
        let link = net.connect(&a, &b);
        link.works();
        link.reversed().works();
    }
}

/// The error has everything that one has to look at.
#[test]
fn an_unreachable_peer_is_an_error_with_both_addresses() {
    let net = Net::default();
    let quick = || -> RdmaConfig { config().with_connect_timeout(std::time::Duration::from_secs(3)) };
    let (a, b) = (net.node(quick()), net.node(quick()));
    let (ours, theirs) = (a.transport.rails().remove(0), b.transport.rails().remove(0));
    net.network.unreachable(theirs.gid.as_ref().unwrap().gid);
    let (here, there) = net.try_connect(&a, &b);
    // Who notices first has it from its NIC, and the other one from that side.
    for error in [here.unwrap_err(), there.unwrap_err()] {
        assert!(matches!(error, ConnectError::Broken { .. } | ConnectError::Refused { .. }), "{error:?}");
        let text = error.to_string();
        for part in ["sim0 port 1", "GID index 3", "LID 0", "MTU 4096", "retry counter exceeded", "the peer's sim0"] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        for rail in [&ours, &theirs] {
            let gid = rail.gid.as_ref().unwrap().gid.to_ipv4_mapped().unwrap().to_string();
            assert!(text.contains(&gid), "{gid} is not in: {text}");
        }
    }
}

#[test]
fn ethernet_and_infiniband_do_not_meet_and_say_so() {
    let net = Net::default();
    let (a, b) = (net.node(config()), net.node_with(vec![SimDeviceConfig::infiniband("ib0")], config()));
    let (here, there) = net.try_connect(&a, &b);
    let texts = [here.unwrap_err().to_string(), there.unwrap_err().to_string()];
    assert!(texts.iter().any(|text| text.contains("choose rails of one kind")), "{texts:?}");
}
