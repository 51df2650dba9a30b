use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{channel::MemChannel, config::MemConfig, transport::MemTransport};
use crate::{channel::ControlChannel, timer::Timer};

/// A network inside this process.
#[derive(Debug)]
pub struct MemFabric {
    timer: Arc<Timer>,
    hosts: AtomicU64,
}

impl MemFabric {
    /// A network without hosts.
    pub fn new() -> Self {
        Self { timer: Timer::new(), hosts: AtomicU64::new(0) }
    }

    /// A new host with its transport.
    pub fn transport(&self, config: MemConfig) -> Arc<MemTransport> {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed);
        Arc::new(MemTransport::new(number, config, Arc::clone(&self.timer)))
    }

    /// A control channel between two hosts: the end of `dialler` and the end of `listener`.
    pub fn channel_pair(
        &self,
        dialler: &MemTransport,
        listener: &MemTransport,
    ) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        let (here, there) = MemChannel::pair(dialler.host(), listener.host(), &self.timer);
        (here, there)
    }
}

impl Default for MemFabric {
    fn default() -> Self {
        Self::new()
    }
}
