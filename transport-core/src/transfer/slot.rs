//! Slots: the state that a transfer's two parties share, and the pool that keeps them for later transfers.

use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use futures_util::task::AtomicWaker;

use super::{Delivered, Outcome, Progress, State, Status, Times, Transfer, Waited};
use crate::{
    batch::{Batch, OwnedBatch},
    error::TransferError,
    id::RegionId,
    region::RegionRef,
};

/// What a transport has to carry: handed from the slot to the driver, and back when the transfer is over, so that its
/// buffers serve again.
#[derive(Debug, Default)]
pub(super) struct Submission {
    pub(super) batch: OwnedBatch,
    /// The local regions of the batch, ordered by id: while they are here the memory stays registered (C7).
    pub(super) holds: Vec<RegionRef>,
    pub(super) notification: Vec<u8>,
    pub(super) has_notification: bool,
    pub(super) after: Vec<Party>,
}

impl Submission {
    pub(super) fn hold(&self, id: RegionId) -> Option<&RegionRef> {
        let place = self.holds.binary_search_by_key(&id, RegionRef::id).ok()?;
        self.holds.get(place)
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.holds.clear();
        self.notification.clear();
        self.has_notification = false;
        self.after.clear();
    }
}

/// What a new transfer starts with.
pub(crate) struct New<'a> {
    pub(crate) batch: Batch<'a>,
    pub(crate) bytes_total: u64,
    pub(crate) notification: Option<&'a [u8]>,
    pub(crate) after: &'a [&'a Transfer],
    pub(crate) label: u64,
}

pub(super) struct Slot {
    /// How many parties hold the slot: the user's handle, the driver, and transfers that come after it.
    parties: AtomicUsize,
    done: AtomicU64,
    cancelled: AtomicBool,
    /// The driver's task, woken by `cancel`.
    driver: AtomicWaker,
    state: Mutex<SlotState>,
    terminal: Condvar,
}

struct SlotState {
    outcome: Option<Result<(), TransferError>>,
    bytes_total: u64,
    label: u64,
    times: Times,
    user: Option<Waker>,
    /// Threads that are parked until the transfer is over.
    parked: usize,
    /// The thread that does the transport's work until the transfer is over.
    driving: Option<ThreadId>,
    /// Drivers of transfers that come after this one.
    followers: Vec<Waker>,
    submission: Option<Box<Submission>>,
}

