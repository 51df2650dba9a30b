//! From batches to work requests, and from completions to outcomes; without I/O of its own.
//!
//! The sender of one peer keeps the operations (transfers on their way) and the lanes (queue pairs). [`Sender::pump`] makes chains of work requests
//! out of what is left and hands them to a [`Post`]; [`Sender::completed`] takes completions. Around it are the peer's
//! lock and, above that, the transport: the thread that submits posts at once, the transport's own thread posts what found
//! no room then.
//!
//! The hazards: an outcome while a NIC may still read the batch's memory (so an operation ends only when all its
//! posted work requests have, whatever failed); a send queue or completion queue that overruns (so every work request takes
//! a place in both before it is posted); work requests that never complete because nobody asked for it (so a lane without a signalled end
//! gets an empty write that has one).

mod control;
mod lane;
mod operation;
#[cfg(all(test, feature = "sim"))]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use transport_core::{RegionId, SliceError, TransferDriver, TransferError};

pub(crate) use self::{
    control::{ControlMemory, MAX_NOTIFICATION, receive_slot},
    lane::Lane,
};
use self::{
    lane::{Kind, Posted, State},
    operation::{Key, Operation, Piece, Stage},
};
use crate::{
    region::{Registered, RemoteRegion},
    verbs::{LocalSegment, Operation as Verb, PostError, SendRequest, Status},
};

/// Work requests of a chain at most. A chain costs one doorbell; its end is signalled, and that is when its places come
/// back, so a chain is a quarter of the default send queue.
const CHAIN: u32 = 32;
/// A chain ends after so many bytes, so that large slices spread over the lanes.
const CHAIN_BYTES: u64 = 1 << 20;

/// Posts chains: what the sender has instead of queue pairs.
pub(crate) trait Post {
    /// Posts a chain on a lane.
    fn post(&mut self, lane: usize, chain: &[SendRequest]) -> Result<(), PostError>;
}

impl<F: FnMut(usize, &[SendRequest]) -> Result<(), PostError>> Post for F {
    fn post(&mut self, lane: usize, chain: &[SendRequest]) -> Result<(), PostError> {
        self(lane, chain)
    }
}

/// A transfer that is over, to be finished outside of the peer's lock.
pub(crate) type Finished = (TransferDriver, Result<(), TransferError>);

/// What a completion means for its lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LaneEvent {
    /// Nothing new.
    None,
    /// Bytes of a batch went over it.
    Carried,
    /// The path works.
    Probed,
    /// It is known that the queue pair has failed; the peer answered on it, so that the path works.
    Answered,
    /// The queue pair has failed; this is the first that is known of it.
    Failed {
        /// Why.
        reason: Arc<str>,
        /// Whether the peer answered, so that the path works.
        answered: bool,
    },
}

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    lanes: Vec<Lane>,
    operations: Vec<Option<Operation>>,
    free: Vec<Key>,
    /// Operations with pieces to post; each gets one chain in turn.
    ready: VecDeque<Key>,
    /// Operations whose bytes are all there.
    waiting: Vec<Key>,
    remotes: HashMap<RegionId, Arc<RemoteRegion>>,
    control: ControlMemory,
    /// Notifications that the peer has room for, counted from the start of the connection.
    granted: u64,
    /// Notifications that were sent or given up.
    sent: u64,
    max_work_request: u64,
    stall_timeout: Duration,
    /// Wakes the transport's thread for this peer: on cancellation, and when something that was waited for is there.
    waker: Waker,
    end: Option<TransferError>,
    next_lane: usize,
    finished: Vec<Finished>,
    /// Buffers of operations that are over, for those to come.
    spare: Vec<Vec<Arc<Registered>>>,
    requests: Vec<SendRequest>,
    pieces: Vec<Piece>,
}

impl Sender {
    pub(crate) fn new(control: ControlMemory, max_work_request: u64, stall_timeout: Duration, waker: Waker) -> Self {
        Self {
            lanes: Vec::new(),
            operations: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            remotes: HashMap::new(),
            control,
            granted: 0,
            sent: 0,
            max_work_request,
            stall_timeout,
            waker,
            end: None,
            next_lane: 0,
            finished: Vec::new(),
            spare: Vec::new(),
            requests: Vec::with_capacity(CHAIN as usize),
            pieces: Vec::with_capacity(CHAIN as usize),
        }
    }

