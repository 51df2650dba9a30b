//! The memory of notifications: what is sent and what is received, registered for one peer.

use std::sync::Arc;

use bytes::Bytes;
use transport_core::{Access, Memory, RegisterError};

use crate::{
    rail::Rail,
    region::Registered,
    verbs::{LocalSegment, ReceiveRequest},
};

/// Longest notification, in bytes.
pub(crate) const MAX_NOTIFICATION: usize = 1024;
const SLOT: u64 = MAX_NOTIFICATION as u64;

/// Slots of [`MAX_NOTIFICATION`] bytes: first those to send from, then those to receive into, lane by lane.
#[derive(Debug, Default)]
pub(crate) struct ControlMemory {
    memory: Option<(Memory, Arc<Registered>)>,
    free: Vec<u32>,
    send: u64,
    receive: u64,
}

impl ControlMemory {
    /// For so many notifications out at a time, and so many receives on each of `lanes`.
    pub(crate) fn new(
        rails: &[Rail],
        piece: u64,
        send: u32,
        receive: u32,
        lanes: usize,
        registered: usize,
    ) -> Result<Self, RegisterError> {
        let slots = u64::from(send) + u64::from(receive) * lanes as u64;
        let refused = |reason: String| RegisterError::Refused { len: slots * SLOT, reason };
        // A multiple of the slot, so that no slot lies across a border.
        let piece = piece - piece % SLOT;
        if piece == 0 {
            return Err(refused("the device's memory regions are shorter than a notification".into()));
        }
        let memory = Memory::host((slots * SLOT) as usize).map_err(|error| refused(error.to_string()))?;
        let regions = Registered::new(rails, piece, &memory, Access::LOCAL, registered)?;
        let (send, receive) = (u64::from(send), u64::from(receive));
        Ok(Self { memory: Some((memory, regions.into())), free: (0..send as u32).rev().collect(), send, receive })
    }

    /// Copies a payload into a free slot.
    pub(super) fn fill_slot(&mut self, rail: usize, payload: &[u8]) -> Option<(u32, LocalSegment)> {
        let (memory, regions) = self.memory.as_ref()?;
        let slot = *self.free.last()?;
        let offset = u64::from(slot) * SLOT;
        memory.write_at(offset, payload).ok()?;
        let segment = regions.segment(rail, offset, payload.len() as u32)?;
        self.free.pop();
        Some((slot, segment))
    }

    pub(super) fn give_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// How many notifications can be sent now.
    #[cfg(all(test, feature = "sim"))]
    pub(super) fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// The receive of one slot of a lane; its id says which.
    pub(crate) fn receive(&self, rail: usize, lane: usize, slot: u32) -> Option<ReceiveRequest> {
        let (_, regions) = self.memory.as_ref()?;
        let local = regions.segment(rail, self.offset(lane, slot), SLOT as u32)?;
        Some(ReceiveRequest { id: RECEIVE | u64::from(slot), local })
    }

    /// What a receive has brought.
    pub(crate) fn received(&self, lane: usize, slot: u32, len: u32) -> Option<Bytes> {
        let (memory, _) = self.memory.as_ref()?;
        let mut payload = vec![0; (len as usize).min(MAX_NOTIFICATION)];
        memory.read_at(self.offset(lane, slot), &mut payload).ok()?;
        Some(payload.into())
    }

    fn offset(&self, lane: usize, slot: u32) -> u64 {
        (self.send + self.receive * lane as u64 + u64::from(slot)) * SLOT
    }
}

/// Set in the ids of receives.
const RECEIVE: u64 = 1 << 63;

/// The slot of a receive, by the id of its completion; `None` for a work request of the send queue.
pub(crate) fn receive_slot(id: u64) -> Option<u32> {
    (id & RECEIVE != 0).then_some(id as u32)
}
