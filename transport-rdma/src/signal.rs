//! Waking those who sleep for a transport, and telling of its end.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::verbs::Verbs;

/// Has somebody look around, and tells of the transport's end. The transport's thread sleeps here, and threads that wait
/// for a transfer.
///
/// The hazard: a wake-up between a thread's last look and its sleep. `attention` is set before `sleepers` is read, and
/// `sleepers` is raised before `attention` is read again, all in one total order; so one of the two sides sees the
/// other. With several sleepers that holds for each of them: either it sees the attention and does not sleep, or it is
/// counted and the bell is rung, which ends the sleep of one of them. Whoever takes the attention looks around after
/// that, and so sees what it was raised for; a bell that rings for attention which another one took costs a look.
#[derive(Debug)]
pub(crate) struct Signal {
    verbs: Arc<dyn Verbs>,
    attention: AtomicBool,
    sleepers: AtomicUsize,
    end: Mutex<End>,
}

/// Who waits for the transport's end.
#[derive(Debug, Default)]
struct End {
    ended: bool,
    wakers: Vec<Waker>,
}

impl Signal {
    pub(crate) fn new(verbs: Arc<dyn Verbs>) -> Arc<Self> {
        Arc::new(Self {
            verbs,
            attention: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            end: Mutex::default(),
        })
    }

    /// Has somebody look around.
    pub(crate) fn wake(&self) {
        self.attention.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Ends the sleep of one thread, if one sleeps.
    pub(crate) fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.verbs.wake();
        }
    }

    /// Whether somebody was to look around since the last call.
    pub(crate) fn take(&self) -> bool {
        self.attention.load(Ordering::Relaxed) && self.attention.swap(false, Ordering::SeqCst)
    }

    /// Sleeps, unless somebody is to look around, or `over` says that there is no reason to sleep any more. Who makes
    /// it say so calls [`Signal::ring`] after that.
    ///
    /// Afterwards somebody has to look around: what has ended this sleep ended no other one.
    pub(crate) fn sleep(&self, timeout: Option<Duration>, over: impl FnOnce() -> bool) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if !self.attention.load(Ordering::SeqCst) && !over() {
            self.verbs.wait(timeout);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ready once the transport has ended.
    pub(crate) fn poll_end(&self, context: &Context<'_>) -> Poll<()> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.ended {
            return Poll::Ready(());
        }
        if !end.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            end.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    pub(crate) fn announce_end(&self) {
        let wakers = {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            end.ended = true;
            std::mem::take(&mut end.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use std::{sync::atomic::AtomicU64, thread, time::Instant};

    use super::*;
    use crate::sim::SimNetwork;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Sleepers take each other's attention and each other's bell, and still everything that was called for is seen.
    #[test]
    fn no_call_is_lost_among_several_sleepers() {
        let signal = Signal::new(SimNetwork::new().host());
        let (asked, seen, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        if signal.take() {
                            seen.fetch_max(asked.load(Ordering::SeqCst), Ordering::SeqCst);
                        } else {
                            signal.sleep(None, || stop.load(Ordering::SeqCst));
                        }
                    }
                });
            }
            let callers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for round in 0..5_000 {
                            let call = asked.fetch_add(1, Ordering::SeqCst) + 1;
                            signal.wake();
                            let deadline = Instant::now() + PATIENCE;
                            while seen.load(Ordering::SeqCst) < call {
                                if Instant::now() > deadline {
                                    return Some(round);
                                }
                                thread::yield_now();
                            }
                        }
                        None
                    })
                })
                .collect();
            let lost: Vec<_> = callers.into_iter().map(|caller| caller.join()).collect();
            // Whatever was found, the sleepers end.
            stop.store(true, Ordering::SeqCst);
            (0..4).for_each(|_| signal.verbs.wake());
            for lost in lost {
                assert!(matches!(lost, Ok(None)), "a call was lost: {lost:?}");
            }
        });
    }

    /// One that wakes up leaves the others counted.
    #[test]
    fn a_sleeper_that_goes_leaves_the_others_in_reach() {
        let signal = Signal::new(SimNetwork::new().host());
        thread::scope(|scope| {
            let long = scope.spawn(|| signal.sleep(Some(PATIENCE * 2), || false));
            thread::sleep(Duration::from_millis(20));
            signal.sleep(Some(Duration::from_millis(1)), || false);
            signal.wake();
            let deadline = Instant::now() + PATIENCE;
            while !long.is_finished() && Instant::now() < deadline {
                thread::yield_now();
            }
            let slept_on = !long.is_finished();
            signal.verbs.wake();
            assert!(!slept_on, "it sleeps on");
        });
    }

    /// What makes `over` true rings after that, and the sleep ends.
    #[test]
    fn a_sleep_ends_when_its_reason_does() {
        let signal = Signal::new(SimNetwork::new().host());
        for _ in 0..2_000 {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                let sleeper = scope.spawn(|| signal.sleep(Some(PATIENCE * 2), || over.load(Ordering::SeqCst)));
                over.store(true, Ordering::SeqCst);
                signal.ring();
                let deadline = Instant::now() + PATIENCE;
                while !sleeper.is_finished() && Instant::now() < deadline {
                    thread::yield_now();
                }
                let slept_on = !sleeper.is_finished();
                signal.verbs.wake();
                assert!(!slept_on, "it sleeps on");
            });
        }
    }
}
