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
    task::{Context, Poll},
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
        let (registered, batches) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self {
            name,
            id,
            mem,
            connects: Mutex::new(connects),
            registers,
            registered,
            batches,
            peers: Mutex::default(),
        })
    }

    /// Batches that were submitted to it.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// The connections that it has made.
    pub(crate) fn connections(&self) -> Vec<PeerId> {
        self.peers.lock().unwrap().clone()
    }

    pub(crate) fn from_now_on(&self, connects: Connects) {
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
        self.mem.grant(peer, region)
    }

    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError> {
        self.mem.import(peer, grant)
    }

    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError> {
        let connects = *self.connects.lock().unwrap();
        match connects {
            Connects::Yes => {}
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
        self.peers.lock().unwrap().push(peer);
        Ok(peer)
    }

    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.mem.batch_write(peer, batch, options)
    }

    async fn room(&self, peer: PeerId) -> Result<(), SubmitError> {
        self.mem.room(peer).await
    }

    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.mem.poll_event(context)
    }

    async fn disconnect(&self, peer: PeerId) {
        self.mem.disconnect(peer).await;
    }

    async fn shutdown(&self, how: Shutdown) {
        self.mem.shutdown(how).await;
    }
}
