//! The settings of a transport.

use std::time::Duration;

/// Settings of an [`RdmaTransport`](crate::RdmaTransport). docs/rdma.md has the reasons of the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// Which devices carry the data.
    pub rails: Rails,
    /// Queue pairs to each peer on each pair of rails; the smaller number of both sides counts. One does not fill a fast NIC.
    pub queue_pairs: usize,
    /// Work requests in each send queue; fewer where the device takes fewer.
    pub queue_depth: u32,
    /// Completions in the completion queue of a device, shared by all peers; fewer where the device takes fewer.
    pub completion_queue_depth: u32,
    /// How the transport's thread waits for completions.
    pub completions: Completions,
    /// The longest work request in bytes; longer slices are cut, so that they spread over queue pairs and a
    /// cancellation takes effect soon.
    pub max_work_request: u32,
    /// Transfers in flight to one peer before a submission is refused as full.
    pub max_in_flight: usize,
    /// Regions that can be registered at a time.
    pub max_regions: usize,
    /// Grants that are kept of one peer.
    pub max_imports: usize,
    /// Notifications of one peer that wait for the program before that peer's transfers have to wait. Each takes a
    /// receive of 1 KiB of pinned memory for each queue pair.
    pub events_per_peer: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// The longest time from a peer's death to the end of its transfers. The retry timers of the queue pairs follow
    /// from it, see [`QueuePairTimers`](crate::QueuePairTimers).
    pub loss_bound: Duration,
    /// How long a transfer may go without progress while the peer is there: a device that completes nothing, or a program that
    /// takes no notification.
    pub stall_timeout: Duration,
    /// The traffic class of RoCE v2 packets: DSCP times four, plus ECN bits.
    pub traffic_class: u8,
    /// The InfiniBand service level.
    pub service_level: u8,
}

/// Which devices carry the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rails {
    /// The best devices with an active port: those of the NUMA node first, then the fastest.
    Automatic {
        /// The NUMA node whose devices are preferred, as a rule that of the GPU or of the memory.
        numa_node: Option<u32>,
        /// How many rails at most.
        max: usize,
    },
    /// By hand, in this order.
    Manual(Vec<Rail>),
}

/// One rail, chosen by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// The device's name.
    pub device: String,
    /// The port; the first active one where it is not given.
    pub port: Option<u8>,
    /// The index of the GID; the best one where it is not given.
    pub gid_index: Option<u32>,
}

impl Rail {
    /// A device, with its port and GID chosen.
    pub fn new(device: impl Into<String>) -> Self {
        Self { device: device.into(), port: None, gid_index: None }
    }
}

/// How the transport's thread, or one that blocks on a transfer in its place, waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completions {
    /// Sleeps at once. The least processor time.
    Event,
    /// Polls for a while after the last completion, then sleeps.
    Hybrid {
        /// How long it polls.
        spin: Duration,
    },
    /// Never sleeps. The least latency, for a whole core.
    Busy,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            rails: Rails::Automatic { numa_node: None, max: 1 },
            queue_pairs: 2,
            queue_depth: 128,
            completion_queue_depth: 16_384,
            completions: Completions::Hybrid { spin: Duration::from_micros(20) },
            max_work_request: 1 << 20,
            max_in_flight: 256,
            max_regions: 4096,
            max_imports: 4096,
            events_per_peer: 128,
            connect_timeout: Duration::from_secs(5),
            loss_bound: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            traffic_class: 0,
            service_level: 0,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $field:ident, $type:ty;)+) => {
        impl RdmaConfig {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

setters! {
    /// Sets which devices carry the data.
    with_rails: rails, Rails;
    /// Sets how many queue pairs lead to each peer on each pair of rails.
    with_queue_pairs: queue_pairs, usize;
    /// Sets how many work requests a send queue holds.
    with_queue_depth: queue_depth, u32;
    /// Sets how many completions a device's completion queue holds.
    with_completion_queue_depth: completion_queue_depth, u32;
    /// Sets how the thread waits.
    with_completions: completions, Completions;
    /// Sets the longest work request in bytes.
    with_max_work_request: max_work_request, u32;
    /// Sets how many transfers may be in flight to one peer.
    with_max_in_flight: max_in_flight, usize;
    /// Sets how many regions can be registered.
    with_max_regions: max_regions, usize;
    /// Sets how many grants of one peer are kept.
    with_max_imports: max_imports, usize;
    /// Sets how many notifications of one peer may wait for the program.
    with_events_per_peer: events_per_peer, usize;
    /// Sets how long connecting may take.
    with_connect_timeout: connect_timeout, Duration;
    /// Sets the longest time from a peer's death to the end of its transfers.
    with_loss_bound: loss_bound, Duration;
    /// Sets how long a transfer may go without progress.
    with_stall_timeout: stall_timeout, Duration;
    /// Sets the traffic class.
    with_traffic_class: traffic_class, u8;
    /// Sets the service level.
    with_service_level: service_level, u8;
}
