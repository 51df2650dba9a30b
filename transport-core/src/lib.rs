//! The contract of kvferry's transports.
//!
//! A [`Transport`] writes batches of slices from local memory into a peer's memory. This crate holds the trait, and all
//! that its implementations share so that they behave alike: memory and regions ([`Memory`], [`RegionTable`]), what a batch is
//! ([`Batch`]), how one is checked and started ([`Submit`]), the life of a transfer ([`Transfer`] for the user,
//! [`TransferDriver`] for the transport), events, and the errors of each phase.
//!
//! With features: the in-memory reference transport (`mem`), a seeded fault injector (`fault`) and the conformance suite
//! (`conformance`) that every implementation runs.

mod batch;
mod channel;
mod error;
mod event;
mod grant;
mod id;
mod memory;
mod region;
mod submit;
#[cfg(any(feature = "mem", feature = "fault"))]
mod timer;
mod transfer;
mod transport;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "fault")]
pub mod fault;
#[cfg(feature = "mem")]
pub mod mem;

pub use self::{
    batch::{Batch, Cursor, Group, OwnedBatch, Run, SliceIter, TablePair, WriteSlice, check_range},
    channel::{ControlChannel, Topic},
    error::{
        ChannelError, ConnectError, Fault, GrantError, RegionError, RegisterError, RegisterFailure, Retry, Side,
        SliceError, SubmitError, TransferError,
    },
    event::{Event, EventQueue},
    grant::{GrantedRegions, ImportedRegions, RegionGrant},
    id::{PeerId, RegionId},
    memory::{DmaBuf, ForeignMemory, HostMemory, Memory, MemorySpace, OutOfBounds, RegionOwner},
    region::{Access, ClosedRegion, RegionRef, RegionTable},
    submit::Submit,
    transfer::{
        BatchOptions, Delivered, Outcome, Permits, Progress, Room, State, Status, Times, Transfer, TransferDriver,
        TransferPool, Waited,
    },
    transport::{Capabilities, Shutdown, Transport, next_event},
};
