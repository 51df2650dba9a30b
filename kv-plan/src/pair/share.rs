//! Which of the senders that hold the same bytes sends them.
//!
//! `m` tensor ranks of the prefill side hold the same heads (or latents), and `n` of the decode side want them. What is to be
//! sent, all of the sender's buffers for each of the `n` receivers one after the other, is a line of bytes, and each of the `m`
//! senders has one stretch of it: so the loads differ by less than a buffer, and a receiver hears from as few senders as can
//! be. With as many receivers as senders each has its own.
//!
//! ```text
//!  2 receivers, 4 senders     receiver 0: layers 0 … 60     receiver 1: layers 0 … 60
//!                             |--- tp0 ---|--- tp1 ---|     |--- tp2 ---|--- tp3 ---|
//! ```
//!
//! It depends on nothing but the two layouts, so that both ranks, and their siblings, come to the same answer.

use crate::{Buffer, CacheLayout, Heads, Pool};

/// Goes through the buffers of a sender, in the order of their keys.
pub(super) struct Shares {
    pools: Vec<Line>,
    src: Split,
    dst: Split,
}

/// A tensor rank and how many there are.
#[derive(Clone, Copy)]
struct Split {
    rank: u32,
    of: u32,
}

/// The buffers of one pool.
struct Line {
    pool: Pool,
    total: u128,
    before: u128,
}

impl Shares {
    pub(super) fn new(prefill: &CacheLayout, decode: &CacheLayout) -> Self {
        let line = |pool| {
            let own = prefill.buffers.iter().filter(|buffer| buffer.pool() == pool);
            Line { pool, total: own.map(|buffer| u128::from(buffer.token_bytes)).sum(), before: 0 }
        };
        let split = |layout: &CacheLayout| Split { rank: layout.rank().tp, of: layout.shard.tp };
        Self { pools: prefill.pools().into_iter().map(line).collect(), src: split(prefill), dst: split(decode) }
    }

    /// The next buffer's share.
    pub(super) fn next(&mut self, buffer: &Buffer) -> Share {
        let (src, dst) = (self.src, self.dst);
        let line = self.pools.iter_mut().find(|line| line.pool == buffer.pool());
        let Some(line) = line else { return Share { src, dst, before: 0, total: 1 } };
        let before = line.before;
        line.before += u128::from(buffer.token_bytes);
        Share { src, dst, before, total: line.total }
    }
}

/// Where a buffer is in the line of what is to be sent.
pub(super) struct Share {
    src: Split,
    dst: Split,
    before: u128,
    total: u128,
}

impl Share {
    /// Whether this sender is the one that sends one of `total` heads to this receiver.
    pub(super) fn is_ours(&self, total: u32) -> bool {
        let place = |split: Split| {
            let replicas = Heads::replicas(total, split.of);
            (u128::from(split.rank % replicas), u128::from(replicas))
        };
        let ((sender, senders), (receiver, receivers)) = (place(self.src), place(self.dst));
        // At most 2^12 ranks and 2^16 buffers of 2^64 bytes: far below 2^128.
        let position = receiver * self.total + self.before;
        position * senders / (receivers * self.total).max(1) == sender
    }
}
