//! Pushing a request's pages to a receiver, in one part or in several, under one commit.
//!
//! The hazards: a commit that overtakes a part; a part that fails while later parts are still being computed, and a
//! receiver that is not told; a receiver that aborts while the sender goes on writing. So the parts of a push are watched
//! from the first one on by a task of the engine, which alone ends the push: it cancels what is in flight, waits until that
//! is quiet, tells the receiver, and only then reports.

use std::{
    fmt,
    ops::Range,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use kv_plan::{PageId, Pages, Plan, Rank, Tally};
use transport_core::{BatchOptions, Group, SubmitError, Transfer, TransferError};

use crate::{
    engine::Inner,
    error::PushError,
    outcome::Shared,
    request::Request,
    session::Session,
    wire::{self, Commit, Message},
};

/// What a committed push reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// The request.
    pub request: Request,
    /// Bytes that were written at the receiver.
    pub bytes: u64,
    /// Slices that they were written in.
    pub slices: u64,
    /// The transport that carried them.
    pub transport: &'static str,
    /// From the first part to the commit's acknowledgement.
    pub elapsed: Duration,
}

type PushOutcome = Result<Pushed, PushError>;

/// A push whose commit was submitted: poll it, block on it, await it, or drop it, which detaches it.
///
/// # Cancel safety
/// Awaiting `&mut push` and dropping that future loses nothing.
pub struct Push {
    shared: Arc<PushState>,
}

impl Push {
    /// The outcome, once there is one.
    pub fn outcome(&self) -> Option<PushOutcome> {
        self.shared.outcome.get()
    }

    /// Blocks this thread until the push is over. Bounded by the transport's bounds on peer loss and stalls.
    ///
    /// # Errors
    /// How it failed.
    pub fn wait(&self) -> PushOutcome {
        self.shared.outcome.wait()
    }

    /// Blocks this thread until the push is over, or `timeout` has passed: `None`, and the push goes on.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<PushOutcome> {
        self.shared.outcome.wait_timeout(timeout)
    }

    /// Bytes of all parts that were handed to the network so far, and bytes of all parts.
    pub fn progress(&self) -> (u64, u64) {
        let parts = self.shared.lock();
        let running: u64 = parts.transfers.iter().map(|transfer| transfer.status().bytes_done).sum();
        (parts.delivered + running, parts.bytes)
    }

    /// Asks to end the push early. The receiver is told once nothing is in flight any more.
    pub fn cancel(&self) {
        self.shared.give_up("cancelled by the sender");
    }
}

impl Future for Push {
    type Output = PushOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PushOutcome> {
        let mut outcome = self.shared.outcome.clone();
        Pin::new(&mut outcome).poll(context)
    }
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push").field("request", &self.shared.request).finish_non_exhaustive()
    }
}

/// A push whose parts are still being added, layer by layer or chunk by chunk, while the cache is being computed.
///
/// Every (layer, page) of the request must be in exactly one part; the receiver checks that at the commit. Dropping it without
/// [`PushParts::commit`] gives the push up, and the receiver is told.
pub struct PushParts {
    shared: Arc<PushState>,
    plan: Plan,
    committed: bool,
}

impl PushParts {
    pub(crate) fn begin(inner: &Arc<Inner>, session: &Arc<Session>, request: Request) -> Result<Self, PushError> {
        let shared = Arc::new(PushState {
            inner: Arc::clone(inner),
            session: Arc::clone(session),
            request,
            started: Instant::now(),
            parts: Mutex::default(),
            outcome: Shared::new(),
        });
        session.pushes.insert(&shared)?;
        inner.spawn(drive(EndGuard(Arc::clone(&shared))));
        Ok(Self { shared, plan: Plan::default(), committed: false })
    }

    /// Sends all of the request in one part, with the commit. When that cannot be, it is as if the push had never begun.
    pub(crate) fn whole(
        inner: &Arc<Inner>,
        session: &Arc<Session>,
        request: Request,
        src: Pages<'_>,
        dst: Pages<'_>,
    ) -> Result<Push, PushError> {
        let mut plan = Plan::default();
        let planned = plan_part(session, request, None, src, dst, &mut plan)?;
        let mut push = Self::begin(inner, session, request)?;
        push.plan = plan;
        push.committed = true;
        if let Err(error) = push.submit(planned, true) {
            push.shared.withdraw();
            return Err(error);
        }
        Ok(Push { shared: Arc::clone(&push.shared) })
    }

