//! The thread that is a host's NIC.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::Instant,
};

use super::{completion::CqCore, lock, state::QpCore};

/// What the thread shares with the host. It holds nothing of the host while it sleeps, so that the host can end.
#[derive(Default)]
pub(super) struct Nic {
    inbox: Mutex<Inbox>,
    woken: Condvar,
}

#[derive(Default)]
struct Inbox {
    /// Queue pairs with something to do, each at most once.
    ready: VecDeque<Arc<QpCore>>,
    overrun: Vec<Arc<CqCore>>,
    /// How many queue pairs `ready` has room for.
    pairs: usize,
    sleeping: bool,
    stopped: bool,
}

/// What a turn of a queue pair came to.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// There is more to do at once.
    pub(super) more: bool,
    /// A piece was on the wire.
    pub(super) sent: bool,
    /// When to look again.
    pub(super) wake: Option<Instant>,
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").finish_non_exhaustive()
    }
}

impl Nic {
    pub(super) fn start(host: u32) -> Arc<Self> {
        let nic = Arc::new(Self::default());
        let shared = Arc::clone(&nic);
        if let Err(error) = thread::Builder::new().name(format!("sim-nic-{host}")).spawn(move || shared.run()) {
            tracing::error!(%error, "a simulated NIC has no thread and carries nothing");
        }
        nic
    }

    pub(super) fn stop(&self) {
        lock(&self.inbox).stopped = true;
        self.woken.notify_all();
    }

    /// Makes room for one more queue pair, so that posting needs none.
    pub(super) fn add_pair(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.pairs += 1;
        let more = inbox.pairs.saturating_sub(inbox.ready.len());
        inbox.ready.reserve(more);
    }

    pub(super) fn remove_pair(&self) {
        lock(&self.inbox).pairs -= 1;
    }

    pub(super) fn push(&self, pair: &Arc<QpCore>) {
        let mut inbox = lock(&self.inbox);
        inbox.ready.push_back(Arc::clone(pair));
        self.wake(inbox);
    }

    /// Has the queue pairs of a completion queue fail.
    pub(super) fn overrun(&self, queue: &Arc<CqCore>) {
        let mut inbox = lock(&self.inbox);
        inbox.overrun.push(Arc::clone(queue));
        self.wake(inbox);
    }

    fn wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        if std::mem::take(&mut inbox.sleeping) {
            drop(inbox);
            self.woken.notify_one();
        }
    }

    fn sleep<'a>(&self, inbox: MutexGuard<'a, Inbox>, until: Option<Instant>) -> MutexGuard<'a, Inbox> {
        match until {
            None => self.woken.wait(inbox).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let timeout = until.saturating_duration_since(Instant::now());
                self.woken.wait_timeout(inbox, timeout).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    fn run(&self) {
        let mut timers = Timers::default();
        loop {
            let next = timers.fire(Instant::now());
            let mut inbox = lock(&self.inbox);
            if inbox.stopped {
                return;
            }
            if let Some(queue) = inbox.overrun.pop() {
                drop(inbox);
                queue.fail_pairs();
            } else if let Some(pair) = inbox.ready.pop_front() {
                drop(inbox);
                let turn = pair.turn();
                timers.set(&pair, turn.wake);
                if turn.more {
                    pair.schedule();
                }
                let pace = pair.device.host.faults.pace();
                // Not held in the pause: it may be the last of its host.
                drop(pair);
                if turn.sent && !pace.is_zero() {
                    thread::sleep(pace);
                }
            } else {
                inbox.sleeping = true;
                self.sleep(inbox, next).sleeping = false;
            }
        }
    }
}

/// Queue pairs that wait for a moment. They are few, and not kept alive.
#[derive(Default)]
struct Timers {
    waiting: Vec<(Instant, Weak<QpCore>)>,
}

impl Timers {
    fn set(&mut self, pair: &Arc<QpCore>, moment: Option<Instant>) {
        let known = self.waiting.iter().position(|(_, other)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(pair)));
        match (known, moment) {
            (Some(known), Some(moment)) => {
                if let Some((when, _)) = self.waiting.get_mut(known) {
                    *when = moment;
                }
            }
            (Some(known), None) => {
                self.waiting.swap_remove(known);
            }
            (None, Some(moment)) => self.waiting.push((moment, Arc::downgrade(pair))),
            (None, None) => {}
        }
    }

    /// Schedules those whose moment has come; answers the next moment.
    fn fire(&mut self, now: Instant) -> Option<Instant> {
        if self.waiting.is_empty() {
            return None;
        }
        self.waiting.retain(|(moment, pair)| {
            let due = *moment <= now;
            if due && let Some(pair) = pair.upgrade() {
                pair.schedule();
            }
            !due
        });
        self.waiting.iter().map(|(moment, _)| *moment).min()
    }
}
