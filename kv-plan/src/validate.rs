//! Whether a layout contradicts itself. It may come from a peer, so every number is hostile: all arithmetic is checked, and
//! time and memory are bounded by the length of what came.

mod places;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, ops::Range};

use crate::{Buffer, BufferKey, CacheLayout, Heads, LayoutError, ModelShape, Part, Pool, PoolKind, Role};

const MAX_NAME_BYTES: u64 = 256;

pub(crate) fn validate(layout: &CacheLayout) -> Result<(), LayoutError> {
    limits(layout)?;
    shard(layout)?;
    // Once, not for every buffer: it adds up the stages.
    let parts = [Part::Main, Part::Draft]
        .map(|part| Owned { model: layout.model_of(part), layers: layout.shard.own_layers(part) });
    let [main, draft] = &parts;
    for buffer in &layout.buffers {
        pages(layout, buffer)?;
        heads(layout, buffer)?;
        let owned = match buffer.key.part {
            Part::Main => main,
            Part::Draft => draft,
        };
        belongs(layout, buffer, owned)?;
        places::inside(layout, buffer)?;
    }
    duplicates(layout)?;
    complete(layout, main, Part::Main)?;
    complete(layout, draft, Part::Draft)?;
    page_sizes(layout)?;
    places::overlaps(layout)
}

/// What of a part this rank holds.
struct Owned<'a> {
    model: Cow<'a, ModelShape>,
    layers: Range<u32>,
}

fn limits(layout: &CacheLayout) -> Result<(), LayoutError> {
    let most = |what, given: u64, max: u64| match given <= max {
        true => Ok(()),
        false => Err(LayoutError::TooMany { what, given, max }),
    };
    let shard = &layout.shard;
    most("buffers", layout.buffers.len() as u64, CacheLayout::MAX_BUFFERS as u64)?;
    most("regions", layout.regions.len() as u64, CacheLayout::MAX_REGIONS as u64)?;
    for model in [Some(&layout.model), layout.draft.as_ref()].into_iter().flatten() {
        most("bytes in the model's name", model.name().len() as u64, MAX_NAME_BYTES)?;
        most("layers of the model", model.layers().len() as u64, CacheLayout::MAX_LAYERS.into())?;
    }
    most("stages", shard.stages.len() as u64, CacheLayout::MAX_STAGES as u64)?;
    most("ranks", shard.rank_count(), CacheLayout::MAX_RANKS)?;
    // Stages are few, so the sum fits 64 bits.
    let layers = shard.stages.iter().map(|layers| u64::from(*layers)).sum::<u64>() + u64::from(shard.draft_layers);
    most("layers on all stages", layers, CacheLayout::MAX_LAYERS.into())?;
    let mut roles: Vec<Role> = layout.buffers.iter().map(|buffer| buffer.key.role).collect();
    roles.sort_unstable();
    roles.dedup();
    let per_stage = shard.rank_count() / (shard.stages.len() as u64).max(1);
    let side_buffers = (roles.len() as u64).saturating_mul(layers).saturating_mul(per_stage);
    most("buffers on all ranks", side_buffers, CacheLayout::MAX_SIDE_BUFFERS)
}

fn shard(layout: &CacheLayout) -> Result<(), LayoutError> {
    let shard = &layout.shard;
    let rank = layout.rank();
    for model in [Some(&layout.model), layout.draft.as_ref()].into_iter().flatten() {
        if model.name().contains(char::is_control) {
            return Err(LayoutError::Name { name: model.name().into() });
        }
        model.check_sizes().map_err(|error| LayoutError::Model { problem: error.to_string() })?;
    }
    let sizes = [
        ("the number of tokens of a page", layout.page_tokens),
        ("the number of stages", shard.stage_count()),
        ("the number of tensor ranks", shard.tp),
        ("the number of context-parallel ranks", shard.cp),
        ("the number of data-parallel groups", shard.dp),
        ("the number of layers of a stage", shard.stages.iter().copied().min().unwrap_or(0)),
    ];
    if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(LayoutError::Zero { what });
    }
    let inside = rank.pp < shard.stage_count() && rank.tp < shard.tp && rank.cp < shard.cp && rank.dp < shard.dp;
    if !inside {
        let (stages, tp, cp, dp) = (shard.stage_count(), shard.tp, shard.cp, shard.dp);
        return Err(LayoutError::Rank { rank, stages, tp, cp, dp });
    }
    if let Some(draft) = layout.draft.as_ref().filter(|draft| draft.layer_count() != shard.draft_layers) {
        let (model, side) = (draft.layer_count(), shard.draft_layers);
        return Err(LayoutError::DraftLayers { model, side });
    }
    if !layout.buffers.iter().any(|buffer| buffer.key.part == Part::Main) {
        return Err(LayoutError::NoBuffers { rank });
    }
    Ok(())
}

