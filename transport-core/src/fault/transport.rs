use std::{
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;

use super::{
    carry::Carry,
    peer::{MAX_IN_FLIGHT, Peer},
    plan::{Fault, FaultPlan},
    shared::Shared,
    tasks::Tasks,
};
use crate::{
    batch::Batch,
    channel::ControlChannel,
    error::{ConnectError, GrantError, RegionError, RegisterFailure, SubmitError, TransferError},
    event::Event,
    grant::RegionGrant,
    id::{PeerId, RegionId},
    memory::Memory,
    region::Access,
    submit::Submit,
    transfer::{BatchOptions, Transfer},
    transport::{Capabilities, Shutdown, Transport},
};

/// A transport whose batches meet the faults of a plan.
///
/// With faults in the plan every batch goes through a thread of the injector's, and is submitted to the wrapped transport
/// from there; submissions allocate, and a batch to a peer whose loss the program has not taken as an event yet is accepted and fails.
#[derive(Debug)]
pub struct FaultTransport<T: Transport> {
    shared: Arc<Shared<T>>,
    plan: FaultPlan,
    /// Absent with an empty plan: then everything is forwarded.
    tasks: Option<Tasks>,
}

impl<T: Transport> FaultTransport<T> {
    /// Batches that may be in flight to one peer at a time when the plan has faults.
    pub const MAX_IN_FLIGHT: usize = MAX_IN_FLIGHT;

    /// Wraps `inner`.
    ///
    /// # Errors
    /// What the operating system said when it gave no thread.
    pub fn new(inner: T, plan: FaultPlan) -> std::io::Result<Self> {
        let tasks = if plan.is_empty() { None } else { Some(Tasks::start()?) };
        Ok(Self { shared: Arc::new(Shared::new(inner)), plan, tasks })
    }

    /// The wrapped transport.
    pub fn inner(&self) -> &T {
        &self.shared.inner
    }
}

#[async_trait]
impl<T: Transport> Transport for FaultTransport<T> {
    fn name(&self) -> &'static str {
        self.inner().name()
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = self.inner().capabilities();
        let allocation_free = capabilities.allocation_free && self.tasks.is_none();
        capabilities.with_allocation_free(allocation_free)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<RegionId, RegisterFailure> {
        if self.tasks.is_none() {
            return self.inner().register(memory, access);
        }
        let region = self.inner().register(memory.clone(), access)?;
        self.shared.regions.insert_as(region, memory, access);
        Ok(region)
    }

    async fn deregister(&self, region: RegionId) -> Result<Memory, RegionError> {
        let Some(tasks) = &self.tasks else { return self.inner().deregister(region).await };
        // Batches that are held back still name the region at the wrapped transport.
        let closed = self.shared.regions.close(region)?;
        let shared = Arc::clone(&self.shared);
        tasks
            .run(async move {
                drop(closed.released().await);
                shared.inner.deregister(region).await
            })
            .await
    }

    fn grant(&self, peer: PeerId, region: RegionId) -> Result<RegionGrant, GrantError> {
        if self.tasks.is_some() && !self.shared.is_closing() {
            // The name may be closed here and still open below.
            self.shared.regions.get(region)?;
        }
        self.inner().grant(peer, region)
    }

    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError> {
        self.inner().import(peer, grant)?;
        match self.shared.peer(peer) {
            Some(peer) => peer.imported.insert(grant.clone()),
            None => Ok(()),
        }
    }

    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError> {
        let peer = self.inner().connect(channel).await?;
        if self.tasks.is_some() {
            self.shared.add_peer(peer);
        }
        Ok(peer)
    }

    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        let Some(tasks) = &self.tasks else { return self.inner().batch_write(peer, batch, options) };
        if self.shared.is_closing() {
            return Err(SubmitError::Closed);
        }
        let id = peer;
        let peer = self.connected(id)?;
        let fault = self.plan.next();
        if let Some(Fault::Refuse(error)) = fault {
            return Err(error);
        }
        let submit = Submit {
            regions: &self.shared.regions,
            imported: &peer.imported,
            pool: &self.shared.pool,
            permits: &peer.permits,
            max_notification: self.inner().capabilities().max_notification,
        };
        let (transfer, driver) = submit.start(batch, options)?;
        let carry = Carry { shared: Arc::clone(&self.shared), id, peer, driver };
        tasks.spawn(carry.run(fault));
        Ok(transfer)
    }

    async fn room(&self, peer: PeerId) -> Result<(), SubmitError> {
        if self.tasks.is_none() {
            return self.inner().room(peer).await;
        }
        if self.shared.is_closing() {
            return Err(SubmitError::Closed);
        }
        let state = self.connected(peer)?;
        state.permits.room().await;
        if self.shared.is_closing() {
            return Err(SubmitError::Closed);
        }
        self.connected(peer).map(drop)
    }

    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        match self.inner().poll_event(context) {
            Poll::Ready(Some(event)) => {
                if let (Event::PeerLost { peer, reason }, true) = (&event, self.tasks.is_some())
                    && let Some(peer) = self.shared.peer(*peer)
                {
                    peer.end(TransferError::PeerLost { reason: Arc::from(reason.as_str()) });
                }
                Poll::Ready(Some(event))
            }
            Poll::Ready(None) => Poll::Ready(match self.shared.events.poll_next(context) {
                Poll::Ready(event) => event,
                Poll::Pending => None,
            }),
            Poll::Pending => match self.shared.events.poll_next(context) {
                Poll::Ready(Some(event)) => Poll::Ready(Some(event)),
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            },
        }
    }

    async fn disconnect(&self, peer: PeerId) {
        let Some(tasks) = &self.tasks else { return self.inner().disconnect(peer).await };
        let state = self.shared.peer(peer);
        if let Some(state) = &state {
            state.end(TransferError::Disconnected);
        }
        let shared = Arc::clone(&self.shared);
        tasks
            .run(async move {
                shared.inner.disconnect(peer).await;
                if let Some(state) = state {
                    state.permits.idle().await;
                }
            })
            .await;
    }

    async fn shutdown(&self, how: Shutdown) {
        let Some(tasks) = &self.tasks else { return self.inner().shutdown(how).await };
        match how {
            Shutdown::Drain => self.shared.begin_to_close(),
            Shutdown::Abort => self.shared.abort(),
        }
        let shared = Arc::clone(&self.shared);
        tasks
            .run(async move {
                shared.idle().await;
                shared.inner.shutdown(how).await;
                shared.events.close();
            })
            .await;
    }
}

impl<T: Transport> FaultTransport<T> {
    fn connected(&self, id: PeerId) -> Result<Arc<Peer>, SubmitError> {
        let reason = match self.shared.peer(id) {
            None => "it never was, or it is the name of an earlier connection".into(),
            Some(peer) => match peer.ended() {
                None => return Ok(peer),
                Some(error) => error.to_string(),
            },
        };
        Err(SubmitError::NotConnected { peer: id, reason })
    }
}

impl<T: Transport> Drop for FaultTransport<T> {
    fn drop(&mut self) {
        // What is in flight ends as the wrapped transport ends; with a plan, on the injector's thread.
        if self.tasks.is_some() {
            self.shared.abort();
        }
    }
}