    /// Sends the pages of some layers of the request: all layers of this rank where `layers` is `None`, else counted as
    /// [`Pairing::plan_layers`](kv_plan::Pairing::plan_layers) does. `src` and `dst` are the same tokens on the two sides; which of
    /// them move now [`Pages::tokens`] says, if not all. The pages must hold what they are to hold.
    ///
    /// # Errors
    /// [`PushError`]; nothing of this part was sent. After [`PushError::Submit`] with a full queue the part can be sent again
    /// when [`Peer::room`](crate::Peer::room) says so.
    pub fn send<'a>(
        &mut self,
        layers: Option<Range<u32>>,
        src: impl Into<Pages<'a>>,
        dst: impl Into<Pages<'a>>,
    ) -> Result<(), PushError> {
        let (session, request) = (&self.shared.session, self.shared.request);
        let tally = plan_part(session, request, layers, src.into(), dst.into(), &mut self.plan)?;
        self.submit(tally, false)
    }

    /// Sends the last part together with the commit. No part can follow.
    ///
    /// # Errors
    /// As for [`PushParts::send`]: nothing of this part was sent, and it can be tried again.
    pub fn send_and_commit<'a>(
        &mut self,
        layers: Option<Range<u32>>,
        src: impl Into<Pages<'a>>,
        dst: impl Into<Pages<'a>>,
    ) -> Result<Push, PushError> {
        let (session, request) = (&self.shared.session, self.shared.request);
        let tally = plan_part(session, request, layers, src.into(), dst.into(), &mut self.plan)?;
        self.submit(tally, true)?;
        self.committed = true;
        Ok(Push { shared: Arc::clone(&self.shared) })
    }

    /// Says that the request is complete. The receiver sees that after the last byte of every part.
    ///
    /// # Errors
    /// As for [`PushParts::send`]; it can be tried again.
    pub fn commit(&mut self) -> Result<Push, PushError> {
        self.send_and_commit(None, NO_PAGES, NO_PAGES)
    }

    /// Gives the push up; the receiver learns `reason` once nothing is in flight any more.
    pub fn fail(self, reason: &str) -> Push {
        self.shared.give_up(reason);
        Push { shared: Arc::clone(&self.shared) }
    }

    /// Submits what was planned.
    fn submit(&mut self, tally: Tally, commit: bool) -> Result<(), PushError> {
        let state = &self.shared;
        let (session, request) = (&state.session, state.request);
        let groups: Vec<Group<'_>> = self
            .plan
            .groups()
            .iter()
            .map(|group| Group {
                runs: bytemuck::cast_slice(self.plan.runs(group)),
                tables: session.table_pairs(group.tables.clone()),
            })
            .collect();
        let slices = self.plan.slice_count();

        let mut parts = state.lock();
        if parts.sealed {
            return Err(PushError::GivenUp { request, reason: "it was committed before; no part can follow".into() });
        }
        if let Some(error) = parts.ending.as_ref().or(parts.failed.as_ref()) {
            return Err(error.clone());
        }
        let mut total = parts.tally;
        total.add(tally);
        let encoded = Commit { request, tally: total }.encode();
        let after: Vec<&Transfer> = parts.transfers.iter().collect();
        let mut options = BatchOptions::new().with_label(request.id);
        if commit {
            options = options.with_notification(&encoded).with_after(&after);
        }
        let transfer =
            session.path.data.transport.batch_write(session.path.peer, groups.as_slice().into(), &options).map_err(
                |cause| match cause {
                    SubmitError::NotConnected { .. } => PushError::NotConnected { request, rank: session.rank() },
                    SubmitError::Closed => PushError::Closed,
                    cause => PushError::Submit { request, cause },
                },
            )?;
        parts.transfers.push(transfer);
        parts.bytes += self.plan.bytes();
        parts.slices += slices;
        parts.tally = total;
        parts.sealed |= commit;
        let waker = parts.waker.take();
        drop(parts);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

/// What a commit that carries no further part moves.
const NO_PAGES: &[PageId] = &[];

/// Plans a part; answers what the receiver will count.
fn plan_part(
    session: &Session,
    request: Request,
    layers: Option<Range<u32>>,
    src: Pages<'_>,
    dst: Pages<'_>,
    plan: &mut Plan,
) -> Result<Tally, PushError> {
    let dst = dst.agreed_with(&src);
    let planned = session.pairing.plan_layers(layers.clone(), src, dst.clone(), plan);
    let tally = planned.and_then(|()| session.pairing.tally(layers, dst));
    tally.map_err(|cause| PushError::Plan { request, cause })
}

impl Drop for PushParts {
    fn drop(&mut self) {
        if !self.committed {
            self.shared.give_up("dropped before its commit");
        }
    }
}

impl fmt::Debug for PushParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushParts").field("request", &self.shared.request).finish_non_exhaustive()
    }
}

/// What the handles of a push and the task that drives it share.
pub(crate) struct PushState {
    inner: Arc<Inner>,
    session: Arc<Session>,
    pub(crate) request: Request,
    started: Instant,
    parts: Mutex<Parts>,
    outcome: Shared<PushOutcome>,
}

#[derive(Default)]
struct Parts {
    /// What is in flight, the commit included.
    transfers: Vec<Transfer>,
    /// Bytes of the parts that were delivered.
    delivered: u64,
    /// Bytes of all parts.
    bytes: u64,
    slices: u64,
    tally: Tally,
    /// The commit was submitted: no further parts.
    sealed: bool,
    /// Why the push is to end early.
    ending: Option<PushError>,
    /// The receiver asked for the end and waits for an answer.
    answer: bool,
    /// The first part that failed.
    failed: Option<PushError>,
    /// The outcome is decided, and nothing is in flight.
    over: bool,
    /// Nothing was sent, and the receiver need not know that there was anything.
    silent: bool,
    waker: Option<Waker>,
}

