//! The transport: what callers of any thread and any runtime use, over the thread that runs QUIC.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use quinn::VarInt;
use tokio::{sync::watch, time::timeout};
use transport_core::{
    Access, Batch, BatchOptions, Capabilities, ChannelError, ConnectError, ControlChannel, Event, EventQueue,
    GrantError, Memory, MemorySpace, PeerId, RegionError, RegionGrant, RegionId, RegionTable, RegisterError,
    RegisterFailure, Shutdown, Submit, SubmitError, Topic, Transfer, TransferPool, Transport,
};

use crate::{
    auth::Authentication,
    channel::QuicChannel,
    config::QuicConfig,
    frame::MAX_NOTIFICATION,
    identity::PublicKey,
    node::{Backlog, BindError, Node},
    peer::{CONNECT, End, Peer},
    staging::Pool,
};

/// The name of the transport.
const NAME: &str = "quic";

/// The least that a peer may have on the way to us, however many there are.
const MIN_WINDOW: u32 = 512 << 10;

/// Slots that are made beforehand, at most.
const SLOTS: usize = 1024;

/// A transport over QUIC, with its own control channels.
///
/// It runs on one thread of its own. Dropping the last handle aborts what is in flight in the background;
/// [`Transport::shutdown`] waits.
#[derive(Debug)]
pub struct QuicTransport {
    node: Arc<Node>,
    backlog: tokio::sync::Mutex<Backlog>,
    shared: Arc<Shared>,
}

/// What the transport's tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) regions: RegionTable,
    pub(crate) events: EventQueue,
    pub(crate) staging: Arc<Pool>,
    slots: Arc<TransferPool>,
    peers: RwLock<HashMap<PeerId, Arc<Peer>>>,
    closed: AtomicBool,
    /// As in [`Node`].
    receive_window: Option<u32>,
    /// Nothing is in flight any more.
    quiet: watch::Sender<bool>,
    next_peer: AtomicU32,
}

impl Shared {
    fn peer(&self, peer: PeerId) -> Option<Arc<Peer>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&peer).cloned()
    }

    fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn remove(&self, peer: PeerId) {
        self.peers.write().unwrap_or_else(PoisonError::into_inner).remove(&peer);
        self.share_window();
    }

    /// Gives each peer its part of what may be on the way to us: together they must not overflow the socket's buffer.
    fn share_window(&self) {
        let Some(all) = self.receive_window else { return };
        let peers = self.peers();
        let part = all / u32::try_from(peers.len().max(1)).unwrap_or(u32::MAX);
        let window = VarInt::from_u32(part.max(MIN_WINDOW).min(all));
        peers.iter().for_each(|peer| peer.connection().set_receive_window(window));
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl QuicTransport {
    /// Listens, and starts the transport's thread.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(config: QuicConfig, authentication: Authentication) -> Result<Arc<Self>, BindError> {
        let (node, backlog) = Node::start(config, authentication)?;
        let config = &node.config;
        let shared = Arc::new(Shared {
            regions: RegionTable::new(config.max_regions),
            events: EventQueue::new(config.events_per_peer),
            staging: Pool::new(2 * config.send_window as usize),
            slots: TransferPool::new(config.max_in_flight.min(SLOTS)),
            peers: RwLock::default(),
            closed: AtomicBool::new(false),
            receive_window: node.receive_window,
            quiet: watch::Sender::new(false),
            next_peer: AtomicU32::new(0),
        });
        Ok(Arc::new(Self { node, backlog: tokio::sync::Mutex::new(backlog), shared }))
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.node.local_addr
    }

    /// This node's public key, where it has a raw one.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.node.authentication.public_key()
    }

    /// Dials a node and waits for its hello. With `expected`, only a node with that key will do.
    ///
    /// # Errors
    /// [`ConnectError`], within `QuicConfig::connect_timeout`.
    ///
    /// # Cancel safety
    /// Safe: a channel that nobody waits for is closed.
    pub async fn dial(
        &self,
        address: SocketAddr,
        expected: Option<&PublicKey>,
    ) -> Result<Arc<dyn ControlChannel>, ConnectError> {
        if self.shared.is_closed() {
            return Err(ConnectError::Closed);
        }
        let (node, expected) = (Arc::clone(&self.node), expected.copied());
        let dialled = self.node.handle.spawn(async move { node.dial(address, expected).await });
        match dialled.await {
            Ok(channel) => channel.map(|channel| channel as Arc<dyn ControlChannel>),
            Err(_) => Err(ConnectError::Closed),
        }
    }

    /// The next channel that a trusted node has opened; `None` after the shutdown.
    ///
    /// # Cancel safety
    /// Safe: no channel is lost.
    pub async fn accept(&self) -> Option<Arc<dyn ControlChannel>> {
        let channel = self.backlog.lock().await.recv().await?;
        Some(channel as Arc<dyn ControlChannel>)
    }

    /// What QUIC knows of the way to a peer; `None` when it is not connected.
    pub fn path(&self, peer: PeerId) -> Option<PathStats> {
        let stats = self.shared.peer(peer)?.connection().stats().path;
        Some(PathStats {
            mtu: stats.current_mtu,
            round_trip: stats.rtt,
            lost_packets: stats.lost_packets,
            sent_packets: stats.sent_packets,
            black_holes: stats.black_holes_detected,
        })
    }

    fn not_connected(&self, peer: PeerId) -> SubmitError {
        if self.shared.is_closed() {
            return SubmitError::Closed;
        }
        let end = self.shared.peer(peer).and_then(|peer| peer.end());
        let reason = end.map_or_else(|| "there is no such connection (any more)".into(), |end| end.reason().to_owned());
        SubmitError::NotConnected { peer, reason }
    }

    fn grant_peer(&self, peer: PeerId) -> Result<Arc<Peer>, GrantError> {
        if self.shared.is_closed() {
            return Err(GrantError::Closed);
        }
        let reason = "there is no such connection (any more)".to_owned();
        self.shared.peer(peer).ok_or(GrantError::NotConnected { peer, reason })
    }
}

