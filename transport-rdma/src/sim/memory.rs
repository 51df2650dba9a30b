//! Protection domains and registered memory.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{Arc, Condvar, Mutex, PoisonError, RwLock},
};

use transport_core::{Memory, MemorySpace};

use super::{code, device::DeviceCore, lock, queue_pair, random::Numbers};
use crate::verbs::{CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, QueuePairCapacity, VerbsError};

/// A protection domain: its number on its device.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) device: Arc<DeviceCore>,
    pub(super) number: u64,
}

impl ProtectionDomain for Domain {
    fn register(
        &self,
        memory: &Memory,
        offset: u64,
        len: u64,
        remote_write: bool,
    ) -> Result<Box<dyn MemoryRegion>, VerbsError> {
        let verb = "ibv_reg_mr";
        self.device.check(verb)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        let attributes = &self.device.config.attributes;
        if len == 0 || !inside || len > attributes.max_mr_size {
            return Err(self.device.error(verb, code::EINVAL));
        }
        if memory.dma_buf().is_some() {
            if !self.device.config.dma_buf {
                return Err(self.device.error("ibv_reg_dmabuf_mr", code::EOPNOTSUPP));
            }
        } else if memory.space() != MemorySpace::Host {
            return Err(self.device.error(verb, code::EFAULT));
        }
        let limit = self.device.config.max_registered;
        self.device.regions.admit(len, attributes.max_mr, limit).map_err(|code| self.device.error(verb, code))?;
        let region = Arc::new(Region {
            domain: self.number,
            start: memory.address().addr().get() as u64 + offset,
            offset,
            len,
            remote_write,
            local_key: self.device.regions.keys.next(),
            remote_key: self.device.regions.keys.next(),
            users: Mutex::new(Users { memory: Some(memory.clone()), count: 0 }),
            unused: Condvar::new(),
        });
        self.device.regions.add(&region);
        Ok(Box::new(SimRegion { device: Arc::clone(&self.device), region }))
    }

    fn create_queue_pair(
        &self,
        completions: &Arc<dyn CompletionQueue>,
        capacity: QueuePairCapacity,
    ) -> Result<Box<dyn QueuePair>, VerbsError> {
        Ok(Box::new(queue_pair::SimQueuePair::new(&self.device, self.number, completions, capacity)?))
    }
}

/// Memory under a key.
#[derive(Debug)]
pub(super) struct Region {
    domain: u64,
    start: u64,
    /// Where it begins in its memory.
    offset: u64,
    len: u64,
    remote_write: bool,
    local_key: u32,
    remote_key: u32,
    users: Mutex<Users>,
    unused: Condvar,
}

/// Who uses a region now. A count and no lock for the time of the access, because a NIC uses two regions at a time, and
/// another one the same two the other way round.
#[derive(Debug)]
struct Users {
    /// `None` once it is deregistered.
    memory: Option<Memory>,
    count: usize,
}

impl Region {
    /// Begins an access to `len` bytes at `address`, if they lie inside.
    fn access(self: Arc<Self>, address: u64, len: u64) -> Option<Access> {
        let start = address.checked_sub(self.start)?;
        let end = start.checked_add(len)?;
        // An address range that wraps around is refused although `start` may be small.
        if end > self.len || address.checked_add(len).is_none() {
            return None;
        }
        let memory = {
            let mut users = lock(&self.users);
            let memory = users.memory.clone()?;
            users.count += 1;
            memory
        };
        let offset = self.offset + start;
        Some(Access { memory: Some(memory), offset, region: self })
    }
}

/// An access in progress: deregistering waits for its end.
#[derive(Debug)]
pub(super) struct Access {
    /// There until the access is dropped; first of all, because the region's owner may want the last handle.
    memory: Option<Memory>,
    offset: u64,
    region: Arc<Region>,
}

impl Access {
    /// Copies to another access. The ranges were checked when the accesses began.
    pub(super) fn copy_to(&self, to: &Self, from: u64, len: u64) {
        if let (Some(source), Some(target)) = (&self.memory, &to.memory) {
            let done = source.copy_to(self.offset + from, target, to.offset + from, len);
            debug_assert!(done.is_ok(), "the range was checked");
        }
    }

