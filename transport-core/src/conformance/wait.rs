//! Waiting without a runtime, and never for ever.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

/// Runs a future on this thread until it is ready.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let in_twelve_days = Instant::now() + Duration::from_secs(1 << 20);
    poll_until(future, in_twelve_days).expect("nothing in a test takes twelve days")
}

/// Runs a future on this thread until it is ready or the deadline has passed.
pub(super) fn poll_until<F: Future>(future: F, deadline: Instant) -> Option<F::Output> {
    let parker = Arc::new(Parker { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&parker));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        while !parker.woken.swap(false, Ordering::AcqRel) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            thread::park_timeout(left);
        }
    }
}

struct Parker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// A waker that counts how often it was woken.
#[derive(Debug, Default)]
pub(super) struct WakeCount(AtomicUsize);

impl WakeCount {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Looks every millisecond until `done` or the deadline; answers which.
pub(super) fn look_until(deadline: Instant, mut done: impl FnMut() -> bool) -> bool {
    while !done() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}
