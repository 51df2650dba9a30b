//! What one rank holds: the layout of its cache, which peers exchange.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{BufferKey, Dtype, LayoutError, Order, PageId, Part, PlanError, Rank, Role};

/// The model that a cache belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelId {
    /// Its name, for messages.
    pub name: String,
    /// [`ModelShape::fingerprint`](crate::ModelShape::fingerprint).
    pub fingerprint: u64,
    /// Layers of the main model.
    pub layers: u32,
}

/// How one side is split over its ranks, and which of them this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// This rank.
    pub rank: Rank,
    /// Layers of the main model on each pipeline stage of the side, in order. Its length is the number of stages.
    pub stages: Vec<u32>,
    /// Tensor-parallel ranks of each stage.
    pub tp: u32,
    /// Layers of the draft model, all on the last stage; 0 without one.
    pub draft_layers: u32,
}

impl Shard {
    /// The main model's layers on a stage.
    pub fn stage_layers(&self, stage: u32) -> Range<u32> {
        let before = |stages: &[u32]| stages.iter().fold(0u32, |sum, layers| sum.saturating_add(*layers));
        let stage = stage as usize;
        let start = before(self.stages.get(..stage).unwrap_or(&self.stages));
        start..start.saturating_add(self.stages.get(stage).copied().unwrap_or(0))
    }

    /// The main model's layers on all stages together.
    pub fn total_layers(&self) -> u32 {
        self.stages.iter().fold(0u32, |sum, layers| sum.saturating_add(*layers))
    }

    /// The stage that holds a layer of the main model.
    pub fn stage_of(&self, layer: u32) -> Option<u32> {
        (0..self.stage_count()).find(|stage| self.stage_layers(*stage).contains(&layer))
    }

    /// The number of stages.
    pub fn stage_count(&self) -> u32 {
        u32::try_from(self.stages.len()).unwrap_or(u32::MAX)
    }

    /// The draft model's layers on a stage.
    pub fn draft_layers_of(&self, stage: u32) -> Range<u32> {
        if stage.checked_add(1) == Some(self.stage_count()) { 0..self.draft_layers } else { 0..0 }
    }
}

/// Which heads a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heads {
    /// The first one's number in the whole model.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// How many the whole model has.
    pub total: u32,
}

/// One buffer of a rank: the pages of one (part, layer, role). Page `i` is `page_bytes` bytes at `offset + i * page_bytes`
/// of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// What it holds.
    pub key: BufferKey,
    /// Index of its region in [`CacheLayout::regions`].
    pub region: u32,
    /// Offset in bytes of page 0 in the region.
    pub offset: u64,
    /// Bytes of a token: all its heads on this rank, or its latent.
    pub token_bytes: u64,
    /// Bytes of a page: `page_tokens * token_bytes`.
    pub page_bytes: u64,
    /// Pages of the buffer.
    pub page_count: u32,
    /// Its heads; `None` where the bytes are not divided by heads.
    pub heads: Option<Heads>,
}

/// What one rank holds, and what peers exchange when they meet.
///
/// Made by [`Side::layouts`](crate::Side::layouts), or by hand by whoever lays out memory in another way. A layout that came from a
/// peer is [validated](CacheLayout::validate) before anything else is done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLayout {
    /// The model.
    pub model: ModelId,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Type of the elements.
    pub dtype: Dtype,
    /// How heads and tokens follow each other in a page of keys or values.
    pub order: Order,
    /// How the side is split, and which rank this is.
    pub shard: Shard,
    /// The buffers, in any order.
    pub buffers: Vec<Buffer>,
    /// Length in bytes of each region that the buffers lie in.
    pub regions: Vec<u64>,
}

impl CacheLayout {
    /// The most buffers that a layout may have.
    pub const MAX_BUFFERS: usize = 65_536;

    /// The most regions that a layout may have.
    pub const MAX_REGIONS: usize = 65_536;

    /// The most ranks that a side may have, stages times tensor ranks.
    pub const MAX_RANKS: u64 = 65_536;

    /// The rank that holds it.
    pub fn rank(&self) -> Rank {
        self.shard.rank
    }

    /// The buffer with this key.
    pub fn buffer(&self, key: BufferKey) -> Option<&Buffer> {
        self.buffers.iter().find(|buffer| buffer.key == key)
    }

    /// Length in bytes of each region.
    pub fn region_lens(&self) -> &[u64] {
        &self.regions
    }

    /// Length in bytes of a region.
    pub fn region_len(&self, region: u32) -> Option<u64> {
        self.regions.get(usize::try_from(region).ok()?).copied()
    }

    /// Pages that every buffer of this rank has: the least of all.
    pub fn page_count(&self) -> u32 {
        self.buffers.iter().map(|buffer| buffer.page_count).min().unwrap_or(0)
    }

    /// How many buffers of a part and role there are.
    pub fn table_count(&self, part: Part, role: Role) -> usize {
        self.buffers.iter().filter(|buffer| buffer.key.part == part && buffer.key.role == role).count()
    }

    /// Checks a list of pages of this rank: in range, present, none twice.
    ///
    /// # Errors
    /// [`PlanError::PageRange`] or [`PlanError::DuplicatePage`].
    pub fn check_pages(&self, pages: &[PageId]) -> Result<(), PlanError> {
        crate::pages::Seen::default().check_destination(pages, self.page_count(), self.rank())
    }

    /// Checks that the layout does not contradict itself, in time and memory bounded by its own length.
    ///
    /// # Errors
    /// [`LayoutError`], the first contradiction.
    pub fn validate(&self) -> Result<(), LayoutError> {
        crate::validate::validate(self)
    }

    /// The layouts of all ranks of this side, ordered by rank, as far as they decide what moves between whom: each with its
    /// buffers' keys, sizes and heads, all in a region of their own. This rank's own layout is among them as it is.
    ///
    /// The others are derived from this one: a stage's layers look like those of this rank.
    pub fn siblings(&self) -> Vec<Self> {
        crate::siblings::siblings(self)
    }
}
