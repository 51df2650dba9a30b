//! The requester: a turn of a send queue.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    lock,
    network::Place,
    nic::Turn,
    receiving::{Message, Outcome, Source},
    state::{Path, QpCore, State, Work},
};
use crate::verbs::{GidKind, QueuePairState, SendAttributes, Status};

/// The most that a queue pair sends in one turn.
const PIECE: u32 = 64 << 10;
/// A retry count without end.
const FOR_EVER: u8 = 7;

/// What a requester knows of the wire.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The inline bytes of the message on its way.
    scratch: Vec<u8>,
    peer: Weak<QpCore>,
    /// When the oldest message without an acknowledgement is sent again.
    deadline: Option<Instant>,
    /// Whether a piece was lost: what comes after it would be out of order.
    blocked: bool,
    /// Timeouts without progress.
    attempts: u8,
    not_ready_until: Option<Instant>,
    not_ready: u8,
}

impl Sending {
    pub(super) fn new(inline: u32) -> Self {
        Self { scratch: Vec::with_capacity(inline as usize), ..Self::default() }
    }

    fn progress(&mut self) {
        self.deadline = None;
        self.blocked = false;
        self.attempts = 0;
        self.not_ready = 0;
    }
}

impl QpCore {
    /// Carries one piece of the send queue, and does what time has made due.
    pub(super) fn turn(self: &Arc<Self>) -> Turn {
        self.scheduled.store(false, Ordering::SeqCst);
        let mut sending = lock(&self.sending);
        let mut turn = Turn::default();
        let now = Instant::now();
        let (work, path, attributes) = {
            let mut state = lock(&self.state);
            turn.wake = self.release(&mut state, now);
            if self.device.is_gone() {
                return turn;
            }
            if state.phase == QueuePairState::Error {
                drop(state);
                self.flush();
                return turn;
            }
            if state.phase != QueuePairState::ReadyToSend || self.device.host.faults.silent() {
                return turn;
            }
            let (Some(path), Some(attributes)) = (state.path, state.send) else { return turn };
            if sending.deadline.is_some_and(|deadline| deadline <= now) {
                sending.deadline = None;
                sending.blocked = false;
                if attributes.retry_count != FOR_EVER && sending.attempts >= attributes.retry_count {
                    state.next = 0;
                    drop(state);
                    self.fail_send(Status::RetryExceeded);
                    return turn;
                }
                sending.attempts = sending.attempts.saturating_add(1);
                state.next = 0;
            }
            let waits = sending.not_ready_until.is_some_and(|until| until > now);
            let next = state.sends.get(state.next).copied();
            let Some(work) = next.filter(|_| !waits && !sending.blocked) else {
                let until = if waits { sending.not_ready_until } else { None };
                turn.wake = earlier(turn.wake, earlier(sending.deadline, until));
                return turn;
            };
            sending.not_ready_until = None;
            if work.request.inline {
                self.fetch_inline(&state, &work, &mut sending.scratch);
            }
            (work, path, attributes)
        };
        turn.sent = true;
        turn.more = true;
        match self.transmit(&mut sending, &work, &path, attributes.psn) {
            Outcome::Piece(len) => {
                let mut state = lock(&self.state);
                let next = state.next;
                if next == 0 {
                    sending.progress();
                }
                if let Some(work) = state.sends.get_mut(next) {
                    work.sent += len;
                }
            }
            Outcome::Delivered if self.loses_ack() => {
                let mut state = lock(&self.state);
                state.next = (state.next + 1).min(state.sends.len());
                sending.deadline = sending.deadline.or_else(|| retry_at(&attributes));
            }
            Outcome::Delivered => {
                sending.progress();
                let mut state = lock(&self.state);
                self.acknowledge(&mut state, true);
            }
            Outcome::Lost => {
                sending.blocked = true;
                sending.deadline = sending.deadline.or_else(|| retry_at(&attributes));
            }
            Outcome::NotReady(pause) => {
                if attributes.rnr_retry != FOR_EVER && sending.not_ready >= attributes.rnr_retry {
                    self.fail_send(Status::RnrRetryExceeded);
                } else {
                    sending.not_ready = sending.not_ready.saturating_add(1);
                    sending.not_ready_until = Some(Instant::now() + pause);
                }
            }
            Outcome::Refused(status) => self.fail_send(status),
        }
        turn
    }