impl PushState {
    /// Ends the push early because this side wants to.
    fn give_up(&self, reason: &str) {
        self.end(PushError::GivenUp { request: self.request, reason: reason.into() }, false);
    }

    /// Takes the push back, of which nothing was sent.
    fn withdraw(self: &Arc<Self>) {
        self.lock().silent = true;
        self.session.pushes.remove(self);
        self.give_up("it could not be submitted");
    }

    /// The receiver's rank.
    pub(crate) fn rank(&self) -> Rank {
        self.session.rank()
    }

    /// Ends the push because the connection to the receiver is gone. What is in flight fails by itself, and says more.
    pub(crate) fn lost(&self) {
        let waker = {
            let mut parts = self.lock();
            parts.ending.get_or_insert_with(|| PushError::NotConnected { request: self.request, rank: self.rank() });
            parts.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the push early because the receiver wants to; it is answered when nothing is in flight any more. Answers false
    /// when the push is over already.
    pub(crate) fn abort(&self, reason: &str) -> bool {
        let error =
            PushError::AbortedByReceiver { request: self.request, rank: self.session.rank(), reason: reason.into() };
        self.end(error, true)
    }

    fn end(&self, error: PushError, answer: bool) -> bool {
        let waker = {
            let mut parts = self.lock();
            if parts.over {
                return false;
            }
            parts.answer |= answer;
            parts.ending.get_or_insert(error);
            parts.transfers.iter().for_each(Transfer::cancel);
            parts.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Ready when the push is over and nothing of it is in flight; with what the receiver is to be told.
    fn poll(&self, context: &mut Context<'_>) -> Poll<(PushOutcome, Tell)> {
        let mut parts = self.lock();
        let parts = &mut *parts;
        parts.waker = Some(context.waker().clone());
        let (mut delivered, mut failed) = (0, None);
        let ending = parts.ending.is_some();
        parts.transfers.retain(|transfer| match transfer.poll_outcome(context) {
            Poll::Pending => true,
            Poll::Ready(Ok(done)) => {
                delivered += done.bytes;
                false
            }
            Poll::Ready(Err(cause)) => {
                // Consequences say less than their cause, which is in the list too, or in `ending`.
                let consequence =
                    matches!(cause, TransferError::Dependency { .. }) || (ending && cause == TransferError::Cancelled);
                if !consequence {
                    failed.get_or_insert(cause);
                }
                false
            }
        });
        parts.delivered += delivered;
        if let Some(cause) = failed {
            let error = PushError::Transfer { request: self.request, rank: self.session.rank(), cause };
            parts.failed.get_or_insert(error);
            parts.transfers.iter().for_each(Transfer::cancel);
        }
        if !parts.transfers.is_empty() {
            return Poll::Pending;
        }
        // A commit that was delivered before the end was asked for is a success.
        let complete = parts.sealed && parts.delivered == parts.bytes && parts.failed.is_none();
        let outcome = if complete {
            Ok(Pushed {
                request: self.request,
                bytes: parts.bytes,
                slices: parts.slices,
                transport: self.session.path.data.name(),
                elapsed: self.started.elapsed(),
            })
        } else if let Some(error) = parts.failed.clone().or_else(|| parts.ending.clone()) {
            Err(error)
        } else {
            return Poll::Pending;
        };
        // No part can come in between: `submit` looks at these under the same lock.
        parts
            .ending
            .get_or_insert_with(|| PushError::NotConnected { request: self.request, rank: self.session.rank() });
        parts.over = true;
        let tell = match &outcome {
            _ if parts.answer => Tell::Drained,
            Err(error) if !parts.silent => Tell::Failed(error.to_string()),
            _ => Tell::Nothing,
        };
        Poll::Ready((outcome, tell))
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the receiver is to be told of the end of a push.
enum Tell {
    /// The commit has told it.
    Nothing,
    /// It waits for this.
    Drained,
    /// Why the push failed.
    Failed(String),
}

/// Sets an outcome should the engine's runtime end before the push does.
struct EndGuard(Arc<PushState>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.outcome.set(Err(PushError::Closed));
        self.0.session.pushes.remove(&self.0);
    }
}

async fn drive(guard: EndGuard) {
    let state = Arc::clone(&guard.0);
    let (outcome, tell) = std::future::poll_fn(|context| state.poll(context)).await;
    let request = state.request;
    // Removed before the receiver is told: an abort that comes later finds nothing in flight, and says so.
    state.session.pushes.remove(&state);
    let message = match tell {
        Tell::Drained => Some(Message::Drained { request }),
        Tell::Failed(reason) => {
            // The receiver takes the pages back when it hears this.
            state.session.pushes.refuse(request);
            Some(Message::Failed { request, reason: wire::reason(&reason) })
        }
        Tell::Nothing => None,
    };
    if let Some(message) = message {
        // A peer that cannot be told is cut off, and knows the failure from that.
        if state.session.send(&message).await.is_err() {
            state.inner.lose(&state.session, "it could not be told that a push had failed").await;
        }
    }
    state.outcome.set(outcome);
    drop(guard);
}
