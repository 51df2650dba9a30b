//! Requests that this side expects, and how they end.
//!
//! The hazards: a request that counts as complete while a sender's part is missing; the same sender counted twice; a late
//! word of an earlier attempt; pages that are used again while a sender still writes. So a request is kept by (request,
//! attempt) with the senders that have something to send, each commits once for exactly its part, and a failure is reported
//! only after every other sender has drained or is cut off.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use kv_plan::{End, PageId, Pages, PlanError, Pool, Rank, Tally};

use crate::{
    engine::Inner,
    error::{ExpectError, ReceiveError},
    outcome::Shared,
    request::Request,
    session::Session,
    transports::Link,
    wire::{self, Commit, Message},
};

/// What a complete request reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The request.
    pub request: Request,
    /// Bytes that all senders wrote.
    pub bytes: u64,
    /// Each sender and the bytes that it wrote, ordered by rank.
    pub senders: Vec<(Rank, u64)>,
    /// From the call of `expect` to the last commit.
    pub elapsed: Duration,
}

type ReceiveOutcome = Result<Received, ReceiveError>;

/// A request that is expected: poll it, block on it, await it, or abort it.
///
/// The outcome comes after the last byte of every sender, or, for a failure, when no byte of the request can land any more.
/// Dropping it aborts the request in the background; use [`Incoming::abort`] to know when the pages are free.
///
/// # Cancel safety
/// Awaiting `&mut incoming` and dropping that future loses nothing.
pub struct Incoming {
    inner: Arc<Inner>,
    entry: Arc<Entry>,
}

impl Incoming {
    /// The request.
    pub fn request(&self) -> Request {
        self.entry.request
    }

    /// The outcome, once there is one.
    pub fn outcome(&self) -> Option<ReceiveOutcome> {
        self.entry.outcome.get()
    }

    /// Why the request is going to fail, as soon as that is known: before [`Incoming::outcome`], which waits until all senders
    /// are fenced. The pages must not be used again before the outcome.
    pub fn failing(&self) -> Option<ReceiveError> {
        self.entry.lock().failing.clone()
    }

    /// Blocks this thread until the request is over. Bounded by `EngineConfig::request_timeout` and `drain_timeout`.
    ///
    /// # Errors
    /// How it failed.
    pub fn wait(&self) -> ReceiveOutcome {
        self.entry.outcome.wait()
    }

    /// Blocks this thread until the request is over, or `timeout` has passed: `None`, and it is still expected.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<ReceiveOutcome> {
        self.entry.outcome.wait_timeout(timeout)
    }

    /// Aborts the request: tells its senders, and returns when all of them have drained or are cut off, so that the pages may be
    /// used again. Answers `Ok` when the request was complete before that.
    ///
    /// # Errors
    /// How the request ended, [`ReceiveError::Aborted`] as a rule.
    ///
    /// # Cancel safety
    /// Once polled the abort goes on by itself.
    pub async fn abort(self, reason: &str) -> ReceiveOutcome {
        let error = ReceiveError::Aborted { request: self.entry.request, reason: reason.into() };
        self.inner.incoming.fail(&self.inner, &self.entry, error);
        self.entry.outcome.clone().await
    }
}

impl Future for Incoming {
    type Output = ReceiveOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ReceiveOutcome> {
        let mut outcome = self.entry.outcome.clone();
        Pin::new(&mut outcome).poll(context)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let error = ReceiveError::Aborted { request: self.entry.request, reason: "the receiver dropped it".into() };
        self.inner.incoming.fail(&self.inner, &self.entry, error);
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("request", &self.entry.request).finish_non_exhaustive()
    }
}

/// One expected request.
pub(crate) struct Entry {
    request: Request,
    pages: Vec<(Pool, PageId)>,
    started: Instant,
    outcome: Shared<ReceiveOutcome>,
    state: Mutex<EntryState>,
    /// Told when a sender's state changes while the request is failing.
    changed: tokio::sync::Notify,
}

struct EntryState {
    /// Every sender has committed: the request cannot fail any more.
    complete: bool,
    senders: HashMap<Link, Sender>,
    failing: Option<ReceiveError>,
}