    fn fetch_inline(&self, state: &State, work: &Work, scratch: &mut Vec<u8>) {
        let slot = (work.sequence % u64::from(self.capacity.send.max(1))) as usize;
        let start = slot * self.capacity.inline as usize;
        scratch.clear();
        if let Some(bytes) = state.inline.get(start..start + work.request.local.len as usize) {
            scratch.extend_from_slice(bytes);
        }
    }

    /// Ends the messages that an answer to the one at `next` shows to have arrived: those before it, and it itself.
    fn acknowledge(self: &Arc<Self>, state: &mut State, itself: bool) {
        if state.phase != QueuePairState::ReadyToSend {
            // It failed meanwhile, and all of it is flushed.
            return;
        }
        for _ in 0..state.next + usize::from(itself) {
            self.finish_send(state, Status::Success);
        }
    }

    /// Ends the message at `next` with an error, and with it the queue pair.
    fn fail_send(self: &Arc<Self>, status: Status) {
        {
            let mut state = lock(&self.state);
            if state.phase != QueuePairState::ReadyToSend || !self.device.host.faults.flushes() {
                return;
            }
            self.acknowledge(&mut state, false);
            state.phase = QueuePairState::Error;
            self.finish_send(&mut state, status);
        }
        self.flush();
    }

    fn transmit(&self, sending: &mut Sending, work: &Work, path: &Path, psn: u32) -> Outcome {
        let request = &work.request;
        let len = request.local.len;
        let Some(port) = self.device.port_config(path.port) else { return Outcome::Lost };
        if len > port.max_message {
            return Outcome::Refused(Status::LocalLength);
        }
        let access = if len == 0 || request.inline {
            None
        } else {
            let local = &request.local;
            match self.device.regions.local(local.key, self.domain, local.address, u64::from(len)) {
                Some(access) => Some(access),
                None => return Outcome::Refused(Status::LocalProtection),
            }
        };
        if !self.device.carries(path.port) || self.device.host.faults.loses_packet() {
            return Outcome::Lost;
        }
        let Some(peer) = self.find_peer(&mut sending.peer, path) else { return Outcome::Lost };
        let (here, there) = (&self.device.host, &peer.device.host);
        if here.network.cuts((here.number, path.from), (there.number, path.to)) {
            return Outcome::Lost;
        }
        let source = match &access {
            Some(access) => Source::Region(access),
            None => Source::Bytes(&sending.scratch),
        };
        peer.receive(&Message {
            from: self.number,
            psn,
            path,
            sequence: work.sequence,
            operation: request.operation,
            len,
            offset: work.sent,
            // Inline bytes are at hand as a whole.
            piece: if request.inline { len } else { (len - work.sent).min(PIECE) },
            source,
        })
    }

    /// The peer's queue pair, where packets reach it.
    fn find_peer(&self, known: &mut Weak<Self>, path: &Path) -> Option<Arc<Self>> {
        // A destroyed one, or one of a device that went away, may have a successor at its place.
        let found =
            known.upgrade().filter(|peer| !peer.device.is_gone() && lock(&peer.state).phase != QueuePairState::Reset);
        let peer = match found {
            Some(peer) => peer,
            None => {
                let device = self.device.host.network.find(path.to)?;
                *known = device.pair(path.remote_queue_pair)?;
                known.upgrade()?
            }
        };
        // Without a hop left, nothing leaves the device.
        let routed = matches!(path.to, Place::Gid(_, GidKind::RoceV2));
        let reaches = !routed || path.hop_limit > 0 || Arc::ptr_eq(&self.device, &peer.device);
        reaches.then_some(peer)
    }
}

fn retry_at(attributes: &SendAttributes) -> Option<Instant> {
    // As real NICs do, the timer ticks no finer than some limit.
    const TICK: Duration = Duration::from_micros(100);
    (attributes.timeout > 0).then(|| Instant::now() + Duration::from_nanos(4096 << attributes.timeout).max(TICK))
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
