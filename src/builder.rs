//! Setting an engine up.

use std::sync::Arc;

use kv_plan::CacheLayout;
use transport_core::{Access, Memory, Transport};
use transport_quic::{Authentication, QuicTransport};

use crate::{
    config::{EngineConfig, Role},
    engine::{Engine, Inner},
    error::BuildError,
    runtime,
    transports::{self, PassedOver, Wanted},
    wire::{self, Hello, Metadata},
};

/// Sets an engine up.
#[derive(Debug)]
pub struct EngineBuilder {
    role: Role,
    authentication: Authentication,
    config: EngineConfig,
    cache: Option<(CacheLayout, Vec<Memory>)>,
    wanted: Wanted,
}

impl EngineBuilder {
    pub(crate) fn new(role: Role, authentication: Authentication) -> Self {
        Self { role, authentication, config: EngineConfig::default(), cache: None, wanted: Wanted::default() }
    }

    /// Bounds, names and addresses.
    #[must_use]
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// The cache of this rank: its layout, and one memory for each region of the layout.
    #[must_use]
    pub fn cache(mut self, layout: CacheLayout, memories: Vec<Memory>) -> Self {
        self.cache = Some((layout, memories));
        self
    }

    /// Adds a data transport, preferred over those that are added later and over QUIC, which is always there. With each peer the
    /// engine uses the best one that both have and that connects; [`Peer::transport`](crate::Peer::transport) and
    /// [`Peer::passed_over`](crate::Peer::passed_over) say which and why.
    ///
    /// The engine registers the cache with it, listens to its events and shuts it down; give it to one engine only. A transport that
    /// cannot register the cache is left out as if by [`EngineBuilder::unavailable`].
    #[must_use]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.wanted.transports.push(transport);
        self
    }

    /// Notes that a transport could not be had here, and why, so that both sides can say why they do not use it.
    #[must_use]
    pub fn unavailable(mut self, name: impl Into<String>, reason: &str) -> Self {
        self.wanted.unavailable.push(PassedOver::new(name, wire::reason(reason)));
        self
    }

    /// Adds RDMA on the devices of this host, if there are any: else the engine goes on without, and says why, also to its
    /// peers. `libibverbs.so.1` is looked for here, not when the program starts.
    #[cfg(feature = "rdma")]
    #[must_use]
    pub fn rdma(self, config: transport_rdma::RdmaConfig) -> Self {
        use transport_rdma::{OpenError, RdmaTransport, native::NativeVerbs};

        let opened = NativeVerbs::open().map_err(OpenError::from).and_then(|verbs| RdmaTransport::open(verbs, config));
        match opened {
            Ok(transport) => self.transport(Arc::new(transport)),
            Err(error) => {
                tracing::warn!(%error, "RDMA cannot be used");
                self.unavailable("rdma", &error.to_string())
            }
        }
    }

    /// Registers the cache with all transports, listens, and starts to accept peers.
    ///
    /// # Errors
    /// [`BuildError`]; no transport holds the cache's memory then.
    pub fn build(mut self) -> Result<Engine, BuildError> {
        let (layout, memories) = self.cache.ok_or(BuildError::NoCache)?;
        layout.validate()?;
        let lens = layout.region_lens();
        if lens.len() != memories.len() {
            return Err(BuildError::RegionCount { expected: lens.len(), given: memories.len() });
        }
        for (region, (expected, memory)) in lens.iter().zip(&memories).enumerate() {
            if *expected != memory.len() {
                return Err(BuildError::RegionLen { region, expected: *expected, given: memory.len() });
            }
        }
        let quic = QuicTransport::bind(self.config.quic.clone(), self.authentication)?;
        self.wanted.check(quic.name())?;
        let access = match self.role {
            Role::Prefill => Access::LOCAL,
            Role::Decode => Access::REMOTE_WRITE,
        };
        let (regions, failed) = transports::register(&*quic, &memories, access);
        if let Some((region, cause)) = failed {
            return Err(BuildError::Register { region, cause });
        }
        // Nothing can fail from where the caller's transports hold the memory.
        let (runtime, stop) = runtime::start()?;
        let control: Arc<dyn Transport> = Arc::clone(&quic) as Arc<dyn Transport>;
        let (data, refused) = self.wanted.register((control, regions), &memories, access);
        let limit = self.config.drain_timeout;
        runtime.spawn(async move { transports::release(&refused, limit).await });
        let metadata = Metadata {
            role: self.role,
            deployment: self.config.deployment.clone(),
            layout,
            transports: data.iter().map(|data| data.name().to_owned()).collect(),
            unavailable: self.wanted.unavailable.into_iter().map(|it| (it.transport, it.reason)).collect(),
        };
        let hello = Hello { major: Hello::MAJOR, minor: Hello::MINOR, engine: random(), incarnation: random() };
        Ok(Engine::start(Inner::new(self.config, hello, metadata, data, quic, runtime), stop))
    }
}

/// A number that no other engine has. Not a secret.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
