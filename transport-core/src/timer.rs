//! Deadlines for futures that run on any executor: one thread that wakes whoever asked to be woken.

use std::{
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    thread,
    time::Instant,
};

/// The thread, and whom it is to wake. It ends with its last handle.
#[derive(Debug)]
pub(crate) struct Timer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    sleepers: Vec<Sleeper>,
    next_id: u64,
    closed: bool,
    running: bool,
}

#[derive(Debug)]
struct Sleeper {
    id: u64,
    deadline: Instant,
    waker: Waker,
}

impl Timer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { shared: Arc::default() })
    }

    /// Ready once `deadline` has passed.
    pub(crate) fn sleep_until(self: &Arc<Self>, deadline: Instant) -> Sleep {
        Sleep { timer: Arc::clone(self), deadline, id: None }
    }

    /// Has `waker` woken at `deadline`. Without a thread to be had, sleepers are woken at once and look at the clock.
    fn register(&self, id: Option<u64>, deadline: Instant, waker: &Waker) -> u64 {
        let mut state = self.shared.lock();
        if !state.running {
            let shared = Arc::clone(&self.shared);
            state.running = thread::Builder::new().name("kvferry-timer".into()).spawn(move || shared.run()).is_ok();
        }
        if !state.running {
            waker.wake_by_ref();
        }
        let known = id.and_then(|id| state.sleepers.iter_mut().find(|sleeper| sleeper.id == id));
        if let Some(sleeper) = known {
            sleeper.waker.clone_from(waker);
            return sleeper.id;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.sleepers.push(Sleeper { id, deadline, waker: waker.clone() });
        self.shared.changed.notify_one();
        id
    }

    fn forget(&self, id: u64) {
        self.shared.lock().sleepers.retain(|sleeper| sleeper.id != id);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut due = Vec::new();
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            due.extend(state.sleepers.extract_if(.., |sleeper| sleeper.deadline <= now).map(|sleeper| sleeper.waker));
            if !due.is_empty() {
                drop(state);
                due.drain(..).for_each(Waker::wake);
                state = self.lock();
                continue;
            }
            let next = state.sleepers.iter().map(|sleeper| sleeper.deadline).min();
            state = match next {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let timeout = deadline.saturating_duration_since(now);
                    self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Waits for a moment.
#[derive(Debug)]
pub(crate) struct Sleep {
    timer: Arc<Timer>,
    deadline: Instant,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        self.id = Some(self.timer.register(self.id, self.deadline, context.waker()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.timer.forget(id);
        }
    }
}