    /// Sets the lanes and the room for notifications, when it is known what both sides have.
    pub(crate) fn begin(&mut self, lanes: Vec<Lane>, granted: u64, control: ControlMemory) {
        debug_assert!(self.lanes.iter().all(|lane| lane.posted.is_empty()), "no lane is in use");
        self.lanes = lanes;
        self.granted = granted;
        self.control = control;
    }

    /// An empty buffer for the keys of a transfer's regions.
    pub(crate) fn spare(&mut self) -> Vec<Arc<Registered>> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a transfer; [`Sender::pump`] starts it. Comes back with the end of the connection when that is past.
    pub(crate) fn submit(
        &mut self,
        driver: TransferDriver,
        locals: Vec<Arc<Registered>>,
    ) -> Result<(), (TransferDriver, TransferError)> {
        if let Some(end) = &self.end {
            return Err((driver, end.clone()));
        }
        driver.wake_on_cancel(&self.waker);
        let operation = Operation::new(driver, locals);
        let exhausted = operation.is_exhausted();
        let key = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            (self.operations.len() - 1) as Key
        });
        if let Some(place) = self.operations.get_mut(key as usize) {
            *place = Some(operation);
        }
        if exhausted {
            self.settle(key);
        } else {
            self.ready.push_back(key);
        }
        Ok(())
    }

    /// Posts what there is room for. To be called after each submission, completion and credit.
    pub(crate) fn pump(&mut self, post: &mut impl Post) {
        let mut full = 0;
        while let Some(key) = self.ready.front().copied() {
            let Some(lane) = self.pick_lane() else { break };
            self.ready.pop_front();
            match self.post_chain(key, lane, post) {
                Chain::Posted { more } => {
                    full = 0;
                    if more { self.ready.push_back(key) } else { self.settle(key) }
                }
                Chain::NoRoom => {
                    self.ready.push_front(key);
                    // The next lane may be on another rail, with a completion queue of its own.
                    full += 1;
                    if full >= self.lanes.len() {
                        break;
                    }
                }
            }
        }
        self.advance(post);
        for lane in 0..self.lanes.len() {
            if self.lanes.get(lane).is_some_and(Lane::has_loose_end) {
                self.post_empty(lane, post);
            }
        }
    }

    /// The next lane with room.
    fn pick_lane(&mut self) -> Option<usize> {
        let count = self.lanes.len();
        let lane = (0..count)
            .map(|step| (self.next_lane + step) % count)
            .find(|lane| self.lanes.get(*lane).is_some_and(Lane::has_room))?;
        self.next_lane = (lane + 1) % count;
        Some(lane)
    }

    fn post_chain(&mut self, key: Key, number: usize, post: &mut impl Post) -> Chain {
        let Self { lanes, operations, remotes, requests, pieces, max_work_request, .. } = self;
        let (Some(lane), Some(operation)) = (lanes.get_mut(number), slot(operations, key)) else {
            return Chain::Posted { more: false };
        };
        let places = lane.take(CHAIN);
        if places == 0 {
            return Chain::NoRoom;
        }
        requests.clear();
        pieces.clear();
        let mut bytes = 0;
        while (requests.len() as u32) < places && bytes < CHAIN_BYTES {
            match cut(operation, lane, requests.len(), remotes, *max_work_request) {
                Ok(Some((piece, request))) => {
                    bytes += piece.slice.len;
                    pieces.push(piece);
                    requests.push(request);
                }
                Ok(None) => break,
                Err(error) => {
                    // What was cut before it is not needed any more either.
                    operation.fail(error);
                    pieces.clear();
                    requests.clear();
                }
            }
        }
        lane.give(places - requests.len() as u32);
        let Some(last) = requests.last_mut() else { return Chain::Posted { more: false } };
        last.signalled = true;
        if !std::mem::replace(&mut operation.started, true) {
            operation.driver.mark_posted();
        }
        let result = post.post(number, requests);
        let posted = result.as_ref().map_or_else(|error| error.posted, |()| requests.len());
        for (piece, request) in pieces.iter().zip(requests.iter()).take(posted) {
            let entry = Posted { kind: Kind::Write(key), index: piece.index, bytes: piece.slice.len as u32 };
            lane.push(entry, request.signalled);
        }
        operation.outstanding += posted as u32;
        if let Err(error) = result {
            lane.give((requests.len() - posted) as u32);
            operation.put_back(pieces.split_at(posted.min(pieces.len())).1);
            lane.refused(error);
        }
        Chain::Posted { more: !operation.is_exhausted() }
    }

    /// Posts an empty write, which completes when all before it have.
    fn post_empty(&mut self, number: usize, post: &mut impl Post) -> bool {
        let Some(lane) = self.lanes.get_mut(number) else { return false };
        if !lane.take_urgent() {
            return false;
        }
        let operation = Verb::Write { address: 0, key: 0 };
        let request =
            SendRequest { id: lane.id(0), operation, local: LocalSegment::default(), signalled: true, inline: false };
        match post.post(number, &[request]) {
            Ok(()) => {
                lane.push(Posted { kind: Kind::Empty, index: 0, bytes: 0 }, true);
                true
            }
            Err(error) => {
                lane.give(1);
                lane.refused(error);
                false
            }
        }
    }

    /// Tries the path of a lane with a new queue pair; its completion is [`LaneEvent::Probed`].
    pub(crate) fn probe(&mut self, lane: usize, post: &mut impl Post) -> bool {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.state = State::Probing;
        }
        self.post_empty(lane, post)
    }

    /// Tries the paths of open lanes on which nothing is posted; one that does not work fails.
    pub(crate) fn try_idle_lanes(&mut self, post: &mut impl Post) {
        for lane in 0..self.lanes.len() {
            if self.lanes.get(lane).is_some_and(|lane| lane.has_room() && lane.posted.is_empty()) {
                self.post_empty(lane, post);
            }
        }
    }

    /// Takes the completion of a work request; those before it on its lane have ended too.
    pub(crate) fn completed(&mut self, number: usize, id: u64, status: Status) -> LaneEvent {
        let Some(count) = self.lanes.get(number).and_then(|lane| lane.ended_by(id)) else { return LaneEvent::None };
        let mut event = LaneEvent::None;
        if status != Status::Success {
            let answers = count > 1 || status.is_answer();
            event = match self.fail_lane(number, &status.to_string()) {
                LaneEvent::Failed { reason, .. } => LaneEvent::Failed { reason, answered: answers },
                _ if answers => LaneEvent::Answered,
                known => known,
            };
        }
        for place in (0..count).rev() {
            let Some(lane) = self.lanes.get_mut(number) else { break };
            let Some(posted) = lane.pop() else { break };
            let status = if place == 0 { status } else { Status::Success };
            if place == 0 {
                lane.blocked = false;
                lane.progress = Instant::now();
                if status == Status::Success {
                    match (&lane.state, posted.kind) {
                        (State::Probing, Kind::Empty) => {
                            lane.state = State::Open;
                            event = LaneEvent::Probed;
                        }
                        (State::Open, Kind::Write(_) | Kind::Notify(..)) => event = LaneEvent::Carried,
                        _ => {}
                    }
                }
            }
            self.ended(number, posted, status);
        }
        event
    }

    fn ended(&mut self, number: usize, posted: Posted, status: Status) {
        let (Kind::Write(key) | Kind::Notify(key, _)) = posted.kind else { return };
        if let Kind::Notify(_, slot) = posted.kind {
            self.control.give_slot(slot);
        }
        let error = (status != Status::Success).then(|| self.error(number, posted, status));
        let Some(operation) = slot(&mut self.operations, key) else { return };
        operation.outstanding -= 1;
        match error {
            Some(error) => operation.fail(error),
            None => operation.driver.progress(posted.bytes.into()),
        }
        if operation.outstanding == 0 {
            self.settle(key);
        }
    }

    /// What a failed work request is to its transfer.
    fn error(&self, number: usize, posted: Posted, status: Status) -> TransferError {
        if let Some(end) = &self.end {
            return end.clone();
        }
        let lane = self.lanes.get(number);
        let device = lane.map_or_else(|| Arc::from("no device"), |lane| Arc::clone(&lane.device));
        match (status, posted.kind) {
            (Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation, Kind::Write(_)) => {
                TransferError::Refused { index: posted.index, cause: SliceError::RemoteAccess }
            }
            (
                Status::LocalLength | Status::LocalOperation | Status::LocalProtection | Status::Other(_),
                Kind::Write(_) | Kind::Notify(..),
            ) => TransferError::Device { device, reason: status.to_string().into() },
            _ => {
                let reason = match lane.map(|lane| &lane.state) {
                    Some(State::Failed(reason)) => Arc::clone(reason),
                    _ => status.to_string().into(),
                };
                TransferError::Path { device, reason }
            }
        }
    }

    /// Takes an operation on that has nothing outstanding or nothing left to post.
    fn settle(&mut self, key: Key) {
        let Some(operation) = slot(&mut self.operations, key) else { return };
        if operation.outstanding > 0 {
            return;
        }
        if operation.stage == Stage::Notifying {
            let result = operation.error.take().map_or(Ok(()), Err);
            return self.finish(key, result);
        }
        if let Some(error) = operation.error.take() {
            return self.finish(key, Err(error));
        }
        if operation.is_exhausted() && operation.stage == Stage::Writing {
            operation.driver.mark_last_byte();
            operation.stage = Stage::Waiting(None);
            self.waiting.push(key);
        }
    }

    /// Takes those on whose bytes are all there: after what they come after, the notification, then the end.
    fn advance(&mut self, post: &mut impl Post) {
        let mut place = 0;
        while let Some(key) = self.waiting.get(place).copied() {
            match self.advance_one(key, post) {
                Advance::Stay => place += 1,
                Advance::Notifying => {
                    self.waiting.remove(place);
                }
                Advance::Done(result) => {
                    self.waiting.remove(place);
                    self.finish(key, result);
                }
            }
        }
    }

    fn advance_one(&mut self, key: Key, post: &mut impl Post) -> Advance {
        let waker = self.waker.clone();
        let Some(operation) = slot(&mut self.operations, key) else { return Advance::Notifying };
        if operation.driver.is_cancelled() {
            return Advance::Done(Err(TransferError::Cancelled));
        }
        match operation.driver.poll_dependencies(&mut Context::from_waker(&waker)) {
            Poll::Pending => return Advance::Stay,
            Poll::Ready(Err(error)) => return Advance::Done(Err(error)),
            Poll::Ready(Ok(())) => {}
        }
        if operation.driver.notification().is_none() {
            return Advance::Done(Ok(()));
        }
        if self.notify(key, post) {
            return Advance::Notifying;
        }
        if let Some(operation) = slot(&mut self.operations, key)
            && let Stage::Waiting(since @ None) = &mut operation.stage
        {
            *since = Some(Instant::now());
        }
        Advance::Stay
    }

    /// Posts a notification if the peer, a lane and its memory have room.
    fn notify(&mut self, key: Key, post: &mut impl Post) -> bool {
        if self.sent >= self.granted {
            return false;
        }
        let Some(number) = self.pick_lane() else { return false };
        let Self { lanes, operations, control, .. } = self;
        let (Some(lane), Some(operation)) = (lanes.get_mut(number), slot(operations, key)) else { return false };
        if lane.take(1) == 0 {
            return false;
        }
        let payload = operation.driver.notification().unwrap_or_default();
        let Some((place, local)) = control.fill_slot(lane.rail, payload) else {
            lane.give(1);
            return false;
        };
        let request = SendRequest { id: lane.id(0), operation: Verb::Send, local, signalled: true, inline: false };
        if !std::mem::replace(&mut operation.started, true) {
            operation.driver.mark_posted();
        }
        if let Err(error) = post.post(number, &[request]) {
            control.give_slot(place);
            lane.give(1);
            lane.refused(error);
            return false;
        }
        lane.push(Posted { kind: Kind::Notify(key, place), index: 0, bytes: 0 }, true);
        operation.outstanding = 1;
        operation.stage = Stage::Notifying;
        lane.count_notification();
        self.sent += 1;
        true
    }

    fn finish(&mut self, key: Key, result: Result<(), TransferError>) {
        let Some(operation) = self.operations.get_mut(key as usize).and_then(Option::take) else { return };
        self.free.push(key);
        if result.is_err() {
            self.ready.retain(|ready| *ready != key);
            self.waiting.retain(|waiting| *waiting != key);
        }
        let (driver, locals) = operation.into_parts();
        self.spare.push(locals);
        self.finished.push((driver, result));
    }

    /// Takes the transfers that are over.
    pub(crate) fn take_finished(&mut self, into: &mut Vec<Finished>) {
        into.append(&mut self.finished);
    }

    /// Ends what the user asked to cancel, where nothing of it is out.
    pub(crate) fn cancel_asked(&mut self) {
        let asked = |operation: &Operation| operation.driver.is_cancelled() && operation.stage != Stage::Notifying;
        self.fail_where(asked, |_| TransferError::Cancelled);
    }

    /// Fails the operations that `which` picks: what is not posted is dropped, what is posted waited for.
    fn fail_where(&mut self, which: impl Fn(&Operation) -> bool, error: impl Fn(&Operation) -> TransferError) {
        for key in 0..self.operations.len() as Key {
            let Some(operation) = slot(&mut self.operations, key).filter(|operation| which(operation)) else {
                continue;
            };
            let error = error(operation);
            operation.fail(error);
            let was = operation.stage;
            match was {
                Stage::Writing => self.ready.retain(|ready| *ready != key),
                Stage::Waiting(_) => self.waiting.retain(|waiting| *waiting != key),
                Stage::Notifying => {}
            }
            self.settle(key);
        }
    }

    /// Ends everything: nothing more is posted, and what is out ends with its lanes, which the caller makes fail.
    pub(crate) fn close(&mut self, end: &TransferError) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end.clone());
        self.fail_where(|operation| operation.stage != Stage::Notifying, |_| end.clone());
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.operations.len()
    }

    // Lanes.

    /// A lane fails: nothing is posted on it any more. The caller moves its queue pair to ERR, so that what is posted completes.
    pub(crate) fn fail_lane(&mut self, number: usize, reason: &str) -> LaneEvent {
        let Some(lane) = self.lanes.get_mut(number) else { return LaneEvent::None };
        if matches!(lane.state, State::Failed(_)) {
            return LaneEvent::None;
        }
        let reason: Arc<str> = reason.into();
        lane.state = State::Failed(Arc::clone(&reason));
        LaneEvent::Failed { reason, answered: false }
    }

    /// Whether all that was posted on a lane has ended.
    pub(crate) fn is_drained(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_none_or(|lane| lane.posted.is_empty())
    }

    /// Ends what is posted on a lane whose queue pair is destroyed: no completion comes any more, and the device does
    /// not touch its memory.
    pub(crate) fn abandon_lane(&mut self, number: usize) {
        while let Some(posted) = self.lanes.get_mut(number).and_then(Lane::pop) {
            self.ended(number, posted, Status::Flushed);
        }
    }

    /// Makes a lane, of which nothing is posted, ready for a new queue pair. The peer has received so many of the notifications that went over
    /// the old one; the others are lost, and their room is free again.
    pub(crate) fn renew_lane(&mut self, number: usize) {
        if let Some(lane) = self.lanes.get_mut(number) {
            lane.renew();
        }
    }

    /// Gives back the room of notifications that never reached the peer: it has received so many over this lane in all.
    pub(crate) fn reconcile(&mut self, number: usize, received: u64) -> bool {
        let Some(lane) = self.lanes.get_mut(number) else { return false };
        let Some(lost) = lane.reconcile(received) else { return false };
        self.sent -= lost.min(self.sent);
        true
    }

    pub(crate) fn lane(&self, number: usize) -> Option<&Lane> {
        self.lanes.get(number)
    }

    /// Whether a lane has a queue pair that has not failed.
    pub(crate) fn is_usable(&self, number: usize) -> bool {
        self.lanes.get(number).is_some_and(Lane::is_usable)
    }

    /// The memory of notifications.
    pub(crate) fn control(&self) -> &ControlMemory {
        &self.control
    }

    /// Lanes of which nothing has completed for too long.
    pub(crate) fn stuck_lanes(&self, now: Instant) -> impl Iterator<Item = usize> + '_ {
        let timeout = self.stall_timeout;
        self.lanes
            .iter()
            .enumerate()
            .filter(move |(_, lane)| {
                lane.is_usable() && !lane.posted.is_empty() && now.saturating_duration_since(lane.progress) >= timeout
            })
            .map(|(number, _)| number)
    }

    /// Fails the transfers whose notification finds no room for too long.
    pub(crate) fn fail_stalled(&mut self, now: Instant) {
        let timeout = self.stall_timeout;
        let stalled = |operation: &Operation| matches!(operation.stage, Stage::Waiting(Some(since)) if now.saturating_duration_since(since) >= timeout);
        self.fail_where(stalled, |operation| {
            let (done, total) = (operation.driver.bytes_done(), operation.driver.bytes_total());
            TransferError::Stalled { timeout, done, total }
        });
    }

    /// Fails the transfers that have work requests on a lane, as stalled.
    pub(crate) fn stall_lane(&mut self, number: usize) {
        let timeout = self.stall_timeout;
        let Some(lane) = self.lanes.get(number) else { return };
        let keys: Vec<Key> = lane
            .posted
            .iter()
            .filter_map(|posted| match posted.kind {
                Kind::Write(key) | Kind::Notify(key, _) => Some(key),
                Kind::Empty => None,
            })
            .collect();
        for key in keys {
            if let Some(operation) = slot(&mut self.operations, key) {
                let (done, total) = (operation.driver.bytes_done(), operation.driver.bytes_total());
                operation.fail(TransferError::Stalled { timeout, done, total });
            }
        }
    }

    /// Whether a queue refused a work request although it ought to have room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.lanes.iter().any(|lane| lane.blocked)
    }

    /// A lane whose queue pair refuses work requests for good, and why.
    pub(crate) fn broken_lane(&self) -> Option<(usize, PostError)> {
        let broken = |(number, lane): (usize, &Lane)| Some((number, lane.broken.filter(|_| lane.is_usable())?));
        self.lanes.iter().enumerate().find_map(broken)
    }

    /// Tries lanes again that refused a work request.
    pub(crate) fn unblock(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.blocked = false);
    }

    // Regions and credits of the peer.

    /// Takes the keys of a region that the peer granted.
    pub(crate) fn import(&mut self, id: RegionId, region: Arc<RemoteRegion>) {
        self.remotes.insert(id, region);
    }

    /// Forgets the keys of a region that the peer takes back. What is posted up to now may still write to it: it is over
    /// once [`Sender::has_passed`] says so of the mark that comes back.
    pub(crate) fn revoke(&mut self, id: RegionId) -> Vec<u64> {
        self.remotes.remove(&id);
        self.operations.iter_mut().flatten().for_each(|operation| operation.forget(id));
        self.lanes.iter().map(Lane::mark).collect()
    }

    /// Whether all that was posted before a mark has ended.
    pub(crate) fn has_passed(&self, mark: &[u64]) -> bool {
        self.lanes.iter().zip(mark).all(|(lane, mark)| lane.ended() >= *mark)
    }

    /// The peer's program has taken so many notifications in all, so that there is room for `room` more.
    pub(crate) fn grant(&mut self, total: u64) -> bool {
        let valid = total >= self.granted;
        self.granted = self.granted.max(total);
        valid
    }
}

