//! A second data transport for engines of one process: real bytes through memory, under any name, and with the ways in which a
//! transport can fail to come about.
//!
//! It is bootstrapped as RDMA is: the two sides exchange numbers as messages of the control channel that they are given, and
//! what the numbers stand for is here a table of the process.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use kvferry::transport_core::{
    Access, Batch, BatchOptions, Capabilities, ChannelError, ConnectError, ControlChannel, Event, GrantError, Memory,
    PeerId, RegionError, RegionGrant, RegionId, RegisterError, RegisterFailure, Shutdown, SubmitError, Topic, Transfer,
    Transport,
    mem::{MemConfig, MemFabric, MemTransport},
};

static FABRIC: LazyLock<MemFabric> = LazyLock::new(MemFabric::new);
static HOSTS: LazyLock<Mutex<HashMap<u64, Weak<MemTransport>>>> = LazyLock::new(Mutex::default);
static ENDS: LazyLock<Mutex<HashMap<u64, Arc<dyn ControlChannel>>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// What becomes of an attempt to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Connects {
    Yes,
    /// It does, and never says that a connection was lost.
    Deaf,
    /// It does, and loses the connection when it has taken the grants of a whole cache like its own.
    Loses,
    /// An error, though the other side is connected.
    FailsLate,
    /// An error, after this many messages that the other side does not expect.
    Fails(usize),
    /// Nothing, until the transport itself gives up.
    GivesUpAfter(Duration),
    /// Nothing at all.
    Hangs,
}

#[derive(Debug)]
pub(crate) struct Named {
    name: &'static str,
    id: u64,
    pub(crate) mem: Arc<MemTransport>,
    connects: Mutex<Connects>,
    /// How many regions it registers before it refuses.
    registers: usize,
    registered: AtomicU64,
    imported: AtomicU64,
    batches: AtomicU64,
    peers: Mutex<Vec<PeerId>>,
}

impl Named {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Self::with(name, Connects::Yes, usize::MAX, MemConfig::default())
    }

    pub(crate) fn that(name: &'static str, connects: Connects) -> Arc<Self> {
        Self::with(name, connects, usize::MAX, MemConfig::default())
    }

    pub(crate) fn with(name: &'static str, connects: Connects, registers: usize, config: MemConfig) -> Arc<Self> {
        let (mem, id) = (FABRIC.transport(config), NEXT.fetch_add(1, Ordering::Relaxed));
        HOSTS.lock().unwrap().insert(id, Arc::downgrade(&mem));
        let [registered, imported, batches] = [0; 3].map(AtomicU64::new);
        Arc::new(Self {
            name,
            id,
            mem,
            connects: Mutex::new(connects),
            registers,
            registered,
            imported,
            batches,
            peers: Mutex::default(),
        })
    }

    /// Batches that were submitted to it.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// The connections that it has made, as the memory names them.
    pub(crate) fn connections(&self) -> Vec<PeerId> {
        self.peers.lock().unwrap().clone()
    }

    /// The engine's name of a connection: numbered from zero, as QUIC does it, so that the two transports use the same names.
    fn outer(&self, peer: PeerId) -> PeerId {
        let mut peers = self.peers.lock().unwrap();
        let number = peers.iter().position(|known| *known == peer).unwrap_or_else(|| {
            peers.push(peer);
            peers.len() - 1
        });
        PeerId { index: number as u32, generation: number as u32 }
    }

    fn inner(&self, peer: PeerId) -> PeerId {
        self.peers.lock().unwrap()[peer.index as usize]
    }

    pub(crate) fn set(&self, connects: Connects) {
        *self.connects.lock().unwrap() = connects;
    }
}

fn broken(channel: &Arc<dyn ControlChannel>) -> impl Fn(ChannelError) -> ConnectError {
    let address = channel.peer_address();
    move |error| ConnectError::Broken { address: address.clone(), reason: error.to_string() }
}

async fn number(channel: &Arc<dyn ControlChannel>) -> Result<u64, ConnectError> {
    let message = channel.receive(Topic::Transport).await.map_err(broken(channel))?;
    let number = message.as_ref().try_into().map_err(|_| ConnectError::Protocol {
        address: channel.peer_address(),
        reason: format!("{} bytes are not a number", message.len()),
    })?;
    Ok(u64::from_le_bytes(number))
}

