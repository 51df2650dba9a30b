//! What the wrapper and the batches that it carries share.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::peer::Peer;
use crate::{
    error::TransferError,
    event::EventQueue,
    id::PeerId,
    region::RegionTable,
    timer::Timer,
    transfer::{Permits, TransferPool},
    transport::Transport,
};

#[derive(Debug)]
pub(super) struct Shared<T> {
    pub(super) inner: T,
    pub(super) pool: Arc<TransferPool>,
    /// The wrapped transport's regions, by the same names: batches that are held back are checked against them and hold
    /// them.
    pub(super) regions: RegionTable,
    pub(super) timer: Arc<Timer>,
    /// Losses that the plan has made.
    pub(super) events: EventQueue,
    closing: AtomicBool,
    peers: Mutex<HashMap<PeerId, Arc<Peer>>>,
}

impl<T: Transport> Shared<T> {
    pub(super) fn new(inner: T) -> Self {
        Self {
            inner,
            pool: TransferPool::new(64),
            regions: RegionTable::new(usize::MAX),
            timer: Timer::new(),
            events: EventQueue::new(1),
            closing: AtomicBool::new(false),
            peers: Mutex::default(),
        }
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<PeerId, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_peer(&self, id: PeerId) {
        let mut peers = self.peers();
        // Those that have ended are kept until nothing of them is in flight.
        peers.retain(|_, peer| peer.ended().is_none() || peer.permits.in_flight() > 0);
        peers.insert(id, Arc::new(Peer::new()));
    }

    pub(super) fn peer(&self, id: PeerId) -> Option<Arc<Peer>> {
        self.peers().get(&id).cloned()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Refuses new batches, and wakes whoever waits for room.
    pub(super) fn begin_to_close(&self) {
        self.closing.store(true, Ordering::Release);
        self.peers().values().for_each(|peer| peer.permits.close());
    }

    /// Has everything in flight end as cancelled.
    pub(super) fn abort(&self) {
        self.begin_to_close();
        self.peers().values().for_each(|peer| peer.end(TransferError::Cancelled));
    }

    /// Waits until nothing is in flight to anybody.
    pub(super) async fn idle(&self) {
        let permits: Vec<Arc<Permits>> = self.peers().values().map(|peer| Arc::clone(&peer.permits)).collect();
        for permits in permits {
            permits.idle().await;
        }
    }

    /// Loses a peer, as the plan wants it.
    pub(super) async fn lose(&self, id: PeerId, reason: &str) {
        if let Some(peer) = self.peer(id) {
            peer.end(TransferError::PeerLost { reason: Arc::from(reason) });
        }
        self.inner.disconnect(id).await;
        self.events.push_lost(id, reason.into());
    }
}
