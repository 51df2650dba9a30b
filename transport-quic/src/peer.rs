//! The data path to one peer: what waits to be sent, what may be written, and how it ends.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use quinn::{Connection, ConnectionError};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use transport_core::{
    ChannelError, ControlChannel, GrantedRegions, ImportedRegions, PeerId, Permits, RegionId, Topic, TransferDriver,
    TransferError,
};

use crate::{
    channel::{QuicChannel, channel_error},
    node::CLOSE,
    send,
    tracker::Tracker,
    transport::Shared,
};

/// A connected peer.
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) channel: Arc<QuicChannel>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) imported: ImportedRegions,
    pub(crate) granted: GrantedRegions,
    queue: Mutex<Queue>,
    queued: Notify,
    /// Tasks that may write local memory, or that hold a transfer.
    pub(crate) working: Tracker,
    /// Answers to the peer that it may not have yet.
    pub(crate) answering: Tracker,
    /// Why this side ends the connection, where it is this side.
    cause: OnceLock<End>,
    ended: watch::Sender<Option<End>>,
    /// Everything of the connection is quiet.
    gone: watch::Sender<bool>,
}

#[derive(Default)]
struct Queue {
    closed: bool,
    drivers: VecDeque<TransferDriver>,
}

/// How the connection to a peer ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// This side wanted it.
    Disconnected,
    /// This side shuts down.
    Cancelled,
    /// Anything else.
    Lost(Arc<str>),
}

impl End {
    pub(crate) fn error(&self) -> TransferError {
        match self {
            Self::Disconnected => TransferError::Disconnected,
            Self::Cancelled => TransferError::Cancelled,
            Self::Lost(reason) => TransferError::PeerLost { reason: Arc::clone(reason) },
        }
    }

    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Disconnected => "this side disconnected",
            Self::Cancelled => "this side shut down",
            Self::Lost(reason) => reason,
        }
    }
}

impl Peer {
    /// Takes the data path of a channel into use. Runs on the transport's thread.
    pub(crate) fn start(id: PeerId, channel: Arc<QuicChannel>, shared: Arc<Shared>) -> Arc<Self> {
        let config = &channel.node.config;
        let peer = Arc::new(Self {
            id,
            permits: Permits::new(config.max_in_flight),
            imported: ImportedRegions::new(config.max_granted_regions),
            granted: GrantedRegions::default(),
            queue: Mutex::new(Queue { closed: false, drivers: VecDeque::with_capacity(config.max_in_flight) }),
            queued: Notify::new(),
            working: Tracker::new(),
            answering: Tracker::new(),
            cause: OnceLock::new(),
            ended: watch::Sender::new(None),
            gone: watch::Sender::new(false),
            shared,
            channel,
        });
        let config = &peer.channel.node.config;
        for _ in 0..config.concurrent_batches {
            let guard = peer.working.enter();
            let lane = send::lane(Arc::clone(&peer));
            tokio::spawn(async move {
                lane.await;
                drop(guard);
            });
        }
        tokio::spawn(control(Arc::clone(&peer)));
        tokio::spawn(watch(Arc::clone(&peer)));
        peer.channel.data.send_replace(Some(Arc::downgrade(&peer)));
        peer
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.channel.connection
    }

    /// Submits through `start` while the queue is open, so that no transfer comes in behind the last one.
    pub(crate) fn submit<T, E>(&self, start: impl FnOnce() -> Result<(T, TransferDriver), E>) -> Result<Option<T>, E> {
        let mut queue = self.lock();
        if queue.closed {
            return Ok(None);
        }
        let (transfer, driver) = start()?;
        queue.drivers.push_back(driver);
        drop(queue);
        self.queued.notify_one();
        Ok(Some(transfer))
    }

    /// The next transfer to send; `None` when the connection has ended.
    pub(crate) async fn next(&self) -> Option<TransferDriver> {
        let mut ended = self.ended.subscribe();
        loop {
            {
                let mut queue = self.lock();
                if queue.closed {
                    return None;
                }
                if let Some(driver) = queue.drivers.pop_front() {
                    // A wake-up stands for any number of transfers: pass it on.
                    if !queue.drivers.is_empty() {
                        self.queued.notify_one();
                    }
                    return Some(driver);
                }
            }
            tokio::select! {
                () = self.queued.notified() => {}
                _ = ended.wait_for(Option::is_some) => {}
            }
        }
    }

