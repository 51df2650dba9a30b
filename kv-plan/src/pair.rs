//! Pairing: what of one prefill rank goes to one decode rank, found out once, when the two meet.

use std::ops::Range;

use crate::{Buffer, BufferKey, CacheLayout, Heads, Mismatch, Part, Rank};

/// A pair of buffers and how pages are laid out in them: page `s` there becomes page `d` here by copying `len` bytes from
/// `src_base + s * src_stride` to `dst_base + d * dst_stride`, offsets in bytes from the start of the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    /// What both buffers hold.
    pub key: BufferKey,
    /// Index of the source's region in the prefill layout.
    pub src_region: u32,
    /// Offset of page 0 in it.
    pub src_base: u64,
    /// Bytes from page to page in it.
    pub src_stride: u64,
    /// Index of the destination's region in the decode layout.
    pub dst_region: u32,
    /// Offset of page 0 in it.
    pub dst_base: u64,
    /// Bytes from page to page in it.
    pub dst_stride: u64,
    /// Bytes that move for each page.
    pub len: u64,
}

/// What moves from one prefill rank to one decode rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    prefill_rank: Rank,
    decode_rank: Rank,
    model_layers: u32,
    page_tokens: u32,
    /// Ordered by key: by part, then layer, then role, so that a range of layers is a range of tables.
    tables: Vec<Table>,
    page_bytes: u64,
    src_pages: u32,
    dst_pages: u32,
    left_alone: Vec<BufferKey>,
    unsent: Vec<BufferKey>,
}

impl Pairing {
    /// The sender.
    pub fn prefill_rank(&self) -> Rank {
        self.prefill_rank
    }

    /// The receiver.
    pub fn decode_rank(&self) -> Rank {
        self.decode_rank
    }

    /// The pairs of buffers, ordered by part, layer and role. Empty when the two ranks share nothing.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The tables of some layers, as a range of [`Pairing::tables`]: for a push that goes out layer by layer.
    ///
    /// Layers are counted in the whole main model, whatever stage holds them; the draft model's count on after its last one, so
    /// that draft layer 0 of a model of 61 layers is 61.
    pub fn tables_of(&self, layers: Range<u32>) -> Range<usize> {
        let before = |layer: u32| self.tables.partition_point(|table| self.position(table.key) < u64::from(layer));
        let start = before(layers.start);
        start..before(layers.end).max(start)
    }

    /// A layer's place among those of the main model and then those of the draft model.
    fn position(&self, key: BufferKey) -> u64 {
        match key.part {
            Part::Main => u64::from(key.layer),
            Part::Draft => u64::from(self.model_layers) + u64::from(key.layer),
        }
    }

    /// Bytes that move for one page of a request, over all tables.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Bytes that move for one token.
    pub fn bytes_per_token(&self) -> u64 {
        self.page_bytes / u64::from(self.page_tokens.max(1))
    }

    /// Pages that every paired buffer of the sender has.
    pub(crate) fn src_pages(&self) -> u32 {
        self.src_pages
    }

    /// Pages that every paired buffer of the receiver has.
    pub(crate) fn dst_pages(&self) -> u32 {
        self.dst_pages
    }

    /// Buffers of the receiver that nothing is sent to, because the sender's side does not have that part: a draft model that only
    /// decode runs.
    pub fn left_alone(&self) -> &[BufferKey] {
        &self.left_alone
    }

    /// Buffers of the sender that go nowhere, because the receiver's side does not have that part.
    pub fn unsent(&self) -> &[BufferKey] {
        &self.unsent
    }
}

