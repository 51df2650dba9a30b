//! The command line.

use clap::Parser;
use transport_rdma::{Rail, Rails, RdmaConfig};

/// Says whether this machine can move data by RDMA, what kvferry would use, what is wrong, and what to change.
///
/// Exit status: 0 when RDMA can be used, and when there is none here and none was asked for; 1 when something is broken (also: a device
/// that was named, or --loopback, and it does not work); 2 for wrong arguments.
#[derive(Debug, Parser)]
#[command(name = "doctor")]
pub(crate) struct Args {
    /// Use these devices instead of the best one, separated by commas [default: those of KVFERRY_RDMA_DEVICES]
    #[arg(long = "device", value_name = "NAME", value_delimiter = ',')]
    devices: Vec<String>,

    /// How many rails to choose at most, where no device is named
    #[arg(long, value_name = "N", default_value_t = 1)]
    rails: usize,

    /// Prefer the devices of this NUMA node, as a rule that of the GPU or of the cache's memory
    #[arg(long, value_name = "NODE", conflicts_with = "devices")]
    numa_node: Option<u32>,

    /// How large a cache is to be registered, in MiB: what the limits are held against
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) cache: u64,

    /// Try it: register memory with each chosen device and write from one transport of this process to another
    #[arg(long)]
    pub(crate) loopback: bool,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Look at a simulated NIC instead of this machine's: shows what a report looks like
    #[arg(long, conflicts_with = "devices")]
    pub(crate) simulated: bool,
}

impl Args {
    /// The devices that the user named; none where the best is to be chosen.
    pub(crate) fn named(&self) -> Vec<String> {
        let automatic = self.simulated || self.numa_node.is_some();
        if automatic || !self.devices.is_empty() {
            return self.devices.clone();
        }
        let names = std::env::var("KVFERRY_RDMA_DEVICES").unwrap_or_default();
        names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// The settings that the transport is judged by.
    pub(crate) fn config(&self) -> RdmaConfig {
        let named = self.named();
        let rails = if named.is_empty() {
            Rails::Automatic { numa_node: self.numa_node, max: self.rails }
        } else {
            Rails::Manual(named.into_iter().map(Rail::new).collect())
        };
        RdmaConfig::default().with_rails(rails)
    }
}