/// What QUIC knows of the way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStats {
    /// Payload bytes of a datagram, as discovery found them.
    pub mtu: u16,
    /// The round trip.
    pub round_trip: Duration,
    /// Packets that were sent again.
    pub lost_packets: u64,
    /// Packets that were sent.
    pub sent_packets: u64,
    /// How often the path was found not to carry the discovered size any more.
    pub black_holes: u64,
}

#[async_trait]
impl Transport for QuicTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(MAX_NOTIFICATION).with_encrypted(true).with_allocation_free(true)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<RegionId, RegisterFailure> {
        if self.shared.is_closed() {
            return Err(RegisterFailure { memory, cause: RegisterError::Closed });
        }
        if memory.space() != MemorySpace::Host {
            let cause = RegisterError::Space { transport: NAME, space: memory.space() };
            return Err(RegisterFailure { memory, cause });
        }
        self.shared.regions.insert(memory, access).map(|region| region.id())
    }

    async fn deregister(&self, region: RegionId) -> Result<Memory, RegionError> {
        let closed = self.shared.regions.close(region)?;
        for peer in self.shared.peers() {
            peer.revoke(region);
        }
        Ok(closed.released().await)
    }

    fn grant(&self, peer: PeerId, region: RegionId) -> Result<RegionGrant, GrantError> {
        self.grant_peer(peer)?.granted.grant(&self.shared.regions, region, Bytes::new())
    }

    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError> {
        self.grant_peer(peer)?.imported.insert(grant.clone())
    }

    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError> {
        if self.shared.is_closed() {
            return Err(ConnectError::Closed);
        }
        let unusable = |reason: &str| ConnectError::Channel { transport: NAME, reason: reason.into() };
        let own = channel.as_any().downcast_ref::<QuicChannel>().ok_or_else(|| unusable("it is not one of QUIC"))?;
        if !Arc::ptr_eq(&own.node, &self.node) {
            return Err(unusable("it belongs to another instance"));
        }
        if own.data.borrow().is_some() {
            return Err(unusable("its data path is connected already"));
        }
        let shared = Arc::clone(&self.shared);
        let own = own.me.upgrade().ok_or(ConnectError::Closed)?;
        // The peer's tasks run on the transport's thread.
        let started = self.node.handle.spawn(async move {
            both_sides(&own).await?;
            let number = shared.next_peer.fetch_add(1, Ordering::Relaxed);
            let id = PeerId { index: number, generation: number };
            if let Some(error) = own.connection.close_reason() {
                return Err(ConnectError::Broken { address: own.peer_address(), reason: error.to_string() });
            }
            let peer = Peer::start(id, own, Arc::clone(&shared));
            shared.peers.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&peer));
            shared.share_window();
            if shared.is_closed() {
                peer.close(End::Cancelled);
                return Err(ConnectError::Closed);
            }
            Ok(id)
        });
        started.await.unwrap_or(Err(ConnectError::Closed))
    }

    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        if self.shared.is_closed() {
            return Err(SubmitError::Closed);
        }
        let Some(connected) = self.shared.peer(peer) else { return Err(self.not_connected(peer)) };
        let submit = Submit {
            regions: &self.shared.regions,
            imported: &connected.imported,
            pool: &self.shared.slots,
            permits: &connected.permits,
            max_notification: MAX_NOTIFICATION,
        };
        connected.submit(|| submit.start(batch, options))?.ok_or_else(|| self.not_connected(peer))
    }

    async fn room(&self, peer: PeerId) -> Result<(), SubmitError> {
        let Some(connected) = self.shared.peer(peer) else { return Err(self.not_connected(peer)) };
        connected.permits.room().await;
        match connected.end() {
            None if !self.shared.is_closed() => Ok(()),
            _ => Err(self.not_connected(peer)),
        }
    }

    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.shared.events.poll_next(context)
    }

    async fn disconnect(&self, peer: PeerId) {
        let Some(peer) = self.shared.peer(peer) else { return };
        peer.close(End::Disconnected);
        peer.gone().await;
    }

    async fn shutdown(&self, how: Shutdown) {
        shut_down(&self.node, &self.shared, how).await;
    }
}

