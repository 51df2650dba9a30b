//! The place of the one waiter that works for the transport.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::signal::Signal;

/// How long a waiter makes way for the transport's thread, which is about to sleep as a rule.
const PATIENCE: Duration = Duration::from_micros(50);

/// One waiter at a time sits here, from its first turn until it leaves.
///
/// Events wake the thread that was the last to go to sleep, and that is to be the waiter. So it sits down only when the
/// transport's thread is asleep. When that wakes up meanwhile, and wants to sleep again, it waits until the waiter has
/// left.
#[derive(Debug, Default)]
pub(super) struct Seat {
    state: Mutex<State>,
    left: Condvar,
    /// A waiter waits for the thread to sleep, and will poll in its place.
    wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    /// The waiter's transfer has ended by the hand of somebody else, and the waiter may sleep.
    nudged: bool,
    thread: Thread,
}

/// Where the transport's thread is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Thread {
    #[default]
    Awake,
    /// It sleeps, or is about to.
    Asleep,
    /// It waits until the waiter has left.
    Deferring,
}

impl Seat {
    /// Takes the seat; `None` where another waiter has it, the thread has more to do, or nothing is left to wait for.
    pub(super) fn sit<'a>(&'a self, signal: &'a Signal, done: &dyn Fn() -> bool) -> Option<Sitting<'a>> {
        let mut since = None;
        loop {
            {
                let mut state = self.lock();
                if state.taken {
                    break;
                }
                if state.thread == Thread::Asleep {
                    state.taken = true;
                    state.nudged = false;
                    self.wanted.store(false, Ordering::Relaxed);
                    return Some(Sitting { seat: self, signal });
                }
            }
            if done() || since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                break;
            }
            self.wanted.store(true, Ordering::Relaxed);
            thread::yield_now();
        }
        self.wanted.store(false, Ordering::Relaxed);
        None
    }

    /// Whether a waiter would poll, if only the thread slept.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// For the transport's thread, when it wants to sleep: if a waiter sits here, waits until it leaves or the time is
    /// over, and answers `true`: there may be something to do. Else it is asleep as far as waiters know.
    pub(super) fn defer_to_waiter(&self, timeout: Duration) -> bool {
        let mut state = self.lock();
        if !state.taken {
            state.thread = Thread::Asleep;
            return false;
        }
        state.thread = Thread::Deferring;
        let waited = self.left.wait_timeout_while(state, timeout, |state| state.taken);
        waited.unwrap_or_else(PoisonError::into_inner).0.thread = Thread::Awake;
        true
    }

    /// For the transport's thread, after its sleep. What has woken it may have been meant for the waiter.
    pub(super) fn wake_up(&self, signal: &Signal) {
        let nudged = {
            let mut state = self.lock();
            state.thread = Thread::Awake;
            state.nudged
        };
        if nudged {
            signal.ring();
        }
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
        let deferring = {
            let mut state = self.seat.lock();
            state.taken = false;
            state.nudged = false;
            state.thread == Thread::Deferring
        };
        if deferring {
            self.seat.left.notify_one();
        }
        // A waker has panicked in the middle of a turn, and nothing is prepared for the sleep of others.
        if thread::panicking() {
            self.signal.wake();
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sim::SimNetwork;

    const LONG: Duration = Duration::from_secs(20);

    fn see(what: &str, mut done: impl FnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + LONG;
        while !done() {
            if Instant::now() > deadline {
                return Err(format!("{what} is not seen"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A waiter sleeps, and the transport's thread with it, above or below; its transfer ends by somebody else's hand.
    fn nudged(thread_is_above: bool) -> Result<(), String> {
        let signal = Signal::new(SimNetwork::new().host());
        let seat = Seat::default();
        assert!(!seat.defer_to_waiter(LONG), "nobody sits");
        let over = Arc::new(AtomicBool::new(false));
        let ended = || over.load(Ordering::SeqCst);
        thread::scope(|scope| {
            let sleep_as_thread = || {
                signal.sleep(Some(LONG * 2), || false);
                seat.wake_up(&signal);
            };
            let nap = || thread::sleep(Duration::from_millis(20));
            if !thread_is_above {
                scope.spawn(sleep_as_thread);
                nap();
            }
            let waiter = scope.spawn(|| {
                let sitting = seat.sit(&signal, &ended).ok_or("the seat is free")?;
                signal.sleep(Some(LONG * 2), ended);
                drop(sitting);
                Ok::<_, &str>(())
            });
            nap();
            if thread_is_above {
                scope.spawn(sleep_as_thread);
                nap();
            }
            over.store(true, Ordering::SeqCst);
            seat.nudge(&signal);
            let seen = see("the end of the wait", || waiter.is_finished());
            (0..2).for_each(|_| signal.wake());
            seen.and_then(|()| Ok(waiter.join().map_err(|_| "it panicked")??))
        })
    }

    #[test]
    fn a_nudge_reaches_the_waiter_past_the_thread() {
        nudged(false).unwrap();
        nudged(true).unwrap();
    }

    #[test]
    fn one_waiter_at_a_time_sits_and_only_when_the_thread_sleeps() {
        let signal = Signal::new(SimNetwork::new().host());
        let seat = Seat::default();
        let never = || false;
        assert!(seat.sit(&signal, &never).is_none(), "the thread is awake");
        assert!(!seat.is_wanted(), "it has given up");
        assert!(!seat.defer_to_waiter(LONG));
        let sitting = seat.sit(&signal, &never).unwrap();
        assert!(seat.sit(&signal, &never).is_none(), "another one sits");
        seat.wake_up(&signal);
        thread::scope(|scope| {
            let deferring = scope.spawn(|| seat.defer_to_waiter(LONG * 2));
            thread::sleep(Duration::from_millis(20));
            assert!(!deferring.is_finished(), "the waiter still sits");
            drop(sitting);
            see("the thread's turn", || deferring.is_finished()).unwrap();
            assert!(deferring.join().unwrap(), "it has waited, and looks again");
        });
        assert!(seat.sit(&signal, &never).is_none(), "the thread is awake again");
        assert!(!seat.defer_to_waiter(LONG));
        drop(seat.sit(&signal, &never).unwrap());
    }
}
