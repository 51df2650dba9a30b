//! The transport's side of a transfer.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use super::{
    permits::Permit,
    slot::{Party, Submission},
};
use crate::{batch::OwnedBatch, error::TransferError, id::RegionId, region::RegionRef};

/// What a transport has of a transfer: its batch, the memory it holds, and the duty to finish it.
///
/// Finish it only when nothing can touch the local memory of the batch any more (contract clause C3). A driver that is
/// dropped without having been finished fails its transfer with [`TransferError::EngineLost`] and leaks the memory: it
/// cannot know whether a device still uses it.
pub struct TransferDriver {
    party: Party,
    submission: Option<Box<Submission>>,
    permit: Permit,
}

impl TransferDriver {
    pub(super) fn new(party: Party, permit: Permit) -> Self {
        let submission = party.slot().take_submission();
        Self { party, submission: Some(submission), permit }
    }

    fn submission(&self) -> &Submission {
        // Present from `new` to `end`, which consumes the driver.
        match &self.submission {
            Some(submission) => submission,
            None => unreachable!("a driver has its submission until it ends"),
        }
    }

    /// The slices.
    pub fn batch(&self) -> &OwnedBatch {
        &self.submission().batch
    }

    /// The local regions that the batch reads, each once, ordered by id.
    pub fn regions(&self) -> &[RegionRef] {
        &self.submission().holds
    }

    /// The local region of a slice of the batch; `None` only for a slice of another batch.
    pub fn region(&self, id: RegionId) -> Option<&RegionRef> {
        self.submission().hold(id)
    }

    /// The notification that the receiver gets after the last byte.
    pub fn notification(&self) -> Option<&[u8]> {
        let submission = self.submission();
        submission.has_notification.then_some(&submission.notification)
    }

    /// Bytes of the whole batch.
    pub fn bytes_total(&self) -> u64 {
        self.party.slot().total()
    }

    /// Bytes counted by [`TransferDriver::progress`].
    pub fn bytes_done(&self) -> u64 {
        self.party.slot().done()
    }

    /// The caller's label.
    pub fn label(&self) -> u64 {
        self.party.slot().label()
    }

    /// Counts bytes as handed to the network.
    pub fn progress(&self, bytes: u64) {
        self.party.slot().add_done(bytes);
    }

    /// Notes that the first byte goes out now.
    pub fn mark_posted(&self) {
        self.party.slot().mark(|times| times.posted = Some(Instant::now()));
    }

    /// Notes that the last byte went out now.
    pub fn mark_last_byte(&self) {
        self.party.slot().mark(|times| times.last_byte = Some(Instant::now()));
    }

    /// Whether the user asked to cancel.
    pub fn is_cancelled(&self) -> bool {
        self.party.slot().is_cancelled()
    }

    /// Ready once the user has asked to cancel; the task of `context` is woken when that happens.
    pub fn poll_cancelled(&self, context: &mut Context<'_>) -> Poll<()> {
        self.wake_on_cancel(context.waker());
        if self.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Has `waker` woken when the user asks to cancel. One waker at a time: the last one registered.
    pub fn wake_on_cancel(&self, waker: &Waker) {
        self.party.slot().register_driver(waker);
    }

    /// Ready once all transfers that this one comes after are delivered, or one of them is not.
    ///
    /// # Errors
    /// [`TransferError::Dependency`] with the outcome of one that failed; in a chain, of the one that failed first.
    pub fn poll_dependencies(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransferError>> {
        let Some(submission) = &mut self.submission else { return Poll::Ready(Ok(())) };
        while let Some(dependency) = submission.after.last() {
            match dependency.slot().poll_follow(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(_)) => drop(submission.after.pop()),
                // The cause of a chain is kept flat, however long the chain is.
                Poll::Ready(Err(TransferError::Dependency { cause })) => {
                    return Poll::Ready(Err(TransferError::Dependency { cause }));
                }
                Poll::Ready(Err(cause)) => {
                    return Poll::Ready(Err(TransferError::Dependency { cause: Arc::new(cause) }));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the transfer: releases its memory, publishes the outcome, wakes whoever waits, and gives its place back.
    pub fn finish(mut self, result: Result<(), TransferError>) {
        if let Some(submission) = self.submission.take() {
            self.permit.free();
            self.party.finish(result, submission);
        }
    }
}

impl Drop for TransferDriver {
    fn drop(&mut self) {
        let Some(submission) = self.submission.take() else { return };
        tracing::error!(
            label = self.label(),
            "a transfer was dropped unfinished by its transport; its memory is leaked"
        );
        // S6: leaking is safe, freeing under a device is not.
        std::mem::forget(submission);
        self.permit.free();
        self.party.finish(Err(TransferError::EngineLost), Box::default());
    }
}

impl fmt::Debug for TransferDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferDriver").field("status", &self.party.slot().status()).finish_non_exhaustive()
    }
}