/// Pairs a prefill rank with a decode rank: buffers by what they are, never by their place in a list.
///
/// Both sides of a connection call it with the same two layouts and come to the same result. Two ranks that share no layer or no
/// tensor rank pair to no tables, which is no error. Layouts of a peer are [validated](CacheLayout::validate) first.
///
/// # Errors
/// [`Mismatch`]: what does not fit between the two sides, whichever of their ranks these two are.
pub fn pair(prefill: &CacheLayout, decode: &CacheLayout) -> Result<Pairing, Mismatch> {
    check_sides(prefill, decode)?;
    let (prefill_rank, decode_rank) = (prefill.rank(), decode.rank());
    let mut pairing = Pairing {
        prefill_rank,
        decode_rank,
        model_layers: prefill.model.layers,
        page_tokens: prefill.page_tokens,
        tables: Vec::new(),
        page_bytes: 0,
        src_pages: prefill.page_count(),
        dst_pages: decode.page_count(),
        left_alone: Vec::new(),
        unsent: Vec::new(),
    };
    let drafts = |layout: &CacheLayout| layout.shard.draft_layers > 0;
    let (prefill_drafts, decode_drafts) = (drafts(prefill), drafts(decode));
    let keys = |layout: &CacheLayout| {
        let mut keys: Vec<_> = layout.buffers.iter().map(|b| b.key).filter(|key| key.part == Part::Draft).collect();
        keys.sort_unstable();
        keys
    };
    if decode_drafts && !prefill_drafts {
        pairing.left_alone = keys(decode);
    }
    if prefill_drafts && !decode_drafts {
        pairing.unsent = keys(prefill);
    }
    if prefill_rank.tp != decode_rank.tp {
        return Ok(pairing);
    }

    let mut receivers: Vec<&Buffer> = decode.buffers.iter().collect();
    receivers.sort_unstable_by_key(|buffer| buffer.key);
    for src in &prefill.buffers {
        let key = src.key;
        if key.part == Part::Draft && !decode_drafts {
            continue;
        }
        let found = receivers.binary_search_by_key(&key, |buffer| buffer.key);
        match found.ok().and_then(|place| receivers.get(place)) {
            Some(dst) => pairing.tables.push(table(prefill, src, decode, dst)?),
            None if owns(decode, key) => return Err(missing(prefill, decode, key, prefill_rank, decode_rank)),
            None => {}
        }
    }
    pairing.tables.sort_unstable_by_key(|table| table.key);
    let bytes = pairing.tables.iter().try_fold(0u64, |sum, table| sum.checked_add(table.len));
    pairing.page_bytes = bytes.ok_or_else(|| Mismatch::Side {
        side: format!("prefill {prefill_rank}"),
        problem: "the bytes of a page of all buffers do not fit 64 bits".into(),
    })?;
    Ok(pairing)
}

/// What concerns the two sides as wholes, and so is found whichever two ranks meet first.
fn check_sides(prefill: &CacheLayout, decode: &CacheLayout) -> Result<(), Mismatch> {
    let (prefill_rank, decode_rank) = (prefill.rank(), decode.rank());
    let (ours, theirs) = (&prefill.model, &decode.model);
    if ours.fingerprint != theirs.fingerprint || ours.layers != theirs.layers {
        return Err(Mismatch::Model {
            prefill_rank,
            prefill: ours.name.clone(),
            prefill_layers: ours.layers,
            prefill_fingerprint: ours.fingerprint,
            decode_rank,
            decode: theirs.name.clone(),
            decode_layers: theirs.layers,
            decode_fingerprint: theirs.fingerprint,
        });
    }
    if prefill.dtype != decode.dtype {
        let show = |layout: &CacheLayout| layout.buffers.iter().min_by_key(|b| b.key).copied();
        let (src, dst) = (show(prefill), show(decode));
        return Err(Mismatch::Dtype {
            prefill_rank,
            prefill: prefill.dtype,
            prefill_token: src.map_or(0, |buffer| buffer.token_bytes),
            decode_rank,
            decode: decode.dtype,
            decode_token: dst.map_or(0, |buffer| buffer.token_bytes),
            key: src.or(dst).map_or(BufferKey::main(crate::Role::Key, 0), |buffer| buffer.key),
        });
    }
    if prefill.shard.tp != decode.shard.tp {
        return Err(Mismatch::TensorSplit { prefill: prefill.shard.tp, decode: decode.shard.tp });
    }
    if prefill.page_tokens != decode.page_tokens {
        return Err(Mismatch::PageSize {
            prefill_rank,
            prefill: prefill.page_tokens,
            decode_rank,
            decode: decode.page_tokens,
        });
    }
    if prefill.order != decode.order {
        return Err(Mismatch::Order { prefill_rank, prefill: prefill.order, decode_rank, decode: decode.order });
    }
    check_layers(prefill, decode, Part::Main)?;
    if prefill.shard.draft_layers > 0 && decode.shard.draft_layers > 0 {
        check_layers(prefill, decode, Part::Draft)?;
    }
    Ok(())
}

