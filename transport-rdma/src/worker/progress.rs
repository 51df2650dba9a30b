//! Who takes turns at the worker: the transport's thread, and a thread that blocks on a transfer.
//!
//! A waiter that takes the turns itself gets its completion straight from the device. Otherwise the transport's thread
//! would be woken first, only to wake the waiter.
//!
//! The hazards:
//! * An event ends the sleep of one thread, and it may not be the one that it is for. So every return from
//!   [`Signal::sleep`](crate::signal::Signal::sleep) is followed by a whole turn, also where the waiter's transfer is over;
//!   a waiter that cannot have the worker makes somebody else take it.
//! * A waiter leaves, and nobody else polls. So it leaves the lock only when the completion queues are armed and were
//!   found empty after that, or it wakes the transport's thread. It does not stay until they are empty: others may keep
//!   them full.
//! * A turn of the waiter sets a time that is sooner than the end of the thread's sleep. So the waiter wakes the thread
//!   when it leaves.
//! * Somebody else ends the waiter's transfer while it sleeps. So that one nudges it, and a thread that was woken in its
//!   place passes it on; the waiter looks whether its transfer is over after it is counted as a sleeper.
//! * The end: only the transport's thread ends the worker, which takes it out of the lock; a waiter that finds none leaves.
//! * Wakers are called in a turn. They may be anybody's, and may come back to the transport, but nothing of a waiter ever
//!   blocks on the worker's lock.

use std::{
    hint,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use transport_core::Progress;

use super::{Worker, seat::Seat, tick_of};
use crate::host::Host;

/// The worker, shared by those who take turns.
pub(super) struct Turns {
    host: Arc<Host>,
    /// `None` once the transport has ended.
    worker: Mutex<Option<Worker>>,
    seat: Seat,
}

impl Turns {
    pub(super) fn new(worker: Worker) -> Self {
        Self { host: Arc::clone(&worker.host), worker: Mutex::new(Some(worker)), seat: Seat::default() }
    }

    /// What the transport's thread does, until the transport ends.
    pub(super) fn run(&self) {
        let mut slept = false;
        loop {
            let mut guard = self.lock();
            let Some(worker) = guard.as_mut() else { return };
            let turn = worker.turn(std::mem::take(&mut slept));
            if turn.done {
                let worker = guard.take();
                drop(guard);
                // A waiter has nothing to wait for any more.
                self.seat.nudge(&self.host.signal);
                worker.into_iter().for_each(Worker::end);
                return;
            }
            let relieved = !turn.worked && self.seat.is_wanted();
            if !relieved && !worker.may_sleep(&turn) {
                drop(guard);
                hint::spin_loop();
                continue;
            }
            if worker.arm() {
                continue;
            }
            worker.thread_wakes = worker.next_look();
            let timeout = worker.thread_wakes.map(until);
            drop(guard);
            if self.seat.defer_to_waiter(tick_of(&self.host)) {
                continue;
            }
            self.host.signal.sleep(timeout, || false);
            slept = true;
            self.seat.wake_up(&self.host.signal);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Worker>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker, unless somebody has it. That may be this thread: a waker in a turn comes here as well.
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Worker>>> {
        match self.worker.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Progress for Turns {
    fn drive(&self, done: &dyn Fn() -> bool, deadline: Option<Instant>) {
        let signal = &self.host.signal;
        let Some(_sitting) = self.seat.sit(signal, done) else { return };
        let mut slept = false;
        loop {
            let Some(mut guard) = self.try_lock() else {
                // Somebody takes a turn. What has ended the sleep may have come too late for it.
                if slept {
                    signal.wake();
                }
                return;
            };
            let Some(worker) = guard.as_mut() else { return };
            let turn = worker.turn(std::mem::take(&mut slept));
            if turn.done {
                // The thread does the rest.
                drop(guard);
                signal.wake();
                return;
            }
            let over = done() || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if !over && !worker.may_sleep(&turn) {
                drop(guard);
                hint::spin_loop();
                continue;
            }
            let more = worker.arm();
            let next_look = worker.next_look();
            if over {
                let relieve = more || is_sooner(next_look, worker.thread_wakes);
                drop(guard);
                if relieve {
                    signal.wake();
                }
                return;
            }
            drop(guard);
            if more {
                continue;
            }
            let next_look = next_look.into_iter().chain(deadline).min();
            signal.sleep(next_look.map(until), done);
            slept = true;
        }
    }

    fn nudge(&self) {
        self.seat.nudge(&self.host.signal);
    }
}

fn until(moment: Instant) -> Duration {
    moment.saturating_duration_since(Instant::now())
}

/// Whether one moment is sooner than another; `None` never comes.
fn is_sooner(one: Option<Instant>, other: Option<Instant>) -> bool {
    one.is_some_and(|one| other.is_none_or(|other| one < other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_sooner_than_a_later_one_and_than_never() {
        let now = Instant::now();
        let later = now + Duration::from_millis(1);
        assert!(is_sooner(Some(now), Some(later)) && is_sooner(Some(now), None));
        assert!(!is_sooner(Some(later), Some(now)) && !is_sooner(Some(now), Some(now)));
        assert!(!is_sooner(None, Some(now)) && !is_sooner(None, None));
    }
}
