//! Counts allocations, for contract clause C19.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The system's allocator with a count. A test binary installs it with
/// `#[global_allocator] static COUNTING: CountingAllocator = CountingAllocator;`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

static INSTALLED: AtomicBool = AtomicBool::new(false);
static TOTAL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

impl CountingAllocator {
    /// Whether this program allocates through it.
    pub fn is_installed() -> bool {
        drop(std::hint::black_box(Box::new(0u8)));
        INSTALLED.load(Ordering::Relaxed)
    }

    /// Allocations of this thread so far.
    pub fn of_this_thread() -> u64 {
        HERE.try_with(Cell::get).unwrap_or_default()
    }

    /// Allocations of the whole program so far.
    pub fn of_all_threads() -> u64 {
        TOTAL.load(Ordering::Relaxed)
    }

    fn count() {
        INSTALLED.store(true, Ordering::Relaxed);
        TOTAL.fetch_add(1, Ordering::Relaxed);
        // A thread that ends has no count any more.
        let _ = HERE.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}