#[async_trait::async_trait]
impl Transport for Named {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.mem.capabilities()
    }

    fn register(&self, memory: Memory, access: Access) -> Result<RegionId, RegisterFailure> {
        if self.registered.fetch_add(1, Ordering::Relaxed) >= self.registers as u64 {
            let cause =
                RegisterError::Refused { len: memory.len(), reason: "the limit on locked memory is 64 KiB".into() };
            return Err(RegisterFailure { memory, cause });
        }
        self.mem.register(memory, access)
    }

    async fn deregister(&self, region: RegionId) -> Result<Memory, RegionError> {
        self.mem.deregister(region).await
    }

    fn grant(&self, peer: PeerId, region: RegionId) -> Result<RegionGrant, GrantError> {
        self.mem.grant(self.inner(peer), region)
    }

    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError> {
        let peer = self.inner(peer);
        self.mem.import(peer, grant)?;
        let last = self.imported.fetch_add(1, Ordering::Relaxed) + 1 == self.registered.load(Ordering::Relaxed);
        if last && matches!(*self.connects.lock().unwrap(), Connects::Loses) {
            // It has ended when it was polled once; what remains is to wait.
            let _ = std::pin::pin!(self.mem.disconnect(peer)).poll(&mut Context::from_waker(Waker::noop()));
        }
        Ok(())
    }

    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError> {
        let connects = *self.connects.lock().unwrap();
        match connects {
            Connects::Yes | Connects::Deaf | Connects::Loses | Connects::FailsLate => {}
            Connects::Fails(messages) => {
                for _ in 0..messages {
                    channel.send(Topic::Transport, &[7; 100]).await.map_err(broken(&channel))?;
                }
                return Err(ConnectError::Local { reason: "port 1 of mlx5_0 is down".into() });
            }
            Connects::GivesUpAfter(timeout) => {
                tokio::time::sleep(timeout).await;
                return Err(ConnectError::TimedOut { address: channel.peer_address(), timeout });
            }
            Connects::Hangs => return std::future::pending().await,
        }
        channel.send(Topic::Transport, &self.id.to_le_bytes()).await.map_err(broken(&channel))?;
        let theirs = number(&channel).await?;
        let end = if channel.is_initiator() {
            let gone = || ConnectError::Local { reason: "the other end is gone".into() };
            let other = HOSTS.lock().unwrap().get(&theirs).and_then(Weak::upgrade).ok_or_else(gone)?;
            let (here, there) = FABRIC.channel_pair(&self.mem, &other);
            let key = NEXT.fetch_add(1, Ordering::Relaxed);
            ENDS.lock().unwrap().insert(key, there);
            channel.send(Topic::Transport, &key.to_le_bytes()).await.map_err(broken(&channel))?;
            here
        } else {
            let key = number(&channel).await?;
            ENDS.lock().unwrap().remove(&key).unwrap()
        };
        let peer = self.mem.connect(end).await?;
        let outer = self.outer(peer);
        match connects {
            Connects::FailsLate => Err(ConnectError::Local { reason: "port 1 of mlx5_0 went down".into() }),
            _ => Ok(outer),
        }
    }

    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.mem.batch_write(self.inner(peer), batch, options)
    }

    async fn room(&self, peer: PeerId) -> Result<(), SubmitError> {
        self.mem.room(self.inner(peer)).await
    }

    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let deaf = matches!(*self.connects.lock().unwrap(), Connects::Deaf);
        loop {
            let event = match std::task::ready!(self.mem.poll_event(context)) {
                Some(Event::PeerLost { .. }) if deaf => continue,
                Some(Event::PeerLost { peer, reason }) => Event::PeerLost { peer: self.outer(peer), reason },
                Some(Event::Notification { peer, payload }) => Event::Notification { peer: self.outer(peer), payload },
                event => return Poll::Ready(event),
            };
            return Poll::Ready(Some(event));
        }
    }

    async fn disconnect(&self, peer: PeerId) {
        self.mem.disconnect(self.inner(peer)).await;
    }

    async fn shutdown(&self, how: Shutdown) {
        self.mem.shutdown(how).await;
    }
}
