//! What one rank holds: the layout of its cache, which peers exchange.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{
    Buffer, BufferKey, Dtype, LayerKind, LayoutError, ModelShape, Order, Pages, Part, PlanError, Pool, Rank, Role,
    Shard,
    error::End,
    pages::{Limit, Seen},
};

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
/// let mut layout = CacheLayout::new(&model, Shard::new(Rank::new(0, 0), vec![2], 1), 64, Dtype::Bf16);
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
    pub model: ModelShape,
    /// The draft model, where it differs from the main model in more than the number of its layers.
    pub draft: Option<ModelShape>,
    /// Tokens of a page in the main model's pool of all tokens.
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

    /// The most groups of heads that a buffer may have.
    pub const MAX_GROUPS: usize = 8;

    /// The most stages that a side may have.
    pub const MAX_STAGES: usize = 512;

    /// The most ranks that a side may have, over all axes.
    pub const MAX_RANKS: u64 = 4_096;

    /// The most buffers that all ranks of a side may have together: what [`CacheLayout::siblings`] derives is bounded by it.
    pub const MAX_SIDE_BUFFERS: u64 = 262_144;

    /// The most layers that a model, or all stages of a side, may have.
    pub const MAX_LAYERS: u32 = 4_096;

    /// A layout without regions and buffers, token-major.
    pub fn new(model: &ModelShape, shard: Shard, page_tokens: u32, dtype: Dtype) -> Self {
        Self {
            model: model.clone(),
            draft: None,
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

    /// The same with a draft model of another kind than the main model.
    #[must_use]
    pub fn with_draft(self, draft: ModelShape) -> Self {
        Self { draft: Some(draft), ..self }
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
            let overflow = LayoutError::Overflow { key: buffer.key };
            let Some(start) = end.checked_next_multiple_of(align.max(1)) else { return Err(overflow) };
            (buffer.region, buffer.offset) = (0, start);
            let Some((_, next)) = buffer.extent() else { return Err(overflow) };
            end = next;
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

    /// The pools that its buffers belong to, in order.
    pub fn pools(&self) -> Vec<Pool> {
        let mut pools: Vec<Pool> = self.buffers.iter().map(Buffer::pool).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// Pages that every buffer of a pool has on this rank: the least of all; 0 for a pool that it does not have. A count is of
    /// one rank; its siblings may have others.
    pub fn page_count(&self, pool: Pool) -> u32 {
        self.buffers.iter().filter(|buffer| buffer.pool() == pool).map(|buffer| buffer.page_count).min().unwrap_or(0)
    }

    /// Tokens of a page of a pool, if the rank has it.
    pub fn page_tokens_of(&self, pool: Pool) -> Option<u32> {
        self.buffers.iter().find(|buffer| buffer.pool() == pool).map(|buffer| buffer.page_tokens)
    }

    /// The model of a part. A draft without a model of its own is like the main model with attention over all tokens.
    pub fn model_of(&self, part: Part) -> Cow<'_, ModelShape> {
        match (part, &self.draft) {
            (Part::Main, _) => Cow::Borrowed(&self.model),
            (Part::Draft, Some(draft)) => Cow::Borrowed(draft),
            (Part::Draft, None) => Cow::Owned(self.model.plain_draft(self.shard.draft_layers)),
        }
    }

    /// The kind of a layer, if the model has it.
    pub fn layer_kind(&self, part: Part, layer: u32) -> Option<LayerKind> {
        self.model_of(part).layers().get(layer as usize).copied()
    }

    /// Tokens of the window of a part's sliding-window attention, the longest if there are several.
    pub fn window(&self, part: Part) -> Option<u32> {
        self.model_of(part).window()
    }

    /// How many buffers of a part and role there are.
    pub fn table_count(&self, part: Part, role: Role) -> usize {
        self.buffers.iter().filter(|buffer| buffer.key.part == part && buffer.key.role == role).count()
    }

    /// Checks the pages that a request is to be received in: in range, present, none twice.
    ///
    /// # Errors
    /// [`PlanError::PageRange`], [`PlanError::DuplicatePage`] or [`PlanError::ListedTwice`].
    pub fn check_pages<'a>(&self, pages: impl Into<Pages<'a>>) -> Result<(), PlanError> {
        let (pages, rank) = (pages.into(), self.rank());
        if let Some(pool) = pages.twice() {
            return Err(PlanError::ListedTwice { end: End::Decode, rank, pool });
        }
        for pool in self.pools() {
            let Some(list) = pages.list(pool) else { continue };
            let own = self.buffers.iter().filter(|buffer| buffer.pool() == pool);
            let limit = Limit::of(own.map(|buffer| (buffer.page_count, buffer.key)), End::Decode, rank);
            limit.check_all(list.pages)?;
            Seen::default().check(list.pages, rank)?;
        }
        Ok(())
    }

    /// Checks that the layout does not contradict itself, in time and memory bounded by its own length. The layers of a side
    /// need not add up to the model's: whether two sides fit is what [`pair`](crate::pair()) finds out.
    ///
    /// # Errors
    /// [`LayoutError`], the first contradiction.
    pub fn validate(&self) -> Result<(), LayoutError> {
        crate::validate::validate(self)
    }

    /// The layouts of all ranks of this data-parallel group, ordered by rank, as far as they decide what moves between whom: each with its
    /// buffers' keys, sizes and heads, all in a region of their own. This rank's own layout is among them as it is.
    ///
    /// The others are derived from this one: their layers look like those of this rank, and what this rank has none of as the
    /// model says. The numbers of their pages are this rank's.
    pub fn siblings(&self) -> Vec<Self> {
        crate::siblings::siblings(self)
    }
}

#[cfg(test)]
mod tests;