    /// How the connection ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.ended.borrow().clone()
    }

    /// Waits for the end of the connection.
    pub(crate) async fn ended(&self) -> End {
        let mut ended = self.ended.subscribe();
        let end = ended.wait_for(Option::is_some).await;
        end.ok().and_then(|end| end.clone()).unwrap_or_else(|| End::Lost("its connection is gone".into()))
    }

    /// Ends the connection because this side wants to.
    pub(crate) fn close(&self, end: End) {
        let reason = end.reason().to_owned();
        // A connection that has ended has its cause, which closing again would hide.
        if self.connection().close_reason().is_none() {
            let _ = self.cause.set(end);
            self.connection().close(CLOSE, reason.as_bytes());
        }
    }

    /// Waits until everything of an ended connection is quiet.
    pub(crate) async fn gone(&self) {
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// Waits for something that moves bytes, for as long as bytes move on the connection.
    pub(crate) async fn patient<T>(&self, future: impl Future<Output = T>) -> Result<T, Stalled> {
        let limit = self.channel.node.config.stall_timeout;
        let moved = || {
            let stats = self.connection().stats();
            stats.frame_tx.stream.wrapping_add(stats.frame_rx.stream)
        };
        let mut future = std::pin::pin!(future);
        let mut before = moved();
        loop {
            match timeout(limit, &mut future).await {
                Ok(value) => return Ok(value),
                Err(_) => {
                    let now = moved();
                    if before == now {
                        return Err(Stalled { limit });
                    }
                    before = now;
                }
            }
        }
    }

    /// Tells the peer that a region is gone, if it had it.
    pub(crate) fn revoke(self: &Arc<Self>, region: RegionId) {
        if self.granted.revoke(region) {
            let channel = Arc::clone(&self.channel);
            let mut message = vec![REVOKE];
            message.extend_from_slice(&region.index.to_le_bytes());
            message.extend_from_slice(&region.generation.to_le_bytes());
            // A peer that cannot be told is refused when it writes.
            self.channel.node.handle.spawn(async move {
                let _ = channel.send(Topic::Transport, &message).await;
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("id", &self.id).field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// No byte moved for too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stalled {
    pub(crate) limit: Duration,
}

/// A region that the peer was granted is gone: index and generation follow.
const REVOKE: u8 = 1;

/// This side wants the data path.
pub(crate) const CONNECT: u8 = 2;

/// Reads the peer's messages for the transport.
async fn control(peer: Arc<Peer>) {
    while let Ok(message) = peer.channel.receive(Topic::Transport).await {
        match message.as_ref() {
            [REVOKE, index @ .., a, b, c, d] if index.len() == 4 => {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(index);
                let index = u32::from_le_bytes(bytes);
                peer.imported.revoke(RegionId { index, generation: u32::from_le_bytes([*a, *b, *c, *d]) });
            }
            _ => {
                peer.close(End::Lost("it sent a control message that this version does not know".into()));
                return;
            }
        }
    }
}

/// Waits for the end of the connection and sees to it that everything of it ends.
async fn watch(peer: Arc<Peer>) {
    let error = peer.connection().closed().await;
    let end = match peer.cause.get() {
        Some(end) => end.clone(),
        None if error == ConnectionError::LocallyClosed => match peer.channel.closed().await {
            // The program closed the channel.
            ChannelError::Closed => End::Disconnected,
            error => End::Lost(error.to_string().into()),
        },
        None => End::Lost(match channel_error(&error) {
            ChannelError::Lost { reason } => reason.into(),
            error => error.to_string().into(),
        }),
    };
    let waiting = {
        let mut queue = peer.lock();
        queue.closed = true;
        std::mem::take(&mut queue.drivers)
    };
    peer.ended.send_replace(Some(end.clone()));
    waiting.into_iter().for_each(|driver| driver.finish(Err(end.error())));
    peer.permits.close();
    peer.working.idle().await;
    peer.shared.remove(peer.id);
    if let End::Lost(reason) = &end {
        peer.shared.events.push_lost(peer.id, reason.to_string());
    }
    peer.channel.data.send_replace(None);
    peer.gone.send_replace(true);
}
