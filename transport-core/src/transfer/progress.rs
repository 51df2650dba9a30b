//! Waiting that works: a thread that blocks on a transfer may do the transport's work meanwhile.

use std::time::Instant;

/// What a transport can do on a thread that blocks on one of its transfers, so that the end of the transfer need not be
/// handed from the transport's thread to that one. Set with [`TransferPool::set_progress`](super::TransferPool::set_progress).
///
/// It is a help and no duty: whatever [`Progress::drive`] does, a transfer must come to its end without it.
pub trait Progress: Send + Sync {
    /// Makes progress on the calling thread until `done` says so or the deadline has passed; may sleep. May return
    /// early for any reason, and the thread is then parked until the transfer is over.
    ///
    /// `done` takes a lock of the transfer's for a moment: do not call it under a lock that is taken where a transfer
    /// is finished, except those that the finishing thread holds already.
    fn drive(&self, done: &dyn Fn() -> bool, deadline: Option<Instant>);

    /// A transfer has ended that a thread is in [`Progress::drive`] for, and it was not that thread that has ended it.
    /// It has to look at `done` again.
    fn nudge(&self);
}
