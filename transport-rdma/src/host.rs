//! What a transport's handle and its thread share.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Waker},
};

use transport_core::{
    ClosedRegion, ControlChannel, EventQueue, Memory, PeerId, Permits, RegionId, RegionRef, RegionTable, TransferPool,
};

use crate::{config::RdmaConfig, peer::Peer, rail::Rail, region::Registered, signal::Signal, timing::QueuePairTimers};

/// How far a transport's end has come. It only goes up.
pub(crate) mod phase {
    pub(crate) const OPEN: u8 = 0;
    pub(crate) const DRAINING: u8 = 1;
    pub(crate) const ABORTING: u8 = 2;
    pub(crate) const CLOSED: u8 = 3;
}

/// Slots that are made beforehand.
const SLOTS: usize = 256;

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) config: RdmaConfig,
    pub(crate) timers: QueuePairTimers,
    pub(crate) rails: Vec<Rail>,
    /// Length of the pieces that regions are registered in.
    pub(crate) piece: u64,
    pub(crate) regions: RegionTable,
    pub(crate) pool: Arc<TransferPool>,
    pub(crate) events: EventQueue,
    pub(crate) signal: Arc<Signal>,
    phase: AtomicU8,
    /// By index of the region.
    registered: RwLock<Vec<Option<Named>>>,
    peers: RwLock<Vec<Arc<Peer>>>,
    commands: Mutex<Commands>,
    /// Ticks hardly ever come, so that a test sees what would wait for one.
    #[cfg(test)]
    pub(crate) seldom: std::sync::atomic::AtomicBool,
}

/// What the thread is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    Connect { peer: Arc<Peer>, channel: Arc<dyn ControlChannel> },
    Deregister { region: RegionId, closed: ClosedRegion, done: Arc<Deregistered> },
}

#[derive(Debug, Default)]
struct Commands {
    list: Vec<Command>,
    closed: bool,
}

impl Host {
    pub(crate) fn new(config: RdmaConfig, rails: Vec<Rail>, piece: u64, signal: Arc<Signal>) -> Arc<Self> {
        Arc::new(Self {
            timers: QueuePairTimers::within(config.loss_bound),
            rails,
            piece,
            regions: RegionTable::new(config.max_regions),
            pool: TransferPool::new(SLOTS),
            events: EventQueue::new(config.events_per_peer),
            signal,
            phase: AtomicU8::new(phase::OPEN),
            registered: RwLock::default(),
            peers: RwLock::default(),
            commands: Mutex::default(),
            #[cfg(test)]
            seldom: false.into(),
            config,
        })
    }

