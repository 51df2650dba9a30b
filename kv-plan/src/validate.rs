//! Whether a layout contradicts itself. It may come from a peer, so every number is hostile: all arithmetic is checked, and
//! time and memory are bounded by the length of what came.

use std::ops::Range;

use crate::{Buffer, CacheLayout, LayoutError, Part, Role};

const MAX_NAME_BYTES: u64 = 256;

pub(crate) fn validate(layout: &CacheLayout) -> Result<(), LayoutError> {
    limits(layout)?;
    shard(layout)?;
    // Once, not for every buffer: it adds up the stages.
    let (main, draft) = (layout.shard.own_layers(Part::Main), layout.shard.own_layers(Part::Draft));
    for buffer in &layout.buffers {
        sizes(layout, buffer)?;
        let owned = match buffer.key.part {
            Part::Main => &main,
            Part::Draft => &draft,
        };
        place(layout, buffer, owned)?;
    }
    duplicates(layout)?;
    overlaps(layout)
}

fn limits(layout: &CacheLayout) -> Result<(), LayoutError> {
    let most = |what, given: u64, max: u64| match given <= max {
        true => Ok(()),
        false => Err(LayoutError::TooMany { what, given, max }),
    };
    let shard = &layout.shard;
    most("buffers", layout.buffers.len() as u64, CacheLayout::MAX_BUFFERS as u64)?;
    most("regions", layout.regions.len() as u64, CacheLayout::MAX_REGIONS as u64)?;
    most("bytes in the model's name", layout.model.name.len() as u64, MAX_NAME_BYTES)?;
    most("layers of the model", layout.model.layers.into(), CacheLayout::MAX_LAYERS.into())?;
    most("stages", shard.stages.len() as u64, CacheLayout::MAX_STAGES as u64)?;
    let ranks = (shard.stages.len() as u64).saturating_mul(u64::from(shard.tp));
    most("ranks", ranks, CacheLayout::MAX_RANKS)?;
    // Stages are few, so the sum fits 64 bits.
    let layers = shard.stages.iter().map(|layers| u64::from(*layers)).sum::<u64>() + u64::from(shard.draft_layers);
    most("layers on all stages", layers, CacheLayout::MAX_LAYERS.into())?;
    let mut roles: Vec<Role> = layout.buffers.iter().map(|buffer| buffer.key.role).collect();
    roles.sort_unstable();
    roles.dedup();
    let side_buffers = (roles.len() as u64).saturating_mul(layers).saturating_mul(shard.tp.into());
    most("buffers on all ranks", side_buffers, CacheLayout::MAX_SIDE_BUFFERS)
}

fn shard(layout: &CacheLayout) -> Result<(), LayoutError> {
    let shard = &layout.shard;
    let rank = layout.rank();
    if layout.model.name.contains(char::is_control) {
        return Err(LayoutError::Name { name: layout.model.name.clone() });
    }
    let sizes = [
        ("the number of tokens of a page", layout.page_tokens),
        ("the number of stages", shard.stage_count()),
        ("the number of tensor ranks", shard.tp),
        ("the number of layers of a stage", shard.stages.iter().copied().min().unwrap_or(0)),
    ];
    if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(LayoutError::Zero { what });
    }
    if rank.pp >= shard.stage_count() || rank.tp >= shard.tp {
        return Err(LayoutError::Rank { rank, stages: shard.stage_count(), tp: shard.tp });
    }
    if !layout.buffers.iter().any(|buffer| buffer.key.part == Part::Main) {
        return Err(LayoutError::NoBuffers { rank });
    }
    Ok(())
}

fn sizes(layout: &CacheLayout, buffer: &Buffer) -> Result<(), LayoutError> {
    let key = buffer.key;
    if buffer.token_bytes == 0 || buffer.page_count == 0 {
        return Err(LayoutError::Zero { what: "the number of bytes of a token, or of pages of a buffer," });
    }
    let expected = u64::from(layout.page_tokens).checked_mul(buffer.token_bytes);
    if expected != Some(buffer.page_bytes) {
        return Err(LayoutError::PageBytes {
            key,
            page_bytes: buffer.page_bytes,
            page_tokens: layout.page_tokens,
            token_bytes: buffer.token_bytes,
        });
    }
    let by_heads = matches!(key.role, Role::Key | Role::Value);
    match buffer.heads {
        Some(heads) => {
            let end = heads.first.checked_add(heads.count);
            let inside = heads.count > 0 && end.is_some_and(|end| end <= heads.total);
            if !inside || !buffer.token_bytes.is_multiple_of(u64::from(heads.count.max(1))) {
                return Err(LayoutError::Heads { key, heads, token_bytes: buffer.token_bytes });
            }
        }
        None if by_heads => return Err(LayoutError::NoHeads { key }),
        None => {}
    }
    Ok(())
}

fn place(layout: &CacheLayout, buffer: &Buffer, owned: &Range<u32>) -> Result<(), LayoutError> {
    let (key, rank) = (buffer.key, layout.rank());
    if !owned.contains(&key.layer) {
        return Err(LayoutError::NotOwned { key, rank, first: owned.start, end: owned.end });
    }
    let Some(region_len) = layout.region_len(buffer.region) else {
        return Err(LayoutError::NoRegion { key, region: buffer.region, regions: layout.regions.len() });
    };
    match buffer.extent() {
        Some((_, end)) if end <= region_len => Ok(()),
        _ => Err(LayoutError::OutsideRegion {
            key,
            offset: buffer.offset,
            page_count: buffer.page_count,
            page_bytes: buffer.page_bytes,
            region_len,
        }),
    }
}

fn duplicates(layout: &CacheLayout) -> Result<(), LayoutError> {
    let mut keys: Vec<_> = layout.buffers.iter().map(|buffer| buffer.key).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first()) {
        Some(key) => Err(LayoutError::DuplicateBuffer { key: *key, rank: layout.rank() }),
        None => Ok(()),
    }
}

fn overlaps(layout: &CacheLayout) -> Result<(), LayoutError> {
    let mut places: Vec<_> = layout
        .buffers
        .iter()
        .filter_map(|buffer| buffer.extent().map(|(start, end)| (buffer.region, start, end, buffer.key)))
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        if let [(region, _, end, key), (next_region, next_start, _, next_key)] = pair
            && region == next_region
            && next_start < end
        {
            return Err(LayoutError::Overlap { first: *key, second: *next_key, region: *region });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
