//! The seam: the verbs that the transport needs, as traits.
//!
//! Two implementations: `native` (libibverbs) and `sim` (a simulated NIC). What is above this module is safe code that
//! cannot tell them apart. The traits are safe to call with any argument: a NIC checks each address against the keys of registered
//! memory, and a [`MemoryRegion`] holds its [`Memory`] until it is deregistered, so that no work request can
//! reach memory that is not there.
//!
//! Names are those of the InfiniBand specification. All of it is `Send + Sync`; posting and polling are called under
//! locks of the caller's.

mod attributes;
mod error;
mod request;

use std::{any::Any, fmt, sync::Arc, time::Duration};

use transport_core::Memory;

pub use self::{
    attributes::{
        AddressVector, DeviceAttributes, DeviceInfo, GidEntry, GidKind, GlobalRoute, InitAttributes, LinkLayer, Mtu,
        PortAttributes, PortState, QueuePairCapacity, QueuePairState, ReceiveAttributes, SendAttributes,
    },
    error::{PostError, VerbsError},
    request::{AsyncEvent, Completion, LocalSegment, Operation, ReceiveRequest, SendRequest, Status},
};

/// The verbs of one host, as one transport uses them: its devices, and a way to sleep until one of them has something.
pub trait Verbs: fmt::Debug + Send + Sync + 'static {
    /// What it is, for messages: `"libibverbs"`, `"simulated NIC"`.
    fn name(&self) -> &str;

    /// The devices of this host.
    ///
    /// # Errors
    /// What the library said.
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError>;

    /// Opens a device by its name.
    ///
    /// # Errors
    /// When there is no such device, or it cannot be opened.
    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError>;

    /// Sleeps until an armed completion queue of a device that was opened here has a completion, a device has an asynchronous event,
    /// [`Verbs::wake`] was called since the last return, or the time is over. May return early.
    ///
    /// Several threads may sleep. What happens ends the sleep of one of them at least, as a rule of the one that came last; so
    /// whoever returns looks at everything.
    fn wait(&self, timeout: Option<Duration>);

    /// Ends one current [`Verbs::wait`], or where nobody sleeps the next one. Cheap, and callable from any thread.
    fn wake(&self);
}

/// An open device.
pub trait Device: fmt::Debug + Send + Sync + 'static {
    /// Its name: `mlx5_0`, `rxe0`.
    fn name(&self) -> &str;

    /// Its limits.
    ///
    /// # Errors
    /// What the device said.
    fn attributes(&self) -> Result<DeviceAttributes, VerbsError>;

    /// The state of a port; ports count from 1.
    ///
    /// # Errors
    /// When there is no such port, or the device is gone.
    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError>;

    /// An entry of a port's GID table; `None` where the entry is empty.
    ///
    /// # Errors
    /// When the index is not below [`PortAttributes::gid_table_len`], or the device is gone.
    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, VerbsError>;

    /// A protection domain.
    ///
    /// # Errors
    /// What the device said.
    fn allocate_domain(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError>;

    /// A completion queue with room for `depth` completions, whose events end [`Verbs::wait`].
    ///
    /// # Errors
    /// When `depth` is zero or above [`DeviceAttributes::max_cqe`], or the device has no resources.
    fn create_completion_queue(&self, depth: u32) -> Result<Arc<dyn CompletionQueue>, VerbsError>;

    /// The next asynchronous event, if there is one. Never blocks.
    fn poll_async_event(&self) -> Option<AsyncEvent>;
}

