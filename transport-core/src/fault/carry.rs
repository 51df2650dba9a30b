//! One batch on its way through the injector.

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use super::{peer::Peer, plan::Fault, shared::Shared};
use crate::{
    batch::WriteSlice,
    error::{SliceError, SubmitError, TransferError},
    id::PeerId,
    transfer::{BatchOptions, Outcome, Transfer, TransferDriver},
    transport::Transport,
};

const REASON: &str = "the fault injector has lost it";

pub(super) struct Carry<T> {
    pub(super) shared: Arc<Shared<T>>,
    pub(super) id: PeerId,
    pub(super) peer: Arc<Peer>,
    pub(super) driver: TransferDriver,
}

impl<T: Transport> Carry<T> {
    /// Carries the batch to its end. The wrapped transport's transfers are over before this one is (C3).
    pub(super) async fn run(mut self, fault: Option<Fault>) {
        let result = self.carry(fault).await;
        // A connection that ended explains whatever failed because of it.
        let result = result.map_err(|error| match error {
            TransferError::Disconnected | TransferError::PeerLost { .. } => self.peer.ended().unwrap_or(error),
            other => other,
        });
        if let Err(TransferError::Refused { cause: SliceError::StaleDestination { asked }, .. }) = result {
            // The wrapped transport knows that the peer took the grant back; now its mirror does.
            self.peer.imported.revoke(asked);
        }
        self.driver.finish(result);
        self.peer.count_over();
    }

    async fn carry(&mut self, fault: Option<Fault>) -> Result<(), TransferError> {
        let slices: Vec<WriteSlice> = self.driver.batch().iter().collect();
        match fault {
            Some(Fault::Delay(delay)) => self.pause(delay).await?,
            Some(Fault::Reorder { batches, at_most }) => self.hold_back(batches, at_most).await?,
            _ => {}
        }
        let first = match fault {
            Some(
                Fault::Stall { after_slices, .. } | Fault::Fail { after_slices } | Fault::LosePeer { after_slices },
            ) => usize::try_from(after_slices).map_or(slices.len(), |count| count.min(slices.len())),
            _ => slices.len(),
        };
        let (first, _) = slices.split_at(first);
        self.driver.mark_posted();
        self.write(first, None).await?;
        self.driver.progress(first.iter().map(|slice| slice.len).sum());
        match fault {
            Some(Fault::Stall { timeout, .. }) => {
                self.pause(timeout).await?;
                let (done, total) = (self.driver.bytes_done(), self.driver.bytes_total());
                return Err(TransferError::Stalled { timeout, done, total });
            }
            Some(Fault::Fail { .. }) => {
                let device = Arc::from("fault injector");
                return Err(TransferError::Device { device, reason: Arc::from("the plan wants it") });
            }
            Some(Fault::LosePeer { .. }) => {
                self.shared.lose(self.id, REASON).await;
                return Err(TransferError::PeerLost { reason: Arc::from(REASON) });
            }
            _ => self.driver.mark_last_byte(),
        }
        self.dependencies().await?;
        if let Some(notification) = self.driver.notification().map(<[u8]>::to_vec) {
            self.write(&[], Some(&notification)).await?;
        }
        if let Some(Fault::CompleteLate(delay)) = fault {
            // It has arrived: nothing that happens now changes the outcome, only when it is known.
            let _ = self.pause(delay).await;
        }
        Ok(())
    }

    /// Ready when the batch has to end early, and how.
    fn poll_interrupt(&self, context: &mut Context<'_>) -> Poll<TransferError> {
        if let Poll::Ready(error) = self.peer.poll_ended(context) {
            return Poll::Ready(error);
        }
        self.driver.poll_cancelled(context).map(|()| TransferError::Cancelled)
    }

    async fn pause(&self, length: Duration) -> Result<(), TransferError> {
        self.hold_back(u64::MAX, length).await
    }

    /// Waits until so many other batches to the peer are over, but no longer than `at_most`.
    async fn hold_back(&self, batches: u64, at_most: Duration) -> Result<(), TransferError> {
        let enough = self.peer.over().saturating_add(batches);
        let mut late = pin!(self.shared.timer.sleep_until(Instant::now() + at_most));
        poll_fn(|context| {
            if let Poll::Ready(error) = self.poll_interrupt(context) {
                return Poll::Ready(Err(error));
            }
            if self.peer.poll_over(context, enough).is_ready() {
                return Poll::Ready(Ok(()));
            }
            late.as_mut().poll(context).map(Ok)
        })
        .await
    }

    async fn dependencies(&mut self) -> Result<(), TransferError> {
        poll_fn(|context| {
            if let Poll::Ready(error) = self.poll_interrupt(context) {
                return Poll::Ready(Err(error));
            }
            self.driver.poll_dependencies(context)
        })
        .await
    }

    /// Has the wrapped transport write slices, and waits until it is through with them, whatever happens.
    async fn write(&self, slices: &[WriteSlice], notification: Option<&[u8]>) -> Result<(), TransferError> {
        if slices.is_empty() && notification.is_none() {
            return Ok(());
        }
        let mut options = BatchOptions::new().with_label(self.driver.label());
        options.notification = notification;
        let mut transfer = self.submit(slices, &options).await?;
        let mut interrupt = None;
        let outcome: Outcome = poll_fn(|context| {
            if interrupt.is_none()
                && let Poll::Ready(error) = self.poll_interrupt(context)
            {
                transfer.cancel();
                interrupt = Some(error);
            }
            pin!(&mut transfer).poll(context)
        })
        .await;
        match (outcome, interrupt) {
            // The bytes of a part that was interrupted do not make the batch delivered; a notification does.
            (Ok(_), Some(error)) if notification.is_none() => Err(error),
            (Ok(_), _) => Ok(()),
            (Err(_), Some(error)) | (Err(error), None) => Err(error),
        }
    }

    async fn submit(&self, slices: &[WriteSlice], options: &BatchOptions<'_>) -> Result<Transfer, TransferError> {
        loop {
            let error = match self.shared.inner.batch_write(self.id, slices.into(), options) {
                Ok(transfer) => return Ok(transfer),
                Err(error) => error,
            };
            match error {
                SubmitError::Full { .. } => self.room().await?,
                SubmitError::Slice { index, cause } => return Err(TransferError::Refused { index, cause }),
                SubmitError::NotConnected { reason, .. } => {
                    return Err(TransferError::PeerLost { reason: Arc::from(reason) });
                }
                SubmitError::Closed => return Err(TransferError::Cancelled),
                other => {
                    let (device, reason) = (Arc::from("fault injector"), Arc::from(other.to_string()));
                    return Err(TransferError::Device { device, reason });
                }
            }
        }
    }

    async fn room(&self) -> Result<(), TransferError> {
        let mut room = pin!(self.shared.inner.room(self.id));
        poll_fn(|context| {
            if let Poll::Ready(error) = self.poll_interrupt(context) {
                return Poll::Ready(Err(error));
            }
            // How it failed shows at the next submission.
            room.as_mut().poll(context).map(|_| Ok(()))
        })
        .await
    }
}
