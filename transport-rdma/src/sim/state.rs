//! A queue pair: what the handle, its own NIC and the NICs of its peers share.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use super::{
    completion::{CqCore, Entry, Slots},
    device::DeviceCore,
    faults::take_one,
    lock,
    network::Place,
    receiving::Receiving,
    sending::Sending,
};
use crate::verbs::{
    Completion, InitAttributes, Mtu, QueuePairCapacity, QueuePairState, ReceiveRequest, SendAttributes, SendRequest,
    Status,
};

pub(super) struct QpCore {
    pub(super) device: Arc<DeviceCore>,
    pub(super) number: u32,
    pub(super) domain: u64,
    pub(super) capacity: QueuePairCapacity,
    pub(super) completions: Arc<CqCore>,
    pub(super) slots: Arc<Slots>,
    /// Whether the NIC has it in its inbox.
    pub(super) scheduled: AtomicBool,
    pub(super) lost_acks: AtomicU64,
    /// Held while a piece is on its way out, so that who takes it after a change of state knows that nothing is read
    /// any more.
    pub(super) sending: Mutex<Sending>,
    /// The same for pieces that come in.
    pub(super) receiving: Mutex<Receiving>,
    pub(super) state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: QueuePairState,
    pub(super) init: Option<InitAttributes>,
    pub(super) path: Option<Path>,
    pub(super) send: Option<SendAttributes>,
    /// Work requests that were ever posted.
    pub(super) posted: u64,
    /// Posted and not acknowledged.
    pub(super) sends: VecDeque<Work>,
    /// Which of `sends` is sent next: those before it are on the wire.
    pub(super) next: usize,
    /// Done without a completion since the last completion.
    unreported: u32,
    /// The inline bytes of the work requests, by their sequence number.
    pub(super) inline: Box<[u8]>,
    pub(super) receives: VecDeque<ReceiveRequest>,
    /// Completions that are late, and until when.
    held: VecDeque<(Instant, Entry)>,
}

/// A work request in the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) request: SendRequest,
    pub(super) sequence: u64,
    /// How much of it has landed.
    pub(super) sent: u32,
}

/// Where the peer is and how it is talked to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) port: u8,
    pub(super) from: Place,
    pub(super) to: Place,
    pub(super) hop_limit: u8,
    pub(super) mtu: Mtu,
    pub(super) remote_queue_pair: u32,
    pub(super) remote_psn: u32,
    pub(super) min_rnr_timer: u8,
}

impl State {
    pub(super) fn new(capacity: QueuePairCapacity) -> Self {
        let inline = capacity.send as usize * capacity.inline as usize;
        Self {
            phase: QueuePairState::Reset,
            init: None,
            path: None,
            send: None,
            posted: 0,
            sends: VecDeque::with_capacity(capacity.send as usize),
            next: 0,
            unreported: 0,
            inline: vec![0; inline].into(),
            receives: VecDeque::with_capacity(capacity.receive as usize),
            held: VecDeque::new(),
        }
    }

    /// Whether it takes messages in.
    pub(super) fn receives_messages(&self) -> bool {
        matches!(self.phase, QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend)
    }

    /// Forgets everything that is posted, without a completion.
    pub(super) fn clear(&mut self) {
        self.phase = QueuePairState::Reset;
        self.sends.clear();
        self.next = 0;
        self.receives.clear();
        self.held.clear();
    }
}

impl QpCore {
    /// Has the NIC give it a turn.
    pub(super) fn schedule(self: &Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::SeqCst) {
            self.device.host.nic.push(self);
        }
    }

    /// To ERR; answers whether that is new.
    pub(super) fn enter_error(&self) -> bool {
        let mut state = lock(&self.state);
        let new = !matches!(state.phase, QueuePairState::Reset | QueuePairState::Error);
        if new {
            state.phase = QueuePairState::Error;
        }
        new
    }

    /// Waits for the pieces that are on their way now.
    pub(super) fn quiesce(&self) {
        drop(lock(&self.sending));
        drop(lock(&self.receiving));
    }

    pub(super) fn lose_acks(&self, count: u64) {
        self.lost_acks.store(count, Ordering::SeqCst);
    }

    /// Whether the next acknowledgement is lost.
    pub(super) fn loses_ack(&self) -> bool {
        take_one(&self.lost_acks).is_some() || self.device.host.faults.loses_ack()
    }

    /// Ends the oldest work request of the send queue.
    pub(super) fn finish_send(self: &Arc<Self>, state: &mut State, status: Status) {
        let Some(work) = state.sends.pop_front() else { return };
        state.next = state.next.saturating_sub(1);
        state.unreported += 1;
        if work.request.signalled || status != Status::Success {
            let sends = std::mem::take(&mut state.unreported);
            self.report(state, work.request.id, status, 0, (sends, 0));
        }
    }

    /// Ends a receive.
    pub(super) fn finish_receive(self: &Arc<Self>, state: &mut State, id: u64, status: Status, bytes: u32) {
        self.report(state, id, status, bytes, (0, 1));
    }

    /// Completes what is posted as flushed. The caller holds `sending`, so that none of it is on its way.
    pub(super) fn flush(self: &Arc<Self>) {
        if !self.device.host.faults.flushes() {
            return;
        }
        let mut receiving = lock(&self.receiving);
        let mut state = lock(&self.state);
        while !state.sends.is_empty() {
            self.finish_send(&mut state, Status::Flushed);
        }
        if let Some(receive) = receiving.current.take() {
            self.finish_receive(&mut state, receive.id, Status::Flushed, 0);
        }
        while let Some(receive) = state.receives.pop_front() {
            self.finish_receive(&mut state, receive.id, Status::Flushed, 0);
        }
    }

    fn report(self: &Arc<Self>, state: &mut State, id: u64, status: Status, bytes: u32, (sends, receives): (u32, u32)) {
        let completion = Completion { id, queue_pair: self.number, status, vendor: 0, bytes };
        let entry = Entry { completion, slots: Arc::clone(&self.slots), sends, receives };
        let delay = self.device.host.faults.delay();
        if delay.is_none() && state.held.is_empty() {
            self.completions.push(entry);
            return;
        }
        let mut until = Instant::now() + delay.unwrap_or_default();
        if let Some((last, _)) = state.held.back() {
            until = until.max(*last);
        }
        state.held.push_back((until, entry));
        self.schedule();
    }

    /// Lets late completions go whose time has come; answers when the next has to.
    pub(super) fn release(&self, state: &mut State, now: Instant) -> Option<Instant> {
        while let Some((until, _)) = state.held.front() {
            if *until > now {
                return Some(*until);
            }
            if let Some((_, entry)) = state.held.pop_front() {
                self.completions.push(entry);
            }
        }
        None
    }
}

impl fmt::Debug for QpCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpCore").field("device", &self.device).field("number", &self.number).finish_non_exhaustive()
    }
}
