//! What devices, ports and queue pairs are described by.

use std::{fmt, net::Ipv6Addr};

use serde::{Deserialize, Serialize};

/// A device that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name: `mlx5_0`, `rxe0`.
    pub name: String,
    /// The NUMA node that its bus hangs on, where it is known.
    pub numa_node: Option<u32>,
}

/// The limits of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// How many ports it has; they count from 1.
    pub ports: u8,
    /// Firmware version, as the device words it.
    pub firmware: String,
    /// Vendor's number and the number of the part.
    pub vendor: (u32, u32),
    /// Longest memory region, in bytes.
    pub max_mr_size: u64,
    /// Memory regions at a time.
    pub max_mr: u32,
    /// Queue pairs at a time.
    pub max_qp: u32,
    /// Work requests in one queue of a queue pair.
    pub max_qp_wr: u32,
    /// Segments of one work request.
    pub max_sge: u32,
    /// Completion queues at a time.
    pub max_cq: u32,
    /// Completions in one completion queue.
    pub max_cqe: u32,
}

/// The state of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Only an active port carries data.
    pub state: PortState,
    /// What it is plugged into.
    pub link_layer: LinkLayer,
    /// The largest path MTU that works now.
    pub active_mtu: Mtu,
    /// The largest path MTU that the port can do.
    pub max_mtu: Mtu,
    /// Local identifier, on InfiniBand; zero on Ethernet.
    pub lid: u16,
    /// How many entries the GID table has, empty ones included.
    pub gid_table_len: u32,
    /// The longest message, in bytes.
    pub max_message: u32,
    /// Speed in Mbit/s, where it is known.
    pub speed_mbps: Option<u32>,
}

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// On its way up.
    Initializing,
    /// In use.
    Active,
    /// Anything else.
    Other(u32),
}

/// What a port is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkLayer {
    /// InfiniBand: peers have LIDs, GIDs are needed only across subnets.
    InfiniBand,
    /// Ethernet (RoCE): peers are addressed by GIDs only.
    Ethernet,
}

/// A path MTU: the payload of one packet, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1,024 bytes.
    B1024,
    /// 2,048 bytes.
    B2048,
    /// 4,096 bytes.
    B4096,
}

impl Mtu {
    /// In bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Which protocol a GID speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: Ethernet frames, not routable.
    RoceV1,
    /// RoCE v2: UDP, routable.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u32,
    /// The GID.
    pub gid: Ipv6Addr,
    /// Its protocol.
    pub kind: GidKind,
    /// The network interface behind it, where there is one.
    pub interface: Option<String>,
}

/// How large a queue pair's queues are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapacity {
    /// Work requests in the send queue.
    pub send: u32,
    /// Work requests in the receive queue.
    pub receive: u32,
    /// Bytes that a work request can carry inline.
    pub inline: u32,
}

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// New.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// In error: everything is flushed.
    Error,
    /// Anything else.
    Other(u32),
}

/// What RESET to INIT takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttributes {
    /// The port.
    pub port: u8,
    /// Index of the partition key; 0 is the default partition.
    pub pkey_index: u16,
    /// Whether the peer may write, with the keys of regions that allow it.
    pub remote_write: bool,
}

/// What INIT to RTR takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveAttributes {
    /// Payload of one packet: the smaller of both ports' active MTUs.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub remote_queue_pair: u32,
    /// The packet sequence number that the peer begins with, 24 bits.
    pub remote_psn: u32,
    /// The code of the time that the peer waits after "receiver not ready" (`min_rnr_timer`), 5 bits.
    pub min_rnr_timer: u8,
    /// Where the peer is.
    pub address: AddressVector,
}

/// Where a peer's port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The local port.
    pub port: u8,
    /// The peer's LID; zero on Ethernet.
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// The route by GID: must be there on Ethernet.
    pub global: Option<GlobalRoute>,
}

/// A route by GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub gid: Ipv6Addr,
    /// Index of the local GID.
    pub local_index: u32,
    /// How many routers may be passed.
    pub hop_limit: u8,
    /// Traffic class: the DSCP and ECN bits of RoCE v2.
    pub traffic_class: u8,
}

/// What RTR to RTS takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendAttributes {
    /// The packet sequence number that this side begins with, 24 bits.
    pub psn: u32,
    /// The code of the time until an unacknowledged packet is sent again: 4.096 µs times two to its power; 0 is for ever.
    pub timeout: u8,
    /// How often it is sent again before the queue pair fails. 7 is for ever on Soft-RoCE.
    pub retry_count: u8,
    /// How often "receiver not ready" is borne; 7 is for ever.
    pub rnr_retry: u8,
}
