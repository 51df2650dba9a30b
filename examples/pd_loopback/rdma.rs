//! The RDMA devices of the ranks.

use kvferry::EngineBuilder;

use crate::{args::Carrier, workload::End};

/// Names the devices, separated by a comma: that of the prefill ranks, and that of the decode ranks.
#[cfg(feature = "rdma")]
const DEVICES: &str = "KVFERRY_RDMA_DEVICES";

/// Gives an engine its transports.
#[cfg(feature = "rdma")]
pub(crate) fn add(builder: EngineBuilder, carrier: Carrier, end: End) -> EngineBuilder {
    use std::time::Duration;

    use kvferry::transport_rdma::{Rail, Rails, RdmaConfig};

    if carrier == Carrier::Quic {
        return builder;
    }
    // Many processes on few cores take their time.
    let mut config =
        RdmaConfig::default().with_connect_timeout(Duration::from_secs(30)).with_loss_bound(Duration::from_secs(10));
    if let Ok(names) = std::env::var(DEVICES) {
        let names: Vec<&str> = names.split(',').collect();
        let place = match end {
            End::Prefill => 0,
            End::Decode => 1,
        };
        let name = names.get(place).or_else(|| names.first()).copied().unwrap_or_default();
        config = config.with_rails(Rails::Manual(vec![Rail::new(name)]));
    }
    builder.rdma(config)
}

#[cfg(not(feature = "rdma"))]
pub(crate) fn add(builder: EngineBuilder, carrier: Carrier, _: End) -> EngineBuilder {
    match carrier {
        Carrier::Auto | Carrier::Quic => builder,
        Carrier::Rdma => {
            builder.unavailable("rdma", "this program was built without it; build it with --features rdma")
        }
    }
}

/// Whether the devices are Soft-RoCE, which is slow.
pub(crate) fn is_emulated() -> bool {
    let Ok(entries) = std::fs::read_dir("/sys/class/infiniband") else { return false };
    cfg!(feature = "rdma") && entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("rxe"))
}
