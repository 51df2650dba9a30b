//! What a transport's handle, its thread and its connections share.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
    atomic::{AtomicU8, Ordering},
};

use super::{
    channel::Wire,
    config::MemConfig,
    outgoing::Outgoing,
    peer::{End, Peer},
    worker::Signal,
};
use crate::{
    event::EventQueue,
    id::PeerId,
    region::RegionTable,
    timer::Timer,
    transfer::{Permits, TransferDriver, TransferPool},
};

/// How far a transport's end has come. It only goes up.
pub(super) mod phase {
    pub(in super::super) const OPEN: u8 = 0;
    pub(in super::super) const DRAINING: u8 = 1;
    pub(in super::super) const ABORTING: u8 = 2;
    pub(in super::super) const CLOSED: u8 = 3;
}

/// Slots that are made beforehand.
const SLOTS: usize = 256;

#[derive(Debug)]
pub(super) struct Host {
    pub(super) number: u64,
    pub(super) config: MemConfig,
    pub(super) regions: RegionTable,
    pub(super) pool: Arc<TransferPool>,
    pub(super) events: EventQueue,
    pub(super) timer: Arc<Timer>,
    pub(super) signal: Arc<Signal>,
    phase: AtomicU8,
    peers: RwLock<PeerTable>,
    inbox: Mutex<Inbox>,
    wires: Mutex<Vec<Weak<Wire>>>,
}

/// Batches that were submitted and not yet taken by the thread.
#[derive(Debug, Default)]
struct Inbox {
    batches: Vec<Outgoing>,
    /// The thread has ended: nobody would carry a batch.
    closed: bool,
}

#[derive(Debug, Default)]
struct PeerTable {
    slots: Vec<PeerSlot>,
}

#[derive(Debug)]
struct PeerSlot {
    generation: u32,
    peer: Option<Arc<Peer>>,
    /// The transfers of the last connection here, which may end a moment after it.
    permits: Option<Arc<Permits>>,
    /// How it ended.
    reason: String,
}

impl PeerSlot {
    fn is_free(&self) -> bool {
        self.peer.is_none() && self.permits.as_ref().is_none_or(|permits| permits.in_flight() == 0)
    }
}

impl Host {
    pub(super) fn new(number: u64, config: MemConfig, timer: Arc<Timer>) -> Arc<Self> {
        Arc::new(Self {
            number,
            regions: RegionTable::new(config.max_regions),
            pool: TransferPool::new(SLOTS),
            events: EventQueue::new(config.events_per_peer),
            timer,
            signal: Arc::default(),
            phase: AtomicU8::new(phase::OPEN),
            peers: RwLock::default(),
            inbox: Mutex::default(),
            wires: Mutex::default(),
            config,
        })
    }

    pub(super) fn name(&self) -> String {
        format!("mem-host-{}", self.number)
    }

    pub(super) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Acquire)
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase() == phase::OPEN
    }

    /// Goes on to a later phase; has no effect when that is past.
    pub(super) fn advance(&self, phase: u8) {
        self.phase.fetch_max(phase, Ordering::AcqRel);
        self.signal.wake();
    }

    /// Gives a batch to the thread; comes back when the thread has ended.
    pub(super) fn post(&self, batch: Outgoing) -> Result<(), TransferDriver> {
        let mut inbox = self.inbox();
        if inbox.closed {
            return Err(batch.into_driver());
        }
        inbox.batches.push(batch);
        drop(inbox);
        self.signal.wake();
        Ok(())
    }

    /// Moves what was submitted behind `batches`.
    pub(super) fn take_posted(&self, batches: &mut Vec<Outgoing>) {
        batches.append(&mut self.inbox().batches);
    }

    /// Closes the inbox if it is empty, so that nothing is left in it.
    pub(super) fn close_inbox(&self) -> bool {
        let mut inbox = self.inbox();
        inbox.closed = inbox.batches.is_empty();
        inbox.closed
    }

    /// A new half of a connection. It is known to the program once `connect` has answered.
    pub(super) fn add_peer(self: &Arc<Self>) -> Arc<Peer> {
        let mut table = self.write_peers();
        let index = table.slots.iter().position(PeerSlot::is_free).unwrap_or_else(|| {
            table.slots.push(PeerSlot { generation: 0, peer: None, permits: None, reason: String::new() });
            table.slots.len() - 1
        });
        // As many connections as memory holds fit 32 bits.
        let mut id = PeerId { index: index as u32, generation: 1 };
        if let Some(slot) = table.slots.get(index) {
            id.generation = slot.generation.wrapping_add(1);
        }
        let peer = Arc::new(Peer::new(id, Arc::clone(self)));
        if let Some(slot) = table.slots.get_mut(index) {
            slot.generation = id.generation;
            slot.permits = Some(Arc::clone(&peer.permits));
            slot.peer = Some(Arc::clone(&peer));
        }
        peer
    }

    /// A connected peer, or why there is none.
    pub(super) fn peer(&self, id: PeerId) -> Result<Arc<Peer>, String> {
        let table = self.read_peers();
        let Some(slot) = table.slots.get(id.index as usize) else { return Err("it never was".into()) };
        match &slot.peer {
            Some(peer) if peer.id == id => Ok(Arc::clone(peer)),
            None if slot.generation == id.generation => Err(slot.reason.clone()),
            _ => Err("this is the name of an earlier connection".into()),
        }
    }

    /// The transfers to a peer that is or was connected.
    pub(super) fn permits(&self, id: PeerId) -> Option<Arc<Permits>> {
        let table = self.read_peers();
        table.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)?.permits.clone()
    }

    pub(super) fn peers(&self) -> Vec<Arc<Peer>> {
        self.read_peers().slots.iter().filter_map(|slot| slot.peer.clone()).collect()
    }

    pub(super) fn forget_peer(&self, peer: &Peer) {
        let reason = peer.ended().map_or_else(String::new, End::reason);
        let mut table = self.write_peers();
        let slot = table.slots.get_mut(peer.id.index as usize);
        if let Some(slot) = slot.filter(|slot| slot.generation == peer.id.generation) {
            slot.reason = reason;
            slot.peer = None;
        }
    }

    pub(super) fn add_wire(&self, wire: &Arc<Wire>) {
        let mut wires = self.wires();
        wires.retain(|wire| wire.strong_count() > 0);
        wires.push(Arc::downgrade(wire));
    }

    /// Breaks all control channels, as the death of the process would.
    pub(super) fn break_wires(&self, reason: &str) {
        let wires = std::mem::take(&mut *self.wires());
        wires.iter().filter_map(Weak::upgrade).for_each(|wire| wire.lose(reason));
    }

    /// Wakes those who connect, so that they see that the transport is closed.
    pub(super) fn wake_links(&self) {
        let wires = self.wires().clone();
        wires.iter().filter_map(Weak::upgrade).for_each(|wire| wire.link.wake());
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wires(&self) -> MutexGuard<'_, Vec<Weak<Wire>>> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_peers(&self) -> RwLockReadGuard<'_, PeerTable> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_peers(&self) -> RwLockWriteGuard<'_, PeerTable> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }
}
