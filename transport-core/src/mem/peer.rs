//! One side of a connection.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use super::host::Host;
use crate::{
    error::TransferError,
    grant::{GrantedRegions, ImportedRegions},
    id::PeerId,
    transfer::Permits,
};

/// How a connection ended, as this side sees it.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// This side disconnected.
    Disconnected,
    /// This side shut down or was killed; what the other side hears of it.
    Closed(&'static str),
    /// The other side went away.
    Lost(Arc<str>),
}

impl End {
    pub(super) fn error(&self) -> TransferError {
        match self {
            Self::Disconnected => TransferError::Disconnected,
            Self::Closed(_) => TransferError::Cancelled,
            Self::Lost(reason) => TransferError::PeerLost { reason: Arc::clone(reason) },
        }
    }

    pub(super) fn reason(&self) -> String {
        match self {
            Self::Disconnected => "this side disconnected".into(),
            Self::Closed(_) => "the transport is closed".into(),
            Self::Lost(reason) => reason.to_string(),
        }
    }
}

/// What one side keeps of a connection. The other side's thread writes through it: it is what a NIC's queue pair would be.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) host: Arc<Host>,
    /// What this side granted.
    pub(super) granted: GrantedRegions,
    /// What the other side granted.
    pub(super) imported: ImportedRegions,
    pub(super) permits: Arc<Permits>,
    /// Whether the other side may write here. Held for reading while a piece lands, so whoever closed it knows that
    /// none lands any more (C14).
    gate: RwLock<bool>,
    end: OnceLock<End>,
    /// The other side's half. A cycle, which the end of the connection cuts.
    remote: Mutex<Option<Arc<Self>>>,
}

impl Peer {
    pub(super) fn new(id: PeerId, host: Arc<Host>) -> Self {
        let (imported, permits) =
            (ImportedRegions::new(host.config.max_imports), Permits::new(host.config.max_in_flight));
        Self {
            id,
            host,
            granted: GrantedRegions::default(),
            imported,
            permits,
            gate: RwLock::new(true),
            end: OnceLock::new(),
            remote: Mutex::default(),
        }
    }

    /// Makes two halves one connection.
    pub(super) fn join(one: &Arc<Self>, other: &Arc<Self>) {
        *one.lock_remote() = Some(Arc::clone(other));
        *other.lock_remote() = Some(Arc::clone(one));
    }

    pub(super) fn remote(&self) -> Option<Arc<Self>> {
        self.lock_remote().clone()
    }

    fn lock_remote(&self) -> MutexGuard<'_, Option<Arc<Self>>> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ended(&self) -> Option<&End> {
        self.end.get()
    }

    /// The right to write here for the length of one piece; `None` once this side has ended the connection.
    pub(super) fn enter(&self) -> Option<RwLockReadGuard<'_, bool>> {
        Some(self.gate.read().unwrap_or_else(PoisonError::into_inner)).filter(|open| **open)
    }

    /// Ends the connection on both sides. When it has returned, no byte of the other side lands here any more.
    pub(super) fn finish(&self, end: End) {
        let lost = match &end {
            End::Lost(reason) => Some(reason.to_string()),
            End::Disconnected | End::Closed(_) => None,
        };
        let first = self.end.set(end).is_ok();
        // By whoever comes second too: the first may not have got here yet.
        *self.gate.write().unwrap_or_else(PoisonError::into_inner) = false;
        if !first {
            return;
        }
        self.host.forget_peer(self);
        self.permits.close();
        let remote = self.lock_remote().take();
        if let Some(reason) = lost {
            self.host.events.push_lost(self.id, reason);
        }
        self.host.signal.wake();
        if let Some(remote) = remote {
            let reason = match self.end.get() {
                Some(End::Closed(reason)) => reason,
                _ => "the peer disconnected",
            };
            remote.finish(End::Lost(Arc::from(reason)));
        }
    }
}
