//! Chains of work requests, in the library's form, without an allocation for each post.

use std::{fmt, ptr};

use ibverbs_sys::{
    ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    ibv_sge, ibv_wr_opcode,
};
use rustix::io::Errno;

use super::region::{Ranges, Readable};
use crate::verbs::{LocalSegment, Operation, PostError, ReceiveRequest, SendRequest};

/// Work requests that one call of the library takes. A longer chain takes several.
const BATCH: usize = 64;

/// Room for a chain of requests with one segment each.
struct Scratch<R> {
    requests: Box<[R]>,
    segments: Box<[ibv_sge]>,
}

/// Room for sends.
#[derive(Debug)]
pub(super) struct Sends(Scratch<ibv_send_wr>);

/// Room for receives.
#[derive(Debug)]
pub(super) struct Receives(Scratch<ibv_recv_wr>);

impl Sends {
    pub(super) fn new() -> Self {
        Self(Scratch::new())
    }

    /// Posts a chain with calls of `post`, which answers what the library does: an error number and the first request that was refused.
    pub(super) fn post(
        &mut self,
        chain: &[SendRequest],
        ranges: &Ranges,
        most_inline: u32,
        mut post: impl FnMut(*mut ibv_send_wr) -> (i32, *mut ibv_send_wr),
    ) -> Result<(), PostError> {
        // Held over the calls, so that what inline requests read stays registered.
        let readable = chain.iter().any(|request| request.inline).then(|| ranges.lock());
        let mut posted = 0;
        for part in chain.chunks(BATCH) {
            // A request that is refused here ends the chain like one that the library refuses: those before it are posted.
            let count = part.iter().take_while(|request| is_sound(request, readable.as_ref(), most_inline)).count();
            for ((from, request), segment) in
                part.iter().take(count).zip(&mut self.0.requests).zip(&mut self.0.segments)
            {
                fill_send(request, from);
                fill_segment(segment, from.local);
            }
            if let Some(first) = self.0.link(count) {
                let (answer, refused) = post(first);
                self.0.outcome(count, answer, refused).map_err(|error| error.after(posted))?;
            }
            posted += count;
            if count < part.len() {
                return Err(PostError { posted, code: Errno::INVAL.raw_os_error() });
            }
        }
        Ok(())
    }
}

impl Receives {
    pub(super) fn new() -> Self {
        Self(Scratch::new())
    }

    /// As for [`Sends::post`].
    pub(super) fn post(
        &mut self,
        chain: &[ReceiveRequest],
        mut post: impl FnMut(*mut ibv_recv_wr) -> (i32, *mut ibv_recv_wr),
    ) -> Result<(), PostError> {
        let mut posted = 0;
        for part in chain.chunks(BATCH) {
            for ((from, request), segment) in part.iter().zip(&mut self.0.requests).zip(&mut self.0.segments) {
                request.wr_id = from.id;
                request.num_sge = segments(from.local);
                fill_segment(segment, from.local);
            }
            if let Some(first) = self.0.link(part.len()) {
                let (answer, refused) = post(first);
                self.0.outcome(part.len(), answer, refused).map_err(|error| error.after(posted))?;
            }
            posted += part.len();
        }
        Ok(())
    }
}

/// Whether a request may be given to the library: the CPU reads the bytes of an inline request there, unchecked.
fn is_sound(request: &SendRequest, readable: Option<&Readable<'_>>, most_inline: u32) -> bool {
    !request.inline
        || request.local.len == 0
        || (request.local.len <= most_inline && readable.is_some_and(|readable| readable.has(request.local)))
}

fn fill_send(into: &mut ibv_send_wr, from: &SendRequest) {
    let mut flags = 0;
    if from.signalled {
        flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if from.inline && from.local.len > 0 {
        flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    }
    into.wr_id = from.id;
    into.send_flags = flags;
    into.num_sge = segments(from.local);
    match from.operation {
        Operation::Write { address, key } => {
            into.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            let rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: address, rkey: key };
            into.wr = ibv_send_wr__bindgen_ty_2 { rdma };
        }
        Operation::Send => into.opcode = ibv_wr_opcode::IBV_WR_SEND,
    }
}

fn fill_segment(into: &mut ibv_sge, from: LocalSegment) {
    *into = ibv_sge { addr: from.address, length: from.len, lkey: from.key };
}

/// A segment of no bytes is none: some devices read a length of zero as 2³¹.
fn segments(local: LocalSegment) -> i32 {
    i32::from(local.len > 0)
}

/// A request of a chain.
trait Link {
    fn link(&mut self, next: *mut Self, segment: *mut ibv_sge);
}

impl Link for ibv_send_wr {
    fn link(&mut self, next: *mut Self, segment: *mut ibv_sge) {
        self.next = next;
        self.sg_list = segment;
    }
}

