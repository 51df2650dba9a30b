//! What a simulated device is like.

use std::net::Ipv6Addr;

use crate::verbs::{DeviceAttributes, GidKind, LinkLayer, Mtu, PortState};

/// A device of a [`SimHost`](super::SimHost). The default is like Soft-RoCE: one Ethernet port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimDeviceConfig {
    /// Its name.
    pub name: String,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Its limits; the number of ports is that of [`SimDeviceConfig::ports`].
    pub attributes: DeviceAttributes,
    /// Bytes that a work request can carry inline. The simulation reads them by the segment's key where a real NIC
    /// needs none.
    pub max_inline: u32,
    /// Bytes that can be registered at a time; ENOMEM beyond.
    pub max_registered: u64,
    /// Whether memory with a dma-buf can be registered; EOPNOTSUPP otherwise.
    pub dma_buf: bool,
    /// Its ports.
    pub ports: Vec<SimPortConfig>,
}

impl Default for SimDeviceConfig {
    fn default() -> Self {
        Self {
            name: "sim0".into(),
            numa_node: None,
            attributes: DeviceAttributes {
                ports: 1,
                firmware: "simulated".into(),
                vendor: (0, 0),
                max_mr_size: 1 << 40,
                max_mr: 1 << 16,
                max_qp: 1 << 12,
                max_qp_wr: 1 << 14,
                max_sge: 1,
                max_cq: 1 << 12,
                max_cqe: 1 << 20,
            },
            max_inline: 256,
            max_registered: u64::MAX,
            dma_buf: false,
            ports: vec![SimPortConfig::default()],
        }
    }
}

impl SimDeviceConfig {
    /// The default under another name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The default with one InfiniBand port.
    pub fn infiniband(name: impl Into<String>) -> Self {
        let port = SimPortConfig { link_layer: LinkLayer::InfiniBand, ..SimPortConfig::default() };
        Self { name: name.into(), ports: vec![port], ..Self::default() }
    }
}

/// A port of a simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimPortConfig {
    /// Its state at the beginning.
    pub state: PortState,
    /// What it is plugged into.
    pub link_layer: LinkLayer,
    /// The largest path MTU that works.
    pub active_mtu: Mtu,
    /// The largest path MTU that the port can do.
    pub max_mtu: Mtu,
    /// The LID of an InfiniBand port; zero lets the network assign one.
    pub lid: u16,
    /// The GID table. `None` lets the network assign one with addresses of this port alone: on Ethernet a link-local
    /// and an IPv4-mapped address, each as RoCE v1 and v2, and four empty entries.
    pub gids: Option<Vec<Option<(Ipv6Addr, GidKind)>>>,
    /// The longest message, in bytes.
    pub max_message: u32,
    /// Speed in Mbit/s; for show.
    pub speed_mbps: Option<u32>,
}

impl Default for SimPortConfig {
    fn default() -> Self {
        Self {
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            active_mtu: Mtu::B4096,
            max_mtu: Mtu::B4096,
            lid: 0,
            gids: None,
            max_message: 1 << 30,
            speed_mbps: Some(10_000),
        }
    }
}
