//! The responder: what a peer's piece does here.

use std::{sync::Arc, time::Duration};

use super::{
    lock,
    memory::Access,
    state::{Path, QpCore, State},
};
use crate::verbs::{AsyncEvent, Operation, QueuePairState, ReceiveRequest, Status};

/// What a responder knows of the wire.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// How many messages have arrived as a whole.
    received: u64,
    /// The receive that a message is being written to.
    pub(super) current: Option<ReceiveRequest>,
}

/// A piece of a message.
#[derive(Debug)]
pub(super) struct Message<'a> {
    /// The sender's queue pair.
    pub(super) from: u32,
    pub(super) psn: u32,
    pub(super) path: &'a Path,
    pub(super) sequence: u64,
    pub(super) operation: Operation,
    /// Length of the message.
    pub(super) len: u32,
    pub(super) offset: u32,
    /// Length of this piece.
    pub(super) piece: u32,
    pub(super) source: Source<'a>,
}

/// Where the bytes are.
#[derive(Debug)]
pub(super) enum Source<'a> {
    Bytes(&'a [u8]),
    Region(&'a Access),
}

/// What the sender learns.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Nothing.
    Lost,
    /// That many bytes landed, and more are to come.
    Piece(u32),
    /// The message has arrived as a whole.
    Delivered,
    /// No receive is posted; to be tried again after this time.
    NotReady(Duration),
    /// Here or there it was refused.
    Refused(Status),
}

impl Message<'_> {
    fn is_last(&self) -> bool {
        self.offset + self.piece >= self.len
    }

    fn copy_to(&self, target: &Access) {
        let offset = u64::from(self.offset);
        match self.source {
            Source::Bytes(bytes) => target.write(offset, bytes),
            Source::Region(access) => access.copy_to(target, offset, u64::from(self.piece)),
        }
    }

    /// Whether it comes from the queue pair that this one is connected to.
    fn is_from(&self, path: &Path) -> bool {
        let addressed = path.to == self.path.from && path.from == self.path.to;
        addressed && path.remote_queue_pair == self.from && path.remote_psn == self.psn
    }

    /// Whether its packets have the length that a receiver with this path MTU expects.
    fn fits(&self, path: &Path) -> bool {
        path.mtu == self.path.mtu || self.len <= path.mtu.min(self.path.mtu).bytes()
    }
}

impl QpCore {
    /// Takes a piece in. Called by the NIC of the sender.
    pub(super) fn receive(self: &Arc<Self>, message: &Message<'_>) -> Outcome {
        let mut receiving = lock(&self.receiving);
        let mut state = lock(&self.state);
        let Some(path) = state.path.filter(|path| message.is_from(path)) else { return Outcome::Lost };
        let hears = self.device.carries(path.port) && !self.device.host.faults.silent();
        if !hears || !state.receives_messages() {
            return Outcome::Lost;
        }
        if message.sequence < receiving.received {
            // Sent again because an acknowledgement was lost.
            return Outcome::Delivered;
        }
        if !message.fits(&path) {
            return self.refuse(&mut state, Status::RemoteInvalidRequest);
        }
        let outcome = match message.operation {
            Operation::Write { address, key } => {
                if !state.init.is_some_and(|init| init.remote_write) {
                    return self.refuse(&mut state, Status::RemoteInvalidRequest);
                }
                drop(state);
                self.take_write(message, address, key)
            }
            Operation::Send => {
                if receiving.current.is_none() {
                    receiving.current = state.receives.pop_front();
                }
                let Some(receive) = receiving.current else {
                    return Outcome::NotReady(not_ready_pause(path.min_rnr_timer));
                };
                drop(state);
                self.take_send(message, &mut receiving, &receive)
            }
        };
        if matches!(outcome, Outcome::Delivered) {
            receiving.received += 1;
        }
        outcome
    }

    fn take_write(self: &Arc<Self>, message: &Message<'_>, address: u64, key: u32) -> Outcome {
        if message.len > 0 {
            let Some(target) = self.device.regions.remote(key, self.domain, address, u64::from(message.len)) else {
                return self.refuse(&mut lock(&self.state), Status::RemoteAccess);
            };
            message.copy_to(&target);
        }
        if message.is_last() { Outcome::Delivered } else { Outcome::Piece(message.piece) }
    }

    fn take_send(
        self: &Arc<Self>,
        message: &Message<'_>,
        receiving: &mut Receiving,
        receive: &ReceiveRequest,
    ) -> Outcome {
        let local = &receive.local;
        let (here, there) = if message.len > local.len {
            (Status::LocalLength, Status::RemoteInvalidRequest)
        } else if message.len == 0 {
            (Status::Success, Status::Success)
        } else {
            match self.device.regions.local(local.key, self.domain, local.address, u64::from(message.len)) {
                Some(target) => {
                    message.copy_to(&target);
                    (Status::Success, Status::Success)
                }
                None => (Status::LocalProtection, Status::RemoteOperation),
            }
        };
        if here == Status::Success && !message.is_last() {
            return Outcome::Piece(message.piece);
        }
        let mut state = lock(&self.state);
        if !state.receives_messages() {
            // It failed meanwhile, and the receive is flushed.
            return Outcome::Lost;
        }
        receiving.current = None;
        let bytes = if here == Status::Success { message.len } else { 0 };
        self.finish_receive(&mut state, receive.id, here, bytes);
        if here == Status::Success { Outcome::Delivered } else { self.refuse(&mut state, there) }
    }

    /// Answers with an error, which fails this end too.
    fn refuse(self: &Arc<Self>, state: &mut State, status: Status) -> Outcome {
        if !state.receives_messages() {
            return Outcome::Lost;
        }
        state.phase = QueuePairState::Error;
        self.device.announce(AsyncEvent::QueuePairFatal(self.number));
        self.schedule();
        Outcome::Refused(status)
    }
}

/// The time of a `min_rnr_timer` code, by the table of the InfiniBand specification.
fn not_ready_pause(timer: u8) -> Duration {
    const MICROSECONDS: [u64; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120, 7_680,
        10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
    ];
    Duration::from_micros(MICROSECONDS.get(usize::from(timer)).copied().unwrap_or(655_360))
}
