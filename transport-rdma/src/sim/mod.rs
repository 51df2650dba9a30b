//! A simulated NIC: the [`verbs`](crate::verbs) of hosts that share a network inside this process.
//!
//! It behaves as a NIC with reliable connections does, also where that is inconvenient: queue pairs have states, keys
//! are checked at each access, unsignalled work requests keep their slots until a later completion was polled, lost
//! packets cost the time that the attributes say, and a failed queue pair flushes. What cannot be had from a real NIC
//! on demand is in the methods of [`SimHost`] and [`SimNetwork`]: lost acknowledgements, partitions, stalls, death.
//!
//! One thread for each host is its NIC. It carries the work requests of the host's send queues in turn, in pieces of at
//! most 64 KiB, and itself writes them into the memory of the peer.
//!
//! Locks are taken in this order: `sending` of a queue pair, `receiving` of its peer, `state` of either, completion
//! queue, and then one of the NIC's inbox, the events and the waiter. No thread holds two of a kind.

mod completion;
mod config;
mod device;
mod faults;
mod host;
mod memory;
mod network;
mod nic;
mod queue_pair;
mod random;
mod receiving;
mod sending;
mod state;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::{
    config::{SimDeviceConfig, SimPortConfig},
    faults::Stall,
    host::SimHost,
    network::SimNetwork,
};

/// Error numbers that the verbs answer.
mod code {
    pub(super) const EIO: i32 = 5;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EFAULT: i32 = 14;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EOPNOTSUPP: i32 = 95;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
