//! Completion queues.

use std::{
    any::Any,
    collections::VecDeque,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{code, device::DeviceCore, lock, state::QpCore};
use crate::verbs::{AsyncEvent, Completion, CompletionQueue, VerbsError};

/// The slots of a queue pair's queues that are in use: from posting until a completion at or after the work request was
/// polled, which is when a provider learns that the slot is free.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) send: AtomicU32,
    pub(super) receive: AtomicU32,
}

/// A completion, and the slots that polling it frees.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) completion: Completion,
    pub(super) slots: Arc<Slots>,
    pub(super) sends: u32,
    pub(super) receives: u32,
}

#[derive(Debug)]
pub(super) struct CqCore {
    pub(super) device: Arc<DeviceCore>,
    depth: u32,
    queue: Mutex<Queue>,
    pairs: Mutex<Vec<Weak<QpCore>>>,
}

#[derive(Debug)]
struct Queue {
    entries: VecDeque<Entry>,
    armed: bool,
    overrun: bool,
}

impl CqCore {
    /// Adds a completion. A queue without room for it fails, and with it all its queue pairs.
    pub(super) fn push(self: &Arc<Self>, entry: Entry) {
        let mut queue = lock(&self.queue);
        if queue.overrun {
            return;
        }
        if queue.entries.len() >= self.depth as usize {
            queue.overrun = true;
            queue.entries.clear();
            drop(queue);
            self.device.host.nic.overrun(self);
            self.device.announce(AsyncEvent::CompletionQueueError);
            return;
        }
        queue.entries.push_back(entry);
        let armed = std::mem::take(&mut queue.armed);
        drop(queue);
        if armed {
            self.device.host.waiter.wake();
        }
    }

    pub(super) fn attach(&self, pair: &Arc<QpCore>) {
        let mut pairs = lock(&self.pairs);
        pairs.retain(|pair| pair.strong_count() > 0);
        pairs.push(Arc::downgrade(pair));
    }

    /// Fails the queue pairs of a queue that overran.
    pub(super) fn fail_pairs(&self) {
        let pairs = std::mem::take(&mut *lock(&self.pairs));
        for pair in pairs.iter().filter_map(Weak::upgrade) {
            if pair.enter_error() {
                self.device.announce(AsyncEvent::QueuePairFatal(pair.number));
            }
            pair.schedule();
        }
    }
}

/// A handle to a completion queue.
#[derive(Debug)]
pub(super) struct SimCompletionQueue {
    pub(super) core: Arc<CqCore>,
}

impl SimCompletionQueue {
    pub(super) fn new(device: &Arc<DeviceCore>, depth: u32) -> Result<Self, VerbsError> {
        let verb = "ibv_create_cq";
        device.check(verb)?;
        if depth == 0 || depth > device.config.attributes.max_cqe {
            return Err(device.error(verb, code::EINVAL));
        }
        let max = device.config.attributes.max_cq;
        let admit = |count: u32| (count < max).then_some(count + 1);
        if device.completion_queues.fetch_update(Ordering::SeqCst, Ordering::SeqCst, admit).is_err() {
            return Err(device.error(verb, code::ENOMEM));
        }
        let queue = Queue { entries: VecDeque::with_capacity(depth as usize), armed: false, overrun: false };
        let core = CqCore { device: Arc::clone(device), depth, queue: Mutex::new(queue), pairs: Mutex::default() };
        Ok(Self { core: Arc::new(core) })
    }
}

impl Drop for SimCompletionQueue {
    fn drop(&mut self) {
        self.core.device.completion_queues.fetch_sub(1, Ordering::SeqCst);
    }
}

impl CompletionQueue for SimCompletionQueue {
    fn depth(&self) -> u32 {
        self.core.depth
    }

    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let verb = "ibv_poll_cq";
        self.core.device.check(verb)?;
        let mut queue = lock(&self.core.queue);
        if queue.overrun {
            return Err(VerbsError::new(verb, &*self.core.device.config.name, code::EIO, "the queue has overrun"));
        }
        let mut count = 0;
        for place in into {
            let Some(entry) = queue.entries.pop_front() else { break };
            *place = entry.completion;
            entry.slots.send.fetch_sub(entry.sends, Ordering::Release);
            entry.slots.receive.fetch_sub(entry.receives, Ordering::Release);
            count += 1;
        }
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.core.device.check("ibv_req_notify_cq")?;
        lock(&self.core.queue).armed = true;
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
