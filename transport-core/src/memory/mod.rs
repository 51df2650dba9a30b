//! Memory that a device or a peer may touch while we look at it.
//!
//! The hazard: the bytes of a registered region can change at any moment, because a peer writes them, and they must
//! stay where they are until the last transfer that uses them has ended, whatever the user drops. So memory is
//! owned by a counted handle ([`Memory`]), it never gives out references to its bytes, and all reading and writing
//! goes through copies on raw pointers. docs/safety.md holds the rules (S1 to S6) that the comments cite.

mod foreign;
mod host;
mod owner;

use std::{fmt, ptr::NonNull, sync::Arc};

pub use self::{
    foreign::ForeignMemory,
    host::HostMemory,
    owner::{DmaBuf, MemorySpace, RegionOwner},
};

/// A counted handle to memory that can be registered with one or several transports.
///
/// Cloning is cheap and shares the memory. Every transfer in flight holds a clone, so the memory outlives all of them
/// (contract clause C7). [`Memory::try_into_owner`] gives the owner back once nobody else holds it.
///
/// ```
/// use transport_core::Memory;
///
/// let memory = Memory::host(8192)?;
/// memory.write_at(4096, b"page one")?;
/// let mut bytes = [0; 8];
/// memory.read_at(4096, &mut bytes)?;
/// assert_eq!(&bytes, b"page one");
/// assert!(memory.write_at(8190, b"too long").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Memory {
    owner: Arc<Box<dyn RegionOwner>>,
}

impl Memory {
    /// Takes ownership of `owner`.
    pub fn new(owner: impl RegionOwner) -> Self {
        Self { owner: Arc::new(Box::new(owner)) }
    }

    /// Allocates `len` bytes of zeroed, page-aligned host memory.
    ///
    /// # Errors
    /// What the kernel answered when it could not map the memory.
    pub fn host(len: usize) -> std::io::Result<Self> {
        HostMemory::new(len).map(Self::new)
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        // Lossless: no target that we build for has pointers wider than 64 bits.
        self.owner.len() as u64
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.owner.len() == 0
    }

    /// Where the bytes live.
    pub fn space(&self) -> MemorySpace {
        self.owner.space()
    }

    /// The address of the first byte, in the address space of [`Memory::space`]. Only host addresses may be
    /// dereferenced, and only as docs/safety.md says.
    pub fn address(&self) -> NonNull<u8> {
        self.owner.address()
    }

    /// The dma-buf behind the memory, where its owner has one (device memory that an RDMA NIC reaches directly).
    pub fn dma_buf(&self) -> Option<DmaBuf<'_>> {
        self.owner.dma_buf()
    }

    /// Copies `into.len()` bytes from `offset` on. Bytes that a peer writes at the same time have unspecified values.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the range does not lie inside the memory; nothing is copied then.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let start = self.check(offset, into.len() as u64)?;
        self.owner.copy_out(start, into);
        Ok(())
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the range does not lie inside the memory; nothing is copied then.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        let start = self.check(offset, from.len() as u64)?;
        self.owner.copy_in(start, from);
        Ok(())
    }

    /// Copies `len` bytes from `self` to `target` without an intermediate buffer where both are host memory.
    ///
    /// # Errors
    /// [`OutOfBounds`] when either range does not lie inside its memory; nothing is copied then.
    pub fn copy_to(&self, offset: u64, target: &Self, target_offset: u64, len: u64) -> Result<(), OutOfBounds> {
        let from = self.check(offset, len)?;
        let to = target.check(target_offset, len)?;
        // `check` passed, so `len` fits the address space.
        let len = len as usize;
        if self.space() == MemorySpace::Host && target.space() == MemorySpace::Host {
            // SAFETY: S2, S3: `check` showed that both ranges lie inside live memory of host owners (S1), and
            // `copy` allows that they overlap.
            unsafe { copy_host(self.address(), from, target.address(), to, len) };
        } else {
            let mut staging = vec![0; len.min(1 << 20)];
            let mut done = 0;
            while done < len {
                let part = staging.len().min(len - done);
                let (piece, _) = staging.split_at_mut(part);
                self.owner.copy_out(from + done, piece);
                target.owner.copy_in(to + done, piece);
                done += part;
            }
        }
        Ok(())
    }

    /// Sets `len` bytes from `offset` on to `value`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the range does not lie inside the memory; nothing is written then.
    pub fn fill(&self, offset: u64, len: u64, value: u8) -> Result<(), OutOfBounds> {
        let mut start = self.check(offset, len)?;
        let mut left = len as usize;
        let block = [value; 4096];
        while left > 0 {
            let (part, _) = block.split_at(left.min(block.len()));
            self.owner.copy_in(start, part);
            start += part.len();
            left -= part.len();
        }
        Ok(())
    }

    /// Makes what a device wrote visible to readers of this memory: nothing to do for host memory, the owner's flush
    /// for device memory.
    pub fn flush(&self) {
        self.owner.flush();
    }

    /// Gives the owner back when this is the last handle.
    ///
    /// # Errors
    /// The handle itself, when a transport, a transfer or somebody else still holds the memory.
    pub fn try_into_owner(self) -> Result<Box<dyn RegionOwner>, Self> {
        Arc::try_unwrap(self.owner).map_err(|owner| Self { owner })
    }

    /// How many handles hold the memory, this one included. A diagnostic: the answer may be old at once.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.owner)
    }

    fn check(&self, offset: u64, len: u64) -> Result<usize, OutOfBounds> {
        match offset.checked_add(len) {
            // The end fits a `usize` because the owner's length does.
            Some(end) if end <= self.len() => Ok(offset as usize),
            _ => Err(OutOfBounds { offset, len, memory_len: self.len() }),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the contents.
        f.debug_struct("Memory").field("len", &self.len()).field("space", &self.space()).finish_non_exhaustive()
    }
}

/// # Safety
/// Both ranges lie inside live host memory.
unsafe fn copy_host(from: NonNull<u8>, from_offset: usize, to: NonNull<u8>, to_offset: usize, len: usize) {
    // SAFETY: the caller promises that the range lies inside the allocation.
    let source = unsafe { from.as_ptr().add(from_offset) };
    // SAFETY: as above.
    let target = unsafe { to.as_ptr().add(to_offset) };
    // SAFETY: as above; `copy` allows overlap.
    unsafe { std::ptr::copy(source, target, len) };
}

/// A range that does not lie inside its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie inside memory of {memory_len} bytes")]
pub struct OutOfBounds {
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// How many bytes were asked for.
    pub len: u64,
    /// How many bytes the memory has.
    pub memory_len: u64,
}

#[cfg(test)]
mod tests;