    pub(crate) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase() == phase::OPEN
    }

    /// Goes on to a later phase; has no effect when that is past.
    pub(crate) fn advance(&self, phase: u8) {
        self.phase.fetch_max(phase, Ordering::AcqRel);
        self.signal.wake();
    }

    /// Gives the thread something to do; comes back when it has ended.
    pub(crate) fn command(&self, command: Command) -> Result<(), Command> {
        {
            let mut commands = self.commands();
            if commands.closed {
                return Err(command);
            }
            commands.list.push(command);
        }
        self.signal.wake();
        Ok(())
    }

    pub(crate) fn take_commands(&self) -> Vec<Command> {
        std::mem::take(&mut self.commands().list)
    }

    /// Takes no more commands, if there are none.
    pub(crate) fn close_commands(&self) -> bool {
        let mut commands = self.commands();
        commands.closed = commands.list.is_empty();
        commands.closed
    }

    // Regions.

    /// Keeps a region's keys; `false`, and they are gone, when the transport has ended.
    pub(crate) fn add_registered(&self, id: RegionId, registered: Registered) -> bool {
        let mut table = self.registered.write().unwrap_or_else(PoisonError::into_inner);
        // Looked at under the lock: what comes after `clear_registered` would stay pinned.
        if self.phase() == phase::CLOSED {
            return false;
        }
        let place = id.index as usize;
        if table.len() <= place {
            table.resize_with(place + 1, || None);
        }
        if let Some(slot) = table.get_mut(place) {
            *slot = Some((id, Arc::new(registered)));
        }
        true
    }

    /// The keys of regions that are held; `false` when one of them is not there.
    pub(crate) fn registered(&self, regions: &[RegionRef], into: &mut Vec<Arc<Registered>>) -> bool {
        let table = self.registered.read().unwrap_or_else(PoisonError::into_inner);
        regions.iter().all(|region| {
            let found = find(&table, region.id());
            into.extend(found.cloned());
            found.is_some()
        })
    }

    pub(crate) fn registered_one(&self, id: RegionId) -> Option<Arc<Registered>> {
        find(&self.registered.read().unwrap_or_else(PoisonError::into_inner), id).cloned()
    }

    pub(crate) fn remove_registered(&self, id: RegionId) -> Option<Arc<Registered>> {
        let mut table = self.registered.write().unwrap_or_else(PoisonError::into_inner);
        table.get_mut(id.index as usize)?.take_if(|(found, _)| *found == id).map(|(_, registered)| registered)
    }

    /// Deregisters what is left, at the end.
    pub(crate) fn clear_registered(&self) {
        let table = std::mem::take(&mut *self.registered.write().unwrap_or_else(PoisonError::into_inner));
        drop(table);
    }

    // Peers.

    /// A new connection. It is known to the program once `connect` has answered.
    pub(crate) fn add_peer(&self) -> Arc<Peer> {
        let mut table = self.write_peers();
        let free = table.iter().position(|peer| peer.is_over() && peer.permits.in_flight() == 0);
        // As many connections as memory holds fit 32 bits.
        let index = free.unwrap_or(table.len());
        let generation = table.get(index).map_or(1, |last| last.id.generation.wrapping_add(1));
        let id = PeerId { index: index as u32, generation };
        let peer = Arc::new(Peer::new(id, &self.config, &self.signal));
        match table.get_mut(index) {
            Some(place) => *place = Arc::clone(&peer),
            None => table.push(Arc::clone(&peer)),
        }
        peer
    }

    /// A connected peer, or why there is none.
    pub(crate) fn peer(&self, id: PeerId) -> Result<Arc<Peer>, String> {
        let table = self.read_peers();
        let Some(peer) = table.get(id.index as usize) else { return Err("it never was".into()) };
        if peer.id != id {
            return Err("this is the name of an earlier connection".into());
        }
        peer.ended().map_or_else(|| Ok(Arc::clone(peer)), |end| Err(end.reason()))
    }

    /// A peer that is or was connected.
    pub(crate) fn any_peer(&self, id: PeerId) -> Option<Arc<Peer>> {
        let table = self.read_peers();
        table.get(id.index as usize).filter(|peer| peer.id == id).cloned()
    }

    pub(crate) fn permits(&self) -> Vec<Arc<Permits>> {
        self.read_peers().iter().map(|peer| Arc::clone(&peer.permits)).collect()
    }

    fn read_peers(&self) -> RwLockReadGuard<'_, Vec<Arc<Peer>>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_peers(&self) -> RwLockWriteGuard<'_, Vec<Arc<Peer>>> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn commands(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A region's keys under its name.
type Named = (RegionId, Arc<Registered>);

fn find(table: &[Option<Named>], id: RegionId) -> Option<&Arc<Registered>> {
    table.get(id.index as usize)?.as_ref().filter(|(found, _)| *found == id).map(|(_, registered)| registered)
}

/// A deregistration that is under way: what comes of it.
#[derive(Debug, Default)]
pub(crate) struct Deregistered {
    state: Mutex<DeregisteredState>,
}

#[derive(Default)]
struct DeregisteredState {
    result: Option<(Option<Arc<Registered>>, Memory)>,
    /// Nobody but the waiter looks after it any more.
    left: Option<(Option<Arc<Registered>>, Release)>,
    waker: Option<Waker>,
}

impl fmt::Debug for DeregisteredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeregisteredState").field("result", &self.result).finish_non_exhaustive()
    }
}

/// Gives a region's memory once nobody holds it.
pub(crate) type Release = Pin<Box<dyn Future<Output = Memory> + Send>>;

impl Deregistered {
    /// The region is quiet. Whoever waits takes it apart, so that the thread does not; else it goes with this.
    pub(crate) fn set(&self, registered: Option<Arc<Registered>>, memory: Memory) {
        let waker = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.result = Some((registered, memory));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The worker ends before the region is quiet. Whoever waits goes on by itself.
    pub(crate) fn leave(&self, registered: Option<Arc<Registered>>, release: Release) {
        let waker = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.left = Some((registered, release));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<(Option<Arc<Registered>>, Memory)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        if let Some((registered, release)) = &mut state.left {
            return release.as_mut().poll(context).map(|memory| (registered.take(), memory));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
