//! The network: who is where, and who reaches whom.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv6Addr,
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use super::{config::SimDeviceConfig, device::DeviceCore, host::SimHost};
use crate::verbs::GidKind;

/// A network inside this process. Each host of it reaches each other one, by GID or by LID, unless told otherwise.
#[derive(Debug, Default)]
pub struct SimNetwork {
    network: Arc<Network>,
}

impl SimNetwork {
    /// A network without hosts.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new host with one device, [`SimDeviceConfig::default`].
    pub fn host(&self) -> Arc<SimHost> {
        self.host_with(vec![SimDeviceConfig::default()])
    }

    /// A new host with these devices. A GID or a LID that another host has moves to this one.
    pub fn host_with(&self, devices: Vec<SimDeviceConfig>) -> Arc<SimHost> {
        Arc::new(SimHost::new(&self.network, devices))
    }

    /// Loses all packets between two hosts, until [`SimNetwork::heal`]. Nothing lands after this returned.
    pub fn partition(&self, one: &SimHost, other: &SimHost) {
        self.network.change(|cuts| {
            cuts.pairs.insert(pair(one.number(), other.number()));
        });
        one.quiesce();
        other.quiesce();
    }

    /// Ends a partition. What is not over yet goes on when it is sent again.
    pub fn heal(&self, one: &SimHost, other: &SimHost) {
        self.network.change(|cuts| {
            cuts.pairs.remove(&pair(one.number(), other.number()));
        });
    }

    /// Loses all packets to and from this GID, until [`SimNetwork::reachable`].
    pub fn unreachable(&self, gid: Ipv6Addr) {
        self.network.change(|cuts| {
            cuts.gids.insert(gid);
        });
    }

    /// Lets packets to and from this GID pass again.
    pub fn reachable(&self, gid: Ipv6Addr) {
        self.network.change(|cuts| {
            cuts.gids.remove(&gid);
        });
    }
}

/// Where a port is, as its network addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Lid(u16),
    Gid(Ipv6Addr, GidKind),
}

#[derive(Debug, Default)]
pub(super) struct Network {
    hosts: AtomicU32,
    ports: AtomicU32,
    routes: RwLock<HashMap<Place, (Weak<DeviceCore>, u8)>>,
    /// Whether `cuts` is worth its lock.
    cut: AtomicBool,
    cuts: RwLock<Cuts>,
}

#[derive(Debug, Default)]
struct Cuts {
    pairs: HashSet<(u32, u32)>,
    gids: HashSet<Ipv6Addr>,
}

impl Network {
    pub(super) fn next_host(&self) -> u32 {
        self.hosts.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for addresses that are assigned to a port, from 1.
    pub(super) fn next_port(&self) -> u32 {
        self.ports.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn add(&self, place: Place, device: &Arc<DeviceCore>, port: u8) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        routes.retain(|_, (device, _)| device.strong_count() > 0);
        routes.insert(place, (Arc::downgrade(device), port));
    }

    pub(super) fn find(&self, place: Place) -> Option<Arc<DeviceCore>> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        routes.get(&place).and_then(|(device, _)| device.upgrade())
    }

    /// Whether packets between two hosts, each at its place, are lost.
    pub(super) fn cuts(&self, one: (u32, Place), other: (u32, Place)) -> bool {
        if !self.cut.load(Ordering::Relaxed) {
            return false;
        }
        let cuts = self.cuts.read().unwrap_or_else(PoisonError::into_inner);
        let gone = |place| matches!(place, Place::Gid(gid, _) if cuts.gids.contains(&gid));
        gone(one.1) || gone(other.1) || cuts.pairs.contains(&pair(one.0, other.0))
    }

    fn change(&self, change: impl FnOnce(&mut Cuts)) {
        let mut cuts = self.cuts.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut cuts);
        self.cut.store(!cuts.pairs.is_empty() || !cuts.gids.is_empty(), Ordering::SeqCst);
    }
}

fn pair(one: u32, other: u32) -> (u32, u32) {
    (one.min(other), one.max(other))
}
