//! Buffers between regions and QUIC.
//!
//! QUIC may send bytes again until they are acknowledged, and a region's bytes may change as soon as its transfer is over, or under
//! the transfer when the program errs. So what is given to QUIC is a copy. The copies live in buffers that are used again; small
//! slices are gathered into one.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use transport_core::{Memory, OutOfBounds};

/// Length of a buffer: large enough that handing one over costs nothing beside its bytes, small enough to stay in a core's own
/// cache between the copy and the encryption.
const LEN: usize = 128 << 10;

/// The usable part of a buffer begins at a multiple of this: copies between page-aligned addresses are the fastest.
const ALIGN: usize = 4096;

/// Buffers that wait to be used again.
pub(crate) struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
    keep: usize,
}

impl Pool {
    /// Keeps at most `bytes` of buffers that are not in use. How many are in use is bounded by QUIC's send windows.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), keep: bytes.div_ceil(LEN) })
    }

    fn take(self: &Arc<Self>) -> Buffer {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = free.unwrap_or_else(|| vec![0; LEN + ALIGN]);
        let start = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Buffer { bytes, start, filled: 0, pool: Arc::clone(self) }
    }

    fn put(&self, bytes: Vec<u8>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.keep {
            free.push(bytes);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("keep", &self.keep).finish_non_exhaustive()
    }
}

/// A buffer in use. It goes back to its pool when QUIC has no more use for it.
struct Buffer {
    bytes: Vec<u8>,
    /// Where the aligned part begins.
    start: usize,
    /// Bytes of the aligned part that are in use.
    filled: usize,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.start..self.start + self.filled).unwrap_or_default()
    }
}

impl Buffer {
    /// What is left of the aligned part.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start + self.filled..self.start + LEN).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.bytes));
    }
}

/// Gathers bytes into buffers.
pub(crate) struct Staging {
    pool: Arc<Pool>,
    current: Option<Buffer>,
}

impl Staging {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        Self { pool: Arc::clone(pool), current: None }
    }

    /// Room that is left in the current buffer; never 0 after [`Staging::take_full`].
    fn room(&mut self) -> &mut Buffer {
        self.current.get_or_insert_with(|| self.pool.take())
    }

    /// Takes in as many bytes as there is room for, and says how many.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let buffer = self.room();
        let room = buffer.room();
        let len = room.len().min(bytes.len());
        if let (Some(room), Some(bytes)) = (room.get_mut(..len), bytes.get(..len)) {
            room.copy_from_slice(bytes);
        }
        buffer.filled += len;
        len
    }

    /// Copies as many of `len` bytes of a region as there is room for, and says how many.
    pub(crate) fn push_region(&mut self, memory: &Memory, offset: u64, len: u64) -> Result<u64, OutOfBounds> {
        let buffer = self.room();
        let room = buffer.room();
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(room.len());
        if let Some(room) = room.get_mut(..len) {
            memory.read_at(offset, room)?;
        }
        buffer.filled += len;
        Ok(len as u64)
    }

    /// The current buffer, if it is full.
    pub(crate) fn take_full(&mut self) -> Option<Bytes> {
        self.current.take_if(|buffer| buffer.filled == LEN).map(Bytes::from_owner)
    }

    /// The current buffer, if anything is in it.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        self.current.take_if(|buffer| buffer.filled > 0).map(Bytes::from_owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_gathered_and_come_back() {
        let pool = Pool::new(LEN);
        let memory = Memory::host(LEN).unwrap();
        memory.fill(0, LEN as u64, 9).unwrap();
        let mut staging = Staging::new(&pool);
        assert!(staging.take().is_none());
        assert_eq!(staging.push(&[1, 2, 3]), 3);
        assert_eq!(staging.push_region(&memory, 0, LEN as u64).unwrap(), LEN as u64 - 3);
        let full = staging.take_full().unwrap();
        assert_eq!((full.len(), &full[..4]), (LEN, &[1, 2, 3, 9][..]));
        assert_eq!(staging.push(&[4]), 1);
        assert!(staging.take_full().is_none());
        let rest = staging.take().unwrap();
        assert_eq!(&rest[..], [4]);
        assert_eq!(pool.free.lock().unwrap().len(), 0);
        drop((full, rest));
        assert_eq!(pool.free.lock().unwrap().len(), 1, "no more than the pool keeps");
    }
}
