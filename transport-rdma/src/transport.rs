//! The transport's handle.

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use transport_core::{
    Access, Batch, BatchOptions, Capabilities, ConnectError, ControlChannel, Event, GrantError, Memory, MemorySpace,
    PeerId, RegionError, RegionGrant, RegionId, RegisterError, RegisterFailure, Shutdown, Submit, SubmitError,
    Transfer, Transport,
};

use crate::{
    choice::{Choice, choose},
    config::RdmaConfig,
    error::OpenError,
    host::{Command, Deregistered, Host, phase},
    message::{MAX_LANES, MAX_RAILS},
    peer::{End, Peer},
    rail::Rail,
    region::{Registered, RemoteRegion, piece_len},
    sender::MAX_NOTIFICATION,
    signal::Signal,
    verbs::Verbs,
    worker,
};

/// The RDMA transport of one process, on the devices of one [`Verbs`]. Dropping it is an abort that nobody waits for.
///
/// A thread that blocks on a transfer ([`Transfer::wait`]) does the transport's work meanwhile, except with
/// [`Completions::Busy`](crate::Completions::Busy). [`Transfer::wait_timeout`] may then take up to a second longer, when a
/// queue pair to a peer has to be joined just then.
#[derive(Debug)]
pub struct RdmaTransport {
    host: Arc<Host>,
}

impl RdmaTransport {
    /// Chooses and opens the devices, and starts the transport's thread.
    ///
    /// # Errors
    /// [`OpenError`]: the program goes on with another transport.
    pub fn open(verbs: Arc<dyn Verbs>, config: RdmaConfig) -> Result<Self, OpenError> {
        let mut config = check(config)?;
        let choices = choose(&*verbs, &config.rails)?;
        at_most("rails", choices.len() as u64, MAX_RAILS as u64)?;
        let rails =
            choices.into_iter().map(|choice| Rail::open(&*verbs, choice, &config)).collect::<Result<Vec<_>, _>>()?;
        for rail in &rails {
            if let Some(warning) = &rail.choice.warning {
                tracing::warn!(rail = rail.choice.describe(), warning, "the rail may not reach every peer");
            }
            tracing::info!(rail = rail.choice.describe(), verbs = verbs.name(), "an RDMA device is open");
        }
        // A message may be no longer than the smallest port takes.
        let longest = rails.iter().map(|rail| rail.choice.max_message).min().unwrap_or(u32::MAX).max(1);
        config.max_work_request = config.max_work_request.min(longest);
        let piece = piece_len(rails.iter().map(|rail| rail.attributes.max_mr_size).min().unwrap_or(u64::MAX));
        let host = Host::new(config, rails, piece, Signal::new(verbs));
        worker::start(&host)?;
        Ok(Self { host })
    }

    /// The rails in use, best first, with port, GID and MTU.
    pub fn rails(&self) -> Vec<Choice> {
        self.host.rails.iter().map(|rail| rail.choice.clone()).collect()
    }

    /// What is behind the handle.
    #[cfg(all(test, feature = "sim"))]
    pub(crate) fn host_for_tests(&self) -> &Arc<Host> {
        &self.host
    }

    fn open_peer(&self, peer: PeerId) -> Result<Arc<Peer>, SubmitError> {
        if !self.host.is_open() {
            return Err(SubmitError::Closed);
        }
        self.host.peer(peer).map_err(|reason| SubmitError::NotConnected { peer, reason })
    }

    fn grant_peer(&self, peer: PeerId) -> Result<Arc<Peer>, GrantError> {
        if !self.host.is_open() {
            return Err(GrantError::Closed);
        }
        self.host.peer(peer).map_err(|reason| GrantError::NotConnected { peer, reason })
    }
}

