//! What the injector knows of a connection.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::{error::TransferError, grant::ImportedRegions, transfer::Permits};

/// Batches that the injector carries to one peer at a time.
pub(super) const MAX_IN_FLIGHT: usize = 64;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) imported: ImportedRegions,
    pub(super) permits: Arc<Permits>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How the connection ended: what its transfers fail with.
    ended: Option<TransferError>,
    /// Batches that are over.
    over: u64,
    wakers: Vec<Waker>,
}

impl Peer {
    pub(super) fn new() -> Self {
        Self {
            // The wrapped transport has the bound; what it refuses does not come here.
            imported: ImportedRegions::new(usize::MAX),
            permits: Permits::new(MAX_IN_FLIGHT),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ended(&self) -> Option<TransferError> {
        self.lock().ended.clone()
    }

    /// Ends the connection; the first reason counts.
    pub(super) fn end(&self, error: TransferError) {
        self.change(|state| state.ended = state.ended.take().or(Some(error)));
        self.permits.close();
    }

    /// Counts a batch that is over.
    pub(super) fn count_over(&self) {
        self.change(|state| state.over += 1);
    }

    pub(super) fn over(&self) -> u64 {
        self.lock().over
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers = {
            let mut state = self.lock();
            change(&mut state);
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ready with the error once the connection has ended.
    pub(super) fn poll_ended(&self, context: &Context<'_>) -> Poll<TransferError> {
        self.poll(context, |state| state.ended.clone())
    }

    /// Ready once so many batches are over.
    pub(super) fn poll_over(&self, context: &Context<'_>, count: u64) -> Poll<()> {
        self.poll(context, |state| (state.over >= count).then_some(()))
    }

    fn poll<T>(&self, context: &Context<'_>, ready: impl FnOnce(&State) -> Option<T>) -> Poll<T> {
        let mut state = self.lock();
        if let Some(output) = ready(&state) {
            return Poll::Ready(output);
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
