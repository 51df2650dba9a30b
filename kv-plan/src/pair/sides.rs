//! What concerns two sides as wholes, and how a layer that one of them lacks is reported.

use crate::{Buffer, BufferKey, CacheLayout, Mismatch, ModelShape, Part, Rank, Role, error::End};

/// What concerns the two sides as wholes, and so is found whichever two ranks meet first.
pub(super) fn check_sides(prefill: &CacheLayout, decode: &CacheLayout) -> Result<(), Mismatch> {
    let (prefill_rank, decode_rank) = (prefill.rank(), decode.rank());
    check_model(prefill, decode, &prefill.model, &decode.model)?;
    if prefill.shard.draft_layers > 0 && prefill.shard.draft_layers == decode.shard.draft_layers {
        check_model(prefill, decode, &prefill.model_of(Part::Draft), &decode.model_of(Part::Draft))?;
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
    check_samples(prefill, decode)?;
    let with_cp = [(End::Prefill, prefill), (End::Decode, decode)].into_iter().find(|(_, side)| side.shard.cp > 1);
    if let Some((end, side)) = with_cp
        && side.model.linear().is_some()
    {
        let (rank, cp, model) = (side.rank(), side.shard.cp, side.model.name().into());
        return Err(Mismatch::StatesWithContext { end, rank, cp, model });
    }
    check_layers(prefill, decode, Part::Main)?;
    if prefill.shard.draft_layers > 0 && decode.shard.draft_layers > 0 {
        check_layers(prefill, decode, Part::Draft)?;
    }
    Ok(())
}

/// Whether both serve the same model.
fn check_model(
    prefill: &CacheLayout,
    decode: &CacheLayout,
    ours: &ModelShape,
    theirs: &ModelShape,
) -> Result<(), Mismatch> {
    if ours.is_same_model(theirs) {
        return Ok(());
    }
    Err(Mismatch::Model {
        prefill_rank: prefill.rank(),
        prefill: ours.name().into(),
        prefill_layers: ours.layer_count(),
        prefill_fingerprint: ours.fingerprint(),
        decode_rank: decode.rank(),
        decode: theirs.name().into(),
        decode_layers: theirs.layer_count(),
        decode_fingerprint: theirs.fingerprint(),
    })
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
        let last = Rank { pp: decode.shard.stage_count().saturating_sub(1), ..decode.rank() };
        return Err(missing(prefill, decode, key, holder(prefill, key), last));
    }
    if decode_total > prefill_total {
        let key = BufferKey { part, layer: prefill_total, role: role() };
        return Err(uncovered(Some(prefill), decode, key, holder(decode, key)));
    }
    let model_layers = prefill.model.layer_count();
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
        check_geometry(prefill, src, decode, dst)?;
    }
    Ok(())
}

/// Whether a token is made of the same heads in two buffers, however many of them each has.
pub(super) fn check_geometry(
    prefill: &CacheLayout,
    src: &Buffer,
    decode: &CacheLayout,
    dst: &Buffer,
) -> Result<(), Mismatch> {
    let kinds = |buffer: &Buffer| buffer.groups.iter().map(|group| (group.heads.total, group.head_bytes)).collect();
    let (from, to): (Vec<_>, Vec<_>) = (kinds(src), kinds(dst));
    let same_bytes = !from.is_empty() || src.token_bytes == dst.token_bytes;
    if from == to && same_bytes {
        return Ok(());
    }
    let (prefill_rank, decode_rank, key) = (prefill.rank(), decode.rank(), src.key);
    let differ = src
        .groups
        .iter()
        .zip(&dst.groups)
        .find(|(a, b)| (a.heads.total, a.head_bytes) != (b.heads.total, b.head_bytes));
    if let Some((from, to)) = differ {
        return Err(Mismatch::HeadGeometry {
            key,
            prefill_rank,
            prefill_heads: from.heads,
            prefill_token_bytes: src.token_bytes,
            prefill_page_tokens: src.page_tokens,
            decode_rank,
            decode_heads: to.heads,
            decode_token_bytes: dst.token_bytes,
            decode_page_tokens: dst.page_tokens,
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
    Rank { pp: pp.unwrap_or_else(|| layout.shard.stage_count().saturating_sub(1)), ..layout.rank() }
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
        None => (0, decode.shard.total_layers(), decode.model.layer_count()),
    };
    Mismatch::UncoveredLayer { key, decode_rank: to, prefill_layers, decode_layers, model_layers }
}

fn totals(prefill: &CacheLayout, decode: &CacheLayout, part: Part) -> (u32, u32, u32) {
    match part {
        Part::Main => (prefill.shard.total_layers(), decode.shard.total_layers(), prefill.model.layer_count()),
        Part::Draft => {
            let (src, dst) = (prefill.shard.draft_layers, decode.shard.draft_layers);
            (src, dst, src.max(dst))
        }
    }
}
