//! The place of the one waiter that works for the transport.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::signal::Signal;

/// One waiter at a time sits here, from its first turn until it leaves.
///
/// While it sits, the transport's thread does not go to sleep beside it: the latest sleeper is woken first, and that is to
/// be the waiter. If the thread comes to sleep and finds it here, it waits for it to leave, and then goes to sleep before
/// another one may sit down.
#[derive(Debug, Default)]
pub(super) struct Seat {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    /// The waiter's transfer has ended, and it may sleep.
    nudged: bool,
    /// The transport's thread waits for the seat to be free.
    awaited: bool,
}

impl Seat {
    /// Takes the seat, if it is free.
    pub(super) fn sit<'a>(&'a self, signal: &'a Signal) -> Option<Sitting<'a>> {
        let mut state = self.lock();
        if state.taken || state.awaited {
            return None;
        }
        state.taken = true;
        state.nudged = false;
        Some(Sitting { seat: self, signal })
    }

    /// For the transport's thread, when it wants to sleep: if somebody sits here, waits until nobody does or the time
    /// is over, and answers `true`: there may be something to do. Else lets others sit down.
    pub(super) fn defer_to_waiter(&self, timeout: Duration) -> bool {
        let mut state = self.lock();
        state.awaited = state.taken;
        if state.taken {
            drop(self.left.wait_timeout_while(state, timeout, |state| state.taken));
            return true;
        }
        false
    }

    /// The transfer of a waiter has ended by the hand of somebody else: it has to look.
    pub(super) fn nudge(&self, signal: &Signal) {
        {
            let mut state = self.lock();
            if !state.taken {
                return;
            }
            state.nudged = true;
        }
        signal.ring();
    }

    /// For the transport's thread, when it was woken: what woke it may have been meant for the waiter.
    pub(super) fn pass_on(&self, signal: &Signal) {
        let nudged = self.lock().nudged;
        if nudged {
            signal.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiter that sits. It leaves when this is dropped.
pub(super) struct Sitting<'a> {
    seat: &'a Seat,
    signal: &'a Signal,
}

impl Drop for Sitting<'_> {
    fn drop(&mut self) {
        let awaited = {
            let mut state = self.seat.lock();
            state.taken = false;
            state.nudged = false;
            state.awaited
        };
        if awaited {
            self.seat.left.notify_one();
        }
        // A waker has panicked in the middle of a turn, and nothing is prepared for the sleep of others.
        if thread::panicking() {
            self.signal.wake();
        }
    }
}
