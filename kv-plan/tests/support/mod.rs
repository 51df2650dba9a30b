//! What several test programs build their cases from.

#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kv_plan::{Attention, BufferKey, CacheLayout, Dtype, LayerKind, ModelShape, PageId, Pairing, Plan, Role, Side};

/// A model of full layers with latents of 576 elements.
pub(crate) fn latents(layers: usize) -> ModelShape {
    ModelShape::by_hand("latents", Attention::Latent { dim: 576 }, vec![LayerKind::Full; layers]).unwrap()
}

/// A model of full layers with keys and values by head.
pub(crate) fn heads(layers: usize, kv_heads: u32, key_dim: u32, value_dim: u32) -> ModelShape {
    let attention = Attention::Heads { kv_heads, key_dim, value_dim };
    ModelShape::by_hand("heads", attention, vec![LayerKind::Full; layers]).unwrap()
}

/// The ranks of a side, bf16.
pub(crate) fn side(spec: &str, model: &ModelShape, page_tokens: u32) -> Vec<CacheLayout> {
    spec.parse::<Side>().unwrap().layouts(model, page_tokens, Dtype::Bf16).unwrap()
}

pub(crate) fn refs(layouts: &[CacheLayout]) -> Vec<&CacheLayout> {
    layouts.iter().collect()
}

/// The places of a pairing's receiving buffers in a list in the usual order: all keys by layer, all values, the draft's
/// keys, its values.
pub(crate) fn places(pairing: &Pairing, list: &[BufferKey], role: Role) -> Vec<usize> {
    let tables = pairing.tables().iter().filter(|table| table.key.role == role);
    tables.map(|table| list.iter().position(|key| *key == table.key).unwrap()).collect()
}

/// The usual order of a receiver's list.
pub(crate) fn usual_order(layers: u32, draft: u32) -> Vec<BufferKey> {
    let of = |role, count, key: fn(Role, u32) -> BufferKey| (0..count).map(move |layer| key(role, layer));
    of(Role::Key, layers, BufferKey::main)
        .chain(of(Role::Value, layers, BufferKey::main))
        .chain(of(Role::Key, draft, BufferKey::draft))
        .chain(of(Role::Value, draft, BufferKey::draft))
        .collect()
}

/// The slices of a request, written out: key, source, destination, length.
pub(crate) fn slices(pairing: &Pairing, src: &[i32], dst: &[i32]) -> Vec<(BufferKey, u64, u64, u64)> {
    let mut plan = Plan::default();
    pairing.plan(PageId::list(src), PageId::list(dst), &mut plan).unwrap();
    plan.slices(pairing).map(|slice| (slice.key, slice.src_offset, slice.dst_offset, slice.len)).collect()
}