struct Sender {
    session: Arc<Session>,
    expected: Tally,
    state: SenderState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SenderState {
    /// It may write.
    Writing,
    /// All its bytes are here.
    Committed,
    /// It has drained, failed or is gone: it writes no more.
    Quiet,
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quiet(&self, link: Link) {
        if let Some(sender) = self.lock().senders.get_mut(&link)
            && sender.state == SenderState::Writing
        {
            sender.state = SenderState::Quiet;
        }
        self.changed.notify_one();
    }
}

/// A word about a request that is not expected yet, and when it came.
struct EarlyWord {
    request: Request,
    link: Link,
    came: Instant,
    word: Early,
}

enum Early {
    Commit(Commit),
    Failed(String),
}

/// The requests that this side expects.
pub(crate) struct IncomingTable {
    max_early: usize,
    max_failed: usize,
    state: Mutex<TableState>,
    /// Commits and failures that named nothing expected and were dropped.
    ignored: AtomicU64,
}

#[derive(Default)]
struct TableState {
    closed: bool,
    active: HashMap<Request, Arc<Entry>>,
    /// The pages that active requests will fill.
    pages: HashMap<(Pool, PageId), Request>,
    early: VecDeque<EarlyWord>,
    /// Attempts that failed, so that a late word of one is not taken for a new attempt.
    failed: HashSet<Request>,
    failed_order: VecDeque<Request>,
}

impl IncomingTable {
    pub(crate) fn new(max_early: usize, max_failed: usize) -> Self {
        Self { max_early, max_failed, state: Mutex::default(), ignored: AtomicU64::new(0) }
    }

    pub(crate) fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }

    /// Expects a request from these senders.
    pub(crate) fn expect(
        &self,
        inner: &Arc<Inner>,
        request: Request,
        pages: &Pages<'_>,
        senders: Vec<Arc<Session>>,
    ) -> Result<Incoming, ExpectError> {
        let senders: Result<HashMap<Link, Sender>, PlanError> = senders
            .into_iter()
            .map(|session| {
                // A pool that is forgotten here would be missed by nobody.
                if let Some(pool) = session.pairing.pools().find(|pool| pages.list(*pool).is_none()) {
                    return Err(PlanError::NoList { end: End::Decode, rank: session.pairing.decode_rank(), pool });
                }
                let expected = session.pairing.tally(None, pages.clone())?;
                Ok((session.link(), Sender { session, expected, state: SenderState::Writing }))
            })
            .collect();
        let senders = senders.map_err(|cause| ExpectError::Pages { request, cause })?;
        let pages = listed(inner, pages);
        let entry = Arc::new(Entry {
            request,
            pages: pages.clone(),
            started: Instant::now(),
            outcome: Shared::new(),
            state: Mutex::new(EntryState { complete: false, senders, failing: None }),
            changed: tokio::sync::Notify::new(),
        });
        let early: Vec<(Link, Early)> = {
            let mut state = self.lock();
            if state.closed {
                return Err(ExpectError::Closed);
            }
            if state.failed.contains(&request) {
                return Err(ExpectError::Failed { request });
            }
            if state.active.contains_key(&request) {
                return Err(ExpectError::Duplicate { request });
            }
            if let Some(((_, page), other)) = pages.iter().find_map(|page| Some((*page, *state.pages.get(page)?))) {
                return Err(ExpectError::PageInUse { request, page, other });
            }
            state.pages.extend(pages.iter().map(|page| (*page, request)));
            state.active.insert(request, Arc::clone(&entry));
            let (mine, others): (VecDeque<_>, _) =
                std::mem::take(&mut state.early).into_iter().partition(|early| early.request == request);
            state.early = others;
            // What is older than a request may be belongs to an earlier use of its id.
            let timeout = inner.config.request_timeout;
            mine.into_iter()
                .filter(|early| early.came.elapsed() < timeout)
                .map(|early| (early.link, early.word))
                .collect()
        };
        for (link, word) in early {
            match word {
                Early::Commit(commit) => self.committed(inner, link, commit),
                Early::Failed(reason) => self.failed_by_sender(inner, link, request, reason),
            }
        }
        // With no sender that has anything to send, the request is complete as it is.
        self.check_complete(&entry);
        let timer = Arc::clone(&entry);
        let engine = Arc::clone(inner);
        inner.spawn(async move {
            let timeout = engine.config.request_timeout;
            if tokio::time::timeout(timeout, timer.outcome.clone()).await.is_err() {
                let missing = {
                    let state = timer.lock();
                    names(state.senders.values().filter(|s| s.state == SenderState::Writing).map(|s| s.session.rank()))
                };
                engine.incoming.fail(&engine, &timer, ReceiveError::TimedOut { request, timeout, missing });
            }
        });
        // A sender that was lost before the request was in the table: whoever lost it did not find the request.
        let sessions: Vec<Arc<Session>> =
            entry.lock().senders.values().map(|sender| Arc::clone(&sender.session)).collect();
        for session in sessions.into_iter().filter(|session| !inner.is_connected(session.link())) {
            let inner = Arc::clone(inner);
            inner.clone().spawn(async move { inner.lose(&session, "the connection ended").await });
        }
        Ok(Incoming { inner: Arc::clone(inner), entry })
    }

