//! What the transport's handle and its thread share of one connection.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use transport_core::{ConnectError, GrantedRegions, ImportedRegions, PeerId, Permits, TransferDriver, TransferError};

use crate::{
    config::RdmaConfig,
    host::Host,
    sender::{ControlMemory, Finished, Sender},
    signal::Signal,
    verbs::{PostError, QueuePair, SendRequest},
};

/// How a connection ended, as this side sees it.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// This side disconnected.
    Disconnected,
    /// This side shut down.
    Closed,
    /// The other side went away.
    Lost(Arc<str>),
}

impl End {
    pub(crate) fn error(&self) -> TransferError {
        match self {
            Self::Disconnected => TransferError::Disconnected,
            Self::Closed => TransferError::Cancelled,
            Self::Lost(reason) => TransferError::PeerLost { reason: Arc::clone(reason) },
        }
    }

    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Disconnected => "this side disconnected".into(),
            Self::Closed => "the transport is closed".into(),
            Self::Lost(reason) => reason.to_string(),
        }
    }

    /// What the other side is told.
    pub(crate) fn farewell(&self) -> String {
        match self {
            Self::Disconnected => "the peer disconnected".into(),
            Self::Closed => "the peer's transport is closed".into(),
            Self::Lost(reason) => format!("the peer gave the connection up: {reason}"),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    /// What this side granted.
    pub(crate) granted: GrantedRegions,
    /// What the other side granted.
    pub(crate) imported: ImportedRegions,
    pub(crate) permits: Arc<Permits>,
    pub(crate) attention: Arc<Attention>,
    /// How many rails the other side has; set when it has said so.
    pub(crate) remote_rails: OnceLock<usize>,
    pub(crate) credit: Credit,
    outbound: Mutex<Outbound>,
    end: OnceLock<End>,
    stages: Mutex<Stages>,
}

/// The sender and its queue pairs.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) sender: Sender,
    /// By lane.
    pub(crate) queue_pairs: Vec<Option<Box<dyn QueuePair>>>,
}

impl Outbound {
    /// Posts what there is room for.
    pub(crate) fn pump(&mut self) {
        let Self { sender, queue_pairs } = self;
        sender.pump(&mut |lane: usize, chain: &[SendRequest]| post(queue_pairs, lane, chain));
    }

    pub(crate) fn probe(&mut self, lane: usize) -> bool {
        let Self { sender, queue_pairs } = self;
        sender.probe(lane, &mut |lane: usize, chain: &[SendRequest]| post(queue_pairs, lane, chain))
    }

    /// Tries the paths of open lanes that nothing is posted on.
    pub(crate) fn try_idle_lanes(&mut self) {
        let Self { sender, queue_pairs } = self;
        sender.try_idle_lanes(&mut |lane: usize, chain: &[SendRequest]| post(queue_pairs, lane, chain));
    }
}

fn post(queue_pairs: &[Option<Box<dyn QueuePair>>], lane: usize, chain: &[SendRequest]) -> Result<(), PostError> {
    match queue_pairs.get(lane) {
        Some(Some(queue_pair)) => queue_pair.post_send(chain),
        _ => Err(PostError { posted: 0, code: rustix::io::Errno::NOTCONN.raw_os_error() }),
    }
}

/// How far a connection has come, and who waits for that.
#[derive(Debug, Default)]
struct Stages {
    connected: Option<Result<(), ConnectError>>,
    ended: bool,
    wakers: Vec<Waker>,
}

/// The notifications of the other side, counted: what was received, what the program has taken, and what the other side was told of it.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    pub(crate) received: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) told: AtomicU64,
}

impl Credit {
    /// Whether the other side has used up half of its room or more, and there is more to give.
    pub(crate) fn is_due(&self, capacity: u64) -> bool {
        let (received, taken) = (self.received.load(Ordering::Acquire), self.taken.load(Ordering::Acquire));
        let told = self.told.load(Ordering::Acquire);
        taken > told && (told + capacity).saturating_sub(received) <= capacity / 2
    }
}

