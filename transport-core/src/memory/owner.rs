//! What a piece of memory must promise before a device may touch it.

use std::{any::Any, os::fd::BorrowedFd, ptr::NonNull};

/// Where memory lives, and so how it is read, written, registered and made visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemorySpace {
    /// Ordinary memory of this process.
    Host,
    /// Memory of the CUDA device with this ordinal.
    Cuda(u32),
    /// Memory of another kind of device; the number is the owner's own.
    Other(u32),
}

/// A dma-buf that stands for device memory, and where in it the memory begins.
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf<'a> {
    /// The file descriptor of the dma-buf.
    pub fd: BorrowedFd<'a>,
    /// Offset in bytes of the memory inside the dma-buf.
    pub offset: u64,
}

/// An owner of memory that can be registered.
///
/// The provided methods serve host memory. Owners of device memory override all of them: [`RegionOwner::copy_out`]
/// and [`RegionOwner::copy_in`] are the staging copies that a transport without access to the device uses, and
/// [`RegionOwner::dma_buf`] is what a NIC with access to it registers.
///
/// # Safety
/// For as long as the owner lives and until it is dropped:
/// - `address` and `len` never change, and the bytes stay mapped, readable and writable, also when the owner moves;
/// - no reference (`&[u8]`, `&mut [u8]`) to the bytes exists anywhere, except under the contract of an `unsafe`
///   function that names this trait;
/// - where `space` is [`MemorySpace::Host`], `address` is valid for reads and writes of `len` bytes by the CPU; where it
///   is not, the copy functions are overridden.
pub unsafe trait RegionOwner: Any + Send + Sync {
    /// The address of the first byte, in the address space of [`RegionOwner::space`].
    fn address(&self) -> NonNull<u8>;

    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the bytes live.
    fn space(&self) -> MemorySpace {
        MemorySpace::Host
    }

    /// The dma-buf behind the memory, where there is one.
    fn dma_buf(&self) -> Option<DmaBuf<'_>> {
        None
    }

    /// Copies `into.len()` bytes from `offset` on. The caller has checked the range.
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset.checked_add(into.len()).is_some_and(|end| end <= self.len()), "the caller checks the range");
        // SAFETY: S2: the range lies inside the memory, which the trait promises to be mapped.
        let from = unsafe { self.address().as_ptr().add(offset) };
        // SAFETY: S2, S3: as above, and `into` is a buffer of the caller's own, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies `from` to `offset`. The caller has checked the range.
    fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= self.len()), "the caller checks the range");
        // SAFETY: S2: the range lies inside the memory, which the trait promises to be mapped.
        let into = unsafe { self.address().as_ptr().add(offset) };
        // SAFETY: S2, S3: as above, and `from` is a buffer of the caller's own, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
    }

    /// Makes what a device wrote visible to readers.
    fn flush(&self) {}
}
