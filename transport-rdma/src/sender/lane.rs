//! One queue pair, as the sender sees it: what is posted, and how much may be.
//!
//! Completions of one queue pair come in the order of its work requests, and only the last of a chain is asked for. So
//! the lane keeps its posted work requests in order, and a completion ends all up to its own. In a failed queue pair every work
//! request completes, in the same order; the first that failed says why.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::operation::Key;
use crate::{rail::CompletionCredits, verbs::PostError};

/// A posted work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) kind: Kind,
    /// Index of its first slice in the batch, for a refusal.
    pub(super) index: u64,
    pub(super) bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A piece of an operation.
    Write(Key),
    /// The notification of an operation, in this slot.
    Notify(Key, u32),
    /// An empty write: it tries the path, or makes those before it complete.
    Empty,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No queue pair, or one that is not ready.
    Closed,
    /// The empty write that tries the path is on its way.
    Probing,
    /// In use.
    Open,
    /// Nothing is posted any more; what was posted is waited for.
    Failed(Arc<str>),
}

#[derive(Debug)]
pub(crate) struct Lane {
    /// The rail on this side and that of the peer.
    pub(crate) rail: usize,
    pub(crate) remote_rail: usize,
    pub(crate) device: Arc<str>,
    credits: Arc<CompletionCredits>,
    depth: u32,
    epoch: u16,
    pub(super) state: State,
    pub(super) posted: VecDeque<Posted>,
    /// Sequence number of the first of `posted`.
    first: u64,
    /// How many at the end of `posted` no completion was asked for.
    unsignalled: u32,
    /// The queue pair refused a work request as if it were full; tried again after a completion or a while.
    pub(super) blocked: bool,
    /// It refused one for another reason, which does not pass.
    pub(super) broken: Option<PostError>,
    /// The last completion, or the first post to an idle queue.
    pub(super) progress: Instant,
    /// Notifications that were posted here and not found lost, from the start of the connection.
    notifications: u64,
}

const SEQUENCE_BITS: u32 = 48;
const SEQUENCE: u64 = (1 << SEQUENCE_BITS) - 1;

impl Lane {
    pub(crate) fn new(
        rail: usize,
        remote_rail: usize,
        device: Arc<str>,
        depth: u32,
        credits: Arc<CompletionCredits>,
    ) -> Self {
        Self {
            rail,
            remote_rail,
            device,
            credits,
            depth,
            epoch: 0,
            state: State::Closed,
            posted: VecDeque::with_capacity(depth as usize),
            first: 0,
            unsignalled: 0,
            blocked: false,
            broken: None,
            progress: Instant::now(),
            notifications: 0,
        }
    }

    /// Takes up to `wanted` places in the send queue and the completion queue.
    pub(super) fn take(&self, wanted: u32) -> u32 {
        let free = self.depth.saturating_sub(self.posted.len() as u32);
        self.credits.take(wanted.min(free))
    }

    /// Takes one place for an empty write.
    pub(super) fn take_urgent(&self) -> bool {
        (self.posted.len() as u32) < self.depth && self.credits.take_urgent()
    }

    /// Gives places back that were taken and not used.
    pub(super) fn give(&self, places: u32) {
        if places > 0 {
            self.credits.give(places);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether it has a queue pair that has not failed.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self.state, State::Open | State::Probing)
    }

    /// Whether a chain can be posted, as far as the send queue goes.
    pub(super) fn has_room(&self) -> bool {
        self.is_open() && !self.blocked && (self.posted.len() as u32) < self.depth
    }

    /// The id of the work request that is posted next but `ahead`. Ids of an earlier queue pair differ.
    pub(super) fn id(&self, ahead: usize) -> u64 {
        let sequence = (self.first + self.posted.len() as u64 + ahead as u64) & SEQUENCE;
        u64::from(self.epoch) << SEQUENCE_BITS | sequence
    }

    /// Notes a work request that was posted.
    pub(super) fn push(&mut self, posted: Posted, signalled: bool) {
        if self.posted.is_empty() {
            self.progress = Instant::now();
        }
        self.posted.push_back(posted);
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
    }

    /// Whether work requests at the end would never complete, because no completion was asked for.
    pub(super) fn has_loose_end(&self) -> bool {
        self.unsignalled > 0 && self.is_open() && !self.blocked
    }

    /// How many work requests a completion ends; `None` for one of an earlier queue pair.
    pub(super) fn ended_by(&self, id: u64) -> Option<usize> {
        if id >> SEQUENCE_BITS != u64::from(self.epoch) {
            return None;
        }
        let count = ((id & SEQUENCE).wrapping_sub(self.first & SEQUENCE) & SEQUENCE) + 1;
        usize::try_from(count).ok().filter(|count| *count <= self.posted.len())
    }

    /// Takes the first work request out; its places are free.
    pub(super) fn pop(&mut self) -> Option<Posted> {
        let posted = self.posted.pop_front()?;
        self.first += 1;
        self.unsignalled = self.unsignalled.min(self.posted.len() as u32);
        self.credits.give(1);
        Some(posted)
    }

    /// The queue pair refused a work request: full, which a completion or a while may cure, or broken.
    pub(super) fn refused(&mut self, error: PostError) {
        self.blocked = true;
        if !error.is_full() {
            self.broken = Some(error);
        }
    }

    pub(super) fn count_notification(&mut self) {
        self.notifications += 1;
    }

    /// The peer has received so many notifications here in all; answers how many were lost, `None` for more than were sent.
    pub(super) fn reconcile(&mut self, received: u64) -> Option<u64> {
        let lost = self.notifications.checked_sub(received)?;
        self.notifications = received;
        Some(lost)
    }

    /// How many work requests were ever posted: what was posted up to now is over once as many have ended.
    pub(super) fn mark(&self) -> u64 {
        self.first + self.posted.len() as u64
    }

    /// How many work requests have ended.
    pub(super) fn ended(&self) -> u64 {
        self.first
    }

    /// A new queue pair takes the place of the old one, of which nothing is posted any more.
    pub(super) fn renew(&mut self) {
        debug_assert!(self.posted.is_empty(), "the old queue pair is drained");
        // 15 bits: the highest bit of an id tells receives.
        self.epoch = (self.epoch + 1) & 0x7fff;
        self.state = State::Closed;
        self.unsignalled = 0;
        self.blocked = false;
        self.broken = None;
    }
}
