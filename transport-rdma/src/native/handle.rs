//! Pointers to what the library made.

use std::{fmt, io, ptr::NonNull};

use rustix::io::Errno;

/// A pointer to an object of the library, in the hands of its one owner. The owner destroys it when it is dropped (rule V2).
pub(super) struct Handle<T>(NonNull<T>);

impl<T> Handle<T> {
    /// What a creating function answered; when it is null, the error number that the function left behind.
    pub(super) fn new(pointer: *mut T) -> Result<Self, i32> {
        NonNull::new(pointer).map(Self).ok_or_else(last_error)
    }

    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// SAFETY: V3: the library's objects are not tied to a thread.
unsafe impl<T> Send for Handle<T> {}

// SAFETY: V3: the library's functions may be called on one object from several threads at a time. A shared handle gives out
// the pointer, never a reference.
unsafe impl<T> Sync for Handle<T> {}

/// The error number of the function that failed last on this thread.
pub(super) fn last_error() -> i32 {
    // Functions that forget to set it leave zero, which would read as "success".
    io::Error::last_os_error().raw_os_error().filter(|code| *code != 0).unwrap_or(Errno::IO.raw_os_error())
}

/// The answer of a function that gives zero or an error number. Some providers give it negated.
pub(super) fn check(answer: i32) -> Result<(), i32> {
    if answer == 0 { Ok(()) } else { Err(answer.saturating_abs()) }
}
