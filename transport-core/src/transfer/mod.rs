//! The life of a transfer, the same for every transport.
//!
//! The hazards: an outcome that changes after it was reported, a transfer that is reported while the device still
//! touches its memory, a wake-up that is lost, a slot that is used again while somebody still looks at it. Here the
//! outcome is owned by one value, the [`TransferDriver`]: the transport has it from submission on, and gives it up by
//! finishing it, which it does only after the device is quiet. The user has a [`Transfer`], which can do nothing but
//! look, wait and ask. Both are counted parties of a slot; the slot goes back to the pool when both are gone.

mod driver;
mod permits;
mod progress;
mod slot;

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

pub(crate) use self::slot::New;
pub use self::{
    driver::TransferDriver,
    permits::{Permits, Room},
    progress::Progress,
    slot::TransferPool,
};
use self::{permits::Permit, slot::Party};
use crate::{error::TransferError, region::RegionRef};

/// What a batch carries beside its slices.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BatchOptions<'a> {
    /// Delivered to the receiving program once, after all bytes of the batch and of everything in `after` are visible
    /// to it. At most [`Capabilities::max_notification`](crate::Capabilities::max_notification) bytes.
    pub notification: Option<&'a [u8]>,
    /// Transfers of the same transport, to any peer, that the notification comes after. With it, several batches share
    /// one commit: a push by layers is many batches, and the last one carries the notification and names the others.
    /// The bytes of this batch do not wait for them. If one of them fails, this transfer fails with
    /// [`TransferError::Dependency`].
    pub after: &'a [&'a Transfer],
    /// The caller's name for the transfer (a request id, as a rule), for logs and [`Status`].
    pub label: u64,
}

impl<'a> BatchOptions<'a> {
    /// No notification, nothing to wait for, label 0.
    pub const fn new() -> Self {
        Self { notification: None, after: &[], label: 0 }
    }

    /// Sets the notification.
    #[must_use]
    pub const fn with_notification(mut self, notification: &'a [u8]) -> Self {
        self.notification = Some(notification);
        self
    }

    /// Sets what the notification comes after.
    #[must_use]
    pub const fn with_after(mut self, after: &'a [&'a Transfer]) -> Self {
        self.after = after;
        self
    }

    /// Sets the label.
    #[must_use]
    pub const fn with_label(mut self, label: u64) -> Self {
        self.label = label;
        self
    }
}

/// Where a transfer is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Submitted and not over: queued, or on its way.
    InFlight,
    /// All bytes, and the notification if there is one, are at the receiver.
    Delivered,
    /// Over without success.
    Failed,
    /// Over because it was cancelled.
    Cancelled,
}

impl State {
    /// Whether this is an outcome, which never changes.
    pub fn is_terminal(self) -> bool {
        self != Self::InFlight
    }
}

/// When the stages of a transfer were reached, on this side's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Submitted.
    pub queued: Instant,
    /// Its first byte was handed to the transport's queue.
    pub posted: Option<Instant>,
    /// Its last byte was handed to the transport's queue.
    pub last_byte: Option<Instant>,
    /// Its outcome was known.
    pub finished: Option<Instant>,
}

/// A snapshot of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Where it is in its life.
    pub state: State,
    /// Bytes handed to the network so far; all of them once delivered. Never goes down.
    pub bytes_done: u64,
    /// Bytes of the whole batch.
    pub bytes_total: u64,
    /// The caller's label.
    pub label: u64,
    /// When its stages were reached.
    pub times: Times,
}

/// What a delivered transfer reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// Bytes that were written at the peer.
    pub bytes: u64,
    /// When its stages were reached.
    pub times: Times,
}

/// The outcome of a transfer.
pub type Outcome = Result<Delivered, TransferError>;

/// What waiting with a deadline found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The transfer is over.
    Finished(Outcome),
    /// The deadline passed first. The transfer goes on: its memory is still in use (contract clause C3).
    StillInFlight(Status),
}

/// A handle to a batch in flight: poll it, block on it, await it, or drop it.
///
/// Dropping the handle detaches it: the transfer goes on (contract clause C6). No runtime is needed to poll or to block.
/// The outcome stays readable for as long as the handle lives, by any of the ways and any number of times.
///
/// # Cancel safety
/// Awaiting `&mut transfer` and dropping that future loses nothing: the transfer goes on and can be awaited again.
pub struct Transfer {
    party: Party,
}

impl Transfer {
    /// A snapshot; never blocks.
    pub fn status(&self) -> Status {
        self.party.slot().status()
    }

    /// The outcome, once there is one.
    pub fn outcome(&self) -> Option<Outcome> {
        self.party.slot().outcome()
    }

    /// As polling the handle as a future, for those who share it.
    pub fn poll_outcome(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        self.party.slot().poll_outcome(context)
    }

    /// Blocks this thread until the transfer is over. Every transport ends a transfer within the bounds of its
    /// configuration (peer loss, stall), so this returns. Not for async code: await the transfer instead.
    ///
    /// A transport may work on this thread meanwhile, for other transfers too ([`Progress`]); wakers of theirs are then
    /// called here.
    ///
    /// # Errors
    /// How the transfer failed.
    pub fn wait(&self) -> Outcome {
        self.party.wait()
    }

    /// Blocks this thread until the transfer is over or `timeout` has passed; otherwise as [`Transfer::wait`]. What the
    /// transport does on this thread may make it later, which its documentation then says.
    pub fn wait_timeout(&self, timeout: Duration) -> Waited {
        self.party.wait_timeout(timeout)
    }

    /// Asks the transport to end the transfer early. Returns at once; the outcome comes as ever, after the last use of
    /// the memory: cancelled, or delivered or failed where that was faster.
    pub fn cancel(&self) {
        self.party.slot().cancel();
    }
}

impl Future for Transfer {
    type Output = Outcome;

    /// Ready with the outcome once there is one, also when polled again. Of several tasks that poll one handle, the
    /// last is woken (contract clause C16).
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.party.slot().poll_outcome(context)
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// Makes a transfer: its handle for the user and its driver for the transport. `hold` is as for [`TransferPool::take`].
pub(crate) fn start<E>(
    pool: &Arc<TransferPool>,
    permit: Permit,
    new: New<'_>,
    hold: impl FnOnce(&mut Vec<RegionRef>) -> Result<(), E>,
) -> Result<(Transfer, TransferDriver), E> {
    let (user, driver) = TransferPool::take(pool, new, hold)?;
    Ok((Transfer { party: user }, TransferDriver::new(driver, permit)))
}

#[cfg(test)]
mod tests;
