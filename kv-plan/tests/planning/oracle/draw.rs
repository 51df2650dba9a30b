//! Random worlds.

use std::collections::BTreeSet;

use kv_plan::{Attention, Dtype, Order};
use proptest::{collection::btree_set, prelude::*, sample::subsequence};

use super::world::{Parts, Setup, World};

pub(crate) fn worlds() -> impl Strategy<Value = World> {
    let dtype = prop_oneof![Just(Dtype::Bf16), Just(Dtype::Fp8), Just(Dtype::F32)];
    let order = prop_oneof![Just(Order::TokenMajor), Just(Order::HeadMajor)];
    let shape = (1u32..=4).prop_flat_map(|tp| (Just(tp), attention(tp)));
    (shape, dtype, order, 1u32..=3, 1u32..=7, 0usize..=5).prop_flat_map(
        |((tp, attention), dtype, order, page_tokens, layers, pages)| {
            // A draft on neither side, on one, or the same on both.
            let drafts = (0u32..=2, any::<bool>(), any::<bool>());
            let cut = prop_oneof![
                Just(Parts::Whole),
                (0..=layers + 2).prop_map(Parts::Layers),
                (0..=pages).prop_map(Parts::Pages),
            ];
            (drafts, setup(layers, pages), setup(layers, pages), cut).prop_map(
                move |((draft, on_prefill, on_decode), (mut prefill, src_pages), (mut decode, dst_pages), parts)| {
                    prefill.draft = draft * u32::from(on_prefill);
                    decode.draft = draft * u32::from(on_decode);
                    World {
                        attention,
                        dtype,
                        order,
                        page_tokens,
                        layers,
                        tp,
                        prefill,
                        decode,
                        src_pages,
                        dst_pages,
                        parts,
                    }
                },
            )
        },
    )
}

/// Latents, or heads that fit the tensor ranks: a multiple of them, or a divisor.
fn attention(tp: u32) -> impl Strategy<Value = Attention> {
    let fitting: Vec<u32> = (1u32..=8).filter(|heads| heads.is_multiple_of(tp) || tp.is_multiple_of(*heads)).collect();
    let heads = (prop::sample::select(fitting), 1u32..=3, 1u32..=3)
        .prop_map(|(kv_heads, key_dim, value_dim)| Attention::Heads { kv_heads, key_dim, value_dim });
    prop_oneof![(1u32..=5).prop_map(|dim| Attention::Latent { dim }), heads]
}

/// Stages that cut the layers anywhere, and the request's pages: distinct, in any order, more or less scattered.
fn setup(layers: u32, pages: usize) -> impl Strategy<Value = (Setup, Vec<i32>)> {
    let stages = btree_set(1..layers.max(2), 0..=3).prop_map(move |cuts| stages(layers, &cuts));
    let packed = prop_oneof![Just(None), Just(Some(1)), Just(Some(64))];
    (stages, packed, any::<u64>(), 0..=pages + 2).prop_flat_map(move |(stages, packed, shuffle, spare)| {
        let page_count = (pages + spare).max(1);
        let ids: Vec<i32> = (0..page_count as i32).collect();
        let rising = subsequence(ids, pages);
        let list = prop_oneof![rising.clone(), rising.prop_shuffle()];
        let setup = Setup { stages, draft: 0, page_count: page_count as u32, packed, shuffle };
        (Just(setup), list)
    })
}

fn stages(layers: u32, cuts: &BTreeSet<u32>) -> Vec<u32> {
    let inner: Vec<u32> = cuts.iter().copied().filter(|cut| *cut < layers).collect();
    let starts = std::iter::once(0).chain(inner.iter().copied());
    let ends = inner.iter().copied().chain(std::iter::once(layers));
    starts.zip(ends).map(|(start, end)| end - start).collect()
}
