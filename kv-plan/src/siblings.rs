//! What the other ranks of a side hold, as far as one rank's layout tells. [`CacheLayout::validate`] bounds how much that is.

use crate::{Buffer, BufferKey, CacheLayout, Heads, Part, Rank, Role};

pub(crate) fn siblings(layout: &CacheLayout) -> Vec<CacheLayout> {
    let shard = &layout.shard;
    // One buffer of each role shows what all of that role look like; a rank without layers shows nothing.
    let mut templates: Vec<(Part, Role, Buffer)> = Vec::new();
    for buffer in &layout.buffers {
        let BufferKey { part, role, .. } = buffer.key;
        if !templates.iter().any(|(p, r, _)| (*p, *r) == (part, role)) {
            templates.push((part, role, *buffer));
        }
    }
    if !templates.iter().any(|(part, ..)| *part == Part::Draft) {
        let drafts: Vec<_> = templates.iter().map(|(_, role, buffer)| (Part::Draft, *role, *buffer)).collect();
        templates.extend(drafts);
    }
    let ranks = (0..shard.stage_count()).flat_map(|pp| (0..shard.tp).map(move |tp| Rank { pp, tp }));
    ranks.map(|rank| if rank == layout.rank() { layout.clone() } else { sibling(layout, &templates, rank) }).collect()
}

fn sibling(layout: &CacheLayout, templates: &[(Part, Role, Buffer)], rank: Rank) -> CacheLayout {
    let shard = &layout.shard;
    let mut buffers = Vec::new();
    let mut regions = Vec::new();
    for (part, role, template) in templates {
        let layers = match part {
            Part::Main => shard.stage_layers(rank.pp),
            Part::Draft => shard.draft_layers_of(rank.pp),
        };
        for layer in layers {
            buffers.push(Buffer {
                key: BufferKey { part: *part, layer, role: *role },
                region: u32::try_from(regions.len()).unwrap_or(u32::MAX),
                offset: 0,
                heads: template
                    .heads
                    .map(|heads| Heads { count: heads.count, ..Heads::of_rank(heads.total, shard.tp, rank.tp) }),
                ..*template
            });
            regions.push(u64::from(template.page_count).saturating_mul(template.page_bytes));
        }
    }
    let mut shard = shard.clone();
    shard.rank = rank;
    // Each field by itself: a clone of the whole would copy this rank's buffers once for every rank of its side.
    let CacheLayout { page_tokens, dtype, order, .. } = *layout;
    CacheLayout { model: layout.model.clone(), page_tokens, dtype, order, shard, buffers, regions }
}

#[cfg(test)]
mod tests;
