//! Regions that are being taken back: the peers that may write them are asked to stop first, because a NIC answers a
//! write to memory that is gone by failing the queue pair, with all that is on it.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use transport_core::{ClosedRegion, Memory, RegionId};

use crate::{
    host::{Deregistered, Host, Release},
    signal::Signal,
};

#[derive(Default)]
pub(super) struct Deregistrations {
    list: Vec<Deregistration>,
    serial: u64,
}

struct Deregistration {
    serial: u64,
    region: RegionId,
    released: Release,
    memory: Option<Memory>,
    /// Sessions that have not answered.
    asked: Vec<usize>,
    deadline: Instant,
    done: Arc<Deregistered>,
}

impl Deregistrations {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) fn add(
        &mut self,
        serial: u64,
        region: RegionId,
        closed: ClosedRegion,
        asked: Vec<usize>,
        deadline: Instant,
        done: Arc<Deregistered>,
    ) {
        let released = Box::pin(closed.released());
        self.list.push(Deregistration { serial, region, released, memory: None, asked, deadline, done });
    }

    /// A session has answered.
    pub(super) fn answered(&mut self, serial: u64, session: usize) {
        let of_serial = self.list.iter_mut().filter(|entry| entry.serial == serial);
        of_serial.for_each(|entry| entry.asked.retain(|asked| *asked != session));
    }

    /// A session has ended: nothing of it writes any more.
    pub(super) fn gone(&mut self, session: usize) {
        self.list.iter_mut().for_each(|entry| entry.asked.retain(|asked| *asked != session));
    }

    /// Ends those that are through. One whose peers do not answer in time is ended as well: after `ibv_dereg_mr`
    /// their NICs write nothing, and it is their queue pairs that fail.
    pub(super) fn turn(&mut self, host: &Host, now: Instant) {
        if self.list.is_empty() {
            return;
        }
        let waker = Waker::from(Arc::new(WakeThread(Arc::clone(&host.signal))));
        let mut context = Context::from_waker(&waker);
        self.list.retain_mut(|entry| {
            if entry.memory.is_none()
                && let Poll::Ready(memory) = entry.released.as_mut().poll(&mut context)
            {
                entry.memory = Some(memory);
            }
            if !entry.asked.is_empty() && now >= entry.deadline {
                tracing::warn!(region = %entry.region, "peers did not let go of a region in time; it is deregistered under them");
                entry.asked.clear();
            }
            let Some(memory) = entry.memory.take_if(|_| entry.asked.is_empty()) else { return true };
            entry.done.set(host.remove_registered(entry.region), memory);
            false
        });
    }

    /// At the end nothing is in flight, and nobody has to be asked. A region that is still held, by a batch that was being submitted
    /// when the transport ended, is let go of soon: whoever waits for it does so without the worker then.
    pub(super) fn finish(&mut self, host: &Host) {
        self.list.iter_mut().for_each(|entry| entry.asked.clear());
        self.turn(host, Instant::now());
        for entry in self.list.drain(..) {
            entry.done.leave(host.remove_registered(entry.region), entry.released);
        }
    }
}

struct WakeThread(Arc<Signal>);

impl Wake for WakeThread {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}