/// What became of posting a chain.
enum Chain {
    /// It was posted, as far as it went; whether pieces are left.
    Posted { more: bool },
    /// No place in the completion queue.
    NoRoom,
}

enum Advance {
    Stay,
    Notifying,
    Done(Result<(), TransferError>),
}

fn slot(operations: &mut [Option<Operation>], key: Key) -> Option<&mut Operation> {
    operations.get_mut(key as usize)?.as_mut()
}

/// Cuts the next work request of an operation for a lane.
fn cut(
    operation: &mut Operation,
    lane: &Lane,
    ahead: usize,
    remotes: &HashMap<RegionId, Arc<RemoteRegion>>,
    max_work_request: u64,
) -> Result<Option<(Piece, SendRequest)>, TransferError> {
    let Some(Piece { slice, index }) = operation.peek() else { return Ok(None) };
    let refused = |cause| TransferError::Refused { index, cause };
    let stale = || refused(SliceError::StaleDestination { asked: slice.dst });
    let target = operation.target(slice.dst, || remotes.get(&slice.dst).cloned()).ok_or_else(stale)?;
    let target = Arc::clone(target);
    // Present: the batch was checked against the regions that it holds.
    let source = operation.local(slice.src).ok_or_else(|| refused(SliceError::NotGranted { asked: slice.src }))?;
    let source = Arc::clone(source);
    let borders = |slice: &transport_core::WriteSlice| {
        source.until_border(slice.src_offset).min(target.until_border(slice.dst_offset))
    };
    let Some(piece) = operation.take(max_work_request, borders) else { return Ok(None) };
    let Piece { slice, .. } = piece;
    // A work request is at most 32 bits long, since `max_work_request` is.
    let local = source.segment(lane.rail, slice.src_offset, slice.len as u32);
    let (Some(local), Some((address, key))) = (local, target.target(lane.remote_rail, slice.dst_offset)) else {
        return Err(refused(SliceError::NotGranted { asked: slice.dst }));
    };
    let request = SendRequest {
        id: lane.id(ahead),
        operation: Verb::Write { address, key },
        local,
        signalled: false,
        inline: false,
    };
    Ok(Some((piece, request)))
}
