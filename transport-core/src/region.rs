//! Regions: memory under a name, with rights, in the table of a transport.
//!
//! The hazards: memory that is freed while a device writes to it, and a stale name that reaches the memory of a new
//! owner. Every user of a region holds a [`RegionRef`]; deregistering closes the name first and then waits until the
//! last reference is gone.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    task::{Poll, Waker},
};

use crate::{
    error::{RegionError, RegisterError, RegisterFailure},
    id::{RegionId, random_generation},
    memory::Memory,
};

/// What a peer may do with a region, beside its being the source of local writes, which is always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    remote_write: bool,
}

impl Access {
    /// A source of writes only; no peer can touch it. The default.
    pub const LOCAL: Self = Self { remote_write: false };

    /// Peers that were granted the region may write to it.
    pub const REMOTE_WRITE: Self = Self { remote_write: true };

    /// Whether peers may be granted the right to write.
    pub const fn remote_write(self) -> bool {
        self.remote_write
    }
}

/// A counted reference to a registered region. While one exists the memory stays registered.
#[derive(Clone)]
pub struct RegionRef {
    entry: Arc<Entry>,
}

impl RegionRef {
    /// The region's name.
    pub fn id(&self) -> RegionId {
        self.entry.id
    }

    /// The memory behind it.
    pub fn memory(&self) -> &Memory {
        &self.entry.memory
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.entry.memory.len()
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.entry.memory.is_empty()
    }

    /// What peers may do with it.
    pub fn access(&self) -> Access {
        self.entry.access
    }
}

impl fmt::Debug for RegionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionRef").field("id", &self.id()).field("len", &self.len()).finish_non_exhaustive()
    }
}

struct Entry {
    id: RegionId,
    access: Access,
    memory: Memory,
    // The last field: fields are dropped in this order, so whoever is told finds the entry's hold on the memory gone.
    released: ReleaseOnDrop,
}

