//! The trait that every transport implements.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;

use crate::{
    batch::Batch,
    channel::ControlChannel,
    error::{ConnectError, GrantError, RegionError, RegisterFailure, SubmitError},
    event::Event,
    grant::RegionGrant,
    id::{PeerId, RegionId},
    memory::Memory,
    region::Access,
    transfer::{BatchOptions, Transfer},
};

/// What a transport can do beyond the contract, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The longest notification, in bytes; at least 256 with every transport.
    pub max_notification: usize,
    /// Whether the bytes of batches are encrypted on the wire.
    pub encrypted: bool,
    /// Whether submitting and polling allocates nothing for each slice in the steady state (contract clause C19).
    pub allocation_free: bool,
}

impl Capabilities {
    /// Encrypted and allocation-free set to false.
    pub const fn new(max_notification: usize) -> Self {
        Self { max_notification, encrypted: false, allocation_free: false }
    }

    /// Sets whether the bytes are encrypted on the wire.
    #[must_use]
    pub const fn with_encrypted(mut self, encrypted: bool) -> Self {
        self.encrypted = encrypted;
        self
    }

    /// Sets whether the submit and poll path allocates nothing.
    #[must_use]
    pub const fn with_allocation_free(mut self, allocation_free: bool) -> Self {
        self.allocation_free = allocation_free;
        self
    }
}

/// How to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// Refuse new work, let what is in flight end (within the configured bounds), then close.
    Drain,
    /// Refuse new work, cancel what is in flight, wait until the memory is quiet, then close.
    Abort,
}

/// Moves batches of slices from local regions into regions of a peer.
///
/// docs/contract.md is the contract: clauses C1 to C20, which the conformance suite checks on every implementation. The
/// trait is small and object safe. Control calls are async and independent of any runtime; data calls are plain functions
/// that never block, and a batch is on its way when `batch_write` has returned, whether or not anybody polls.
///
/// The receiver does nothing for a write: it grants a region once and gets an event when a batch with a notification has
/// landed.
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// A short name: `"mem"`, `"quic"`, `"rdma"`.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Registers memory: as a source of writes, and, with [`Access::REMOTE_WRITE`], as something that can be granted to
    /// peers. For RDMA this pins the pages.
    ///
    /// # Errors
    /// The cause, and the memory back.
    fn register(&self, memory: Memory, access: Access) -> Result<RegionId, RegisterFailure>;

    /// Takes a region back: its name is closed at once, then the last transfer that uses it is waited for, in either
    /// direction. The memory may still be held by other transports or by the caller.
    ///
    /// # Errors
    /// [`RegionError`] when there is no such region.
    ///
    /// # Cancel safety
    /// Once polled the name is closed for good; dropping the future loses only the handle to the memory.
    async fn deregister(&self, region: RegionId) -> Result<Memory, RegionError>;

    /// Gives a peer the right to write a region, until the region is deregistered or the connection ends.
    ///
    /// # Errors
    /// [`GrantError`].
    fn grant(&self, peer: PeerId, region: RegionId) -> Result<RegionGrant, GrantError>;

    /// Takes a right that the peer gave. From then on slices may name the region as their destination.
    ///
    /// # Errors
    /// [`GrantError`].
    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError>;

    /// Connects the data path to the peer at the other end of a control channel. Both sides call it, each with its end.
    /// Bounded by the configured connect timeout.
    ///
    /// # Errors
    /// [`ConnectError`]. The channel stays usable unless it is what broke.
    ///
    /// # Cancel safety
    /// Safe: a connection that nobody waits for any more is taken down.
    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError>;

    /// Writes a batch. Checks everything first, copies the slices, and starts. Local bytes must not change until the
    /// transfer is over; if they do, what arrives is unspecified, and nothing else is harmed.
    ///
    /// An empty batch is legal: it moves nothing, and its notification, if it has one, is delivered after its
    /// dependencies. Overlapping destinations are legal and leave unspecified bytes in the overlap. No order is promised
    /// between slices or between batches (contract clause C11).
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has moved and nothing is in flight then (contract clause C1).
    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError>;

    /// Waits until a batch to the peer would not be refused as [`SubmitError::Full`].
    ///
    /// # Errors
    /// [`SubmitError::NotConnected`] or [`SubmitError::Closed`].
    ///
    /// # Cancel safety
    /// Safe: no place is taken.
    async fn room(&self, peer: PeerId) -> Result<(), SubmitError>;

    /// The next event; `None` once the transport is closed and its events are taken. One task listens; of several the last
    /// one is woken. [`next_event`] is the async form.
    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>>;

    /// Ends the connection to a peer. Once it has returned, no late byte from that peer can land in local memory (contract
    /// clause C14), and all transfers to it are over. An id that is not connected is fine: then there is nothing to do.
    ///
    /// # Cancel safety
    /// Once polled the disconnection goes on by itself; only a completed call promises its end.
    async fn disconnect(&self, peer: PeerId);

    /// Ends everything. Once it has returned, nothing is in flight and no byte lands. Later calls answer `Closed`; calling
    /// it again waits for the same end.
    ///
    /// # Cancel safety
    /// Once polled the shutdown goes on by itself; only a completed call promises its end.
    async fn shutdown(&self, how: Shutdown);
}

/// The next event of a transport; `None` once it is closed.
///
/// # Cancel safety
/// Safe: no event is lost.
pub async fn next_event(transport: &(impl Transport + ?Sized)) -> Option<Event> {
    std::future::poll_fn(|context| transport.poll_event(context)).await
}

#[async_trait]
impl<T: Transport + ?Sized> Transport for Arc<T> {
    fn name(&self) -> &'static str {
        T::name(self)
    }

    fn capabilities(&self) -> Capabilities {
        T::capabilities(self)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<RegionId, RegisterFailure> {
        T::register(self, memory, access)
    }

    async fn deregister(&self, region: RegionId) -> Result<Memory, RegionError> {
        T::deregister(self, region).await
    }

    fn grant(&self, peer: PeerId, region: RegionId) -> Result<RegionGrant, GrantError> {
        T::grant(self, peer, region)
    }

    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError> {
        T::import(self, peer, grant)
    }

    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError> {
        T::connect(self, channel).await
    }

    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        T::batch_write(self, peer, batch, options)
    }

    async fn room(&self, peer: PeerId) -> Result<(), SubmitError> {
        T::room(self, peer).await
    }

    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        T::poll_event(self, context)
    }

    async fn disconnect(&self, peer: PeerId) {
        T::disconnect(self, peer).await;
    }

    async fn shutdown(&self, how: Shutdown) {
        T::shutdown(self, how).await;
    }
}
