//! A device and its ports.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::Ipv6Addr,
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use super::{
    code,
    completion::SimCompletionQueue,
    config::{SimDeviceConfig, SimPortConfig},
    host::HostCore,
    lock,
    memory::{Domain, Regions},
    network::Place,
    random::Numbers,
    state::QpCore,
};
use crate::verbs::{
    AsyncEvent, CompletionQueue, Device, DeviceAttributes, DeviceInfo, GidEntry, GidKind, LinkLayer, PortAttributes,
    PortState, ProtectionDomain, VerbsError,
};

/// What all handles to a device share.
pub(super) struct DeviceCore {
    pub(super) host: Arc<HostCore>,
    pub(super) config: SimDeviceConfig,
    ports: Vec<Port>,
    gone: AtomicBool,
    events: Mutex<VecDeque<AsyncEvent>>,
    domains: AtomicU64,
    pub(super) completion_queues: AtomicU32,
    pub(super) regions: Regions,
    pair_numbers: Numbers,
    /// Numbers are not used again while the device lives.
    pairs: RwLock<HashMap<u32, Weak<QpCore>>>,
}

#[derive(Debug)]
struct Port {
    config: SimPortConfig,
    state: Mutex<PortState>,
    active: AtomicBool,
    gids: Vec<Option<(Ipv6Addr, GidKind)>>,
}

impl Port {
    fn new(config: SimPortConfig, number: u32) -> Self {
        let mut config = config;
        let [_, high, middle, low] = number.to_be_bytes();
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0200, 0x00ff, 0xfe00 | u16::from(high), number as u16);
        let mapped = std::net::Ipv4Addr::new(10, high, middle, low).to_ipv6_mapped();
        let gids = config.gids.take().unwrap_or_else(|| match config.link_layer {
            LinkLayer::InfiniBand => vec![Some((link_local, GidKind::InfiniBand))],
            LinkLayer::Ethernet => vec![
                Some((link_local, GidKind::RoceV1)),
                Some((link_local, GidKind::RoceV2)),
                Some((mapped, GidKind::RoceV1)),
                Some((mapped, GidKind::RoceV2)),
                None,
                None,
                None,
                None,
            ],
        });
        match config.link_layer {
            LinkLayer::InfiniBand if config.lid == 0 => config.lid = number as u16,
            LinkLayer::InfiniBand => {}
            LinkLayer::Ethernet => config.lid = 0,
        }
        let active = AtomicBool::new(config.state == PortState::Active);
        Self { state: Mutex::new(config.state), active, gids, config }
    }
}

impl DeviceCore {
    pub(super) fn new(host: &Arc<HostCore>, config: SimDeviceConfig) -> Arc<Self> {
        let mut config = config;
        let ports = std::mem::take(&mut config.ports);
        config.attributes.ports = ports.len().try_into().unwrap_or(u8::MAX);
        let ports = ports.into_iter().map(|port| Port::new(port, host.network.next_port())).collect();
        let device = Arc::new(Self {
            host: Arc::clone(host),
            config,
            ports,
            gone: AtomicBool::new(false),
            events: Mutex::default(),
            domains: AtomicU64::new(0),
            completion_queues: AtomicU32::new(0),
            regions: Regions::new(),
            pair_numbers: Numbers::new(24),
            pairs: RwLock::default(),
        });
        for (number, port) in (1..).zip(&device.ports) {
            for (gid, kind) in port.gids.iter().flatten() {
                host.network.add(Place::Gid(*gid, *kind), &device, number);
            }
            if port.config.link_layer == LinkLayer::InfiniBand {
                host.network.add(Place::Lid(port.config.lid), &device, number);
            }
        }
        device
    }

    pub(super) fn info(&self) -> DeviceInfo {
        DeviceInfo { name: self.config.name.clone(), numa_node: self.config.numa_node }
    }

    pub(super) fn error(&self, verb: &'static str, code: i32) -> VerbsError {
        VerbsError::from_code(verb, &*self.config.name, code)
    }

