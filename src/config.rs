//! How an engine is set up.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use transport_quic::QuicConfig;

/// Which end of the transfers an engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Role {
    /// Computes prompts and sends their pages.
    Prefill,
    /// Receives pages and generates.
    Decode,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// Bounds and names of an engine. Every wait of the engine is bounded by one of these or by one of [`QuicConfig`]'s.
///
/// ```
/// use std::time::Duration;
/// use kvferry::EngineConfig;
///
/// let config = EngineConfig::default().with_deployment("prefill-a").with_request_timeout(Duration::from_secs(20));
/// assert_eq!(config.deployment, "prefill-a");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The deployment that this rank belongs to, the same for all its ranks: a request comes from the ranks of one
    /// deployment. Default `"default"`.
    pub deployment: String,
    /// From dialling to the end of the handshake, without what `transport_timeout` adds. Default 5 s.
    pub handshake_timeout: Duration,
    /// How long each data transport that is preferred over QUIC may take to connect to a peer, however long its own bound is; then
    /// the next one is tried. It adds to `handshake_timeout` once for each of them. Default 2 s.
    pub transport_timeout: Duration,
    /// How long an expected request may take before it is aborted and reported as late. Default 60 s.
    pub request_timeout: Duration,
    /// How long a sender may take to confirm that it has drained an aborted request; then the connection to it is cut,
    /// which fences it too. Default 3 s.
    pub drain_timeout: Duration,
    /// Commits and failures of requests that are not expected yet, kept until they are. Default 1,024; the oldest goes first.
    pub max_early: usize,
    /// Requests that a receiver aborted, remembered by the sender so that a late push is refused. Default 4,096.
    pub max_aborted: usize,
    /// The QUIC transport: addresses, bound on peer loss (3 s), queue lengths.
    pub quic: QuicConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            deployment: "default".into(),
            handshake_timeout: Duration::from_secs(5),
            transport_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(3),
            max_early: 1024,
            max_aborted: 4096,
            quic: QuicConfig::default(),
        }
    }
}

impl EngineConfig {
    /// Sets the deployment.
    #[must_use]
    pub fn with_deployment(mut self, deployment: impl Into<String>) -> Self {
        self.deployment = deployment.into();
        self
    }

    /// Sets the bound on the handshake.
    #[must_use]
    pub fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Sets the bound on connecting a preferred data transport.
    #[must_use]
    pub fn with_transport_timeout(mut self, timeout: Duration) -> Self {
        self.transport_timeout = timeout;
        self
    }

    /// Sets the bound on a request.
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets the bound on draining.
    #[must_use]
    pub fn with_drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets the configuration of the QUIC transport.
    #[must_use]
    pub fn with_quic(mut self, quic: QuicConfig) -> Self {
        self.quic = quic;
        self
    }
}
