//! Nodes of the RDMA transport on simulated hosts, for the tests.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod link;

use std::{sync::Arc, time::Duration};

use transport_core::{
    ControlChannel, Transport,
    conformance::{Harness, Profile, Sizes},
    mem::{MemConfig, MemFabric, MemTransport},
};
use transport_rdma::{
    RdmaConfig, RdmaTransport,
    sim::{SimDeviceConfig, SimHost, SimNetwork},
};

/// The bound on peer loss in the tests.
pub const LOSS_BOUND: Duration = Duration::from_secs(1);

/// Settings for the tests: small limits, so that they are met.
pub fn config() -> RdmaConfig {
    RdmaConfig::default()
        .with_max_in_flight(16)
        .with_events_per_peer(6)
        .with_max_regions(64)
        .with_loss_bound(LOSS_BOUND)
}

/// A process: a transport on a simulated host. Its control channels are those of an in-memory transport.
#[derive(Debug)]
pub struct Node {
    pub host: Arc<SimHost>,
    pub transport: Arc<RdmaTransport>,
    mem: Arc<MemTransport>,
}

/// A network of simulated hosts.
#[derive(Debug, Default)]
pub struct Net {
    pub network: SimNetwork,
    fabric: MemFabric,
}

impl Net {
    pub fn node(&self, config: RdmaConfig) -> Node {
        self.node_on(self.network.host(), config)
    }

    pub fn node_with(&self, devices: Vec<SimDeviceConfig>, config: RdmaConfig) -> Node {
        self.node_on(self.network.host_with(devices), config)
    }

    pub fn node_on(&self, host: Arc<SimHost>, config: RdmaConfig) -> Node {
        let verbs = Arc::<SimHost>::clone(&host);
        let transport = RdmaTransport::open(verbs, config).expect("the transport opens");
        Node { host, transport: Arc::new(transport), mem: self.fabric.transport(MemConfig::default()) }
    }

    pub fn channels(&self, dialler: &Node, listener: &Node) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        self.fabric.channel_pair(&dialler.mem, &listener.mem)
    }
}

impl Node {
    /// Dies as if by `kill -9`: the NIC and the control channels fall silent.
    pub fn kill(&self) {
        self.host.kill();
        self.mem.kill();
    }
}

/// The conformance suite's nodes, with a setting changed.
pub struct SimHarness {
    net: Net,
    configure: fn(RdmaConfig) -> RdmaConfig,
    devices: fn() -> Vec<SimDeviceConfig>,
    prepare: fn(&SimHost),
    sizes: Sizes,
}

impl SimHarness {
    pub fn new() -> Self {
        Self {
            net: Net::default(),
            configure: |config| config,
            devices: || vec![SimDeviceConfig::named("sim0")],
            prepare: |_| {},
            sizes: Sizes::full(),
        }
    }

    /// Moves less.
    pub fn small(mut self) -> Self {
        self.sizes = Sizes::small();
        self
    }

    pub fn configure(mut self, configure: fn(RdmaConfig) -> RdmaConfig) -> Self {
        self.configure = configure;
        self
    }

    pub fn devices(mut self, devices: fn() -> Vec<SimDeviceConfig>) -> Self {
        self.devices = devices;
        self
    }

    pub fn prepare(mut self, prepare: fn(&SimHost)) -> Self {
        self.prepare = prepare;
        self
    }
}

impl Harness for SimHarness {
    type Node = Node;

    fn profile(&self) -> Profile {
        Profile::new(16, 6)
            .with_max_regions(64)
            .with_loss_bound(LOSS_BOUND)
            .with_explains_refusals(false)
            .with_sizes(self.sizes)
    }

    fn start(&self) -> Node {
        let host = self.net.network.host_with((self.devices)());
        (self.prepare)(&host);
        self.net.node_on(host, (self.configure)(config()))
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
