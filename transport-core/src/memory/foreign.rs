//! Memory that something else allocated: an inference engine's cache, a CUDA driver's pinned pages.

use std::{any::Any, fmt, ptr::NonNull};

use super::RegionOwner;

/// Host memory by pointer and length, kept alive by any value.
pub struct ForeignMemory {
    address: NonNull<u8>,
    len: usize,
    _keep_alive: Box<dyn Any + Send + Sync>,
}

impl ForeignMemory {
    /// Wraps `len` bytes at `address`. `keep_alive` is dropped when the last transfer and the last registration are
    /// gone, and not before.
    ///
    /// # Safety
    /// Until `keep_alive` is dropped, the bytes at `address` keep every promise of [`RegionOwner`]: they stay mapped,
    /// readable and writable, and nobody holds a reference to them.
    pub unsafe fn new(address: NonNull<u8>, len: usize, keep_alive: impl Any + Send + Sync) -> Self {
        Self { address, len, _keep_alive: Box::new(keep_alive) }
    }
}

// SAFETY: S1: promised by the caller of `new`.
unsafe impl RegionOwner for ForeignMemory {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: S5: the keep-alive is `Send`, and by the contract of `new` the bytes are not tied to a thread.
unsafe impl Send for ForeignMemory {}

// SAFETY: S5: the keep-alive is `Sync`, and shared access goes through the copy functions, whose racing rule is S3.
unsafe impl Sync for ForeignMemory {}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignMemory").field("len", &self.len).finish_non_exhaustive()
    }
}