impl Slot {
    fn new() -> Self {
        let times = Times { queued: Instant::now(), posted: None, last_byte: None, finished: None };
        Self {
            parties: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            driver: AtomicWaker::new(),
            state: Mutex::new(SlotState {
                outcome: None,
                bytes_total: 0,
                label: 0,
                times,
                user: None,
                parked: 0,
                driving: None,
                followers: Vec::new(),
                submission: Some(Box::default()),
            }),
            terminal: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> Status {
        self.lock().status(self.done.load(Ordering::Relaxed))
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.lock().outcome()
    }

    fn is_over(&self) -> bool {
        self.lock().outcome.is_some()
    }

    /// Parks this thread until the transfer is over.
    fn wait(&self) -> Outcome {
        let mut state = self.lock();
        state.parked += 1;
        loop {
            if let Some(outcome) = state.outcome() {
                state.parked -= 1;
                return outcome;
            }
            state = self.terminal.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wait_timeout(&self, timeout: Duration) -> Waited {
        let mut state = self.lock();
        state.parked += 1;
        let (mut state, _) = self
            .terminal
            .wait_timeout_while(state, timeout, |state| state.outcome.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.parked -= 1;
        match state.outcome() {
            Some(outcome) => Waited::Finished(outcome),
            None => Waited::StillInFlight(state.status(self.done.load(Ordering::Relaxed))),
        }
    }

    /// Notes that this thread does the transport's work until the transfer is over; `None` when it is, or when another
    /// thread does.
    fn begin_driving(&self) -> Option<Driving<'_>> {
        let mut state = self.lock();
        if state.outcome.is_some() || state.driving.is_some() {
            return None;
        }
        state.driving = Some(thread::current().id());
        Some(Driving(self))
    }

    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.driver.wake();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(super) fn register_driver(&self, waker: &Waker) {
        self.driver.register(waker);
    }

    pub(super) fn poll_outcome(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.lock();
        if let Some(outcome) = state.outcome() {
            return Poll::Ready(outcome);
        }
        match &mut state.user {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    pub(super) fn poll_follow(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.lock();
        if let Some(outcome) = state.outcome() {
            return Poll::Ready(outcome);
        }
        if !state.followers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.followers.push(context.waker().clone());
        }
        Poll::Pending
    }

    pub(super) fn add_done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(super) fn total(&self) -> u64 {
        self.lock().bytes_total
    }

    pub(super) fn label(&self) -> u64 {
        self.lock().label
    }

    pub(super) fn mark(&self, mark: impl FnOnce(&mut Times)) {
        mark(&mut self.lock().times);
    }

    pub(super) fn take_submission(&self) -> Box<Submission> {
        self.lock().submission.take().unwrap_or_default()
    }

    /// Ends the transfer; answers whether another thread drives it, which then has to be told. Only the driver calls
    /// this, and it is consumed by it, so there is one outcome (C2).
    fn finish(&self, result: Result<(), TransferError>, mut submission: Box<Submission>) -> bool {
        // The pool that keeps the slot may belong to what the waker belongs to: do not let them keep each other alive.
        drop(self.driver.take());
        let (user, followers, parked, driven) = {
            let mut state = self.lock();
            // At one with the outcome: whoever saw it finds the memory released, and whoever got the memory back finds the
            // transfer over.
            submission.clear();
            if result.is_ok() {
                self.done.store(state.bytes_total, Ordering::Relaxed);
            }
            state.times.finished = Some(Instant::now());
            state.outcome = Some(result);
            state.submission = Some(submission);
            let driven = state.driving.is_some_and(|driving| driving != thread::current().id());
            (state.user.take(), std::mem::take(&mut state.followers), state.parked > 0, driven)
        };
        // It is a system call, also when there is nobody.
        if parked {
            self.terminal.notify_all();
        }
        if let Some(user) = user {
            user.wake();
        }
        followers.into_iter().for_each(Waker::wake);
        driven
    }
}

/// A thread that does the transport's work until a transfer is over.
struct Driving<'a>(&'a Slot);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.0.lock().driving = None;
    }
}

impl SlotState {
    fn outcome(&self) -> Option<Outcome> {
        self.outcome
            .as_ref()
            .map(|result| result.clone().map(|()| Delivered { bytes: self.bytes_total, times: self.times }))
    }

    fn status(&self, bytes_done: u64) -> Status {
        let state = match &self.outcome {
            None => State::InFlight,
            Some(Ok(())) => State::Delivered,
            Some(Err(TransferError::Cancelled)) => State::Cancelled,
            Some(Err(_)) => State::Failed,
        };
        Status { state, bytes_done, bytes_total: self.bytes_total, label: self.label, times: self.times }
    }
}

/// One holder of a slot. The last one to go puts the slot back into its pool.
pub(super) struct Party {
    slot: Arc<Slot>,
    pool: Arc<TransferPool>,
}

impl Party {
    pub(super) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Blocks this thread until the transfer is over.
    pub(super) fn wait(&self) -> Outcome {
        self.drive(None);
        self.slot.wait()
    }

    /// Blocks this thread until the transfer is over or `timeout` has passed.
    pub(super) fn wait_timeout(&self, timeout: Duration) -> Waited {
        if timeout.is_zero() || self.pool.progress.get().is_none() {
            return self.slot.wait_timeout(timeout);
        }
        // A time that the clock cannot tell is for ever.
        let Some(deadline) = Instant::now().checked_add(timeout) else { return Waited::Finished(self.wait()) };
        self.drive(Some(deadline));
        self.slot.wait_timeout(deadline.saturating_duration_since(Instant::now()))
    }

    /// Lets the transport make progress on this thread, if it can; may come back before the transfer is over.
    fn drive(&self, deadline: Option<Instant>) {
        let Some(progress) = self.pool.progress() else { return };
        let Some(_driving) = self.slot.begin_driving() else { return };
        progress.drive(&|| self.slot.is_over(), deadline);
    }

    /// Ends the transfer.
    pub(super) fn finish(&self, result: Result<(), TransferError>, submission: Box<Submission>) {
        if self.slot.finish(result, submission)
            && let Some(progress) = self.pool.progress()
        {
            progress.nudge();
        }
    }

    fn another(&self) -> Self {
        self.slot.parties.fetch_add(1, Ordering::Relaxed);
        Self { slot: Arc::clone(&self.slot), pool: Arc::clone(&self.pool) }
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        if self.slot.parties.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.pool.put(Arc::clone(&self.slot));
        }
    }
}

impl fmt::Debug for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Party({:?})", self.slot.status().state)
    }
}