/// Whether the two sides have the same layers of a part, however they split them.
fn check_layers(prefill: &CacheLayout, decode: &CacheLayout, part: Part) -> Result<(), Mismatch> {
    let total = |layout: &CacheLayout| match part {
        Part::Draft => layout.shard.draft_layers,
        Part::Main => layout.shard.total_layers(),
    };
    let (prefill_total, decode_total) = (total(prefill), total(decode));
    let role = |layout: &CacheLayout| layout.buffers.iter().map(|buffer| buffer.key.role).min();
    let role = role(prefill).or_else(|| role(decode)).unwrap_or(crate::Role::Key);
    if prefill_total > decode_total {
        // The first layer that has no table, the rank that would send it, and the last rank that could have had it.
        let key = BufferKey { part, layer: decode_total, role };
        let last = Rank { pp: decode.shard.stage_count().saturating_sub(1), tp: decode.rank().tp };
        return Err(missing(prefill, decode, key, holder(prefill, key), last));
    }
    if decode_total > prefill_total {
        let key = BufferKey { part, layer: prefill_total, role };
        return Err(uncovered(prefill, decode, key, holder(decode, key)));
    }
    let model_layers = prefill.model.layers;
    if part == Part::Main && prefill_total != model_layers {
        return Err(Mismatch::Side {
            side: "prefill and decode".into(),
            problem: format!("both have {prefill_total} layers on all stages, but the model has {model_layers}"),
        });
    }
    Ok(())
}

/// The rank of a side that holds a layer.
fn holder(layout: &CacheLayout, key: BufferKey) -> Rank {
    let pp = match key.part {
        Part::Main => layout.shard.stage_of(key.layer),
        Part::Draft => None,
    };
    Rank { pp: pp.unwrap_or_else(|| layout.shard.stage_count().saturating_sub(1)), tp: layout.rank().tp }
}

/// Whether a rank should hold a layer, by how its side is split.
fn owns(layout: &CacheLayout, key: BufferKey) -> bool {
    let stage = layout.rank().pp;
    match key.part {
        Part::Main => layout.shard.stage_layers(stage).contains(&key.layer),
        Part::Draft => layout.shard.draft_layers_of(stage).contains(&key.layer),
    }
}

fn missing(prefill: &CacheLayout, decode: &CacheLayout, key: BufferKey, from: Rank, to: Rank) -> Mismatch {
    let (prefill_layers, decode_layers, model_layers) = totals(prefill, decode, key.part);
    let decode_tables = match key.part {
        // A side that is described by its stages has a table for each layer of a stage.
        Part::Main if to != decode.rank() => decode.shard.stage_layers(to.pp).len(),
        _ => decode.table_count(key.part, key.role),
    };
    Mismatch::MissingLayer {
        key,
        prefill_rank: from,
        decode_rank: to,
        decode_tables,
        model_layers,
        prefill_layers,
        decode_layers,
    }
}

pub(crate) fn uncovered(prefill: &CacheLayout, decode: &CacheLayout, key: BufferKey, decode_rank: Rank) -> Mismatch {
    let (prefill_layers, decode_layers, model_layers) = totals(prefill, decode, key.part);
    Mismatch::UncoveredLayer { key, decode_rank, prefill_layers, decode_layers, model_layers }
}

fn totals(prefill: &CacheLayout, decode: &CacheLayout, part: Part) -> (u32, u32, u32) {
    match part {
        Part::Main => (prefill.shard.total_layers(), decode.shard.total_layers(), prefill.model.layers),
        Part::Draft => {
            let (src, dst) = (prefill.shard.draft_layers, decode.shard.draft_layers);
            (src, dst, src.max(dst))
        }
    }
}

fn table(prefill: &CacheLayout, src: &Buffer, decode: &CacheLayout, dst: &Buffer) -> Result<Table, Mismatch> {
    if src.heads != dst.heads || src.token_bytes != dst.token_bytes || src.page_bytes != dst.page_bytes {
        let whole = Heads { first: 0, count: 1, total: 1 };
        let (from, to) = (src.heads.unwrap_or(whole), dst.heads.unwrap_or(whole));
        return Err(Mismatch::HeadGeometry {
            key: src.key,
            prefill_rank: prefill.rank(),
            prefill_heads: from.count,
            prefill_total: from.total,
            prefill_token: src.token_bytes,
            decode_rank: decode.rank(),
            decode_heads: to.count,
            decode_total: to.total,
            decode_token: dst.token_bytes,
        });
    }
    Ok(Table {
        key: src.key,
        src_region: src.region,
        src_base: src.offset,
        src_stride: src.page_bytes,
        dst_region: dst.region,
        dst_base: dst.offset,
        dst_stride: dst.page_bytes,
        len: src.page_bytes,
    })
}