impl Link for ibv_recv_wr {
    fn link(&mut self, next: *mut Self, segment: *mut ibv_sge) {
        self.next = next;
        self.sg_list = segment;
    }
}

impl<R: Link + Default + Clone> Scratch<R> {
    fn new() -> Self {
        Self {
            requests: vec![R::default(); BATCH].into_boxed_slice(),
            segments: vec![ibv_sge::default(); BATCH].into_boxed_slice(),
        }
    }

    /// Links the first `count` requests to a chain, each with its segment; answers the first one.
    fn link(&mut self, count: usize) -> Option<*mut R> {
        let first = self.requests.as_mut_ptr();
        let segments = self.segments.as_mut_ptr();
        for index in 0..count.min(BATCH) {
            let next = if index + 1 < count { first.wrapping_add(index + 1) } else { ptr::null_mut() };
            // SAFETY: V4: the index is below the length, and nothing else refers to the request.
            let request = unsafe { &mut *first.wrapping_add(index) };
            request.link(next, segments.wrapping_add(index));
        }
        (count > 0).then_some(first)
    }
}

impl<R> Scratch<R> {
    /// What the library's answer to a chain of `count` requests means.
    fn outcome(&self, count: usize, answer: i32, refused: *mut R) -> Result<(), PostError> {
        if answer == 0 {
            return Ok(());
        }
        // No refused request: the driver took all of them and then failed to tell the device. They count as taken, because the
        // device may find them yet.
        let posted = (0..count).find(|index| self.requests.as_ptr().wrapping_add(*index) == refused).unwrap_or(count);
        Err(PostError { posted, code: answer.saturating_abs() })
    }
}

// SAFETY: V3, V4: its pointers point into its own boxes, and mean nothing between two posts.
unsafe impl<R> Send for Scratch<R> {}

impl<R> fmt::Debug for Scratch<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl PostError {
    /// The error of a later part of a chain.
    fn after(self, posted: usize) -> Self {
        Self { posted: posted + self.posted, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks a chain as the library does.
    fn walk(first: *mut ibv_send_wr) -> Vec<*mut ibv_send_wr> {
        // SAFETY: V4: the chain is linked and lives.
        std::iter::successors(Some(first), |request| Some(unsafe { (**request).next }).filter(|next| !next.is_null()))
            .collect()
    }

    fn chain(count: u64) -> Vec<SendRequest> {
        let local = LocalSegment { address: 4096, len: 8, key: 5 };
        let operation = Operation::Write { address: 100, key: 9 };
        (0..count).map(|id| SendRequest { id, operation, local, signalled: false, inline: false }).collect()
    }

    #[test]
    fn the_refused_request_is_found_in_any_part_of_a_chain() {
        let (chain, ranges) = (chain(BATCH as u64 * 2 + 10), Ranges::default());
        for room in [0, 1, BATCH - 1, BATCH, BATCH + 1, BATCH * 2, chain.len() - 1] {
            let (mut left, mut calls) = (room, 0);
            let result = Sends::new().post(&chain, &ranges, 0, |first| {
                calls += 1;
                let requests = walk(first);
                let refused = requests.get(left).copied();
                left = left.saturating_sub(requests.len());
                refused.map_or((0, ptr::null_mut()), |refused| (-12, refused))
            });
            assert_eq!(result, Err(PostError { posted: room, code: 12 }));
            assert_eq!(calls, room / BATCH + 1, "nothing is posted after a refusal");
        }
        let mut lengths = Vec::new();
        Sends::new()
            .post(&chain, &ranges, 0, |first| {
                lengths.push(walk(first).len());
                (0, ptr::null_mut())
            })
            .unwrap();
        assert_eq!(lengths, [BATCH, BATCH, 10]);
    }

    #[test]
    fn a_failure_without_a_refused_request_counts_all_as_taken() {
        let result = Sends::new().post(&chain(3), &Ranges::default(), 0, |_| (22, ptr::null_mut()));
        assert_eq!(result, Err(PostError { posted: 3, code: 22 }));
    }

    #[test]
    fn an_unregistered_inline_request_never_reaches_the_library() {
        let mut chain = chain(5);
        chain[3].inline = true;
        let mut seen = 0;
        let result = Sends::new().post(&chain, &Ranges::default(), 64, |first| {
            seen += walk(first).len();
            (0, ptr::null_mut())
        });
        assert_eq!((result, seen), (Err(PostError { posted: 3, code: 22 }), 3));
        let result = Sends::new().post(&chain[3..], &Ranges::default(), 64, |_| unreachable!());
        assert_eq!(result, Err(PostError { posted: 0, code: 22 }));
    }

    #[test]
    fn an_empty_chain_is_not_posted() {
        assert_eq!(Sends::new().post(&[], &Ranges::default(), 0, |_| unreachable!()), Ok(()));
        assert_eq!(Receives::new().post(&[], |_| unreachable!()), Ok(()));
    }
}