/// Slots that wait to be used, so that a submission allocates nothing in the steady state (C19).
///
/// More are made when all are in use, which happens when handles of finished transfers are kept; at most as many as were
/// preallocated are kept when they come back.
pub struct TransferPool {
    free: Mutex<Vec<Arc<Slot>>>,
    keep: usize,
    progress: OnceLock<Weak<dyn Progress>>,
}

impl TransferPool {
    /// A pool with `slots` slots made beforehand.
    pub fn new(slots: usize) -> Arc<Self> {
        let free = Mutex::new((0..slots).map(|_| Arc::new(Slot::new())).collect());
        Arc::new(Self { free, keep: slots, progress: OnceLock::new() })
    }

    /// Lets threads that block on a transfer of this pool do the transport's work meanwhile, for as long as `progress`
    /// lives. The first call counts.
    pub fn set_progress(&self, progress: Weak<dyn Progress>) {
        // A second call finds it set, and changes nothing.
        let _ = self.progress.set(progress);
    }

    fn progress(&self) -> Option<Arc<dyn Progress>> {
        self.progress.get()?.upgrade()
    }

    /// Takes a slot for a transfer. `hold` checks the batch and collects the regions that it reads, ordered by id; when it
    /// fails the slot goes back as if nothing had been.
    pub(super) fn take<E>(
        pool: &Arc<Self>,
        new: New<'_>,
        hold: impl FnOnce(&mut Vec<RegionRef>) -> Result<(), E>,
    ) -> Result<(Party, Party), E> {
        let slot = pool.lock().pop().unwrap_or_else(|| Arc::new(Slot::new()));
        let mut submission = slot.take_submission();
        if let Err(error) = hold(&mut submission.holds) {
            submission.clear();
            slot.lock().submission = Some(submission);
            pool.put(slot);
            return Err(error);
        }
        submission.batch.copy_from(new.batch);
        submission.has_notification = new.notification.is_some();
        submission.notification.extend_from_slice(new.notification.unwrap_or_default());
        submission.after.extend(new.after.iter().map(|transfer| transfer.party.another()));
        slot.parties.store(2, Ordering::Relaxed);
        slot.done.store(0, Ordering::Relaxed);
        slot.cancelled.store(false, Ordering::Relaxed);
        {
            let mut state = slot.lock();
            state.outcome = None;
            state.bytes_total = new.bytes_total;
            state.label = new.label;
            state.times = Times { queued: Instant::now(), posted: None, last_byte: None, finished: None };
            state.user = None;
            state.submission = Some(submission);
        }
        let party = || Party { slot: Arc::clone(&slot), pool: Arc::clone(pool) };
        Ok((party(), party()))
    }

    fn put(&self, slot: Arc<Slot>) {
        let mut free = self.lock();
        if free.len() < self.keep {
            free.push(slot);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TransferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferPool").field("free", &self.lock().len()).field("keep", &self.keep).finish()
    }
}
