//! Which of the senders that hold the same bytes sends them.
//!
//! `m` tensor ranks of the prefill side hold the same heads (or latents), and `n` of the decode side want them. What is to be
//! sent, all of the sender's buffers of one kind for each of the `n` receivers one after the other, is a line of bytes, and each of
//! the `m` senders has one stretch of it: so the loads differ by less than a buffer, and a receiver hears from as few senders as
//! can be. With as many receivers as senders each has its own.
//!
//! ```text
//!  2 receivers, 4 senders     receiver 0: layers 0 … 60     receiver 1: layers 0 … 60
//!                             |--- tp0 ---|--- tp1 ---|     |--- tp2 ---|--- tp3 ---|
//! ```
//!
//! It depends on nothing but the two layouts, so that both ranks, and their siblings, come to the same answer.

use std::collections::HashMap;

use crate::{Buffer, CacheLayout, Heads, Pool};

/// Goes through the buffers of a sender, in the order of their keys.
pub(super) struct Shares {
    lines: HashMap<(Pool, u32), Line>,
    src: Split,
    dst: Split,
}

/// A tensor rank and how many there are.
#[derive(Clone, Copy)]
struct Split {
    rank: u32,
    of: u32,
}

/// What is held alike: the groups of a pool with as many heads in the whole model are on the same ranks.
#[derive(Default)]
struct Line {
    /// Bytes of one head of a token over all of them, and over those that are before the next one.
    total: u128,
    before: u128,
}

/// Heads of the whole model and bytes of one of them, for each group of a buffer.
fn groups(buffer: &Buffer) -> impl Iterator<Item = (u32, u64)> + '_ {
    let whole = buffer.groups.is_empty().then_some((1, buffer.token_bytes));
    whole.into_iter().chain(buffer.groups.iter().map(|group| (group.heads.total, group.head_bytes)))
}

impl Shares {
    pub(super) fn new(prefill: &CacheLayout, decode: &CacheLayout) -> Self {
        let split = |layout: &CacheLayout| Split { rank: layout.rank().tp, of: layout.shard.tp };
        let mut shares = Self { lines: HashMap::new(), src: split(prefill), dst: split(decode) };
        for buffer in &prefill.buffers {
            for (heads, bytes) in groups(buffer) {
                shares.lines.entry((buffer.pool(), heads)).or_default().total += u128::from(bytes);
            }
        }
        shares
    }

    /// Which groups of the next buffer this sender sends to this receiver, a bit for each.
    pub(super) fn next(&mut self, buffer: &Buffer) -> Ours {
        let mut ours = 0;
        let (src, dst) = (self.src, self.dst);
        for (group, (heads, bytes)) in groups(buffer).enumerate() {
            // All of the sender's buffers are in one.
            let Some(line) = self.lines.get_mut(&(buffer.pool(), heads)) else { continue };
            let place = |split: Split| {
                let replicas = Heads::replicas(heads, split.of);
                (u128::from(split.rank % replicas), u128::from(replicas))
            };
            let ((sender, senders), (receiver, receivers)) = (place(src), place(dst));
            // At most 2^12 ranks and 2^19 groups of 2^64 bytes: far below 2^128.
            let position = receiver * line.total + line.before;
            if position * senders / (receivers * line.total).max(1) == sender {
                ours |= 1 << group;
            }
            line.before += u128::from(bytes);
        }
        Ours(ours)
    }
}

/// Groups of a buffer; there are at most [`CacheLayout::MAX_GROUPS`].
pub(super) struct Ours(u8);

impl Ours {
    pub(super) fn contains(&self, group: usize) -> bool {
        self.0 & (1 << group) != 0
    }
}
