//! Completion queues, each with a channel of its own for its events.

use std::{
    any::Any,
    os::fd::BorrowedFd,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ibverbs_sys::{ibv_comp_channel, ibv_cq, ibv_wc};
use rustix::io::Errno;

use super::{
    context::Context,
    convert,
    handle::{Handle, check, last_error},
    sleeper::Trigger,
};
use crate::verbs::{Completion, CompletionQueue, VerbsError};

/// Completions that one call takes out.
const BATCH: usize = 16;

/// A completion queue.
#[derive(Debug)]
pub(super) struct NativeCompletionQueue {
    raw: Handle<ibv_cq>,
    depth: u32,
    /// An event was asked for, and was not taken out since.
    armed: AtomicBool,
    // Below the queue: fields are dropped in order, and the channel must outlive it.
    channel: Channel,
}

impl NativeCompletionQueue {
    pub(super) fn new(context: &Arc<Context>, depth: u32) -> Result<Self, VerbsError> {
        let channel = Channel::new(context)?;
        let entries = i32::try_from(depth).unwrap_or(i32::MAX);
        // SAFETY: V1, V2: the channel outlives the queue; interrupt vector 0 is always there.
        let raw = unsafe {
            (context.library.create_queue)(context.raw.as_ptr(), entries, ptr::null_mut(), channel.raw.as_ptr(), 0)
        };
        let raw = Handle::new(raw).map_err(|code| context.error("ibv_create_cq", code))?;
        // SAFETY: V2.
        let entries = unsafe { (*raw.as_ptr()).cqe };
        Ok(Self { raw, depth: u32::try_from(entries).unwrap_or(depth), armed: AtomicBool::new(false), channel })
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.channel.context
    }
}

impl CompletionQueue for NativeCompletionQueue {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let poll = self.context().calls.poll;
        let mut taken = 0;
        let mut batch = [ibv_wc::default(); BATCH];
        for part in into.chunks_mut(BATCH) {
            // Lossless: a part has no more than `BATCH` entries.
            let room = part.len() as i32;
            // SAFETY: V1, V2, V4: the batch has room for a whole part.
            let answer = unsafe { poll(self.raw.as_ptr(), room, batch.as_mut_ptr()) };
            let Ok(count) = usize::try_from(answer) else {
                let reason = format!("the completion queue has overrun or failed (it answered {answer})");
                return Err(self.context().refuse("ibv_poll_cq", Errno::IO, reason));
            };
            for (into, from) in part.iter_mut().zip(batch.iter().take(count)) {
                *into = convert::completion(from);
            }
            taken += count;
            if count < part.len() {
                break;
            }
        }
        Ok(taken)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        // Each arming makes one event at most. So one look tells all: without an event it is still armed.
        if self.armed.load(Ordering::Acquire) && !self.channel.take_event()? {
            return Ok(());
        }
        if self.armed.swap(false, Ordering::AcqRel) {
            // SAFETY: V1, V2, V7: one event of this queue, the only one of its channel, was taken out just now.
            unsafe { (self.context().library.ack_queue_events)(self.raw.as_ptr(), 1) };
        }
        // SAFETY: V1, V2. Zero: any completion makes the event.
        let answer = unsafe { (self.context().calls.notify)(self.raw.as_ptr(), 0) };
        check(answer).map_err(|code| self.context().error("ibv_req_notify_cq", code))?;
        self.armed.store(true, Ordering::Release);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for NativeCompletionQueue {
    fn drop(&mut self) {
        // SAFETY: V1, V2, V7: the queue pairs that complete into it are gone, because they held it, and its events are
        // acknowledged, so that this does not wait.
        let answer = unsafe { (self.context().library.destroy_queue)(self.raw.as_ptr()) };
        self.context().destroyed("ibv_destroy_cq", answer);
    }
}

/// A completion channel.
#[derive(Debug)]
struct Channel {
    raw: Handle<ibv_comp_channel>,
    context: Arc<Context>,
}

impl Channel {
    fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        const OPERATION: &str = "ibv_create_comp_channel";
        // SAFETY: V1, V2.
        let raw = unsafe { (context.library.create_channel)(context.raw.as_ptr()) };
        let raw = Handle::new(raw).map_err(|code| context.error(OPERATION, code))?;
        let channel = Self { raw, context: Arc::clone(context) };
        context
            .sleeper
            .watch(channel.events(), Trigger::Once)
            .map_err(|error| context.error(OPERATION, error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())))?;
        Ok(channel)
    }

    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: V2.
        let descriptor = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: V8: the library closes it with the channel, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }

    /// Takes an event out, if there is one.
    fn take_event(&self) -> Result<bool, VerbsError> {
        loop {
            let (mut queue, mut cookie) = (ptr::null_mut(), ptr::null_mut());
            let get = self.context.library.get_queue_event;
            // SAFETY: V1, V2, V4, V8: the descriptor does not block.
            if unsafe { get(self.raw.as_ptr(), &mut queue, &mut cookie) } == 0 {
                return Ok(true);
            }
            let code = last_error();
            if code == Errno::AGAIN.raw_os_error() {
                return Ok(false);
            }
            if code != Errno::INTR.raw_os_error() {
                return Err(self.context.error("ibv_get_cq_event", code));
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.context.sleeper.forget(self.events());
        // SAFETY: V1, V2: its completion queue is gone.
        let answer = unsafe { (self.context.library.destroy_channel)(self.raw.as_ptr()) };
        self.context.destroyed("ibv_destroy_comp_channel", answer);
    }
}
