//! What a rank's layout says about its siblings is what they say themselves.

use kv_plan::{Attention, CacheLayout, Dtype, LayerKind, ModelShape, Order, Side, routes};
use proptest::prelude::*;

use crate::common::{deepseek, side, without_places};

#[derive(Clone, Debug)]
struct Case {
    model: ModelShape,
    dtype: Dtype,
    page: u32,
    prefill: Side,
    decode: Side,
}

fn cases() -> impl Strategy<Value = Case> {
    let dtype = prop_oneof![Just(Dtype::Bf16), Just(Dtype::Fp8)];
    (1u32..=8, 1u32..=4, 1u32..=40, dtype, 1u32..=64, 0u32..=2, any::<bool>()).prop_flat_map(
        |(tp, times, layers, dtype, page, draft, latent)| {
            let attention = if latent {
                Attention::Latent { dim: 7 * times }
            } else {
                Attention::Heads { kv_heads: if times == 4 { 1 } else { tp * times }, key_dim: 3, value_dim: 5 }
            };
            let model = ModelShape::by_hand("drawn", attention, vec![LayerKind::Full; layers as usize]).unwrap();
            let side = |draft: u32| {
                (1..=layers.min(5), any::<u32>(), any::<bool>()).prop_map(move |(pp, uneven, hnd)| {
                    let mut side = Side::default();
                    side.pp = pp;
                    side.tp = tp;
                    if uneven % 2 == 0 {
                        // The first stage with what the others leave, and one layer at least each.
                        let mut stages = vec![1; pp as usize];
                        stages[(uneven / 2 % pp) as usize] += layers - pp;
                        side.layers = Some(stages);
                    }
                    side.draft = draft;
                    side.order = if hnd { Order::HeadMajor } else { Order::TokenMajor };
                    side
                })
            };
            (side(draft), side(draft)).prop_map(move |(prefill, mut decode)| {
                decode.order = prefill.order;
                Case { model: model.clone(), dtype, page, prefill, decode }
            })
        },
    )
}

fn sent(prefill: &[CacheLayout], decode: &[CacheLayout]) -> Vec<String> {
    let routes = routes(prefill, decode).unwrap();
    let tables = |pairing: &kv_plan::Pairing| -> Vec<_> {
        pairing.tables().iter().map(|t| (t.key, t.src_stride, t.dst_stride, t.len)).collect()
    };
    let told = routes.pairings().iter().map(|p| (p.prefill_rank(), p.decode_rank(), tables(p), p.bytes_per_token()));
    told.map(|told| format!("{told:?}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn siblings_are_what_they_say_themselves(case in cases()) {
        let layouts = |side: &Side| side.layouts(&case.model, case.page, case.dtype).unwrap();
        let (prefill, decode) = (layouts(&case.prefill), layouts(&case.decode));
        let wanted: Vec<CacheLayout> = prefill.iter().map(without_places).collect();
        for layout in &prefill {
            let derived = layout.siblings();
            prop_assert!(derived.iter().all(|sibling| sibling.validate().is_ok()));
            prop_assert_eq!(&derived[usize::try_from(layout.shard.rank.pp * layout.shard.tp + layout.shard.rank.tp).unwrap()], layout);
            prop_assert_eq!(derived.iter().map(without_places).collect::<Vec<_>>(), &wanted[..]);
        }
        // So a whole cluster is known from one rank of each side.
        let (one, other) = (prefill.last().unwrap().siblings(), decode[0].siblings());
        prop_assert_eq!(sent(&one, &other), sent(&prefill, &decode));
    }
}

#[test]
fn a_packed_rank_is_among_its_siblings_as_it_is() {
    let layout = side(&deepseek(), "pp=4,draft=1", 64).remove(3).packed(4096).unwrap();
    let siblings = layout.siblings();
    assert_eq!(siblings.len(), 4);
    assert_eq!(siblings[3], layout);
    assert_eq!(siblings[0].buffers.len(), 15);
    assert_eq!(siblings[0].regions.len(), 15);
}
