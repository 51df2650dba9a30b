//! What the other ranks of a side hold, as far as one rank's layout tells. [`CacheLayout::validate`] bounds how much that is.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::{
    Buffer, BufferKey, CacheLayout, HeadGroup, Heads, LayerKind, ModelShape, Part, Pool, PoolKind, Rank, Role,
};

pub(crate) fn siblings(layout: &CacheLayout) -> Vec<CacheLayout> {
    let models = [Part::Main, Part::Draft].map(|part| layout.model_of(part).into_owned());
    let templates = templates(layout, &models);
    let [main, draft] = &models;
    let ranks = layout.shard.group();
    ranks
        .map(|rank| match rank == layout.rank() {
            true => layout.clone(),
            false => sibling(layout, &templates, [(Part::Main, main), (Part::Draft, draft)], rank),
        })
        .collect()
}

/// One buffer of each kind, which shows what all of that kind look like.
type Templates<'a> = HashMap<(Part, LayerKind, Role), &'a Buffer>;

fn templates<'a>(layout: &'a CacheLayout, [main, draft]: &[ModelShape; 2]) -> Templates<'a> {
    let mut templates = Templates::new();
    for buffer in &layout.buffers {
        let BufferKey { part, role, layer } = buffer.key;
        let model = if part == Part::Main { main } else { draft };
        if let Some(kind) = kind_of(model, layer) {
            templates.entry((part, kind, role)).or_insert(buffer);
        }
    }
    templates
}

/// The kind of a layer; what goes beyond the model is like its last one.
fn kind_of(model: &ModelShape, layer: u32) -> Option<LayerKind> {
    model.layers().get(layer as usize).or_else(|| model.layers().last()).copied()
}

fn sibling(
    layout: &CacheLayout,
    templates: &Templates<'_>,
    models: [(Part, &ModelShape); 2],
    rank: Rank,
) -> CacheLayout {
    let mut shard = layout.shard.clone();
    shard.rank = rank;
    // Each field by itself: a clone of the whole would copy this rank's buffers once for every rank of its side.
    let CacheLayout { page_tokens, dtype, order, .. } = *layout;
    let (model, draft) = (layout.model.clone(), layout.draft.clone());
    let mut made =
        CacheLayout { model, draft, page_tokens, dtype, order, shard, buffers: Vec::new(), regions: Vec::new() };
    for (part, model) in models {
        for layer in made.shard.own_layers(part) {
            let Some(kind) = kind_of(model, layer) else { continue };
            for role in model.roles(kind) {
                let key = BufferKey { part, layer, role };
                let Some(mut buffer) = template(layout, templates, model, kind, key, rank) else { continue };
                let len = buffer.total_bytes().unwrap_or(u64::MAX);
                (buffer.region, buffer.offset) = (made.add_region(len), 0);
                made.add_buffer(buffer);
            }
        }
    }
    made
}

/// What a buffer of another rank looks like: like one of this rank, or else as the model says.
fn template(
    layout: &CacheLayout,
    templates: &Templates<'_>,
    model: &ModelShape,
    kind: LayerKind,
    key: BufferKey,
    rank: Rank,
) -> Option<Buffer> {
    let tp = layout.shard.tp;
    let of_part = |part| templates.get(&(part, kind, key.role));
    // A draft's layers, where this rank has none of them, are like the main model's.
    let like_main = layout.draft.is_none().then_some(Part::Main);
    let (pool, token_bytes, groups, page_count) = match of_part(key.part).or_else(|| of_part(like_main?)) {
        Some(shown) => {
            let group = |group: &HeadGroup| {
                let heads = Heads::of_rank(group.heads.total, tp, rank.tp);
                HeadGroup { heads: Heads { count: group.heads.count, ..heads }, ..*group }
            };
            (shown.pool, shown.token_bytes, shown.groups.iter().map(group).collect(), shown.page_count)
        }
        None => {
            let geometry = model.geometry(kind, key.role, layout.dtype, tp, rank.tp).ok()?;
            let page_count = layout.buffers.first()?.page_count;
            (geometry.pool, geometry.token_bytes, geometry.groups, page_count)
        }
    };
    let page_tokens = match pool {
        PoolKind::State => 1,
        // Of a pool that this rank does not have, nothing tells its page size; it decides nothing here.
        kind => layout.page_tokens_of(Pool { part: key.part, kind }).unwrap_or(layout.page_tokens),
    };
    let mut buffer = Buffer::new(key, 0, 0, page_tokens, token_bytes, page_count).with_pool(pool);
    buffer.groups = groups;
    Some(buffer)
}
