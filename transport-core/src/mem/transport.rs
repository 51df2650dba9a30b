use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    channel::MemChannel,
    config::MemConfig,
    host::{Host, phase},
    outgoing::Outgoing,
    peer::{End, Peer},
    worker,
};
use crate::{
    batch::Batch,
    channel::ControlChannel,
    error::{ConnectError, GrantError, RegionError, RegisterError, RegisterFailure, SubmitError, TransferError},
    event::Event,
    grant::RegionGrant,
    id::{PeerId, RegionId},
    memory::Memory,
    region::Access,
    submit::Submit,
    timer::Timer,
    transfer::{BatchOptions, Transfer},
    transport::{Capabilities, Shutdown, Transport},
};

/// Longest notification, in bytes.
const MAX_NOTIFICATION: usize = 4096;

/// The transport of one host of a [`MemFabric`](super::MemFabric). Dropping it is an abort that nobody waits for.
#[derive(Debug)]
pub struct MemTransport {
    host: Arc<Host>,
}

impl MemTransport {
    pub(super) fn new(number: u64, config: MemConfig, timer: Arc<Timer>) -> Self {
        let host = Host::new(number, config, timer);
        worker::start(&host);
        Self { host }
    }

    pub(super) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Dies like a process that was killed: without a word, in the middle of whatever it does. Peers notice at once, as if
    /// their bound on peer loss had passed. Nothing can be done with this transport afterwards.
    pub fn kill(&self) {
        const REASON: &str = "the peer does not answer any more";
        self.host.advance(phase::ABORTING);
        for peer in self.host.peers() {
            peer.finish(End::Closed(REASON));
        }
        self.host.break_wires(REASON);
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

#[async_trait]
impl Transport for MemTransport {
    fn name(&self) -> &'static str {
        "mem"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(MAX_NOTIFICATION).with_allocation_free(true)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<RegionId, RegisterFailure> {
        if !self.host.is_open() {
            return Err(RegisterFailure { memory, cause: RegisterError::Closed });
        }
        self.host.regions.insert(memory, access).map(|region| region.id())
    }

    async fn deregister(&self, region: RegionId) -> Result<Memory, RegionError> {
        let closed = self.host.regions.close(region)?;
        for peer in self.host.peers() {
            if peer.granted.revoke(region)
                && let Some(remote) = peer.remote()
            {
                remote.imported.revoke(region);
            }
        }
        Ok(closed.released().await)
    }

    fn grant(&self, peer: PeerId, region: RegionId) -> Result<RegionGrant, GrantError> {
        self.grant_peer(peer)?.granted.grant(&self.host.regions, region, Bytes::new())
    }

    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError> {
        let peer = self.grant_peer(peer)?;
        if !grant.keys.is_empty() {
            let len = grant.encode().len();
            return Err(GrantError::Malformed { len, reason: "it has keys, which memory has not" });
        }
        peer.imported.insert(grant.clone())
    }

    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError> {
        if !self.host.is_open() {
            return Err(ConnectError::Closed);
        }
        let wrong = |reason: &str| ConnectError::Channel { transport: "mem", reason: reason.into() };
        let Some(channel) = channel.as_any().downcast_ref::<MemChannel>() else {
            return Err(wrong("it is not of this process's memory"));
        };
        if channel.host() != self.host.number {
            return Err(wrong("it is the end of another host"));
        }
        let address = channel.peer_address();
        if let Some(error) = channel.ended() {
            return Err(ConnectError::Broken { address, reason: error.to_string() });
        }
        let timeout = self.host.config.connect_timeout;
        let attempt = Attempt { peer: Some(self.host.add_peer()), channel };
        let Some(peer) = &attempt.peer else { return Err(ConnectError::Closed) };
        if channel.wire().link.offer(channel.side(), peer).is_err() {
            return Err(ConnectError::Local { reason: "this side already connects over the channel".into() });
        }
        let mut late = pin!(self.host.timer.sleep_until(Instant::now() + timeout));
        poll_fn(|context| {
            let answer = channel.wire().link.poll(context, || {
                if !self.host.is_open() {
                    return Some(Err(ConnectError::Closed));
                }
                if let Some(remote) = peer.remote() {
                    // The other side may have ended between its offer and ours.
                    return Some(remote.ended().map_or(Ok(()), |end| {
                        Err(ConnectError::Broken { address: address.clone(), reason: end.reason() })
                    }));
                }
                if let Some(end) = peer.ended() {
                    return Some(Err(ConnectError::Broken { address: address.clone(), reason: end.reason() }));
                }
                channel
                    .ended()
                    .map(|error| Err(ConnectError::Broken { address: address.clone(), reason: error.to_string() }))
            });
            match answer {
                Poll::Pending => late
                    .as_mut()
                    .poll(context)
                    .map(|()| Err(ConnectError::TimedOut { address: address.clone(), timeout })),
                ready => ready,
            }
        })
        .await?;
        Ok(attempt.succeed())
    }

    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        let peer = self.open_peer(peer)?;
        let submit = Submit {
            regions: &self.host.regions,
            imported: &peer.imported,
            pool: &self.host.pool,
            permits: &peer.permits,
            max_notification: MAX_NOTIFICATION,
        };
        let (transfer, driver) = submit.start(batch, options)?;
        match self.host.post(Outgoing::new(peer, driver)) {
            Ok(()) => Ok(transfer),
            Err(driver) => {
                driver.finish(Err(TransferError::Cancelled));
                Err(SubmitError::Closed)
            }
        }
    }

    async fn room(&self, peer: PeerId) -> Result<(), SubmitError> {
        self.open_peer(peer)?.permits.room().await;
        self.open_peer(peer).map(drop)
    }

    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.host.events.poll_next(context)
    }

    async fn disconnect(&self, peer: PeerId) {
        // Before the connection is looked up: what has just ended is waited for as well.
        let permits = self.host.permits(peer);
        if let Ok(peer) = self.host.peer(peer) {
            peer.finish(End::Disconnected);
        }
        if let Some(permits) = permits {
            permits.idle().await;
        }
    }

    async fn shutdown(&self, how: Shutdown) {
        self.host.advance(match how {
            Shutdown::Drain => phase::DRAINING,
            Shutdown::Abort => phase::ABORTING,
        });
        for peer in self.host.peers() {
            peer.permits.close();
        }
        self.host.wake_links();
        poll_fn(|context| self.host.signal.poll_end(context)).await;
    }
}

impl Drop for MemTransport {
    fn drop(&mut self) {
        self.host.advance(phase::ABORTING);
    }
}

/// A connection that is being made; taken down when nobody waits for it any more.
struct Attempt<'a> {
    peer: Option<Arc<Peer>>,
    channel: &'a MemChannel,
}

impl Attempt<'_> {
    fn succeed(mut self) -> PeerId {
        // Present: only this takes it.
        self.peer.take().map_or(PeerId { index: 0, generation: 0 }, |peer| peer.id)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(peer) = self.peer.take() {
            self.channel.wire().link.withdraw(self.channel.side(), &peer);
            peer.finish(End::Disconnected);
        }
    }
}
