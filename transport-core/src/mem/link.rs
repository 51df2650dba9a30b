//! Where the two ends of a control channel meet to connect their transports.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use super::peer::Peer;

/// The meeting place of one control channel.
#[derive(Debug, Default)]
pub(super) struct Link {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Who waits, by side.
    offers: [Option<Arc<Peer>>; 2],
    waiters: Vec<Waker>,
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a connection, and joins it with the other side's offer if that is there. `Err` when this side already waits.
    pub(super) fn offer(&self, side: usize, peer: &Arc<Peer>) -> Result<(), ()> {
        {
            let mut state = self.lock();
            let State { offers: [dialler, listener], .. } = &mut *state;
            let (mine, theirs) = if side == 0 { (dialler, listener) } else { (listener, dialler) };
            if mine.is_some() {
                return Err(());
            }
            match theirs.take() {
                // Joined under the lock: an offer that is withdrawn is either still here or already joined.
                Some(other) => Peer::join(peer, &other),
                None => *mine = Some(Arc::clone(peer)),
            }
        }
        self.wake();
        Ok(())
    }

    /// Takes an offer back, if nobody has taken it.
    pub(super) fn withdraw(&self, side: usize, peer: &Arc<Peer>) {
        let mut state = self.lock();
        if let Some(offer) =
            state.offers.get_mut(side).filter(|offer| offer.as_ref().is_some_and(|o| Arc::ptr_eq(o, peer)))
        {
            *offer = None;
        }
    }

    /// Ready once `done` gives something; looked at again after each change.
    pub(super) fn poll<T>(&self, context: &Context<'_>, done: impl FnOnce() -> Option<T>) -> Poll<T> {
        let mut state = self.lock();
        if !state.waiters.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiters.push(context.waker().clone());
        }
        drop(state);
        done().map_or(Poll::Pending, Poll::Ready)
    }

    pub(super) fn wake(&self) {
        let waiters = std::mem::take(&mut self.lock().waiters);
        waiters.into_iter().for_each(Waker::wake);
    }
}
