//! Registered memory.

use std::{
    collections::HashMap,
    mem::ManuallyDrop,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use ibverbs_sys::ibv_mr;
use transport_core::{Memory, MemorySpace};

use super::{
    domain::Domain,
    handle::{Handle, check},
};
use crate::verbs::{LocalSegment, MemoryRegion};

/// A memory region.
#[derive(Debug)]
pub(super) struct NativeRegion {
    raw: Handle<ibv_mr>,
    local_key: u32,
    remote_key: u32,
    len: u64,
    // Held until the device has let go of it, and for ever when it does not.
    memory: ManuallyDrop<Memory>,
    domain: Arc<Domain>,
}

impl NativeRegion {
    /// Takes over a region that was made over `len` bytes of `memory` from `address` on.
    pub(super) fn new(domain: Arc<Domain>, raw: Handle<ibv_mr>, memory: Memory, address: u64, len: u64) -> Self {
        // SAFETY: V2.
        let local_key = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: V2.
        let remote_key = unsafe { (*raw.as_ptr()).rkey };
        domain.ranges.insert(local_key, Range { address, len, host: memory.space() == MemorySpace::Host });
        Self { raw, local_key, remote_key, len, memory: ManuallyDrop::new(memory), domain }
    }
}

impl MemoryRegion for NativeRegion {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for NativeRegion {
    fn drop(&mut self) {
        let context = &self.domain.context;
        // First, so that no inline request reads the memory any more: see `Ranges::lock`.
        self.domain.ranges.remove(self.local_key);
        // SAFETY: V1, V2.
        let answer = unsafe { (context.library.deregister)(self.raw.as_ptr()) };
        match check(answer) {
            // SAFETY: V5: the device does not reach the memory any more, and this is the only place that drops it.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            Err(code) => {
                // V5, S6: it stays mapped for the rest of the process.
                let (error, bytes) = (context.error("ibv_dereg_mr", code), self.len);
                tracing::warn!(%error, bytes, "the device keeps registered memory; it is leaked");
            }
        }
    }
}

/// Where the regions of a domain are: what inline requests may read.
///
/// The device checks the keys of everything that it reads by itself. The bytes of an inline request are read by the CPU
/// instead, in the library, which checks nothing.
#[derive(Debug, Default)]
pub(super) struct Ranges(RwLock<HashMap<u32, Range>>);

#[derive(Clone, Copy, Debug)]
struct Range {
    address: u64,
    len: u64,
    host: bool,
}

impl Ranges {
    fn insert(&self, key: u32, range: Range) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(key, range);
    }

    /// Returns once no [`Readable`] is left that was made before.
    fn remove(&self, key: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    /// Keeps all regions registered while the answer lives.
    pub(super) fn lock(&self) -> Readable<'_> {
        Readable(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the CPU can read.
#[derive(Debug)]
pub(super) struct Readable<'a>(RwLockReadGuard<'a, HashMap<u32, Range>>);

impl Readable<'_> {
    /// Whether a segment lies in host memory that its key stands for.
    pub(super) fn has(&self, segment: LocalSegment) -> bool {
        self.0.get(&segment.key).is_some_and(|range| {
            let offset = segment.address.checked_sub(range.address);
            range.host
                && offset.is_some_and(|offset| offset <= range.len && u64::from(segment.len) <= range.len - offset)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_requests_read_registered_host_memory_only() {
        let ranges = Ranges::default();
        ranges.insert(7, Range { address: 1000, len: 100, host: true });
        ranges.insert(8, Range { address: 1000, len: 100, host: false });
        let has = |address, len, key| ranges.lock().has(LocalSegment { address, len, key });
        assert!(has(1000, 100, 7));
        assert!(has(1099, 1, 7));
        assert!(has(1100, 0, 7));
        for (address, len, key) in
            [(999, 1, 7), (1000, 101, 7), (1100, 1, 7), (0, 1, 7), (u64::MAX, 2, 7), (1000, 1, 8), (1000, 1, 9)]
        {
            assert!(!has(address, len, key), "{address} {len} {key}");
        }
        ranges.remove(7);
        assert!(!has(1000, 1, 7));
    }
}
