//! Pairing: what of one prefill rank goes to one decode rank, found out once, when the two meet.

mod share;
mod sides;
mod tables;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub(crate) use self::sides::uncovered;
use self::{
    share::Shares,
    sides::{check_geometry, check_sides, missing},
};
use crate::{
    Buffer, BufferKey, CacheLayout, HeadGroup, Heads, Mismatch, Part, Pool, PoolKind, Rank, error::End, pages::Limit,
};

/// What a run of some tables counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Form {
    /// Tokens, which follow each other across pages on both sides: unit `page * page_tokens + token`, no rows.
    Tokens,
    /// Tokens inside a page: the row is the page, the unit the token in it.
    Rows,
    /// Whole pages: the unit is the page, no rows.
    Pages,
    /// As [`Form::Rows`], for the pages that only a part of moves of tables that have [`Form::Pages`] too.
    Parts,
}

/// Where one piece of a token, or of a page, is in two buffers. Unit `u` of row `r` is at `base + r * row_stride + u * stride`,
/// in bytes from the start of the region; `len` bytes move for each unit. What units and rows are says the [`Form`] of its
/// section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Table {
    /// What both buffers hold.
    pub key: BufferKey,
    /// The heads that move; `None` where the bytes are not divided by heads.
    pub heads: Option<Heads>,
    /// Which of the buffers' groups of heads they are of.
    pub group: usize,
    /// Index of the source's region in the prefill layout.
    pub src_region: u32,
    /// Offset of unit 0 of row 0 in it.
    pub src_base: u64,
    /// Bytes from row to row in it.
    pub src_row_stride: u64,
    /// Bytes from unit to unit in it.
    pub src_stride: u64,
    /// Index of the destination's region in the decode layout.
    pub dst_region: u32,
    /// Offset of unit 0 of row 0 in it.
    pub dst_base: u64,
    /// Bytes from row to row in it.
    pub dst_row_stride: u64,
    /// Bytes from unit to unit in it.
    pub dst_stride: u64,
    /// Bytes that move for each unit.
    pub len: u64,
    /// Offset of the source buffer's page 0 in its region.
    pub(crate) src_start: u64,
    /// Offset of the destination buffer's page 0 in its region.
    pub(crate) dst_start: u64,
}

/// Tables of one pool whose runs count the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Section {
    /// The pool.
    pub pool: Pool,
    /// What runs count.
    pub form: Form,
    /// The tables, as a range of [`Pairing::tables`], ordered by layer.
    pub tables: Range<usize>,
}

/// What of a pool moves between two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolPair {
    pub(crate) pool: Pool,
    pub(crate) src_page_tokens: u32,
    pub(crate) dst_page_tokens: u32,
    /// Bytes of a token over all its tables.
    pub(crate) token_bytes: u64,
    /// Tokens of the window, for a pool of sliding-window attention.
    pub(crate) window: Option<u32>,
    pub(crate) src_limit: Limit,
    pub(crate) dst_limit: Limit,
    /// Its sections, as a range of the pairing's.
    pub(crate) sections: Range<usize>,
}

/// Which of a request's pages a context-parallel rank holds: those whose number is `rank` modulo `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) rank: u32,
    pub(crate) of: u32,
}