    /// A sender's part is complete.
    pub(crate) fn committed(&self, inner: &Arc<Inner>, link: Link, commit: Commit) {
        let request = commit.request;
        let Some(entry) = self.find(request, link, || Early::Commit(commit)) else { return };
        let wrong = {
            let mut state = entry.lock();
            let Some(sender) = state.senders.get_mut(&link).filter(|s| s.state == SenderState::Writing) else {
                self.ignored.fetch_add(1, Ordering::Relaxed);
                return;
            };
            if sender.expected == commit.tally {
                sender.state = SenderState::Committed;
                None
            } else {
                sender.state = SenderState::Quiet;
                let rank = sender.session.rank();
                Some(ReceiveError::Incomplete {
                    request,
                    rank,
                    expected: sender.expected.bytes,
                    got: commit.tally.bytes,
                })
            }
        };
        entry.changed.notify_one();
        match wrong {
            Some(error) => self.fail(inner, &entry, error),
            None => self.check_complete(&entry),
        }
    }

    /// A sender said that it failed; it is quiet.
    pub(crate) fn failed_by_sender(&self, inner: &Arc<Inner>, link: Link, request: Request, reason: String) {
        let Some(entry) = self.find(request, link, || Early::Failed(reason.clone())) else { return };
        let rank = entry.lock().senders.get(&link).map(|sender| sender.session.rank());
        match rank {
            Some(rank) => {
                entry.quiet(link);
                self.fail(inner, &entry, ReceiveError::SenderFailed { request, rank, reason });
            }
            None => drop(self.ignored.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// A sender confirmed that it has drained an aborted request.
    pub(crate) fn drained(&self, link: Link, request: Request) {
        if let Some(entry) = self.lock().active.get(&request).cloned() {
            entry.quiet(link);
        }
    }

    /// The connection to a sender is gone, and no byte of it lands any more.
    pub(crate) fn sender_lost(&self, inner: &Arc<Inner>, link: Link, reason: &str) {
        let entries: Vec<_> = {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            state.early.retain(|early| early.link != link);
            state.active.values().cloned().collect()
        };
        for entry in entries {
            let rank = {
                let state = entry.lock();
                state
                    .senders
                    .get(&link)
                    .filter(|sender| sender.state == SenderState::Writing)
                    .map(|sender| sender.session.rank())
            };
            if let Some(rank) = rank {
                entry.quiet(link);
                let (request, reason) = (entry.request, reason.to_owned());
                self.fail(inner, &entry, ReceiveError::SenderLost { request, rank, reason });
            }
        }
    }

    /// Fails a request, unless it is over or failing already: fences all its senders, then reports.
    fn fail(&self, inner: &Arc<Inner>, entry: &Arc<Entry>, error: ReceiveError) {
        {
            let mut state = entry.lock();
            if state.failing.is_some() || state.complete || entry.outcome.get().is_some() {
                return;
            }
            state.failing = Some(error);
        }
        inner.spawn(fence(Arc::clone(inner), Arc::clone(entry)));
    }

    fn check_complete(&self, entry: &Arc<Entry>) {
        let received = {
            let mut state = entry.lock();
            let complete = state.senders.values().all(|sender| sender.state == SenderState::Committed);
            if state.failing.is_some() || state.complete || !complete {
                return;
            }
            state.complete = true;
            let mut senders: Vec<_> =
                state.senders.values().map(|sender| (sender.session.rank(), sender.expected.bytes)).collect();
            senders.sort();
            Received {
                request: entry.request,
                bytes: senders.iter().map(|(_, bytes)| bytes).sum(),
                senders,
                elapsed: entry.started.elapsed(),
            }
        };
        self.remove(entry);
        entry.outcome.set(Ok(received));
    }

    fn remove(&self, entry: &Arc<Entry>) {
        let mut state = self.lock();
        if state.active.get(&entry.request).is_some_and(|active| Arc::ptr_eq(active, entry)) {
            state.active.remove(&entry.request);
            for page in &entry.pages {
                state.pages.remove(page);
            }
        }
    }

    /// Remembers that an attempt has failed; the oldest is forgotten first.
    fn mark_failed(&self, request: Request) {
        let mut state = self.lock();
        if state.failed.insert(request) {
            state.failed_order.push_back(request);
            if state.failed_order.len() > self.max_failed
                && let Some(oldest) = state.failed_order.pop_front()
            {
                state.failed.remove(&oldest);
            }
        }
    }

    /// The attempts that have failed, as far as they are remembered.
    pub(crate) fn failed(&self) -> Vec<Request> {
        self.lock().failed_order.iter().copied().collect()
    }

    /// The expected request, or the word is kept for when it will be expected.
    fn find(&self, request: Request, link: Link, early: impl FnOnce() -> Early) -> Option<Arc<Entry>> {
        let mut state = self.lock();
        if let Some(entry) = state.active.get(&request) {
            return Some(Arc::clone(entry));
        }
        if state.failed.contains(&request) || state.closed {
            self.ignored.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        // A peer that says too much pushes out its own words, not those of others.
        let mut own = state.early.iter().enumerate().filter(|(_, early)| early.link == link).map(|(place, _)| place);
        if let Some(oldest) = own.next()
            && own.count() + 1 >= self.max_early
        {
            state.early.remove(oldest);
            self.ignored.fetch_add(1, Ordering::Relaxed);
        }
        state.early.push_back(EarlyWord { request, link, came: Instant::now(), word: early() });
        None
    }

    /// Takes no more requests in: the engine is closing. What is expected may still complete, but connections that end now
    /// are no news.
    pub(crate) fn begin_close(&self) {
        self.lock().closed = true;
    }

    /// Ends everything: the engine closes, and its transport is quiet.
    pub(crate) fn close(&self) {
        let entries: Vec<_> = {
            let mut state = self.lock();
            state.closed = true;
            state.early.clear();
            state.pages.clear();
            state.active.drain().map(|(_, entry)| entry).collect()
        };
        for entry in entries {
            entry.outcome.set(Err(ReceiveError::Closed));
        }
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stops all senders of a failing request that may still write, and reports when they are quiet.
async fn fence(inner: Arc<Inner>, entry: Arc<Entry>) {
    let error = entry.lock().failing.clone().unwrap_or(ReceiveError::Closed);
    let reason = wire::reason(&error.to_string());
    let now = tokio::time::Instant::now();
    let deadline = now.checked_add(inner.config.drain_timeout).unwrap_or_else(|| now + Duration::from_secs(1 << 30));
    // From here on the attempt is known as failed, also to a sender that connects anew.
    inner.incoming.mark_failed(entry.request);
    // Everybody is told, also those who have nothing in flight now: what they push later must not land. Side by side, so that a
    // peer that does not listen holds up no other; who cannot be told in time is cut off below.
    for session in inner.sessions() {
        let (request, reason) = (entry.request, reason.clone());
        inner.spawn(async move {
            let _ = session.send(&Message::Abort { request, reason }).await;
        });
    }
    loop {
        let writing: Vec<Arc<Session>> = {
            let state = entry.lock();
            let writing = state.senders.values().filter(|sender| sender.state == SenderState::Writing);
            writing.map(|sender| Arc::clone(&sender.session)).collect()
        };
        if writing.is_empty() {
            break;
        }
        if tokio::time::timeout_at(deadline, entry.changed.notified()).await.is_err() {
            for session in writing {
                tracing::warn!(request = %entry.request, rank = %session.rank(), "a sender did not drain in time; cutting it off");
                inner.lose(&session, "it did not drain an aborted request in time").await;
                entry.quiet(session.link());
            }
        }
    }
    inner.incoming.remove(&entry);
    entry.outcome.set(Err(error));
}

/// The pages of all pools, each under its pool's name.
fn listed(inner: &Inner, pages: &Pages<'_>) -> Vec<(Pool, PageId)> {
    let pools = inner.metadata().layout.pools();
    let lists = pools.into_iter().filter_map(|pool| pages.list(pool));
    lists.flat_map(|list| list.pages.iter().map(move |page| (list.pool, *page))).collect()
}

pub(crate) fn names(ranks: impl IntoIterator<Item = Rank>) -> String {
    let mut ranks: Vec<Rank> = ranks.into_iter().collect();
    ranks.sort();
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
