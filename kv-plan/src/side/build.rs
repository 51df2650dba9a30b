//! The layouts of a side's ranks, from the model and how the side is configured.

use super::Side;
use crate::{
    Buffer, BufferKey, CacheLayout, Dtype, Mismatch, ModelShape, Part, Pool, PoolKind, Rank, Shard,
    model::{Geometry, NoGeometry},
};

pub(super) fn layouts(
    side: &Side,
    model: &ModelShape,
    page_tokens: u32,
    dtype: Dtype,
) -> Result<Vec<CacheLayout>, Mismatch> {
    let stages = check(side, model)?;
    let dtype = side.dtype.unwrap_or(dtype);
    let shard =
        Shard::new(Rank::default(), stages, side.tp).with_cp(side.cp).with_dp(side.dp).with_draft_layers(side.draft);
    let ranks = (0..side.dp).flat_map(|dp| Shard { rank: Rank::default().with_dp(dp), ..shard.clone() }.group());
    ranks
        .map(|rank| {
            let layout = layout(side, model, page_tokens, dtype, Shard { rank, ..shard.clone() })?;
            layout.validate().map_err(|problem| error(side, problem.to_string()))?;
            Ok(layout)
        })
        .collect()
}

fn error(side: &Side, problem: String) -> Mismatch {
    Mismatch::Side { side: side.to_string(), problem }
}

/// Checks the numbers of a side before anything is allocated by them; answers the layers of its stages.
fn check(side: &Side, model: &ModelShape) -> Result<Vec<u32>, Mismatch> {
    let error = |problem: String| error(side, problem);
    let ranks = [side.tp, side.cp, side.dp].iter().fold(u64::from(side.pp), |all, n| all.saturating_mul((*n).into()));
    if ranks == 0 || u64::from(side.pp) > CacheLayout::MAX_STAGES as u64 || ranks > CacheLayout::MAX_RANKS {
        return Err(error(format!(
            "{} stages of {} ranks are not possible; a side has up to {} stages and {} ranks",
            side.pp,
            ranks / u64::from(side.pp.max(1)),
            CacheLayout::MAX_STAGES,
            CacheLayout::MAX_RANKS
        )));
    }
    let stages = side.stages(model.layer_count());
    if stages.len() != side.pp as usize {
        return Err(error(format!(
            "layers gives {} stages, but pp={}; give as many layer counts as stages",
            stages.len(),
            side.pp
        )));
    }
    if let Some(stage) = stages.iter().position(|layers| *layers == 0) {
        return Err(error(format!("stage {stage} has no layers; give each stage one at least, or use fewer stages")));
    }
    let layers = stages.iter().map(|layers| u64::from(*layers)).sum::<u64>() + u64::from(side.draft);
    // No layer has more buffers than this.
    let most_roles = model.layers().iter().map(|kind| model.roles(*kind).count()).max().unwrap_or(1) as u64;
    let buffers = layers.saturating_mul(most_roles).saturating_mul(ranks / u64::from(side.pp.max(1)));
    if layers > u64::from(CacheLayout::MAX_LAYERS) || buffers > CacheLayout::MAX_SIDE_BUFFERS {
        return Err(error(format!(
            "{layers} layers and {buffers} buffers on all ranks are more than the limits of {} and {}",
            CacheLayout::MAX_LAYERS,
            CacheLayout::MAX_SIDE_BUFFERS
        )));
    }
    if let Some(draft) = &side.draft_model
        && draft.layer_count() != side.draft
    {
        let problem = format!("draft={}, but the draft model has {} layers", side.draft, draft.layer_count());
        return Err(error(problem));
    }
    Ok(stages)
}

fn layout(
    side: &Side,
    model: &ModelShape,
    page_tokens: u32,
    dtype: Dtype,
    shard: Shard,
) -> Result<CacheLayout, Mismatch> {
    let own_page_tokens = side.page_tokens_of(Pool::FULL, page_tokens);
    let mut layout = CacheLayout::new(model, shard, own_page_tokens, dtype).with_order(side.order);
    layout.draft = side.draft_model.clone();
    let mut buffers = Vec::new();
    for part in [Part::Main, Part::Draft] {
        let shape = layout.model_of(part).into_owned();
        for layer in layout.shard.own_layers(part) {
            // Sides whose layers do not add up are described too: what goes beyond the model is like its last layer.
            let Some(kind) = shape.layers().get(layer as usize).or_else(|| shape.layers().last()).copied() else {
                continue;
            };
            for role in shape.roles(kind) {
                let geometry = shape.geometry(kind, role, dtype, side.tp, layout.shard.rank.tp);
                let Geometry { pool, token_bytes, groups } = geometry.map_err(|why| match why {
                    NoGeometry::Indivisible(heads) => {
                        Mismatch::IndivisibleHeads { side: side.to_string(), heads, tp: side.tp }
                    }
                    NoGeometry::NoBuffer => {
                        let what = format!("it does not say what the {role} buffer of layer {layer} looks like");
                        Mismatch::Unsupported { model: shape.name().into(), what }
                    }
                    NoGeometry::Overflow => {
                        error(side, format!("the heads of a token of layer {layer} ({role}) do not fit 64 bits"))
                    }
                })?;
                let (page_tokens, page_count) = match pool {
                    PoolKind::State => (1, side.slots),
                    kind => (side.page_tokens_of(Pool { part, kind }, page_tokens), side.pages),
                };
                let key = BufferKey { part, layer, role };
                let mut buffer = Buffer::new(key, 0, 0, page_tokens, token_bytes, page_count).with_pool(pool);
                buffer.groups = groups;
                let len = buffer.total_bytes().filter(|_| buffer.page_bytes != u64::MAX).ok_or_else(|| {
                    let page = format!("{page_tokens} tokens of {token_bytes} bytes");
                    error(side, format!("{page_count} pages of {page} do not fit 64 bits"))
                })?;
                buffers.push((len, buffer));
            }
        }
    }
    // The order that is usual: all keys by layer, all values by layer, then the draft's.
    buffers.sort_by_key(|(_, buffer)| (buffer.key.part, buffer.key.role, buffer.key.layer));
    for (len, mut buffer) in buffers {
        buffer.region = layout.add_region(len);
        layout.add_buffer(buffer);
    }
    Ok(layout)
}