/// Waits until both sides want the data path, so that neither takes a connection for one that the other does not have.
async fn both_sides(channel: &QuicChannel) -> Result<(), ConnectError> {
    let limit = channel.node.config.connect_timeout;
    let address = channel.peer_address();
    let broken = |error: ChannelError| match error {
        ChannelError::ClosedByPeer { reason } => ConnectError::Refused { address: address.clone(), reason },
        error => ConnectError::Broken { address: address.clone(), reason: error.to_string() },
    };
    channel.send(Topic::Transport, &[CONNECT]).await.map_err(broken)?;
    match timeout(limit, channel.receive(Topic::Transport)).await {
        Ok(Ok(message)) if *message == [CONNECT] => Ok(()),
        Ok(Ok(_)) => {
            let reason = "its first message for the transport is not that it connects".into();
            Err(ConnectError::Protocol { address, reason })
        }
        Ok(Err(error)) => Err(broken(error)),
        Err(_) => Err(ConnectError::TimedOut { address, timeout: limit }),
    }
}

/// Ends a transport; whoever comes second waits for the first, but an abort hastens a drain.
async fn shut_down(node: &Arc<Node>, shared: &Arc<Shared>, how: Shutdown) {
    if !shared.closed.swap(true, Ordering::AcqRel) {
        let (node, shared) = (Arc::clone(node), Arc::clone(shared));
        // On the transport's thread, so that it goes on when the caller does not wait.
        node.handle.clone().spawn(async move {
            if how == Shutdown::Drain {
                for peer in shared.peers() {
                    peer.permits.idle().await;
                    // Answers of batches that the peer has sent; the peer may be slow to acknowledge them.
                    let _ = timeout(node.config.peer_loss_timeout, peer.answering.idle()).await;
                }
            }
            let peers = shared.peers();
            peers.iter().for_each(|peer| peer.close(End::Cancelled));
            for peer in peers {
                peer.gone().await;
            }
            shared.events.close();
            shared.quiet.send_replace(true);
            node.stop().await;
        });
    }
    if how == Shutdown::Abort {
        shared.peers().iter().for_each(|peer| peer.close(End::Cancelled));
    }
    let _ = shared.quiet.subscribe().wait_for(|quiet| *quiet).await;
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        if !self.shared.is_closed() {
            let (node, shared) = (Arc::clone(&self.node), Arc::clone(&self.shared));
            self.node.handle.spawn(async move { shut_down(&node, &shared, Shutdown::Abort).await });
        }
    }
}
