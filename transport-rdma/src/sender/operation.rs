//! One transfer on its way: what is left of its batch, and what is out.

use std::{sync::Arc, time::Instant};

use transport_core::{Cursor, RegionId, RegionRef, TransferDriver, TransferError, WriteSlice};

use crate::region::{Registered, RemoteRegion};

/// The place of an operation in the sender's table.
pub(crate) type Key = u32;

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) driver: TransferDriver,
    /// The keys of the local regions, in the order of the driver's regions.
    locals: Vec<Arc<Registered>>,
    /// The last destination.
    target: Option<(RegionId, Arc<RemoteRegion>)>,
    cursor: Cursor,
    /// What is cut next, and the index of its first slice.
    next: Option<Piece>,
    /// The slice after it, which was looked at and is no neighbour.
    ahead: Option<Piece>,
    /// How many slices were taken from the batch.
    taken: u64,
    /// Pieces that were refused by a full queue, the next one last.
    returned: Vec<Piece>,
    /// Work requests that were posted and have not ended.
    pub(super) outstanding: u32,
    pub(super) started: bool,
    pub(super) stage: Stage,
    /// The first thing that went wrong.
    pub(super) error: Option<TransferError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Pieces are left to be posted, or are out.
    Writing,
    /// All bytes are there; what it comes after, or room for the notification, is waited for since then.
    Waiting(Option<Instant>),
    /// The notification is out.
    Notifying,
}

/// A piece of a batch: one work request, once its keys are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) slice: WriteSlice,
    pub(super) index: u64,
}

impl Operation {
    pub(super) fn new(driver: TransferDriver, locals: Vec<Arc<Registered>>) -> Self {
        debug_assert_eq!(driver.regions().len(), locals.len());
        let mut operation = Self {
            driver,
            locals,
            target: None,
            cursor: Cursor::default(),
            next: None,
            ahead: None,
            taken: 0,
            returned: Vec::new(),
            outstanding: 0,
            started: false,
            stage: Stage::Writing,
            error: None,
        };
        operation.fill();
        operation
    }

    /// Whether there is nothing left to post.
    pub(super) fn is_exhausted(&self) -> bool {
        self.next.is_none() && self.returned.is_empty()
    }

    /// The next piece of at most `max` bytes that crosses no border of a memory region; taken out.
    pub(super) fn take(&mut self, max: u64, until_border: impl FnOnce(&WriteSlice) -> u64) -> Option<Piece> {
        if let Some(piece) = self.returned.pop() {
            return Some(piece);
        }
        let next = self.next.as_mut()?;
        let len = next.slice.len.min(max).min(until_border(&next.slice));
        let piece = Piece { slice: WriteSlice { len, ..next.slice }, index: next.index };
        if len < next.slice.len {
            next.slice.src_offset += len;
            next.slice.dst_offset += len;
            next.slice.len -= len;
        } else {
            self.fill();
        }
        Some(piece)
    }

    /// The slice that the next piece is cut from.
    pub(super) fn peek(&self) -> Option<Piece> {
        self.returned.last().copied().or(self.next)
    }

    /// Puts pieces back that were not posted, in their order.
    pub(super) fn put_back(&mut self, pieces: &[Piece]) {
        self.returned.extend(pieces.iter().rev());
    }

    /// Drops what is left.
    pub(super) fn fail(&mut self, error: TransferError) {
        self.error.get_or_insert(error);
        self.next = None;
        self.ahead = None;
        self.returned.clear();
    }

    /// The keys of a local region of the batch.
    pub(super) fn local(&self, id: RegionId) -> Option<&Arc<Registered>> {
        let place = self.driver.regions().binary_search_by_key(&id, RegionRef::id).ok()?;
        self.locals.get(place)
    }

    /// The keys of a destination; `find` is asked where it is not the last one.
    pub(super) fn target(
        &mut self,
        id: RegionId,
        find: impl FnOnce() -> Option<Arc<RemoteRegion>>,
    ) -> Option<&Arc<RemoteRegion>> {
        if self.target.as_ref().is_none_or(|(last, _)| *last != id) {
            self.target = Some((id, find()?));
        }
        self.target.as_ref().map(|(_, region)| region)
    }

    /// Forgets a destination that the peer takes back.
    pub(super) fn forget(&mut self, id: RegionId) {
        self.target.take_if(|(last, _)| *last == id);
    }

    /// Lets go of the local keys, before the outcome is published; the buffer comes back for another operation.
    pub(super) fn into_parts(self) -> (TransferDriver, Vec<Arc<Registered>>) {
        let mut locals = self.locals;
        locals.clear();
        (self.driver, locals)
    }

    /// Makes `next` the next slice that is not empty, with all neighbours that follow it.
    fn fill(&mut self) {
        self.next = self.ahead.take().or_else(|| self.draw());
        let Some(mut next) = self.next else { return };
        while let Some(piece) = self.draw() {
            let (one, two) = (&next.slice, &piece.slice);
            let neighbours = one.src == two.src
                && one.dst == two.dst
                && one.src_offset + one.len == two.src_offset
                && one.dst_offset + one.len == two.dst_offset;
            if !neighbours {
                self.ahead = Some(piece);
                break;
            }
            next.slice.len += two.len;
        }
        self.next = Some(next);
    }

    /// The next slice of the batch that is not empty.
    fn draw(&mut self) -> Option<Piece> {
        loop {
            let slice = self.driver.batch().next(&mut self.cursor)?;
            let index = self.taken;
            self.taken += 1;
            if slice.len > 0 {
                return Some(Piece { slice, index });
            }
        }
    }
}
