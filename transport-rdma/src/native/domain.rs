//! Protection domains: registering memory and making queue pairs.

use std::{os::fd::AsRawFd, sync::Arc};

use ibverbs_sys::{ibv_access_flags, ibv_pd};
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};
use transport_core::Memory;

use super::{
    completion_queue::NativeCompletionQueue,
    context::Context,
    handle::Handle,
    queue_pair::NativeQueuePair,
    region::{NativeRegion, Ranges},
};
use crate::verbs::{CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, QueuePairCapacity, VerbsError};

/// A protection domain, shared with all that is made in it.
#[derive(Debug)]
pub(super) struct NativeDomain(Arc<Domain>);

impl NativeDomain {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: V1, V2.
        let raw = unsafe { (context.library.allocate_domain)(context.raw.as_ptr()) };
        let raw = Handle::new(raw).map_err(|code| context.error("ibv_alloc_pd", code))?;
        Ok(Self(Arc::new(Domain { raw, context: Arc::clone(context), ranges: Ranges::default() })))
    }
}

impl ProtectionDomain for NativeDomain {
    fn register(
        &self,
        memory: &Memory,
        offset: u64,
        len: u64,
        remote_write: bool,
    ) -> Result<Box<dyn MemoryRegion>, VerbsError> {
        let context = &self.0.context;
        let inside = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        if len == 0 || !inside {
            let reason =
                format!("{len} bytes from {offset} on are no range to register in memory of {} bytes", memory.len());
            return Err(context.refuse("ibv_reg_mr", Errno::INVAL, reason));
        }
        let access = if remote_write {
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        } else {
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
        };
        let raw = self.0.register(memory, offset, len, access)?;
        let address = address(memory) + offset;
        Ok(Box::new(NativeRegion::new(Arc::clone(&self.0), raw, memory.clone(), address, len)))
    }

    fn create_queue_pair(
        &self,
        completions: &Arc<dyn CompletionQueue>,
        capacity: QueuePairCapacity,
    ) -> Result<Box<dyn QueuePair>, VerbsError> {
        let queue = completions.as_any().downcast_ref::<NativeCompletionQueue>();
        let Some(queue) = queue.filter(|queue| Arc::ptr_eq(queue.context(), &self.0.context)) else {
            let reason = "the completion queue is not one of this open device";
            return Err(self.0.context.refuse("ibv_create_qp", Errno::INVAL, reason));
        };
        Ok(Box::new(NativeQueuePair::new(&self.0, completions, queue, capacity)?))
    }
}

/// A protection domain of the library's.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) raw: Handle<ibv_pd>,
    pub(super) context: Arc<Context>,
    pub(super) ranges: Ranges,
}

impl Domain {
    /// Registers a range that lies in the memory.
    fn register(
        &self,
        memory: &Memory,
        offset: u64,
        len: u64,
        access: ibv_access_flags,
    ) -> Result<Handle<ibverbs_sys::ibv_mr>, VerbsError> {
        // Lossless, both of them: the range lies in memory of this process, and the flags are a few low bits.
        let (bytes, access) = (len as usize, access.0 as i32);
        let library = &self.context.library;
        let Some(buffer) = memory.dma_buf() else {
            let start = memory.address().as_ptr().wrapping_add(offset as usize);
            // SAFETY: V1, V2, V5: the caller checked the range, and the region holds the memory. The kernel refuses what
            // is not mapped.
            let raw = unsafe { (library.register)(self.raw.as_ptr(), start.cast(), bytes, access) };
            return Handle::new(raw).map_err(|code| self.unregistered("ibv_reg_mr", len, code));
        };
        const OPERATION: &str = "ibv_reg_dmabuf_mr";
        let Some(register) = library.register_dma_buf else {
            let reason = "this libibverbs cannot register a dma-buf: install rdma-core 34 or later";
            return Err(self.context.refuse(OPERATION, Errno::OPNOTSUPP, reason));
        };
        let Some(start) = buffer.offset.checked_add(offset) else {
            let reason = format!("offset {offset} after {} leaves the dma-buf", buffer.offset);
            return Err(self.context.refuse(OPERATION, Errno::INVAL, reason));
        };
        let (first, descriptor) = (address(memory) + offset, buffer.fd.as_raw_fd());
        // SAFETY: V1, V2, V5: as above; the kernel checks the range against the dma-buf and holds on to it.
        let raw = unsafe { register(self.raw.as_ptr(), start, bytes, first, descriptor, access) };
        Handle::new(raw).map_err(|code| self.unregistered(OPERATION, len, code))
    }

    fn unregistered(&self, operation: &'static str, len: u64, code: i32) -> VerbsError {
        let error = self.context.error(operation, code);
        let hint = match Errno::from_raw_os_error(code) {
            Errno::NOMEM => match getrlimit(Resource::Memlock).current {
                Some(limit) => format!(
                    "; this process may lock {limit} bytes in all: raise `ulimit -l` (systemd: LimitMEMLOCK=), or register \
                     less"
                ),
                None => {
                    "; locked memory has no limit here, so the host or the device has no room: register less".to_owned()
                }
            },
            Errno::OPNOTSUPP => {
                "; the device cannot reach this memory: use host memory, or a NIC with dma-buf".to_owned()
            }
            Errno::FAULT => "; the range is not mapped as memory that a device may write".to_owned(),
            _ => String::new(),
        };
        VerbsError { reason: format!("{len} bytes: {}{hint}", error.reason).into(), ..error }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: V1, V2: its regions and queue pairs are gone, because they held it.
        let answer = unsafe { (self.context.library.free_domain)(self.raw.as_ptr()) };
        self.context.destroyed("ibv_dealloc_pd", answer);
    }
}

/// Where memory begins, as a number.
fn address(memory: &Memory) -> u64 {
    // Lossless: no target that we build for has pointers wider than 64 bits.
    memory.address().addr().get() as u64
}