impl Peer {
    pub(crate) fn new(id: PeerId, config: &RdmaConfig, signal: &Arc<Signal>) -> Self {
        let attention = Arc::new(Attention { raised: AtomicBool::new(false), signal: Arc::clone(signal) });
        let sender = Sender::new(
            ControlMemory::default(),
            u64::from(config.max_work_request),
            config.stall_timeout,
            Waker::from(Arc::clone(&attention)),
        );
        Self {
            id,
            granted: GrantedRegions::default(),
            imported: ImportedRegions::new(config.max_imports),
            permits: Permits::new(config.max_in_flight),
            attention,
            remote_rails: OnceLock::new(),
            credit: Credit::default(),
            outbound: Mutex::new(Outbound { sender, queue_pairs: Vec::new() }),
            end: OnceLock::new(),
            stages: Mutex::default(),
        }
    }

    pub(crate) fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a transfer and posts what there is room for. Comes back when the connection has ended meanwhile.
    pub(crate) fn submit(&self, driver: TransferDriver, host: &Host) -> Result<(), (TransferDriver, TransferError)> {
        let mut finished = Vec::new();
        let blocked = {
            let mut outbound = self.outbound();
            let mut locals = outbound.sender.spare();
            if !host.registered(driver.regions(), &mut locals) {
                // Only when the transport has ended: a region that is held stays registered.
                return Err((driver, TransferError::Cancelled));
            }
            outbound.sender.submit(driver, locals)?;
            outbound.pump();
            outbound.sender.take_finished(&mut finished);
            outbound.sender.is_blocked()
        };
        if blocked {
            self.attention.raise();
        }
        finish(&mut finished);
        Ok(())
    }

    pub(crate) fn ended(&self) -> Option<&End> {
        self.end.get()
    }

    /// Begins the end of the connection: nothing more is posted. The thread does the rest. The first end counts.
    pub(crate) fn begin_end(&self, end: End) {
        if self.end.set(end).is_err() {
            return;
        }
        let Some(end) = self.end.get() else { return };
        let mut finished = Vec::new();
        {
            let mut outbound = self.outbound();
            outbound.sender.close(&end.error());
            outbound.sender.take_finished(&mut finished);
        }
        finish(&mut finished);
        self.permits.close();
        self.attention.raise();
    }

    /// The connection can be used, or cannot be had.
    pub(crate) fn set_connected(&self, result: Result<(), ConnectError>) {
        self.update(|stages| {
            stages.connected.get_or_insert(result);
        });
    }

    /// Whether the program has a name for the connection.
    pub(crate) fn was_connected(&self) -> bool {
        matches!(self.stages().connected, Some(Ok(())))
    }

    /// Nothing of the connection is left: no byte of the other side lands any more.
    pub(crate) fn set_ended(&self) {
        self.update(|stages| stages.ended = true);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stages().ended
    }

    pub(crate) fn poll_connected(&self, context: &Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.poll(context, |stages| stages.connected.clone())
    }

    pub(crate) fn poll_ended(&self, context: &Context<'_>) -> Poll<()> {
        self.poll(context, |stages| stages.ended.then_some(()))
    }

    fn poll<T>(&self, context: &Context<'_>, look: impl Fn(&Stages) -> Option<T>) -> Poll<T> {
        let mut stages = self.stages();
        if let Some(found) = look(&stages) {
            return Poll::Ready(found);
        }
        if !stages.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            stages.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn update(&self, change: impl FnOnce(&mut Stages)) {
        let wakers = {
            let mut stages = self.stages();
            change(&mut stages);
            std::mem::take(&mut stages.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn stages(&self) -> MutexGuard<'_, Stages> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes outcomes; never under a lock, since whoever is woken may come back at once.
pub(crate) fn finish(finished: &mut Vec<Finished>) {
    for (driver, result) in finished.drain(..) {
        driver.finish(result);
    }
}

/// Has the thread look at a connection.
#[derive(Debug)]
pub(crate) struct Attention {
    raised: AtomicBool,
    signal: Arc<Signal>,
}

impl Attention {
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.signal.wake();
    }

    /// Whether it was raised since the last call.
    pub(crate) fn take(&self) -> bool {
        self.raised.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Attention {
    fn wake(self: Arc<Self>) {
        self.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}
