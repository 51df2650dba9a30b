//! A host: its devices, its faults, and its sleeping threads.

use std::{
    fmt,
    sync::{Arc, Mutex},
    thread::{self, Thread},
    time::Duration,
};

use super::{
    code,
    config::SimDeviceConfig,
    device::{DeviceCore, SimDevice},
    faults::{Faults, Stall},
    lock,
    network::Network,
    nic::Nic,
};
use crate::verbs::{Device, DeviceInfo, Verbs, VerbsError};

/// A host of a [`SimNetwork`](super::SimNetwork), and what can go wrong with it.
///
/// Its thread ends when the host and all that was opened on it are dropped. A restarted host is a new one.
#[derive(Debug)]
pub struct SimHost {
    core: Arc<HostCore>,
    devices: Vec<Arc<DeviceCore>>,
}

/// What the objects of a host share.
pub(super) struct HostCore {
    pub(super) number: u32,
    pub(super) network: Arc<Network>,
    pub(super) nic: Arc<Nic>,
    pub(super) waiter: Waiter,
    pub(super) faults: Faults,
}

impl fmt::Debug for HostCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCore").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for HostCore {
    fn drop(&mut self) {
        // Not joined: the NIC's own thread may be the one that drops the last of the host.
        self.nic.stop();
    }
}

impl SimHost {
    pub(super) fn new(network: &Arc<Network>, devices: Vec<SimDeviceConfig>) -> Self {
        let number = network.next_host();
        let core = Arc::new(HostCore {
            number,
            network: Arc::clone(network),
            nic: Nic::start(number),
            waiter: Waiter::default(),
            faults: Faults::default(),
        });
        let devices = devices.into_iter().map(|config| DeviceCore::new(&core, config)).collect();
        Self { core, devices }
    }

    pub(super) fn number(&self) -> u32 {
        self.core.number
    }

    /// Silences the host for ever: peers hear nothing of it any more, and nothing on it completes except by flushing.
    /// Nothing of it lands or is read after this returned.
    pub fn kill(&self) {
        self.core.faults.kill();
        self.quiesce();
    }

    /// Takes a device away: [`DeviceFatal`](crate::verbs::AsyncEvent::DeviceFatal), and EIO from all its verbs.
    pub fn remove_device(&self, name: &str) {
        self.device(name, |device| device.remove());
    }

    /// Takes the link of a port away: [`PortDown`](crate::verbs::AsyncEvent::PortDown), and packets are lost.
    pub fn port_down(&self, device: &str, port: u8) {
        self.device(device, |device| device.set_port(port, false));
    }

    /// Gives a port its link back: [`PortActive`](crate::verbs::AsyncEvent::PortActive). What is not over yet goes on
    /// when it is sent again.
    pub fn port_up(&self, device: &str, port: u8) {
        self.device(device, |device| device.set_port(port, true));
    }

    /// Fails the `count`-th registration on a device from now on (1 is the next) with an error number, once. Zero
    /// takes it back.
    pub fn fail_registration_after(&self, device: &str, count: u32, code: i32) {
        self.device(device, |device| device.regions.fail_after(count, code));
    }

    /// Refuses the `count`-th work request for a send queue from now on (1 is the next) with ENOMEM, once. Zero takes
    /// it back.
    pub fn refuse_post_after(&self, count: u64) {
        self.core.faults.refuse_post_after(count);
    }

    /// Loses the next `count` acknowledgements for this host's messages, `u64::MAX` without end and zero none: the
    /// bytes are in the peer's memory, and the message is sent again later. An acknowledgement of a later message on
    /// the same queue pair covers those before it.
    pub fn lose_acknowledgements(&self, count: u64) {
        self.core.faults.lose_acks(count);
    }

    /// [`SimHost::lose_acknowledgements`] for one queue pair of a device.
    pub fn lose_acknowledgements_of(&self, device: &str, queue_pair: u32, count: u64) {
        self.device(device, |device| {
            if let Some(pair) = device.pair(queue_pair).and_then(|pair| pair.upgrade()) {
                pair.lose_acks(count);
            }
        });
    }

    /// Loses `percent` of what this host sends (pieces of messages) and of the acknowledgements for it.
    pub fn lose_packets(&self, percent: u8, seed: u64) {
        self.core.faults.set_loss(percent, seed);
    }

    /// Sleeps after each piece of at most 64 KiB that this host sends.
    pub fn pace(&self, pace: Duration) {
        self.core.faults.set_pace(pace);
    }

    /// Holds each completion on this host back for a random time below `max`. Those of one queue pair stay in order.
    pub fn delay_completions(&self, max: Duration, seed: u64) {
        self.core.faults.set_delay(max, seed);
    }

    /// Makes the NIC stick, or work again.
    pub fn stall(&self, stall: Stall) {
        self.core.faults.stall(stall);
        match stall {
            Stall::None => self.devices.iter().for_each(|device| device.schedule_all()),
            Stall::Work | Stall::WorkAndFlush => self.quiesce(),
        }
    }

    /// Waits for the pieces that are on their way now.
    pub(super) fn quiesce(&self) {
        self.devices.iter().for_each(|device| device.quiesce());
    }

    fn device(&self, name: &str, action: impl FnOnce(&DeviceCore)) {
        if let Some(device) = self.devices.iter().find(|device| device.config.name == name) {
            action(device);
        }
    }
}

impl Verbs for SimHost {
    fn name(&self) -> &str {
        "simulated NIC"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        Ok(self.devices.iter().filter(|device| !device.is_gone()).map(|device| device.info()).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        let found = self.devices.iter().find(|device| device.config.name == name && !device.is_gone());
        let device = found.ok_or_else(|| VerbsError::from_code("ibv_open_device", name, code::ENODEV))?;
        Ok(Arc::new(SimDevice { core: Arc::clone(device) }))
    }

    fn wait(&self, timeout: Option<Duration>) {
        self.core.waiter.wait(timeout);
    }

    fn wake(&self) {
        self.core.waiter.wake();
    }
}

/// Lets threads sleep until something happens, each time one of them: the one that came last, as epoll does.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    state: Mutex<Sleep>,
}

#[derive(Debug, Default)]
struct Sleep {
    sleepers: Vec<Thread>,
    /// Something has happened while nobody slept.
    woken: bool,
}

impl Waiter {
    pub(super) fn wake(&self) {
        let mut state = lock(&self.state);
        let last = state.sleepers.pop();
        state.woken |= last.is_none();
        drop(state);
        if let Some(last) = last {
            last.unpark();
        }
    }

    fn wait(&self, timeout: Option<Duration>) {
        {
            let mut state = lock(&self.state);
            if std::mem::take(&mut state.woken) {
                return;
            }
            state.sleepers.push(thread::current());
        }
        // One sleep, because an early return is allowed.
        match timeout {
            Some(timeout) => thread::park_timeout(timeout),
            None => thread::park(),
        }
        // It is not there any more if that was a wake-up, or if one comes just now.
        let own = thread::current().id();
        lock(&self.state).sleepers.retain(|sleeper| sleeper.id() != own);
    }
}
