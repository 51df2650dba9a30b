//! The data transports of an engine: the caller's in their order, QUIC last.

use std::{
    fmt,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use transport_core::{Access, Memory, PeerId, RegionId, RegisterError, Shutdown, SubmitError, Transport};

use crate::{
    error::BuildError,
    wire::{self, Metadata},
};

/// A transport that did not carry the pages though it might have been better than the one that did, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassedOver {
    /// The transport's name.
    pub transport: String,
    /// Why it was passed over: not available on one of the sides, or how connecting failed.
    pub reason: String,
}

impl PassedOver {
    pub(crate) fn new(transport: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { transport: transport.into(), reason: reason.into() }
    }

    /// All of them in one line.
    pub(crate) fn list(all: &[Self]) -> String {
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.transport, self.reason)
    }
}

/// A data transport, and the cache as it is registered there.
#[derive(Debug)]
pub(crate) struct Data {
    /// Its place in the engine's list.
    place: usize,
    pub(crate) transport: Arc<dyn Transport>,
    /// Names of the regions of the layout, in its order.
    pub(crate) regions: Vec<RegionId>,
}

impl Data {
    pub(crate) fn name(&self) -> &'static str {
        self.transport.name()
    }

    pub(crate) fn path(self: &Arc<Self>, peer: PeerId) -> Path {
        Path { data: Arc::clone(self), peer }
    }

    /// The name of one of its connections in the whole engine.
    pub(crate) fn link(&self, peer: PeerId) -> Link {
        Link { transport: self.place, peer }
    }
}

/// Names a connection of a data transport. The transports number their peers independently of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    transport: usize,
    peer: PeerId,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of transport {}", self.peer, self.transport)
    }
}

/// A connection of a data transport, and the transport.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) data: Arc<Data>,
    pub(crate) peer: PeerId,
}

impl Path {
    pub(crate) fn link(&self) -> Link {
        self.data.link(self.peer)
    }

    /// Why it carries nothing any more, if that is so.
    pub(crate) fn ended(&self) -> Option<SubmitError> {
        let room = pin!(self.data.transport.room(self.peer));
        match room.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => Some(error),
            _ => None,
        }
    }

    /// Ends it. Once this has returned, no byte of the peer lands through it.
    pub(crate) async fn cut(&self) {
        self.data.transport.disconnect(self.peer).await;
    }
}

/// What the caller gave: transports that are preferred over QUIC, and those that could not be had.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    pub(crate) unavailable: Vec<PassedOver>,
}

impl Wanted {
    /// Whether peers will accept the names, and can tell them apart.
    pub(crate) fn check(&self, control: &'static str) -> Result<(), BuildError> {
        let mut names = vec![control];
        names.extend(self.transports.iter().map(|transport| transport.name()));
        names.extend(self.unavailable.iter().map(|unavailable| unavailable.transport.as_str()));
        let (count, max) = (names.len(), Metadata::MAX_TRANSPORTS);
        if count > max {
            return Err(BuildError::Transports { reason: format!("{count} were named, and peers take {max}") });
        }
        while let Some(name) = names.pop() {
            if name.is_empty() || name.len() > Metadata::MAX_NAME {
                let (len, max) = (name.len(), Metadata::MAX_NAME);
                return Err(BuildError::Transports { reason: format!("a name has {len} bytes; give it 1 to {max}") });
            }
            if names.contains(&name) {
                return Err(BuildError::Transports {
                    reason: format!(
                        "{name:?} was named twice; each has a name of its own, and {control:?} is there always"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Registers the memories with every transport, those of the caller first and `control` at the end of the list. One that
    /// does not take the memories joins those that could not be had. Answers with the transports, and with regions that are to
    /// be released.
    pub(crate) fn register(
        &mut self,
        control: (Arc<dyn Transport>, Vec<RegionId>),
        memories: &[Memory],
        access: Access,
    ) -> (Vec<Arc<Data>>, Vec<Arc<Data>>) {
        let (mut usable, mut refused) = (Vec::new(), Vec::new());
        for transport in std::mem::take(&mut self.transports) {
            let (regions, failed) = register(&*transport, memories, access);
            let data = Data { place: usable.len(), transport, regions };
            match failed {
                None => usable.push(Arc::new(data)),
                Some((region, cause)) => {
                    let name = data.name();
                    tracing::warn!(transport = name, region, %cause, "a transport cannot be used");
                    let reason = format!("region {region} could not be registered: {cause}");
                    self.unavailable.push(PassedOver::new(name, wire::reason(&reason)));
                    refused.push(Arc::new(data));
                }
            }
        }
        let (transport, regions) = control;
        usable.push(Arc::new(Data { place: usable.len(), transport, regions }));
        (usable, refused)
    }
}

/// Registers memories until one fails: the names of those that are registered, and which one failed and why.
pub(crate) fn register(
    transport: &dyn Transport,
    memories: &[Memory],
    access: Access,
) -> (Vec<RegionId>, Option<(usize, RegisterError)>) {
    let mut regions = Vec::with_capacity(memories.len());
    for (region, memory) in memories.iter().enumerate() {
        match transport.register(memory.clone(), access) {
            Ok(id) => regions.push(id),
            Err(failure) => return (regions, Some((region, failure.cause))),
        }
    }
    (regions, None)
}

/// Shuts the data transports down: side by side, and the one that also carries the control channels after all others, which
/// still have to tell their peers how things ended.
pub(crate) async fn shut_down(all: &[Arc<Data>], how: Shutdown) {
    let Some((control, others)) = all.split_last() else { return };
    let mut ends = tokio::task::JoinSet::new();
    for data in others {
        let transport = Arc::clone(&data.transport);
        ends.spawn(async move { transport.shutdown(how).await });
    }
    while ends.join_next().await.is_some() {}
    control.transport.shutdown(how).await;
}

/// Gives the memory back to its owner: after this, no transport holds it. Nothing is in flight, so that there is nothing to
/// wait for; `limit` bounds what a transport that is wrong about this can cost.
pub(crate) async fn release(all: &[Arc<Data>], limit: Duration) {
    for data in all {
        let regions = async {
            for region in &data.regions {
                // One that is gone already was released before.
                let _ = data.transport.deregister(*region).await;
            }
        };
        if tokio::time::timeout(limit, regions).await.is_err() {
            tracing::warn!(transport = data.name(), ?limit, "a transport does not give the memory back");
        }
    }
}
