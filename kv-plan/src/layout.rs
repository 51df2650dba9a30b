//! What one rank holds: the layout of its cache, which peers exchange.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

use crate::{
    BufferKey, Dtype, LayoutError, ModelShape, Order, PageId, Part, PlanError, Rank, Role,
    error::End,
    pages::{Limit, Seen},
};

/// The model that a cache belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelId {
    /// Its name, for messages.
    pub name: String,
    /// [`ModelShape::fingerprint`](crate::ModelShape::fingerprint).
    pub fingerprint: u64,
    /// Layers of the main model.
    pub layers: u32,
}

impl From<&ModelShape> for ModelId {
    fn from(model: &ModelShape) -> Self {
        Self { name: model.name().into(), fingerprint: model.fingerprint(), layers: model.layer_count() }
    }
}

/// How one side is split over its ranks, and which of them this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
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
    /// A rank of a side with so many main-model layers on each stage and so many tensor ranks of each stage, without a draft.
    pub fn new(rank: Rank, stages: Vec<u32>, tp: u32) -> Self {
        Self { rank, stages, tp, draft_layers: 0 }
    }

    /// The same with a draft model of so many layers on the last stage.
    #[must_use]
    pub fn with_draft_layers(self, draft_layers: u32) -> Self {
        Self { draft_layers, ..self }
    }

    /// The layers of a part that this rank holds, by how its side is split.
    pub fn own_layers(&self, part: Part) -> Range<u32> {
        match part {
            Part::Main => self.stage_layers(self.rank.pp),
            Part::Draft => self.draft_layers_of(self.rank.pp),
        }
    }

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

impl Heads {
    /// The heads of a tensor rank of `tp`, where one of the numbers divides the other: with more ranks than heads, neighbouring
    /// ranks hold the same one.
    pub fn of_rank(total: u32, tp: u32, tp_rank: u32) -> Self {
        // Below `total` for every rank below `tp`.
        let first = u64::from(tp_rank) * u64::from(total) / u64::from(tp.max(1));
        Self { first: u32::try_from(first).unwrap_or(u32::MAX), count: (total / tp.max(1)).max(1), total }
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = u64::from(self.first) + u64::from(self.count);
        write!(f, "heads {}..{end} of {}", self.first, self.total)
    }
}

/// One buffer of a rank: the pages of one (part, layer, role). Page `i` is `page_bytes` bytes at `offset + i * page_bytes`
/// of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
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

impl Buffer {
    /// `page_count` pages of `page_tokens` tokens of `token_bytes` bytes at an offset of a region; without heads.
    ///
    /// Page bytes that do not fit 64 bits become `u64::MAX`, which [`CacheLayout::validate`] refuses.
    pub fn new(key: BufferKey, region: u32, offset: u64, page_tokens: u32, token_bytes: u64, page_count: u32) -> Self {
        let page_bytes = u64::from(page_tokens).saturating_mul(token_bytes);
        Self { key, region, offset, token_bytes, page_bytes, page_count, heads: None }
    }

    /// The same with the heads that it holds; keys and values need them.
    #[must_use]
    pub fn with_heads(self, heads: Heads) -> Self {
        Self { heads: Some(heads), ..self }
    }

    /// Bytes of all its pages; `None` where they do not fit 64 bits.
    pub fn total_bytes(&self) -> Option<u64> {
        u64::from(self.page_count).checked_mul(self.page_bytes)
    }

    /// Where it begins and ends in its region; `None` where that does not fit 64 bits.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        Some((self.offset, self.offset.checked_add(self.total_bytes()?)?))
    }
}

