//! One batch on its way.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;

use super::peer::{End, Peer};
use crate::{
    batch::{Cursor, WriteSlice, check_range},
    error::{Side, SliceError, TransferError},
    event::Event,
    transfer::TransferDriver,
};

/// Bytes that one turn copies at most; a cancelled transfer is noticed after so many.
const TURN_BYTES: u64 = 1 << 20;
/// Slices that one turn copies at most.
const TURN_SLICES: usize = 256;

#[derive(Debug)]
pub(super) struct Outgoing {
    peer: Arc<Peer>,
    driver: TransferDriver,
    cursor: Cursor,
    /// What is left of the slice that the cursor has passed last.
    rest: Option<WriteSlice>,
    /// Its index.
    index: u64,
    started: bool,
    copied: bool,
    event: Option<Event>,
    /// Since when the receiver's queue of events has no room.
    full_since: Option<Instant>,
}

/// What a turn came to.
#[derive(Debug)]
pub(super) enum Turn {
    /// There is more to do.
    Again,
    /// Nothing to do until the thread is woken, or until this moment.
    Wait(Option<Instant>),
    /// Over.
    End(Result<(), TransferError>),
}

impl Outgoing {
    pub(super) fn new(peer: Arc<Peer>, driver: TransferDriver) -> Self {
        Self {
            peer,
            driver,
            cursor: Cursor::default(),
            rest: None,
            index: 0,
            started: false,
            copied: false,
            event: None,
            full_since: None,
        }
    }

    pub(super) fn into_driver(self) -> TransferDriver {
        self.driver
    }

    /// Takes one step. Between steps nothing touches the batch's memory, so any of them can be the last (C3).
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Turn {
        if !self.started {
            self.started = true;
            self.driver.wake_on_cancel(context.waker());
            self.driver.mark_posted();
        }
        if let Some(end) = self.peer.ended() {
            return Turn::End(Err(end.error()));
        }
        if self.driver.is_cancelled() {
            return Turn::End(Err(TransferError::Cancelled));
        }
        if !self.copied {
            match self.copy() {
                Ok(true) => {
                    self.copied = true;
                    self.driver.mark_last_byte();
                }
                Ok(false) => return Turn::Again,
                Err(error) => return Turn::End(Err(error)),
            }
        }
        match self.driver.poll_dependencies(context) {
            Poll::Pending => Turn::Wait(None),
            Poll::Ready(Err(error)) => Turn::End(Err(error)),
            Poll::Ready(Ok(())) => self.notify(context),
        }
    }

    /// Copies up to one turn's worth; answers whether the batch is through.
    fn copy(&mut self) -> Result<bool, TransferError> {
        let Some(remote) = self.peer.remote() else { return Err(self.lost()) };
        let mut budget = TURN_BYTES;
        for _ in 0..TURN_SLICES {
            let Some(slice) = self.rest.take().or_else(|| self.driver.batch().next(&mut self.cursor)) else {
                return Ok(true);
            };
            let piece = WriteSlice { len: slice.len.min(budget), ..slice };
            self.write(&remote, slice, piece)?;
            budget -= piece.len;
            self.driver.progress(piece.len);
            if piece.len < slice.len {
                self.rest = Some(WriteSlice {
                    src_offset: slice.src_offset + piece.len,
                    dst_offset: slice.dst_offset + piece.len,
                    len: slice.len - piece.len,
                    ..slice
                });
                return Ok(false);
            }
            self.index += 1;
        }
        Ok(false)
    }

    /// What the receiver does with a piece: it lets nobody in once it has disconnected, and it checks the whole of what is
    /// left of the slice against its own tables before the first byte (C8).
    fn write(&self, remote: &Peer, slice: WriteSlice, piece: WriteSlice) -> Result<(), TransferError> {
        let Some(_inside) = remote.enter() else { return Err(self.lost()) };
        let refused = |cause| TransferError::Refused { index: self.index, cause };
        let target = remote.granted.target(&remote.host.regions, slice.dst).map_err(refused)?;
        check_range(Side::Destination, slice.dst, slice.dst_offset, slice.len, target.len()).map_err(refused)?;
        let Some(source) = self.driver.region(slice.src) else {
            return Err(refused(SliceError::NotGranted { asked: slice.src }));
        };
        source.memory().copy_to(piece.src_offset, target.memory(), piece.dst_offset, piece.len).map_err(|error| {
            TransferError::Device { device: Arc::from("memory"), reason: Arc::from(error.to_string()) }
        })
    }

    /// Puts the notification into the receiver's queue of events, after all bytes (C5).
    fn notify(&mut self, context: &mut Context<'_>) -> Turn {
        let Some(remote) = self.peer.remote() else { return Turn::End(Err(self.lost())) };
        let Some(_inside) = remote.enter() else { return Turn::End(Err(self.lost())) };
        let Some(payload) = self.driver.notification() else { return Turn::End(Ok(())) };
        if self.event.is_none() {
            let payload = Bytes::copy_from_slice(payload);
            self.event = Some(Event::Notification { peer: remote.id, payload });
        }
        if remote.host.events.poll_push(context, &mut self.event).is_ready() {
            return Turn::End(Ok(()));
        }
        let timeout = self.peer.host.config.stall_timeout;
        let since = *self.full_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= timeout {
            let (done, total) = (self.driver.bytes_done(), self.driver.bytes_total());
            return Turn::End(Err(TransferError::Stalled { timeout, done, total }));
        }
        Turn::Wait(Some(since + timeout))
    }

    fn lost(&self) -> TransferError {
        self.peer
            .ended()
            .map_or_else(|| TransferError::PeerLost { reason: Arc::from("the peer disconnected") }, End::error)
    }
}
