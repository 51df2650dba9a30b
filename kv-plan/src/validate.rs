//! Whether a layout contradicts itself. It may come from a peer, so every number is hostile: all arithmetic is checked, and
//! time and memory are bounded by the length of what came.

use crate::{Buffer, CacheLayout, LayoutError, Order, Part, Role};

pub(crate) fn validate(layout: &CacheLayout) -> Result<(), LayoutError> {
    limits(layout)?;
    shard(layout)?;
    for buffer in &layout.buffers {
        sizes(layout, buffer)?;
        place(layout, buffer)?;
    }
    duplicates(layout)?;
    overlaps(layout)
}

fn limits(layout: &CacheLayout) -> Result<(), LayoutError> {
    let over = |what, given: usize, max| Err(LayoutError::TooMany { what, given: given as u64, max: max as u64 });
    if layout.buffers.len() > CacheLayout::MAX_BUFFERS {
        return over("buffers", layout.buffers.len(), CacheLayout::MAX_BUFFERS);
    }
    if layout.regions.len() > CacheLayout::MAX_REGIONS {
        return over("regions", layout.regions.len(), CacheLayout::MAX_REGIONS);
    }
    if layout.model.name.len() > 256 {
        return over("bytes in the model's name", layout.model.name.len(), 256);
    }
    if layout.model.layers > crate::model::MAX_LAYERS {
        return over("layers", layout.model.layers as usize, crate::model::MAX_LAYERS as usize);
    }
    let shard = &layout.shard;
    let ranks = (shard.stages.len() as u64).saturating_mul(u64::from(shard.tp));
    if ranks > CacheLayout::MAX_RANKS {
        return Err(LayoutError::TooMany { what: "ranks", given: ranks, max: CacheLayout::MAX_RANKS });
    }
    let layers = shard.stages.iter().map(|layers| u64::from(*layers)).sum::<u64>() + u64::from(shard.draft_layers);
    if layers > u64::from(crate::model::MAX_LAYERS) {
        return Err(LayoutError::TooMany {
            what: "layers on all stages",
            given: layers,
            max: u64::from(crate::model::MAX_LAYERS),
        });
    }
    Ok(())
}

fn shard(layout: &CacheLayout) -> Result<(), LayoutError> {
    let shard = &layout.shard;
    let rank = layout.rank();
    if layout.page_tokens == 0 {
        return Err(LayoutError::Zero { what: "page_tokens" });
    }
    if shard.tp == 0 || shard.stages.is_empty() {
        return Err(LayoutError::Zero { what: "stages or tensor ranks" });
    }
    if rank.pp >= shard.stage_count() || rank.tp >= shard.tp {
        return Err(LayoutError::Rank { rank, stages: shard.stage_count(), tp: shard.tp });
    }
    Ok(())
}

fn sizes(layout: &CacheLayout, buffer: &Buffer) -> Result<(), LayoutError> {
    let key = buffer.key;
    if buffer.token_bytes == 0 || buffer.page_count == 0 {
        return Err(LayoutError::Zero { what: "token_bytes or page_count of a buffer" });
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
    if layout.order == Order::HeadMajor && by_heads && buffer.heads.is_none() {
        return Err(LayoutError::NoHeads { key });
    }
    Ok(())
}

fn place(layout: &CacheLayout, buffer: &Buffer) -> Result<(), LayoutError> {
    let key = buffer.key;
    let (shard, rank) = (&layout.shard, layout.rank());
    let owned = match key.part {
        Part::Main => shard.stage_layers(rank.pp),
        Part::Draft => shard.draft_layers_of(rank.pp),
    };
    if !owned.contains(&key.layer) {
        return Err(LayoutError::NotOwned { key, rank, first: owned.start, end: owned.end });
    }
    let Some(region_len) = layout.region_len(buffer.region) else {
        return Err(LayoutError::NoRegion { key, region: buffer.region, regions: layout.regions.len() });
    };
    match extent(buffer) {
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

fn extent(buffer: &Buffer) -> Option<(u64, u64)> {
    let len = u64::from(buffer.page_count).checked_mul(buffer.page_bytes)?;
    Some((buffer.offset, buffer.offset.checked_add(len)?))
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
        .filter_map(|buffer| extent(buffer).map(|(start, end)| (buffer.region, start, end, buffer.key)))
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
