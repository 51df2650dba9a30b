//! Pairing: what of one prefill rank goes to one decode rank, found out once, when the two meet.

mod sides;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub(crate) use self::sides::uncovered;
use self::sides::{check_geometry, check_sides, missing};
use crate::{Buffer, BufferKey, CacheLayout, Mismatch, Part, Rank, error::End, pages::Limit};

/// A pair of buffers and how pages are laid out in them: page `s` there becomes page `d` here by copying `len` bytes from
/// `src_base + s * src_stride` to `dst_base + d * dst_stride`, offsets in bytes from the start of the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    src_limit: Limit,
    dst_limit: Limit,
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

    pub(crate) fn src_limit(&self) -> &Limit {
        &self.src_limit
    }

    pub(crate) fn dst_limit(&self) -> &Limit {
        &self.dst_limit
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
/// tensor rank pair to no tables, which is no error.
///
/// # Errors
/// [`Mismatch`]: what does not fit between the two sides, whichever of their ranks these two are; or a layout that is not
/// [valid](CacheLayout::validate).
pub fn pair(prefill: &CacheLayout, decode: &CacheLayout) -> Result<Pairing, Mismatch> {
    check_layout(prefill, End::Prefill)?;
    check_layout(decode, End::Decode)?;
    pair_valid(prefill, decode, &receivers(decode))
}

/// The buffers of a receiver in the order of their keys, in which they are looked up.
pub(crate) fn receivers(decode: &CacheLayout) -> Vec<&Buffer> {
    let mut receivers: Vec<&Buffer> = decode.buffers.iter().collect();
    receivers.sort_unstable_by_key(|buffer| buffer.key);
    receivers
}

pub(crate) fn check_layout(layout: &CacheLayout, end: End) -> Result<(), Mismatch> {
    layout.validate().map_err(|cause| Mismatch::Layout { end, rank: layout.rank(), cause })
}

/// As [`pair`], for layouts that were validated; with the [`receivers`] of decode.
pub(crate) fn pair_valid(
    prefill: &CacheLayout,
    decode: &CacheLayout,
    receivers: &[&Buffer],
) -> Result<Pairing, Mismatch> {
    check_sides(prefill, decode)?;
    let (prefill_rank, decode_rank) = (prefill.rank(), decode.rank());
    let (prefill_drafts, decode_drafts) = (prefill.shard.draft_layers > 0, decode.shard.draft_layers > 0);

    let mut pairs: Vec<(&Buffer, &Buffer)> = Vec::new();
    if prefill_rank.tp == decode_rank.tp {
        let (main, draft) = (decode.shard.own_layers(Part::Main), decode.shard.own_layers(Part::Draft));
        let own = |part| if part == Part::Main { &main } else { &draft };
        for src in prefill.buffers.iter().filter(|src| decode_drafts || src.key.part != Part::Draft) {
            let found = receivers.binary_search_by_key(&src.key, |buffer| buffer.key);
            match found.ok().and_then(|place| receivers.get(place)) {
                Some(dst) => pairs.push((src, dst)),
                None if own(src.key.part).contains(&src.key.layer) => {
                    return Err(missing(prefill, decode, src.key, prefill_rank, decode_rank));
                }
                None => {}
            }
        }
        pairs.sort_unstable_by_key(|(src, _)| src.key);
    }

    let tables: Result<Vec<Table>, Mismatch> =
        pairs.iter().map(|(src, dst)| table(prefill, src, decode, dst)).collect();
    let tables = tables?;
    let page_bytes = tables.iter().try_fold(0u64, |sum, table| sum.checked_add(table.len));
    let page_bytes = page_bytes.ok_or(Mismatch::Overflow { prefill_rank, decode_rank })?;
    let size = |buffer: &Buffer| (buffer.page_count, buffer.key);
    Ok(Pairing {
        prefill_rank,
        decode_rank,
        model_layers: prefill.model.layers,
        page_tokens: prefill.page_tokens,
        tables,
        page_bytes,
        src_limit: if pairs.is_empty() {
            Limit::of(prefill.buffers.iter().map(size), End::Prefill, prefill_rank)
        } else {
            Limit::of(pairs.iter().map(|(src, _)| size(src)), End::Prefill, prefill_rank)
        },
        dst_limit: if pairs.is_empty() {
            Limit::of(decode.buffers.iter().map(size), End::Decode, decode_rank)
        } else {
            Limit::of(pairs.iter().map(|(_, dst)| size(dst)), End::Decode, decode_rank)
        },
        left_alone: if decode_drafts && !prefill_drafts { draft_keys(decode) } else { Vec::new() },
        unsent: if prefill_drafts && !decode_drafts { draft_keys(prefill) } else { Vec::new() },
    })
}

fn draft_keys(layout: &CacheLayout) -> Vec<BufferKey> {
    let keys = layout.buffers.iter().map(|buffer| buffer.key);
    let mut drafts: Vec<_> = keys.filter(|key| key.part == Part::Draft).collect();
    drafts.sort_unstable();
    drafts
}

fn table(prefill: &CacheLayout, src: &Buffer, decode: &CacheLayout, dst: &Buffer) -> Result<Table, Mismatch> {
    check_geometry(prefill, src, decode, dst, src.heads == dst.heads)?;
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
