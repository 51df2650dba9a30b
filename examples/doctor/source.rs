//! Where the verbs come from: this machine's library, or a simulated NIC.

use std::sync::Arc;

use transport_rdma::{sim::SimNetwork, verbs::Verbs};

/// What to put into a program without RDMA to have it.
pub(crate) const BUILD: &str = "build it with `--features rdma` (Debian: libibverbs-dev cmake libclang-dev clang libnl-3-dev libnl-route-3-dev pkg-config)";

/// Gives verbs, one for each transport: the thread of a transport sleeps in its own.
#[derive(Debug)]
pub(crate) enum Source {
    /// The library of this machine.
    Native,
    /// Hosts of one simulated network, each with one device.
    Simulated(SimNetwork),
}

impl Source {
    pub(crate) fn new(simulated: bool) -> Self {
        if simulated { Self::Simulated(SimNetwork::new()) } else { Self::Native }
    }

    /// Whether this program was built with what the source needs.
    pub(crate) fn is_built(&self) -> bool {
        matches!(self, Self::Simulated(_)) || cfg!(feature = "rdma")
    }

    /// Opens the verbs, or says why not and what to install.
    pub(crate) fn open(&self) -> Result<Arc<dyn Verbs>, String> {
        match self {
            Self::Native => native(),
            Self::Simulated(network) => Ok(network.host()),
        }
    }
}

#[cfg(feature = "rdma")]
fn native() -> Result<Arc<dyn Verbs>, String> {
    match transport_rdma::native::NativeVerbs::open() {
        Ok(verbs) => Ok(verbs),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(not(feature = "rdma"))]
fn native() -> Result<Arc<dyn Verbs>, String> {
    Err(format!("this program was built without RDMA: {BUILD}"))
}
