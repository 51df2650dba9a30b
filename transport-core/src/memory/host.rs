//! Page-aligned memory of this process, straight from the kernel.

use std::{io, ptr::NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::RegionOwner;

/// Zeroed anonymous memory, aligned to pages, on huge pages where the kernel gives them.
///
/// Its own mapping rather than the allocator's: deregistering gives the pages back to the kernel, the length can be
/// pinned by a NIC without neighbours, and a huge-page request does not touch anybody else's memory.
#[derive(Debug)]
pub struct HostMemory {
    address: NonNull<u8>,
    len: usize,
    mapped: usize,
}

/// Below this length huge pages only waste memory.
const HUGE_FROM: usize = 2 << 20;

impl HostMemory {
    /// Maps `len` bytes. A length of zero is allowed and has no usable byte.
    ///
    /// # Errors
    /// What the kernel answered, `OutOfMemory` as a rule.
    pub fn new(len: usize) -> io::Result<Self> {
        let mapped = len.max(1);
        // SAFETY: S4: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let address = NonNull::new(address.cast::<u8>()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let memory = Self { address, len, mapped };
        #[cfg(target_os = "linux")]
        if len >= HUGE_FROM {
            // SAFETY: S4: the range is our own mapping, and the advice does not change what its bytes are. A kernel
            // without huge pages refuses it, which costs speed only.
            let _ = unsafe { madvise(memory.address.as_ptr().cast(), memory.mapped, Advice::LinuxHugepage) };
        }
        Ok(memory)
    }
}

// SAFETY: S1: the mapping lives from `new` to `drop` at one address with one length, it is plain host memory, and no
// method of this type gives out a reference to its bytes.
unsafe impl RegionOwner for HostMemory {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: S5: the pointer is to memory that this value alone owns; nothing about it is tied to a thread.
unsafe impl Send for HostMemory {}

// SAFETY: S5: shared access goes through the copy functions of `RegionOwner`, whose racing rule is S3.
unsafe impl Sync for HostMemory {}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: S4: the range was mapped by `new`, it is unmapped once, and by S6 no transfer uses it any more.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.mapped) };
    }
}