struct ReleaseOnDrop(Arc<Released>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Told when the last reference to a closed region is gone.
#[derive(Default)]
struct Released {
    state: Mutex<ReleasedState>,
}

#[derive(Default)]
struct ReleasedState {
    released: bool,
    waker: Option<Waker>,
}

impl Released {
    fn lock(&self) -> MutexGuard<'_, ReleasedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self) {
        let waker = {
            let mut state = self.lock();
            state.released = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The regions of one transport instance.
#[derive(Debug)]
pub struct RegionTable {
    inner: RwLock<Inner>,
    max_regions: usize,
}

struct Inner {
    slots: Vec<Slot>,
    free: Vec<u32>,
    next_generation: u32,
}

enum Slot {
    Used(RegionRef),
    /// The generation that the last user had.
    Free(u32),
}

impl RegionTable {
    /// An empty table for at most `max_regions` regions.
    pub fn new(max_regions: usize) -> Self {
        Self {
            inner: RwLock::new(Inner { slots: Vec::new(), free: Vec::new(), next_generation: random_generation() }),
            max_regions,
        }
    }

    /// Puts `memory` into the table.
    ///
    /// # Errors
    /// The memory and the cause when the table is full.
    pub fn insert(&self, memory: Memory, access: Access) -> Result<RegionRef, RegisterFailure> {
        let mut inner = self.write();
        let index = match inner.free.pop() {
            Some(index) => index,
            None if inner.slots.len() < self.max_regions => {
                let Ok(index) = u32::try_from(inner.slots.len()) else {
                    return Err(RegisterFailure { memory, cause: RegisterError::TooMany { max: self.max_regions } });
                };
                inner.slots.push(Slot::Free(0));
                index
            }
            None => return Err(RegisterFailure { memory, cause: RegisterError::TooMany { max: self.max_regions } }),
        };
        let id = RegionId { index, generation: inner.next_generation };
        inner.next_generation = inner.next_generation.wrapping_add(1);
        let region =
            RegionRef { entry: Arc::new(Entry { id, access, memory, released: ReleaseOnDrop(Arc::default()) }) };
        if let Some(slot) = inner.slots.get_mut(index as usize) {
            *slot = Slot::Used(region.clone());
        }
        Ok(region)
    }

    /// Mirrors a region of another table under its name. The table is used for nothing else then.
    #[cfg(feature = "fault")]
    pub(crate) fn insert_as(&self, id: RegionId, memory: Memory, access: Access) {
        let mut inner = self.write();
        let place = id.index as usize;
        if inner.slots.len() <= place {
            inner.slots.resize_with(place + 1, || Slot::Free(0));
        }
        inner.free.retain(|free| *free != id.index);
        if let Some(slot) = inner.slots.get_mut(place) {
            let entry = Arc::new(Entry { id, access, memory, released: ReleaseOnDrop(Arc::default()) });
            *slot = Slot::Used(RegionRef { entry });
        }
    }

    /// Looks a region up.
    ///
    /// # Errors
    /// [`RegionError::Stale`] when the place was used again or freed since, [`RegionError::Unknown`] when it never
    /// existed.
    pub fn get(&self, id: RegionId) -> Result<RegionRef, RegionError> {
        self.read().get(id).cloned()
    }

    /// Closes the name of a region: it is not found any more. What comes back is told when its last user is gone.
    ///
    /// # Errors
    /// As for [`RegionTable::get`].
    pub fn close(&self, id: RegionId) -> Result<ClosedRegion, RegionError> {
        let mut inner = self.write();
        let region = inner.get(id)?.clone();
        if let Some(slot) = inner.slots.get_mut(id.index as usize) {
            *slot = Slot::Free(id.generation);
        }
        inner.free.push(id.index);
        let memory = region.memory().clone();
        let released = Arc::clone(&region.entry.released.0);
        Ok(ClosedRegion { memory, released })
    }

    /// How many regions are registered.
    pub fn count(&self) -> usize {
        let inner = self.read();
        inner.slots.len() - inner.free.len()
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn get(&self, id: RegionId) -> Result<&RegionRef, RegionError> {
        match self.slots.get(id.index as usize) {
            Some(Slot::Used(region)) if region.id() == id => Ok(region),
            Some(Slot::Used(region)) => Err(RegionError::Stale { asked: id, current: Some(region.id()) }),
            Some(Slot::Free(_)) => Err(RegionError::Stale { asked: id, current: None }),
            None => Err(RegionError::Unknown { asked: id }),
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("used", &(self.slots.len() - self.free.len())).finish_non_exhaustive()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used(region) => write!(f, "{}", region.id()),
            Self::Free(generation) => write!(f, "free (last generation {generation:#010x})"),
        }
    }
}

/// A region whose name is closed and whose users may still be at work.
pub struct ClosedRegion {
    memory: Memory,
    released: Arc<Released>,
}

impl ClosedRegion {
    /// Waits until the last transfer that uses the region has ended, and gives the memory back.
    ///
    /// # Cancel safety
    /// Safe: dropping the future loses only the handle to the memory; the name stays closed.
    pub async fn released(self) -> Memory {
        std::future::poll_fn(|context| {
            let mut state = self.released.lock();
            if state.released {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        self.memory
    }
}

impl fmt::Debug for ClosedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClosedRegion").field("memory", &self.memory).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, task::noop_waker_ref};

    use super::*;

    fn memory(len: usize) -> Memory {
        Memory::host(len).unwrap()
    }

    #[test]
    fn a_stale_name_is_told_from_an_unknown_one() {
        let table = RegionTable::new(2);
        let first = table.insert(memory(8), Access::LOCAL).unwrap().id();
        table.close(first).unwrap();
        assert_eq!(table.get(first).unwrap_err(), RegionError::Stale { asked: first, current: None });
        let second = table.insert(memory(8), Access::LOCAL).unwrap().id();
        assert_eq!(second.index, first.index);
        assert_eq!(table.get(first).unwrap_err(), RegionError::Stale { asked: first, current: Some(second) });
        let unknown = RegionId { index: 7, generation: second.generation };
        assert_eq!(table.get(unknown).unwrap_err(), RegionError::Unknown { asked: unknown });
        assert_eq!(table.count(), 1);
    }

    #[test]
    fn a_full_table_gives_the_memory_back() {
        let table = RegionTable::new(1);
        table.insert(memory(8), Access::LOCAL).unwrap();
        let failure = table.insert(memory(16), Access::LOCAL).unwrap_err();
        assert_eq!(failure.memory.len(), 16);
        assert_eq!(
            failure.cause.to_string(),
            "the transport holds 1 regions, which is its limit; raise max_regions or put several buffers into one region"
        );
    }

    #[test]
    fn closing_waits_for_the_last_user() {
        let table = RegionTable::new(1);
        let user = table.insert(memory(8), Access::LOCAL).unwrap();
        let mut released = Box::pin(table.close(user.id()).unwrap().released());
        let mut context = std::task::Context::from_waker(noop_waker_ref());
        assert!(released.poll_unpin(&mut context).is_pending());
        drop(user);
        let Poll::Ready(memory) = released.poll_unpin(&mut context) else { panic!("the last user is gone") };
        assert!(memory.try_into_owner().is_ok());
    }
}