/// The heads of a token.
fn heads(layout: &CacheLayout, buffer: &Buffer) -> Result<(), LayoutError> {
    let key = buffer.key;
    let groups = &buffer.groups;
    if groups.is_empty() {
        return match key.role {
            Role::Key | Role::Value | Role::Conv | Role::Recurrent => Err(LayoutError::NoHeads { key }),
            _ => Ok(()),
        };
    }
    let max = CacheLayout::MAX_GROUPS;
    if groups.len() > max {
        let (given, max) = (groups.len() as u64, max as u64);
        return Err(LayoutError::TooMany { what: "groups of heads of a buffer", given, max });
    }
    let mut sum = Some(0u64);
    for group in groups {
        let heads = group.heads;
        let end = heads.first.checked_add(heads.count);
        let inside = heads.count > 0 && group.head_bytes > 0 && end.is_some_and(|end| end <= heads.total);
        if !inside {
            return Err(LayoutError::Heads { key, heads, token_bytes: buffer.token_bytes });
        }
        // Who has which heads is what both sides plan by.
        let (tp, rank) = (layout.shard.tp, layout.rank());
        let expected = Heads::of_rank(heads.total, tp, rank.tp);
        if heads != expected || !Heads::divide(heads.total, tp) {
            return Err(LayoutError::HeadsOfRank { key, heads, expected, rank, tp });
        }
        sum = sum.and_then(|sum| sum.checked_add(group.bytes()?));
    }
    match (sum == Some(buffer.token_bytes), groups.first()) {
        (false, Some(group)) => Err(LayoutError::Heads { key, heads: group.heads, token_bytes: buffer.token_bytes }),
        _ => Ok(()),
    }
}

/// The sizes of a page.
fn pages(layout: &CacheLayout, buffer: &Buffer) -> Result<(), LayoutError> {
    let (key, page_bytes, page_tokens) = (buffer.key, buffer.page_bytes, buffer.page_tokens);
    if buffer.token_bytes == 0 || buffer.page_count == 0 || page_tokens == 0 {
        return Err(LayoutError::Zero {
            what: "the number of bytes of a token, or of pages of a buffer, or of tokens of a page,",
        });
    }
    if u64::from(page_tokens).checked_mul(buffer.token_bytes) != Some(page_bytes) {
        return Err(LayoutError::PageBytes { key, page_bytes, page_tokens, token_bytes: buffer.token_bytes });
    }
    if buffer.page_stride < page_bytes {
        return Err(LayoutError::PageStride { key, page_bytes, page_stride: buffer.page_stride });
    }
    let expected = match buffer.pool() {
        pool if pool.kind == PoolKind::State => 1,
        Pool::FULL => layout.page_tokens,
        _ => page_tokens,
    };
    if page_tokens != expected {
        return Err(LayoutError::PageTokens { key, pool: buffer.pool(), page_tokens, expected });
    }
    Ok(())
}

/// Whether the rank's stage and the model have such a buffer.
fn belongs(layout: &CacheLayout, buffer: &Buffer, owned: &Owned<'_>) -> Result<(), LayoutError> {
    let (key, rank) = (buffer.key, layout.rank());
    if !owned.layers.contains(&key.layer) {
        return Err(LayoutError::NotOwned { key, rank, first: owned.layers.start, end: owned.layers.end });
    }
    // A side whose layers go beyond the model is found out when two sides meet.
    let Some(kind) = owned.model.layers().get(key.layer as usize) else { return Ok(()) };
    let roles: Vec<Role> = owned.model.roles(*kind).collect();
    if !roles.contains(&key.role) || kind.pool() != buffer.pool {
        let roles = roles.iter().map(Role::to_string).collect::<Vec<_>>().join(", ");
        return Err(LayoutError::WrongRole { key, pool: buffer.pool, roles, expected: kind.pool() });
    }
    Ok(())
}

fn duplicates(layout: &CacheLayout) -> Result<(), LayoutError> {
    let mut keys: Vec<_> = layout.buffers.iter().map(|buffer| buffer.key).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first()) {
        Some(key) => Err(LayoutError::DuplicateBuffer { key: *key, rank: layout.rank() }),
        None => Ok(()),
    }
}

/// A buffer that is forgotten on both sides would be missed by nobody. Duplicates were looked for before.
fn complete(layout: &CacheLayout, owned: &Owned<'_>, part: Part) -> Result<(), LayoutError> {
    let expected: usize = owned
        .layers
        .clone()
        .filter_map(|layer| owned.model.layers().get(layer as usize))
        .map(|kind| owned.model.roles(*kind).count())
        .sum();
    let known = |layer: u32| owned.model.layers().get(layer as usize);
    let keys = layout.buffers.iter().map(|buffer| buffer.key);
    let mut keys: Vec<BufferKey> = keys.filter(|key| key.part == part && known(key.layer).is_some()).collect();
    if keys.len() == expected {
        return Ok(());
    }
    keys.sort_unstable();
    let needed = owned.layers.clone().filter_map(|layer| Some((layer, *known(layer)?)));
    let needed: Vec<BufferKey> = needed
        .flat_map(|(layer, kind)| owned.model.roles(kind).map(move |role| BufferKey { part, layer, role }))
        .collect();
    let Some(key) = needed.iter().find(|key| keys.binary_search(key).is_err()) else { return Ok(()) };
    let count = |keys: &[BufferKey]| keys.iter().filter(|other| other.role == key.role).count();
    Err(LayoutError::NoBuffer {
        key: *key,
        rank: layout.rank(),
        tables: count(&keys),
        expected: count(&needed),
        model_layers: owned.model.layer_count(),
    })
}

/// All buffers of a pool go by one list, so their pages have the same tokens.
fn page_sizes(layout: &CacheLayout) -> Result<(), LayoutError> {
    for pool in layout.pools() {
        let expected = layout.page_tokens_of(pool).unwrap_or_default();
        let other = layout.buffers.iter().find(|buffer| buffer.pool() == pool && buffer.page_tokens != expected);
        if let Some(Buffer { key, page_tokens, .. }) = other {
            return Err(LayoutError::PageTokens { key: *key, pool, page_tokens: *page_tokens, expected });
        }
    }
    Ok(())
}