/// What one rank holds, and what peers exchange when they meet.
///
/// Made by [`Side::layouts`](crate::Side::layouts), with each buffer in a region of its own; [`CacheLayout::packed`] puts them into
/// one. Whoever lays out memory in another way makes one by hand:
///
/// ```
/// use kv_plan::{Buffer, BufferKey, CacheLayout, Dtype, ModelShape, Rank, Role, Shard};
///
/// // A model of two layers with latents of 576 elements; both layers' pages of 64 tokens in one allocation.
/// let model = ModelShape::from_config_json(
///     r#"{"model_type": "deepseek_v3", "num_hidden_layers": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64}"#,
/// )?;
/// let mut layout = CacheLayout::new(&model, Shard::new(Rank { pp: 0, tp: 0 }, vec![2], 1), 64, Dtype::Bf16);
/// let region = layout.add_region(2 * 100 * 73_728);
/// for layer in 0..2 {
///     let key = BufferKey::main(Role::Latent, layer);
///     layout.add_buffer(Buffer::new(key, region, u64::from(layer) * 100 * 73_728, 64, 1_152, 100));
/// }
/// layout.validate()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A layout that came from a peer is [validated](CacheLayout::validate) first; [`pair`](crate::pair()) and
/// [`coverage`](crate::coverage()) do so again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
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

    /// The most stages that a side may have.
    pub const MAX_STAGES: usize = 512;

    /// The most ranks that a side may have, stages times tensor ranks.
    pub const MAX_RANKS: u64 = 4_096;

    /// The most buffers that all ranks of a side may have together: what [`CacheLayout::siblings`] derives is bounded by it.
    pub const MAX_SIDE_BUFFERS: u64 = 262_144;

    /// The most layers that a model, or all stages of a side, may have.
    pub const MAX_LAYERS: u32 = 4_096;

    /// A layout without regions and buffers, token-major.
    pub fn new(model: &ModelShape, shard: Shard, page_tokens: u32, dtype: Dtype) -> Self {
        Self {
            model: model.into(),
            page_tokens,
            dtype,
            order: Order::TokenMajor,
            shard,
            buffers: Vec::new(),
            regions: Vec::new(),
        }
    }

    /// The same with another order of heads and tokens.
    #[must_use]
    pub fn with_order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// Adds a region of so many bytes, and returns its index.
    pub fn add_region(&mut self, len: u64) -> u32 {
        let index = u32::try_from(self.regions.len()).unwrap_or(u32::MAX);
        self.regions.push(len);
        index
    }

    /// Adds a buffer.
    pub fn add_buffer(&mut self, buffer: Buffer) {
        self.buffers.push(buffer);
    }

    /// The same buffers one after the other in one region, each at a multiple of `align` bytes.
    ///
    /// # Errors
    /// [`LayoutError::Overflow`] when they do not fit 64 bits.
    pub fn packed(mut self, align: u64) -> Result<Self, LayoutError> {
        let mut end = 0u64;
        for buffer in &mut self.buffers {
            let start = end.checked_next_multiple_of(align.max(1));
            let extent = start.and_then(|start| Some((start, start.checked_add(buffer.total_bytes()?)?)));
            let (start, next) = extent.ok_or(LayoutError::Overflow { key: buffer.key })?;
            (buffer.region, buffer.offset, end) = (0, start, next);
        }
        self.regions = vec![end];
        Ok(self)
    }

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

    /// Pages that every buffer of this rank has: the least of all. A count is of one rank; its siblings may have others.
    pub fn page_count(&self) -> u32 {
        self.buffers.iter().map(|buffer| buffer.page_count).min().unwrap_or(0)
    }

    /// How many buffers of a part and role there are.
    pub fn table_count(&self, part: Part, role: Role) -> usize {
        self.buffers.iter().filter(|buffer| buffer.key.part == part && buffer.key.role == role).count()
    }

    /// Checks a list of pages that a request is to be received in: in range, present, none twice.
    ///
    /// # Errors
    /// [`PlanError::PageRange`] or [`PlanError::DuplicatePage`].
    pub fn check_pages(&self, pages: &[PageId]) -> Result<(), PlanError> {
        let smallest = self.buffers.iter().map(|buffer| (buffer.page_count, buffer.key));
        let limit = Limit::of(smallest, End::Decode, self.rank());
        limit.check_all(pages)?;
        Seen::default().check(pages, self.rank())
    }

    /// Checks that the layout does not contradict itself, in time and memory bounded by its own length. The layers of a side
    /// need not add up to the model's: whether two sides fit is what [`pair`](crate::pair()) finds out.
    ///
    /// # Errors
    /// [`LayoutError`], the first contradiction.
    pub fn validate(&self) -> Result<(), LayoutError> {
        crate::validate::validate(self)
    }

    /// The layouts of all ranks of this side, ordered by rank, as far as they decide what moves between whom: each with its
    /// buffers' keys, sizes and heads, all in a region of their own. This rank's own layout is among them as it is.
    ///
    /// The others are derived from this one: a stage's layers look like those of this rank, and a draft's layers, where this rank
    /// has none of them, like the main model's.
    pub fn siblings(&self) -> Vec<Self> {
        crate::siblings::siblings(self)
    }
}

#[cfg(test)]
mod tests;