/// Refuses settings that cannot be kept.
fn check(mut config: RdmaConfig) -> Result<RdmaConfig, OpenError> {
    let at_least_one = [
        ("queue_pairs", config.queue_pairs as u64),
        ("queue_depth", u64::from(config.queue_depth)),
        ("completion_queue_depth", u64::from(config.completion_queue_depth)),
        ("max_work_request", u64::from(config.max_work_request)),
        ("events_per_peer", config.events_per_peer as u64),
    ];
    for (setting, value) in at_least_one {
        if value == 0 {
            let (value, reason) = (value.to_string(), "it must be at least 1".into());
            return Err(OpenError::Setting { setting, value, reason });
        }
    }
    at_most("queue_pairs", config.queue_pairs as u64, MAX_LANES as u64)?;
    at_most("events_per_peer", config.events_per_peer as u64, 1 << 16)?;
    // Points in time are computed with these: "without end" is a year.
    let bounds = [&mut config.connect_timeout, &mut config.loss_bound, &mut config.stall_timeout];
    bounds.into_iter().for_each(|bound| *bound = (*bound).min(YEAR));
    Ok(config)
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn at_most(setting: &'static str, value: u64, max: u64) -> Result<(), OpenError> {
    if value <= max {
        return Ok(());
    }
    let (value, reason) = (value.to_string(), format!("it must be at most {max}"));
    Err(OpenError::Setting { setting, value, reason })
}

#[async_trait]
impl Transport for RdmaTransport {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(MAX_NOTIFICATION).with_allocation_free(true)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<RegionId, RegisterFailure> {
        if !self.host.is_open() {
            return Err(RegisterFailure { memory, cause: RegisterError::Closed });
        }
        if memory.space() != MemorySpace::Host && memory.dma_buf().is_none() {
            let cause = RegisterError::Space { transport: "rdma", space: memory.space() };
            return Err(RegisterFailure { memory, cause });
        }
        // The name first: a full table must not cost the pinning of memory.
        let region = self.host.regions.insert(memory, access)?;
        let id = region.id();
        let others = self.host.regions.count() - 1;
        let cause = match Registered::new(&self.host.rails, self.host.piece, region.memory(), access, others) {
            Ok(registered) => match self.host.add_registered(id, registered) {
                true => return Ok(id),
                false => RegisterError::Closed,
            },
            Err(cause) => cause,
        };
        let memory = region.memory().clone();
        drop(region);
        // Nobody has heard of the name.
        drop(self.host.regions.close(id));
        Err(RegisterFailure { memory, cause })
    }

    async fn deregister(&self, region: RegionId) -> Result<Memory, RegionError> {
        let closed = self.host.regions.close(region)?;
        let done = Arc::<Deregistered>::default();
        match self.host.command(Command::Deregister { region, closed, done: Arc::clone(&done) }) {
            Ok(()) => {
                let (registered, memory) = poll_fn(|context| done.poll(context)).await;
                // Here and not on the thread: unpinning takes time.
                drop(registered);
                Ok(memory)
            }
            // The thread has ended: nothing is in flight, and all is deregistered.
            Err(Command::Deregister { closed, .. }) => Ok(closed.released().await),
            Err(Command::Connect { .. }) => Err(RegionError::Unknown { asked: region }),
        }
    }

    fn grant(&self, peer: PeerId, region: RegionId) -> Result<RegionGrant, GrantError> {
        let peer = self.grant_peer(peer)?;
        let keys = self.host.registered_one(region).map(|registered| registered.keys()).unwrap_or_default();
        peer.granted.grant(&self.host.regions, region, keys)
    }

    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError> {
        let peer = self.grant_peer(peer)?;
        let rails = peer.remote_rails.get().copied().unwrap_or(0);
        let region = RemoteRegion::decode(grant, rails)?;
        peer.imported.insert(grant.clone())?;
        peer.outbound().sender.import(grant.region, Arc::new(region));
        Ok(())
    }

    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError> {
        if !self.host.is_open() {
            return Err(ConnectError::Closed);
        }
        let attempt = Attempt { peer: Some(self.host.add_peer()) };
        let Some(peer) = &attempt.peer else { return Err(ConnectError::Closed) };
        let command = Command::Connect { peer: Arc::clone(peer), channel };
        if self.host.command(command).is_err() {
            peer.set_ended();
            return Err(ConnectError::Closed);
        }
        poll_fn(|context| peer.poll_connected(context)).await?;
        Ok(attempt.succeed())
    }

    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        let id = peer;
        let peer = self.open_peer(id)?;
        let submit = Submit {
            regions: &self.host.regions,
            imported: &peer.imported,
            pool: &self.host.pool,
            permits: &peer.permits,
            max_notification: MAX_NOTIFICATION,
        };
        let (transfer, driver) = submit.start(batch, options)?;
        match peer.submit(driver, &self.host) {
            Ok(()) => Ok(transfer),
            Err((driver, error)) => {
                driver.finish(Err(error));
                if !self.host.is_open() {
                    return Err(SubmitError::Closed);
                }
                let reason = peer.ended().map_or_else(String::new, End::reason);
                Err(SubmitError::NotConnected { peer: id, reason })
            }
        }
    }

    async fn room(&self, peer: PeerId) -> Result<(), SubmitError> {
        self.open_peer(peer)?.permits.room().await;
        self.open_peer(peer).map(drop)
    }

    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = self.host.events.poll_next(context);
        if let Poll::Ready(Some(Event::Notification { peer, .. })) = &event
            && let Some(peer) = self.host.any_peer(*peer)
        {
            peer.credit.taken.fetch_add(1, Ordering::AcqRel);
            if peer.credit.is_due(self.host.config.events_per_peer as u64) {
                peer.attention.raise();
            }
        }
        event
    }

    async fn disconnect(&self, peer: PeerId) {
        let Some(peer) = self.host.any_peer(peer) else { return };
        peer.begin_end(End::Disconnected);
        poll_fn(|context| peer.poll_ended(context)).await;
        peer.permits.idle().await;
    }

    async fn shutdown(&self, how: Shutdown) {
        self.host.advance(match how {
            Shutdown::Drain => phase::DRAINING,
            Shutdown::Abort => phase::ABORTING,
        });
        self.host.permits().iter().for_each(|permits| permits.close());
        poll_fn(|context| self.host.signal.poll_end(context)).await;
    }
}

impl Drop for RdmaTransport {
    fn drop(&mut self) {
        self.host.advance(phase::ABORTING);
    }
}

/// A connection that is being made; taken down when nobody waits for it any more.
struct Attempt {
    peer: Option<Arc<Peer>>,
}

impl Attempt {
    fn succeed(mut self) -> PeerId {
        // Present: only this takes it.
        self.peer.take().map_or(PeerId { index: 0, generation: 0 }, |peer| peer.id)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(peer) = self.peer.take() {
            peer.begin_end(End::Disconnected);
        }
    }
}