/// What moves from one prefill rank to one decode rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    prefill_rank: Rank,
    decode_rank: Rank,
    model_layers: u32,
    /// By section, and then by key: by layer, then role, so that a range of layers is a range of tables of each section.
    tables: Vec<Table>,
    sections: Vec<Section>,
    pools: Vec<PoolPair>,
    src_turn: Turn,
    dst_turn: Turn,
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

    /// The pieces that move, by section. Empty when nothing moves between the two ranks.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The sections that the tables are in.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The pools of which something moves, in order: those that a request has page lists of.
    pub fn pools(&self) -> impl Iterator<Item = Pool> + '_ {
        self.pools.iter().map(|pair| pair.pool)
    }

    /// The tables of a section that belong to some layers.
    ///
    /// Layers are counted in the whole main model, whatever stage holds them; the draft model's count on after its last one, so
    /// that draft layer 0 of a model of 61 layers is 61.
    pub(crate) fn tables_of(&self, section: &Section, layers: Option<&Range<u32>>) -> Range<usize> {
        let Some(layers) = layers else { return section.tables.clone() };
        let tables = self.tables.get(section.tables.clone()).unwrap_or_default();
        let before = |layer: u32| {
            section.tables.start + tables.partition_point(|table| self.position(table.key) < u64::from(layer))
        };
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

    /// Bytes that move for one token, over all pools of pages.
    pub fn bytes_per_token(&self) -> u64 {
        let paged = self.pools.iter().filter(|pair| pair.pool.kind != PoolKind::State);
        paged.fold(0, |sum, pair| sum.saturating_add(pair.token_bytes))
    }

    /// Bytes that move for one request beside its tokens: states.
    pub fn bytes_per_request(&self) -> u64 {
        let states = self.pools.iter().filter(|pair| pair.pool.kind == PoolKind::State);
        states.fold(0, |sum, pair| sum.saturating_add(pair.token_bytes))
    }

    pub(crate) fn pool_pairs(&self) -> &[PoolPair] {
        &self.pools
    }

    pub(crate) fn turns(&self) -> (Turn, Turn) {
        (self.src_turn, self.dst_turn)
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
/// Both sides of a connection call it with the same two layouts and come to the same result. Two ranks that have nothing for
/// each other pair to no tables, which is no error: they share no layer or no head, or another rank that holds the same bytes
/// sends them.
///
/// # Errors
/// [`Mismatch`]: what does not fit between the two sides, whichever of their ranks these two are; or a layout that is not
/// [valid](CacheLayout::validate).
pub fn pair(prefill: &CacheLayout, decode: &CacheLayout) -> Result<Pairing, Mismatch> {
    check_layout(prefill, End::Prefill)?;
    check_layout(decode, End::Decode)?;
    check_sides(prefill, decode)?;
    pair_checked(prefill, decode, &receivers(decode))
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
    pair_checked(prefill, decode, receivers)
}

fn pair_checked(prefill: &CacheLayout, decode: &CacheLayout, receivers: &[&Buffer]) -> Result<Pairing, Mismatch> {
    let (prefill_rank, decode_rank) = (prefill.rank(), decode.rank());
    let (prefill_drafts, decode_drafts) = (prefill.shard.draft_layers > 0, decode.shard.draft_layers > 0);
    let (main, draft) = (decode.shard.own_layers(Part::Main), decode.shard.own_layers(Part::Draft));
    let own = |part| if part == Part::Main { &main } else { &draft };
    let mut shares = Shares::new(prefill, decode);
    let mut found: Vec<(Pool, Form, Table)> = Vec::new();
    let mut limits: Vec<(&Buffer, &Buffer)> = Vec::new();
    for src in senders(prefill) {
        // Every buffer takes part in the sharing out, wherever it goes.
        let ours = shares.next(src);
        if src.key.part == Part::Draft && !decode_drafts {
            continue;
        }
        let place = receivers.binary_search_by_key(&src.key, |buffer| buffer.key);
        let Some(dst) = place.ok().and_then(|place| receivers.get(place)) else {
            if own(src.key.part).contains(&src.key.layer) {
                return Err(missing(prefill, decode, src.key, prefill_rank, decode_rank));
            }
            continue;
        };
        check_geometry(prefill, src, decode, dst)?;
        let before = found.len();
        for piece in pieces(src, dst).filter(|piece| ours.contains(piece.group)) {
            tables::push(&mut found, (prefill.order, src), (decode.order, dst), piece);
        }
        if found.len() > before {
            limits.push((src, dst));
        }
    }
    // Stable: pieces of a buffer stay in their order.
    found.sort_by_key(|(pool, form, table)| (*pool, *form, table.key));
    let mut pairing = Pairing {
        prefill_rank,
        decode_rank,
        model_layers: prefill.model.layer_count(),
        tables: Vec::with_capacity(found.len()),
        sections: Vec::new(),
        pools: Vec::new(),
        src_turn: Turn { rank: prefill_rank.cp, of: prefill.shard.cp },
        dst_turn: Turn { rank: decode_rank.cp, of: decode.shard.cp },
        left_alone: if decode_drafts && !prefill_drafts { draft_keys(decode) } else { Vec::new() },
        unsent: if prefill_drafts && !decode_drafts { draft_keys(prefill) } else { Vec::new() },
    };
    for (pool, form, table) in found {
        let place = pairing.tables.len();
        pairing.tables.push(table);
        match pairing.sections.last_mut() {
            Some(section) if (section.pool, section.form) == (pool, form) => section.tables.end = place + 1,
            _ => pairing.sections.push(Section { pool, form, tables: place..place + 1 }),
        }
    }
    pairing.pools = pool_pairs(&pairing, prefill, &limits)?;
    Ok(pairing)
}

/// The buffers of a sender in the order of their keys, in which they are shared out.
fn senders(prefill: &CacheLayout) -> Vec<&Buffer> {
    let mut senders: Vec<&Buffer> = prefill.buffers.iter().collect();
    senders.sort_unstable_by_key(|buffer| buffer.key);
    senders
}

/// The same heads in two buffers.
#[derive(Clone, Copy)]
struct Piece {
    group: usize,
    /// The heads; `None` where the bytes are not divided.
    heads: Option<Heads>,
    head_bytes: u64,
    /// Heads of the group that come before it in the buffers, and their count there.
    src: InBuffer,
    dst: InBuffer,
}

/// Where heads are in a token of a buffer.
#[derive(Clone, Copy)]
struct InBuffer {
    /// Bytes of the groups before.
    group_offset: u64,
    /// Heads of the group before them.
    before: u32,
}

fn pieces<'a>(src: &'a Buffer, dst: &'a Buffer) -> impl Iterator<Item = Piece> + 'a {
    let start = InBuffer { group_offset: 0, before: 0 };
    let whole = src.groups.is_empty().then_some(Piece {
        group: 0,
        heads: None,
        head_bytes: src.token_bytes,
        src: start,
        dst: start,
    });
    let mut offsets = (0u64, 0u64);
    let groups = src.groups.iter().zip(&dst.groups).enumerate().filter_map(move |(group, (from, to))| {
        let (src_offset, dst_offset) = offsets;
        // Both were checked to add up to the bytes of a token.
        let bytes = |group: &HeadGroup| group.bytes().unwrap_or(u64::MAX);
        offsets = (src_offset.saturating_add(bytes(from)), dst_offset.saturating_add(bytes(to)));
        let (first, count) = from.heads.overlap(&to.heads)?;
        let total = from.heads.total;
        let place = |group_offset, heads: &Heads| InBuffer { group_offset, before: first - heads.first };
        Some(Piece {
            group,
            heads: Some(Heads { first, count, total }),
            head_bytes: from.head_bytes,
            src: place(src_offset, &from.heads),
            dst: place(dst_offset, &to.heads),
        })
    });
    whole.into_iter().chain(groups)
}

fn pool_pairs(
    pairing: &Pairing,
    prefill: &CacheLayout,
    buffers: &[(&Buffer, &Buffer)],
) -> Result<Vec<PoolPair>, Mismatch> {
    let (prefill_rank, decode_rank) = (pairing.prefill_rank, pairing.decode_rank);
    let overflow = || Mismatch::Overflow { prefill_rank, decode_rank };
    let mut pools: Vec<PoolPair> = Vec::new();
    for (number, section) in pairing.sections.iter().enumerate() {
        // What moves by whole pages is counted with its parts.
        let tables = pairing.tables.get(section.tables.clone()).unwrap_or_default();
        let token_bytes = match section.form {
            Form::Pages => Some(0),
            _ => tables.iter().try_fold(0u64, |sum, table| sum.checked_add(table.len)),
        };
        let token_bytes = token_bytes.ok_or_else(overflow)?;
        if let Some(last) = pools.last_mut().filter(|last| last.pool == section.pool) {
            last.token_bytes = last.token_bytes.checked_add(token_bytes).ok_or_else(overflow)?;
            last.sections.end = number + 1;
            continue;
        }
        let own = || buffers.iter().filter(|(src, _)| src.pool() == section.pool);
        let Some((src, dst)) = own().next() else { continue };
        let size = |buffer: &Buffer| (buffer.page_count, buffer.key);
        pools.push(PoolPair {
            pool: section.pool,
            src_page_tokens: src.page_tokens,
            dst_page_tokens: dst.page_tokens,
            token_bytes,
            window: if section.pool.kind == PoolKind::Window { prefill.window(section.pool.part) } else { None },
            src_limit: Limit::of(own().map(|(src, _)| size(src)), End::Prefill, prefill_rank),
            dst_limit: Limit::of(own().map(|(_, dst)| size(dst)), End::Decode, decode_rank),
            sections: number..number + 1,
        });
    }
    // No plan may wrap: a page of everything fits 64 bits on both sides.
    let pages = pools.iter().try_fold(0u64, |sum, pair| {
        let tokens = u64::from(pair.src_page_tokens.max(pair.dst_page_tokens));
        sum.checked_add(pair.token_bytes.checked_mul(tokens)?)
    });
    pages.ok_or_else(overflow)?;
    Ok(pools)
}

fn draft_keys(layout: &CacheLayout) -> Vec<BufferKey> {
    let keys = layout.buffers.iter().map(|buffer| buffer.key);
    let mut drafts: Vec<_> = keys.filter(|key| key.part == Part::Draft).collect();
    drafts.sort_unstable();
    drafts
}