    /// Refuses the verb where the device is gone.
    pub(super) fn check(&self, verb: &'static str) -> Result<(), VerbsError> {
        if self.is_gone() { Err(self.error(verb, code::EIO)) } else { Ok(()) }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Whether packets pass this port.
    pub(super) fn carries(&self, port: u8) -> bool {
        !self.is_gone() && self.find_port(port).is_some_and(|port| port.active.load(Ordering::SeqCst))
    }

    fn find_port(&self, port: u8) -> Option<&Port> {
        self.ports.get(usize::from(port).checked_sub(1)?)
    }

    pub(super) fn port_config(&self, port: u8) -> Option<&SimPortConfig> {
        self.find_port(port).map(|port| &port.config)
    }

    pub(super) fn gid_at(&self, port: u8, index: u32) -> Option<(Ipv6Addr, GidKind)> {
        *self.find_port(port)?.gids.get(index as usize)?
    }

    pub(super) fn set_port(&self, port: u8, active: bool) {
        let Some(found) = self.find_port(port) else { return };
        *lock(&found.state) = if active { PortState::Active } else { PortState::Down };
        if found.active.swap(active, Ordering::SeqCst) != active {
            self.announce(if active { AsyncEvent::PortActive(port) } else { AsyncEvent::PortDown(port) });
        }
        if !active {
            self.quiesce();
        }
    }

    pub(super) fn remove(&self) {
        if !self.gone.swap(true, Ordering::SeqCst) {
            self.announce(AsyncEvent::DeviceFatal);
            self.quiesce();
        }
    }

    pub(super) fn announce(&self, event: AsyncEvent) {
        lock(&self.events).push_back(event);
        self.host.waiter.wake();
    }

    pub(super) fn add_pair(&self, number: u32, pair: &Arc<QpCore>) -> bool {
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        let room = pairs.len() < self.config.attributes.max_qp as usize;
        if room {
            pairs.insert(number, Arc::downgrade(pair));
        }
        room
    }

    pub(super) fn remove_pair(&self, number: u32) {
        self.pairs.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    pub(super) fn next_pair_number(&self) -> u32 {
        loop {
            // 0 and 1 are the management queue pairs.
            let number = self.pair_numbers.next();
            if number > 1 {
                return number;
            }
        }
    }

    pub(super) fn pair(&self, number: u32) -> Option<Weak<QpCore>> {
        self.pairs.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    fn all_pairs(&self) -> Vec<Arc<QpCore>> {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        pairs.values().filter_map(Weak::upgrade).collect()
    }

    /// Waits until nothing that began before is still going on.
    pub(super) fn quiesce(&self) {
        self.all_pairs().iter().for_each(|pair| pair.quiesce());
    }

    pub(super) fn schedule_all(&self) {
        self.all_pairs().iter().for_each(QpCore::schedule);
    }
}

impl fmt::Debug for DeviceCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCore").field("name", &self.config.name).finish_non_exhaustive()
    }
}

/// A handle to an open device.
#[derive(Debug)]
pub(super) struct SimDevice {
    pub(super) core: Arc<DeviceCore>,
}

impl Device for SimDevice {
    fn name(&self) -> &str {
        &self.core.config.name
    }

    fn attributes(&self) -> Result<DeviceAttributes, VerbsError> {
        self.core.check("ibv_query_device")?;
        Ok(self.core.config.attributes.clone())
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        let verb = "ibv_query_port";
        self.core.check(verb)?;
        let found = self.core.find_port(port).ok_or_else(|| self.core.error(verb, code::EINVAL))?;
        let state = *lock(&found.state);
        Ok(PortAttributes {
            state,
            link_layer: found.config.link_layer,
            active_mtu: found.config.active_mtu,
            max_mtu: found.config.max_mtu,
            lid: found.config.lid,
            gid_table_len: found.gids.len() as u32,
            max_message: found.config.max_message,
            speed_mbps: found.config.speed_mbps,
        })
    }

    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, VerbsError> {
        let verb = "ibv_query_gid_ex";
        self.core.check(verb)?;
        let entry = self.core.find_port(port).and_then(|port| port.gids.get(index as usize));
        let entry = entry.ok_or_else(|| self.core.error(verb, code::EINVAL))?;
        let interface = format!("{}p{port}", self.core.config.name);
        Ok(entry.map(|(gid, kind)| {
            let interface = (kind != GidKind::InfiniBand).then_some(interface);
            GidEntry { index, gid, kind, interface }
        }))
    }

    fn allocate_domain(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        self.core.check("ibv_alloc_pd")?;
        let number = self.core.domains.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Domain { device: Arc::clone(&self.core), number }))
    }

    fn create_completion_queue(&self, depth: u32) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        Ok(Arc::new(SimCompletionQueue::new(&self.core, depth)?))
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        lock(&self.core.events).pop_front()
    }
}
