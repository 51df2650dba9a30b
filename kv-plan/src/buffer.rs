//! One buffer of a rank: the pages of one (part, layer, role).

use serde::{Deserialize, Serialize};

use crate::{BufferKey, HeadGroup, Heads, Pool, PoolKind};

/// One buffer of a rank: the pages of one (part, layer, role). Page `i` is `page_bytes` bytes at `offset + i * page_stride`
/// of its region. States have slots instead: pages of one token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Buffer {
    /// What it holds.
    pub key: BufferKey,
    /// Which page list it goes by, together with the part of its key.
    pub pool: PoolKind,
    /// Index of its region in [`CacheLayout::regions`](crate::CacheLayout::regions).
    pub region: u32,
    /// Offset in bytes of page 0 in the region.
    pub offset: u64,
    /// Tokens of a page; 1 for states.
    pub page_tokens: u32,
    /// Bytes of a token: all its heads on this rank, or its latent, or the state of a request.
    pub token_bytes: u64,
    /// Bytes of a page: `page_tokens * token_bytes`.
    pub page_bytes: u64,
    /// Bytes from one page to the next: `page_bytes`, or more where pages are padded or interleaved with those of other buffers.
    pub page_stride: u64,
    /// Pages of the buffer.
    pub page_count: u32,
    /// Its heads, in the order in which they lie in a token; empty where the bytes are not divided by heads, so that every tensor
    /// rank holds the same.
    pub groups: Vec<HeadGroup>,
}

impl Buffer {
    /// `page_count` pages of `page_tokens` tokens of `token_bytes` bytes at an offset of a region; without heads, in the pool that
    /// is usual for its role.
    ///
    /// Page bytes that do not fit 64 bits become `u64::MAX`, which [`CacheLayout::validate`](crate::CacheLayout::validate) refuses.
    pub fn new(key: BufferKey, region: u32, offset: u64, page_tokens: u32, token_bytes: u64, page_count: u32) -> Self {
        let page_bytes = u64::from(page_tokens).saturating_mul(token_bytes);
        let pool = if key.role.is_paged() { PoolKind::Full } else { PoolKind::State };
        Self {
            key,
            pool,
            region,
            offset,
            page_tokens,
            token_bytes,
            page_bytes,
            page_stride: page_bytes,
            page_count,
            groups: Vec::new(),
        }
    }

    /// The same with the heads that it holds, all of one size; keys and values need them.
    #[must_use]
    pub fn with_heads(self, heads: Heads) -> Self {
        let head_bytes = self.token_bytes / u64::from(heads.count.max(1));
        self.with_groups(vec![HeadGroup { heads, head_bytes }])
    }

    /// The same with several groups of heads, in the order in which they lie in a token.
    #[must_use]
    pub fn with_groups(self, groups: Vec<HeadGroup>) -> Self {
        Self { groups, ..self }
    }

    /// The same in another pool.
    #[must_use]
    pub fn with_pool(self, pool: PoolKind) -> Self {
        Self { pool, ..self }
    }

    /// The same with so many bytes from one page to the next.
    #[must_use]
    pub fn with_page_stride(self, page_stride: u64) -> Self {
        Self { page_stride, ..self }
    }

    /// The pool that it belongs to.
    pub fn pool(&self) -> Pool {
        Pool { part: self.key.part, kind: self.pool }
    }

    /// Its heads, where it has one group of them.
    pub fn heads(&self) -> Option<Heads> {
        match self.groups.as_slice() {
            [group] => Some(group.heads),
            _ => None,
        }
    }

    /// Bytes of all its pages; `None` where they do not fit 64 bits.
    pub fn total_bytes(&self) -> Option<u64> {
        u64::from(self.page_count).checked_mul(self.page_bytes)
    }

    /// Where it begins and ends in its region; `None` where that does not fit 64 bits.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        let Some(last) = self.page_count.checked_sub(1) else { return Some((self.offset, self.offset)) };
        let len = u64::from(last).checked_mul(self.page_stride)?.checked_add(self.page_bytes)?;
        Some((self.offset, self.offset.checked_add(len)?))
    }

    /// Whether its pages follow each other without a gap.
    pub(crate) fn is_dense(&self) -> bool {
        self.page_stride == self.page_bytes
    }
}
