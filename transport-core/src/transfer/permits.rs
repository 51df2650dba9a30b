//! Room for transfers: how many may be in flight to one peer.
//!
//! The hazard: a waiter that is never woken. The list of waiters and the count are behind one lock, and each release
//! wakes everybody on the list, so a waiter that was dropped cannot swallow a wake-up that another one needed.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// Counts the transfers in flight to one peer against a limit.
#[derive(Debug)]
pub struct Permits {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Places that are taken.
    used: usize,
    /// Transfers whose outcome is not published yet; a transfer gives its place back just before that.
    active: usize,
    closed: bool,
    waiters: Vec<Waker>,
}

impl Permits {
    /// Room for `max` transfers, at least one.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max: max.max(1), state: Mutex::default() })
    }

    /// Takes one place; `Err` says how many are taken when there is none.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Permit, usize> {
        let mut state = self.lock();
        if state.used >= self.max {
            return Err(state.used);
        }
        state.used += 1;
        state.active += 1;
        Ok(Permit { permits: Arc::clone(self), placed: true })
    }

    /// How many transfers are in flight.
    pub fn in_flight(&self) -> usize {
        self.lock().used
    }

    /// Waits for room. A place that was seen can be gone again at the next submission; then wait again.
    pub fn room(self: &Arc<Self>) -> Room {
        Room { permits: Arc::clone(self), until_idle: false }
    }

    /// Waits until the outcome of everything in flight is published, for draining.
    pub fn idle(self: &Arc<Self>) -> Room {
        Room { permits: Arc::clone(self), until_idle: true }
    }

    /// Wakes everybody who waits for room, now and later: the peer is gone, and submitting says how.
    pub fn close(&self) {
        let waiters = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One place that is taken, and the transfer that took it.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Arc<Permits>,
    placed: bool,
}

impl Permit {
    /// Gives the place back, before the outcome is published: whoever sees the outcome may submit again at once.
    pub(super) fn free(&mut self) {
        if std::mem::take(&mut self.placed) {
            self.update(|state| state.used -= 1);
        }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let waiters = {
            let mut state = self.permits.lock();
            change(&mut state);
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.free();
        self.update(|state| state.active -= 1);
    }
}

/// Waits until a peer has room for a transfer.
///
/// # Cancel safety
/// Safe: it takes no place, so dropping it loses none.
#[derive(Debug)]
pub struct Room {
    permits: Arc<Permits>,
    until_idle: bool,
}

impl Future for Room {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.permits.lock();
        let ready = if self.until_idle { state.active == 0 } else { state.closed || state.used < self.permits.max };
        if ready {
            return Poll::Ready(());
        }
        if !state.waiters.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiters.push(context.waker().clone());
        }
        Poll::Pending
    }
}
