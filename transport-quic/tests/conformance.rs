//! The contract, on QUIC over loopback, through a wire that can be cut.

mod support;

use std::{sync::Arc, time::Duration};

use support::{Cluster, Node, channels};
use transport_core::{
    ControlChannel, Transport,
    conformance::{CountingAllocator, Harness, Profile},
};
use transport_quic::QuicConfig;

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

struct QuicHarness(Cluster);

impl Harness for QuicHarness {
    type Node = Node;

    fn profile(&self) -> Profile {
        Profile::new(16, 6).with_max_regions(64).with_loss_bound(Duration::from_secs(2))
    }

    fn start(&self) -> Node {
        let mut config = QuicConfig::default()
            .with_max_in_flight(16)
            .with_events_per_peer(6)
            .with_peer_loss_timeout(Duration::from_millis(1500));
        config.max_regions = 64;
        self.0.node(config)
    }

    fn transport(&self, node: &Node) -> Arc<dyn Transport> {
        Arc::<transport_quic::QuicTransport>::clone(&node.transport)
    }

    fn channels(&self, dialler: &Node, listener: &Node) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        channels(dialler, listener)
    }

    fn kill(&self, node: &Node) -> bool {
        node.cut();
        true
    }
}

transport_core::conformance_tests!(QuicHarness(Cluster::new()));
