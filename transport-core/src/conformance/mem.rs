//! The harness of the in-memory transport, and that of wrappers around any other.

use std::{fmt, sync::Arc, time::Duration};

use super::harness::{Harness, Profile};
use crate::{
    channel::ControlChannel,
    mem::{MemConfig, MemFabric, MemTransport},
    transport::Transport,
};

/// Nodes of the in-memory transport.
#[derive(Debug, Default)]
pub struct MemHarness {
    fabric: MemFabric,
}

impl MemHarness {
    /// A harness with a fabric of its own.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Harness for MemHarness {
    type Node = Arc<MemTransport>;

    fn profile(&self) -> Profile {
        Profile::new(16, 6).with_max_regions(64).with_loss_bound(Duration::from_secs(1))
    }

    fn start(&self) -> Arc<MemTransport> {
        let config = MemConfig::default().with_max_in_flight(16).with_events_per_peer(6).with_max_regions(64);
        self.fabric.transport(config)
    }

    fn transport(&self, node: &Arc<MemTransport>) -> Arc<dyn Transport> {
        Arc::<MemTransport>::clone(node)
    }

    fn channels(
        &self,
        dialler: &Arc<MemTransport>,
        listener: &Arc<MemTransport>,
    ) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        self.fabric.channel_pair(dialler, listener)
    }

    fn kill(&self, node: &Arc<MemTransport>) -> bool {
        node.kill();
        true
    }
}

/// The nodes of another harness, each transport in a wrapper: a wrapper behaves like what it wraps (C20).
pub struct Wrapped<H> {
    inner: H,
    wrap: Wrap,
    profile: Profile,
}

type Wrap = Box<dyn Fn(Arc<dyn Transport>) -> Arc<dyn Transport> + Send + Sync>;

impl<H: Harness> Wrapped<H> {
    /// Wraps each transport of `inner` with `wrap`.
    pub fn new(inner: H, wrap: impl Fn(Arc<dyn Transport>) -> Arc<dyn Transport> + Send + Sync + 'static) -> Self {
        let profile = inner.profile();
        Self { inner, wrap: Box::new(wrap), profile }
    }

    /// Changes what the suite may assume, for a wrapper with limits of its own.
    #[must_use]
    pub fn with_profile(mut self, change: impl FnOnce(&mut Profile)) -> Self {
        change(&mut self.profile);
        self
    }
}

impl<H: fmt::Debug> fmt::Debug for Wrapped<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrapped").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A node in its wrapper.
#[derive(Debug)]
pub struct WrappedNode<N> {
    inner: N,
    transport: Arc<dyn Transport>,
}

impl<H: Harness> Harness for Wrapped<H> {
    type Node = WrappedNode<H::Node>;

    fn profile(&self) -> Profile {
        self.profile.clone()
    }

    fn start(&self) -> Self::Node {
        let inner = self.inner.start();
        let transport = (self.wrap)(self.inner.transport(&inner));
        WrappedNode { inner, transport }
    }

    fn transport(&self, node: &Self::Node) -> Arc<dyn Transport> {
        Arc::clone(&node.transport)
    }

    fn channels(
        &self,
        dialler: &Self::Node,
        listener: &Self::Node,
    ) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        self.inner.channels(&dialler.inner, &listener.inner)
    }

    fn kill(&self, node: &Self::Node) -> bool {
        self.inner.kill(&node.inner)
    }
}
