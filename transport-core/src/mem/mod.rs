//! The in-memory reference transport: the contract, kept in the plainest way.
//!
//! A [`MemFabric`] is a network inside one process. Each [`MemTransport`] on it has a thread that copies the bytes of its
//! batches piece by piece, so that everything that can be in flight, late or lost on a real network can be so here. What it
//! does is what a wire does: it reads the sender's regions and asks the *receiver's* tables before each write.
//!
//! ```
//! use futures_util::future::join;
//! use transport_core::{
//!     Access, BatchOptions, Memory, Transport, WriteSlice,
//!     conformance::block_on,
//!     mem::{MemConfig, MemFabric},
//! };
//!
//! let fabric = MemFabric::new();
//! let (sender, receiver) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
//! let (here, there) = fabric.channel_pair(&sender, &receiver);
//! let (to_receiver, to_sender) = block_on(join(sender.connect(here), receiver.connect(there)));
//! let (to_receiver, to_sender) = (to_receiver?, to_sender?);
//!
//! let source = sender.register(Memory::host(4096)?, Access::LOCAL)?;
//! let target = receiver.register(Memory::host(4096)?, Access::REMOTE_WRITE)?;
//! sender.import(to_receiver, &receiver.grant(to_sender, target)?)?;
//!
//! let slice = WriteSlice { src: source, src_offset: 0, dst: target, dst_offset: 1024, len: 512 };
//! let transfer = sender.batch_write(to_receiver, (&[slice]).into(), &BatchOptions::new())?;
//! assert_eq!(transfer.wait()?.bytes, 512);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod channel;
mod config;
mod fabric;
mod host;
mod link;
mod outgoing;
mod peer;
mod transport;
mod worker;

pub use self::{channel::MemChannel, config::MemConfig, fabric::MemFabric, transport::MemTransport};