    /// Copies bytes in.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        if let Some(memory) = &self.memory {
            let done = memory.write_at(self.offset + offset, bytes);
            debug_assert!(done.is_ok(), "the range was checked");
        }
    }

    /// Copies bytes out.
    pub(super) fn read(&self, into: &mut [u8]) {
        if let Some(memory) = &self.memory {
            let done = memory.read_at(self.offset, into);
            debug_assert!(done.is_ok(), "the range was checked");
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        self.memory = None;
        let mut users = lock(&self.region.users);
        users.count -= 1;
        if users.count == 0 && users.memory.is_none() {
            self.region.unused.notify_all();
        }
    }
}

/// The regions of a device.
#[derive(Debug)]
pub(super) struct Regions {
    keys: Numbers,
    by_key: RwLock<HashMap<u32, Arc<Region>, BuildHasherDefault<KeyHasher>>>,
    budget: Mutex<Budget>,
}

#[derive(Debug, Default)]
struct Budget {
    regions: u32,
    bytes: u64,
    /// Which registration from now fails, and how.
    fail: Option<(u32, i32)>,
}

impl Regions {
    pub(super) fn new() -> Self {
        Self { keys: Numbers::new(32), by_key: RwLock::default(), budget: Mutex::default() }
    }

    pub(super) fn fail_after(&self, count: u32, code: i32) {
        lock(&self.budget).fail = (count > 0).then_some((count, code));
    }

    fn admit(&self, len: u64, max_regions: u32, max_bytes: u64) -> Result<(), i32> {
        let mut budget = lock(&self.budget);
        if let Some((count, code)) = &mut budget.fail {
            *count -= 1;
            if *count == 0 {
                let code = *code;
                budget.fail = None;
                return Err(code);
            }
        }
        let bytes = budget.bytes.checked_add(len).filter(|bytes| *bytes <= max_bytes).ok_or(code::ENOMEM)?;
        if budget.regions >= max_regions {
            return Err(code::ENOMEM);
        }
        budget.regions += 1;
        budget.bytes = bytes;
        Ok(())
    }

    fn add(&self, region: &Arc<Region>) {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        by_key.insert(region.local_key, Arc::clone(region));
        by_key.insert(region.remote_key, Arc::clone(region));
    }

    fn remove(&self, region: &Region) {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        by_key.remove(&region.local_key);
        by_key.remove(&region.remote_key);
        drop(by_key);
        let mut budget = lock(&self.budget);
        budget.regions -= 1;
        budget.bytes -= region.len;
    }

    fn find(&self, key: u32, domain: u64) -> Option<Arc<Region>> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        by_key.get(&key).filter(|region| region.domain == domain).cloned()
    }

    /// An access with a local key.
    pub(super) fn local(&self, key: u32, domain: u64, address: u64, len: u64) -> Option<Access> {
        let region = self.find(key, domain)?;
        if region.local_key == key { region.access(address, len) } else { None }
    }

    /// An access that a peer asks for.
    pub(super) fn remote(&self, key: u32, domain: u64, address: u64, len: u64) -> Option<Access> {
        let region = self.find(key, domain)?;
        if region.remote_key == key && region.remote_write { region.access(address, len) } else { None }
    }
}

/// Keys are mixed already.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, key: u32) {
        self.0 = (self.0 ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[derive(Debug)]
struct SimRegion {
    device: Arc<DeviceCore>,
    region: Arc<Region>,
}

impl MemoryRegion for SimRegion {
    fn local_key(&self) -> u32 {
        self.region.local_key
    }

    fn remote_key(&self) -> u32 {
        self.region.remote_key
    }
}

impl Drop for SimRegion {
    fn drop(&mut self) {
        self.device.regions.remove(&self.region);
        let mut users = lock(&self.region.users);
        let memory = users.memory.take();
        while users.count > 0 {
            users = self.region.unused.wait(users).unwrap_or_else(PoisonError::into_inner);
        }
        drop(users);
        // The last handle may run the owner's code, so under no lock.
        drop(memory);
    }
}
