//! What concerns two sides as wholes, and how a layer that one of them lacks is reported.

use crate::{Buffer, BufferKey, CacheLayout, Mismatch, Part, Rank, Role};

/// What concerns the two sides as wholes, and so is found whichever two ranks meet first.
pub(super) fn check_sides(prefill: &CacheLayout, decode: &CacheLayout) -> Result<(), Mismatch> {
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
        let page_bytes = |layout: &CacheLayout| layout.buffers.iter().min_by_key(|b| b.key).map_or(0, |b| b.page_bytes);
        return Err(Mismatch::Dtype {
            prefill_rank,
            prefill: prefill.dtype,
            prefill_page_bytes: page_bytes(prefill),
            decode_rank,
            decode: decode.dtype,
            decode_page_bytes: page_bytes(decode),
        });
    }
    if prefill.shard.tp != decode.shard.tp {
        let (prefill, decode) = (prefill.shard.tp, decode.shard.tp);
        return Err(Mismatch::TensorSplit { prefill_rank, prefill, decode_rank, decode });
    }
    check_samples(prefill, decode)?;
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
    // Only an error needs it: this is called for every two ranks.
    let role = || {
        let first = |layout: &CacheLayout| layout.buffers.iter().map(|buffer| buffer.key.role).min();
        first(prefill).or_else(|| first(decode)).unwrap_or(Role::Key)
    };
    if prefill_total > decode_total {
        // The first layer that has no table, the rank that would send it, and the last rank that could have had it.
        let key = BufferKey { part, layer: decode_total, role: role() };
        let last = Rank { pp: decode.shard.stage_count().saturating_sub(1), tp: decode.rank().tp };
        return Err(missing(prefill, decode, key, holder(prefill, key), last));
    }
    if decode_total > prefill_total {
        let key = BufferKey { part, layer: prefill_total, role: role() };
        return Err(uncovered(Some(prefill), decode, key, holder(decode, key)));
    }
    let model_layers = prefill.model.layers;
    if part == Part::Main && prefill_total != model_layers {
        let (prefill_rank, decode_rank) = (prefill.rank(), decode.rank());
        return Err(Mismatch::ModelLayers { prefill_rank, decode_rank, side_layers: prefill_total, model_layers });
    }
    Ok(())
}

/// Compares one buffer of each part and role, whatever layers the two ranks have: page sizes that differ because tokens and heads
/// were mixed up are found as what they are.
fn check_samples(prefill: &CacheLayout, decode: &CacheLayout) -> Result<(), Mismatch> {
    let mut seen = Vec::new();
    for src in &prefill.buffers {
        let kind = (src.key.part, src.key.role);
        if seen.contains(&kind) {
            continue;
        }
        seen.push(kind);
        let Some(dst) = decode.buffers.iter().find(|dst| (dst.key.part, dst.key.role) == kind) else { continue };
        let numbers = |buffer: &Buffer| buffer.heads.map(|heads| (heads.count, heads.total));
        check_geometry(prefill, src, decode, dst, numbers(src) == numbers(dst))?;
    }
    Ok(())
}

/// Whether a token has the same bytes in two buffers.
pub(super) fn check_geometry(
    prefill: &CacheLayout,
    src: &Buffer,
    decode: &CacheLayout,
    dst: &Buffer,
    same_heads: bool,
) -> Result<(), Mismatch> {
    if same_heads && src.token_bytes == dst.token_bytes {
        return Ok(());
    }
    let (prefill_rank, decode_rank, key) = (prefill.rank(), decode.rank(), src.key);
    if let (Some(prefill_heads), Some(decode_heads)) = (src.heads, dst.heads) {
        return Err(Mismatch::HeadGeometry {
            key,
            prefill_rank,
            prefill_heads,
            prefill_token_bytes: src.token_bytes,
            prefill_page_tokens: prefill.page_tokens,
            decode_rank,
            decode_heads,
            decode_token_bytes: dst.token_bytes,
            decode_page_tokens: decode.page_tokens,
        });
    }
    Err(Mismatch::TokenBytes { key, prefill_rank, prefill: src.token_bytes, decode_rank, decode: dst.token_bytes })
}

/// The rank of a side that holds a layer.
fn holder(layout: &CacheLayout, key: BufferKey) -> Rank {
    let pp = match key.part {
        Part::Main => layout.shard.stage_of(key.layer),
        Part::Draft => None,
    };
    Rank { pp: pp.unwrap_or_else(|| layout.shard.stage_count().saturating_sub(1)), tp: layout.rank().tp }
}

pub(super) fn missing(prefill: &CacheLayout, decode: &CacheLayout, key: BufferKey, from: Rank, to: Rank) -> Mismatch {
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

/// A layer of the receiver that no sender has; `prefill` is any of the senders, if there is one.
pub(crate) fn uncovered(prefill: Option<&CacheLayout>, decode: &CacheLayout, key: BufferKey, to: Rank) -> Mismatch {
    let (prefill_layers, decode_layers, model_layers) = match prefill {
        Some(prefill) => totals(prefill, decode, key.part),
        None => (0, decode.shard.total_layers(), decode.model.layers),
    };
    Mismatch::UncoveredLayer { key, decode_rank: to, prefill_layers, decode_layers, model_layers }
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