/// Groups memory regions and queue pairs: a queue pair reaches only memory of its own domain.
pub trait ProtectionDomain: fmt::Debug + Send + Sync + 'static {
    /// Registers `len` bytes of `memory` from `offset` on, by its dma-buf where it has one. The region's addresses (in keys' terms:
    /// its I/O virtual addresses) begin at `memory.address() + offset`. Local writes are always allowed.
    ///
    /// # Errors
    /// When the range is empty or does not lie in the memory, or with the kernel's error code: ENOMEM for a limit on locked memory or of the
    /// device, EOPNOTSUPP for a dma-buf that the device cannot reach.
    fn register(
        &self,
        memory: &Memory,
        offset: u64,
        len: u64,
        remote_write: bool,
    ) -> Result<Box<dyn MemoryRegion>, VerbsError>;

    /// A reliable-connected queue pair in the state RESET, both of whose queues complete into `completions`.
    ///
    /// # Errors
    /// When a capacity is above the device's limits, the completion queue is of another device, or the device has no resources.
    fn create_queue_pair(
        &self,
        completions: &Arc<dyn CompletionQueue>,
        capacity: QueuePairCapacity,
    ) -> Result<Box<dyn QueuePair>, VerbsError>;
}

/// Registered memory. It holds the memory; dropping it deregisters, and then lets go of the memory. When the device does
/// not deregister it, the memory is leaked and a warning logged, because it cannot be freed under the device.
pub trait MemoryRegion: fmt::Debug + Send + Sync + 'static {
    /// The key for local segments (`lkey`).
    fn local_key(&self) -> u32;
    /// The key for a peer's work requests (`rkey`).
    fn remote_key(&self) -> u32;
}

/// Where work requests report their end.
pub trait CompletionQueue: fmt::Debug + Send + Sync + 'static {
    /// How many completions it holds at least.
    fn depth(&self) -> u32;

    /// Takes completions out, in the order in which they came; answers how many.
    ///
    /// # Errors
    /// When the device is gone or the queue has overrun.
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError>;

    /// Asks for an event at the next completion. A completion that came before this call may make no event, so poll
    /// once more after it and before [`Verbs::wait`]. What a former event left behind is acknowledged here.
    ///
    /// # Errors
    /// When the device is gone.
    fn arm(&self) -> Result<(), VerbsError>;

    /// For the implementation.
    fn as_any(&self) -> &dyn Any;
}

/// A reliable-connected queue pair.
///
/// Dropping it destroys it: nothing is sent or received any more when that has returned, and a work request that had no
/// completion gets none.
pub trait QueuePair: fmt::Debug + Send + Sync + 'static {
    /// Its number on its device (QPN), 24 bits.
    fn number(&self) -> u32;

    /// What it was made with; at least what was asked for.
    fn capacity(&self) -> QueuePairCapacity;

    /// Its state, as the device says.
    ///
    /// # Errors
    /// When the device is gone.
    fn state(&self) -> Result<QueuePairState, VerbsError>;

    /// RESET to INIT. From here on receives can be posted.
    ///
    /// # Errors
    /// When it is in another state, or an attribute is refused.
    fn initialize(&self, attributes: &InitAttributes) -> Result<(), VerbsError>;

    /// INIT to RTR (ready to receive).
    ///
    /// # Errors
    /// When it is in another state, or an attribute is refused: an Ethernet port without a global route, an MTU above the
    /// port's active one, a peer address that cannot be resolved.
    fn ready_to_receive(&self, attributes: &ReceiveAttributes) -> Result<(), VerbsError>;

    /// RTR to RTS (ready to send).
    ///
    /// # Errors
    /// When it is in another state, or an attribute is refused.
    fn ready_to_send(&self, attributes: &SendAttributes) -> Result<(), VerbsError>;

    /// Any state but RESET to ERR: all posted work requests complete, flushed where they were not done. Packets for the
    /// queue pair are dropped from then on.
    ///
    /// # Errors
    /// When the device is gone.
    fn fail(&self) -> Result<(), VerbsError>;

    /// Posts a chain of work requests, in order. In ERR they are taken and flushed.
    ///
    /// # Errors
    /// [`PostError`], with how many were taken before the first that was not (the distance to `bad_wr`). Those are on their way.
    fn post_send(&self, chain: &[SendRequest]) -> Result<(), PostError>;

    /// Posts receives.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`].
    fn post_receive(&self, chain: &[ReceiveRequest]) -> Result<(), PostError>;
}
