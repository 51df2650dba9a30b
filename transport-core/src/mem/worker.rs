//! The thread that moves the bytes of one transport.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

use super::{
    host::{Host, phase},
    outgoing::{Outgoing, Turn},
    peer::End,
};
use crate::error::TransferError;

/// Wakes the thread.
#[derive(Debug, Default)]
pub(super) struct Signal {
    set: AtomicBool,
    thread: OnceLock<Thread>,
    end: Mutex<Waiters>,
}

/// Who waits for the thread's end.
#[derive(Debug, Default)]
struct Waiters {
    ended: bool,
    wakers: Vec<Waker>,
}

impl Signal {
    pub(super) fn wake(&self) {
        self.set.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Ready once the thread has ended.
    pub(super) fn poll_end(&self, context: &Context<'_>) -> Poll<()> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.ended {
            return Poll::Ready(());
        }
        if !end.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            end.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn announce_end(&self) {
        let wakers = {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            end.ended = true;
            std::mem::take(&mut end.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn wait(&self, deadline: Option<Instant>) {
        while !self.set.swap(false, Ordering::AcqRel) {
            match deadline {
                None => thread::park(),
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    Some(timeout) if !timeout.is_zero() => thread::park_timeout(timeout),
                    _ => return,
                },
            }
        }
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Self::wake(self);
    }
}

/// Starts the thread. Without one to be had the transport is closed from the start.
pub(super) fn start(host: &Arc<Host>) {
    let worker = Arc::clone(host);
    let name = host.name();
    if let Err(error) = thread::Builder::new().name(name).spawn(move || run(&worker)) {
        tracing::error!(%error, "the in-memory transport has no thread and is closed");
        host.close_inbox();
        host.advance(phase::CLOSED);
        host.events.close();
        host.signal.announce_end();
    }
}

fn run(host: &Host) {
    let _ = host.signal.thread.set(thread::current());
    let waker = Waker::from(Arc::clone(&host.signal));
    let mut context = Context::from_waker(&waker);
    let mut active = Vec::new();
    loop {
        host.take_posted(&mut active);
        if host.phase() >= phase::ABORTING {
            active.drain(..).for_each(|batch: Outgoing| batch.into_driver().finish(Err(TransferError::Cancelled)));
        }
        let (progress, deadline) = turns(&mut active, &mut context);
        if active.is_empty() && !host.is_open() && host.close_inbox() {
            break;
        }
        if progress {
            if !host.config.pace.is_zero() {
                thread::sleep(host.config.pace);
            }
        } else {
            host.signal.wait(deadline);
        }
    }
    // The order of docs/safety.md: nothing is in flight any more; the gates close, the events end, and only then are
    // those woken who wait for the end.
    for peer in host.peers() {
        peer.finish(End::Closed("the peer's transport is closed"));
    }
    host.advance(phase::CLOSED);
    host.events.close();
    host.wake_links();
    host.signal.announce_end();
}

/// One turn for each batch: whether one of them can go on at once, and else until when to wait.
fn turns(active: &mut Vec<Outgoing>, context: &mut Context<'_>) -> (bool, Option<Instant>) {
    let (mut progress, mut deadline) = (false, None::<Instant>);
    let mut place = 0;
    while let Some(batch) = active.get_mut(place) {
        match batch.turn(context) {
            Turn::Again => progress = true,
            Turn::Wait(until) => deadline = deadline.into_iter().chain(until).min(),
            Turn::End(result) => {
                active.swap_remove(place).into_driver().finish(result);
                continue;
            }
        }
        place += 1;
    }
    (progress, deadline)
}
