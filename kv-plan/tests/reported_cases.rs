//! What users of other systems ran into and reported in public, restated as cases; those that concern what is planned today.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use kv_plan::{
    Attention, Buffer, BufferKey, CacheLayout, Dtype, LayerKind, LayoutError, ModelShape, PageId, Part, Plan,
    PlanError, Rank, Role, Shard, Side, coverage, pair,
};
use support::{heads, latents, places, refs, side, slices, usual_order};

const GIB: u64 = 1 << 30;

#[test]
fn b001_values_of_a_later_stage_find_their_place() {
    let model = heads(15, 2, 256, 256);
    let (prefill, decode) = (side("pp=2,layers=7+8", &model, 64), side("pp=1", &model, 64));
    let list = usual_order(15, 0);
    let stages: Vec<_> = prefill.iter().map(|stage| pair(stage, &decode[0]).unwrap()).collect();
    assert_eq!(places(&stages[0], &list, Role::Key), (0..7).collect::<Vec<_>>());
    assert_eq!(places(&stages[0], &list, Role::Value), (15..22).collect::<Vec<_>>());
    assert_eq!(places(&stages[1], &list, Role::Key), (7..15).collect::<Vec<_>>());
    assert_eq!(places(&stages[1], &list, Role::Value), (22..30).collect::<Vec<_>>());
    assert_eq!(coverage(&refs(&prefill), &decode[0]).unwrap().written, 30);
}

#[test]
fn b003_a_draft_of_the_receiver_shifts_nothing() {
    let model = heads(15, 2, 128, 128);
    let (prefill, decode) = (side("pp=4,layers=3+4+4+4", &model, 64), side("draft=1", &model, 64));
    let list = usual_order(15, 1);
    let stage0 = pair(&prefill[0], &decode[0]).unwrap();
    assert_eq!(places(&stage0, &list, Role::Value), [15, 16, 17]);
    let covered = coverage(&refs(&prefill), &decode[0]).unwrap();
    assert_eq!(covered.left_alone, [BufferKey::draft(Role::Key, 0), BufferKey::draft(Role::Value, 0)]);
    for stage in &prefill {
        let pairing = pair(stage, &decode[0]).unwrap();
        assert!(pairing.tables().iter().all(|table| table.key.part == Part::Main));
        assert_eq!(pairing.left_alone(), covered.left_alone);
    }
}

#[test]
fn b005_a_stage_of_latents_goes_to_its_layers() {
    let model = latents(78);
    let (prefill, decode) = (side("pp=3,layers=20+20+38", &model, 64), side("pp=1", &model, 64));
    let pairing = pair(&prefill[1], &decode[0]).unwrap();
    let layers: Vec<u32> = pairing.tables().iter().map(|table| table.key.layer).collect();
    assert_eq!(layers, (20..40).collect::<Vec<_>>());
    assert_eq!(slices(&pairing, &[7], &[9]).len(), 20);
    assert_eq!(pair(&decode[0], &decode[0]).unwrap().tables().len(), 78);
}

/// A rank with buffers of two roles, listed role by role, each a region of its own.
fn two_roles(model: &ModelShape, shard: Shard, latents: &[u32], indices: &[u32]) -> CacheLayout {
    let mut layout = CacheLayout::new(model, shard, 64, Dtype::Bf16);
    for (role, token_bytes, layers) in [(Role::Latent, 1152, latents), (Role::Index, 132, indices)] {
        for layer in layers {
            let region = layout.add_region(100 * 64 * token_bytes);
            layout.add_buffer(Buffer::new(BufferKey::main(role, *layer), region, 0, 64, token_bytes, 100));
        }
    }
    layout.validate().unwrap();
    layout
}

#[test]
fn b007_several_buffers_of_one_layer() {
    let model = latents(6);
    let stage = |pp| Shard::new(Rank { pp, tp: 0 }, vec![3, 2, 1], 1);
    let src = two_roles(&model, stage(1), &[3, 4], &[3, 4]);
    let all: Vec<u32> = (0..6).collect();
    let dst = two_roles(&model, Shard::new(Rank { pp: 0, tp: 0 }, vec![6], 1), &all, &all);
    let pairing = pair(&src, &dst).unwrap();
    let mut regions: Vec<u32> = pairing.tables().iter().map(|table| table.dst_region).collect();
    regions.sort_unstable();
    assert_eq!(regions, [3, 4, 9, 10]);
}

#[test]
fn b009_stages_that_do_not_add_up() {
    let model = latents(10);
    let layouts = |spec: &str| spec.parse::<Side>().unwrap().layouts(&model, 64, Dtype::Bf16);
    assert_eq!(layouts("pp=8,layers=4").unwrap_err().kind(), "config");
    assert!(layouts("pp=8,layers=2+1+1+1+1+1+1+2").is_ok());
    let short = layouts("pp=8,layers=2+1+1+1+1+1+1+1").unwrap();
    let error = pair(&short[0], &short[0]).unwrap_err();
    assert_eq!(error.kind(), "config");
    assert_eq!(
        error.to_string(),
        "prefill pp0.tp0 and decode pp0.tp0 have 9 layers on all stages of their sides, but the model has 10; give all of the model's layers to the stages of both sides"
    );
}

#[test]
fn b011_a_draft_of_both_sides_uses_the_same_pages() {
    let model = heads(120, 4, 128, 128);
    let (with, without) = (side("draft=1", &model, 16), side("draft=0", &model, 16));
    let both = pair(&with[0], &with[0]).unwrap();
    assert_eq!(both.tables().len(), 242);
    // Pages that are no neighbours, so that no two merge.
    assert_eq!(slices(&both, &[1, 3, 5, 7, 9], &[2, 4, 6, 8, 10]).len(), 242 * 5);
    let drafts = [BufferKey::draft(Role::Key, 0), BufferKey::draft(Role::Value, 0)];
    let prefill_only = pair(&with[0], &without[0]).unwrap();
    assert_eq!((prefill_only.tables().len(), prefill_only.unsent()), (240, drafts.as_slice()));
    let decode_only = pair(&without[0], &with[0]).unwrap();
    assert_eq!((decode_only.tables().len(), decode_only.left_alone()), (240, drafts.as_slice()));
}

#[test]
fn b013_a_component_that_the_receiver_lacks() {
    let model = latents(2);
    let whole = Shard::new(Rank { pp: 0, tp: 0 }, vec![2], 1);
    let (all, some) = (two_roles(&model, whole.clone(), &[0, 1], &[0, 1]), two_roles(&model, whole, &[0, 1], &[0]));
    let error = pair(&all, &some).unwrap_err();
    assert_eq!(error.kind(), "missing_layer");
    assert!(
        error.to_string().starts_with("layer 1 (index) of prefill pp0.tp0 is missing at decode pp0.tp0"),
        "{error}"
    );
    let error = coverage(&[&some], &all).unwrap_err();
    assert_eq!(error.kind(), "uncovered_layer");
    assert!(error.to_string().contains("layer 1 (index)"), "{error}");
}

#[test]
fn b017_caches_of_two_kinds_are_told_apart_by_key() {
    let model = latents(78);
    let indexed: Vec<u32> = (0..78).filter(|layer| layer % 4 == 1).take(21).collect();
    let dst =
        two_roles(&model, Shard::new(Rank { pp: 0, tp: 0 }, vec![78], 1), &(0..78).collect::<Vec<_>>(), &indexed[..20]);
    assert_eq!(dst.table_count(Part::Main, Role::Latent), 78);
    let inside: Vec<u32> = indexed.iter().copied().filter(|layer| (20..40).contains(layer)).collect();
    let stage = Shard::new(Rank { pp: 1, tp: 0 }, vec![20, 20, 38], 1);
    let pairing = pair(&two_roles(&model, stage, &(20..40).collect::<Vec<_>>(), &inside), &dst).unwrap();
    let count = |role| pairing.tables().iter().filter(|table| table.key.role == role).count();
    assert_eq!((count(Role::Latent), count(Role::Index)), (20, inside.len()));
    let len = |role| pairing.tables().iter().find(|table| table.key.role == role).unwrap().len;
    assert_eq!((len(Role::Latent), len(Role::Index)), (73_728, 8_448));
}

#[test]
fn b027_a_sender_that_is_missing_is_an_error() {
    let model = heads(8, 4, 128, 128);
    let (prefill, decode) = (side("pp=4", &model, 16), side("pp=1", &model, 16));
    let without: Vec<&CacheLayout> = [0, 1, 3].iter().map(|stage| &prefill[*stage]).collect();
    let error = coverage(&without, &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "uncovered_layer");
    assert!(error.to_string().contains("layer 4 (key)"), "{error}");
}

#[test]
fn b029_keys_and_values_of_different_size() {
    let model = heads(1, 4, 192, 128);
    let layouts = side("pp=1", &model, 64);
    let found = slices(&pair(&layouts[0], &layouts[0]).unwrap(), &[3], &[3]);
    let key = (BufferKey::main(Role::Key, 0), 294_912, 294_912, 98_304);
    let value = (BufferKey::main(Role::Value, 0), 196_608, 196_608, 65_536);
    assert_eq!(found, [key, value]);
}

#[test]
fn b019_b021_b023_b033_other_tensor_splits_are_refused_by_name() {
    let model = heads(2, 8, 128, 128);
    for (prefill, decode) in [("tp=2", "tp=4"), ("tp=8", "tp=16"), ("tp=2", "tp=8"), ("tp=4", "tp=1")] {
        let (src, dst) = (side(prefill, &model, 16), side(decode, &model, 16));
        let error = pair(&src[0], &dst[0]).unwrap_err();
        assert_eq!(error.kind(), "split");
        let text = error.to_string();
        assert!(text.contains(prefill) && text.contains(decode) && text.contains("not supported yet"), "{text}");
    }
}

#[test]
fn b039_other_page_sizes_are_refused_by_name() {
    let model = heads(1, 8, 128, 128);
    let (prefill, decode) = (side("pp=1", &model, 16), side("pp=1", &model, 128));
    let error = pair(&prefill[0], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "config");
    assert_eq!(
        error.to_string(),
        "the page sizes differ: prefill pp0.tp0 has 16 tokens a page, decode pp0.tp0 has 128; this is not supported yet, so set the same page size on both sides"
    );
}

#[test]
fn b041_page_bytes_follow_from_tokens() {
    let model = latents(1);
    let mut layout = side("pp=1", &model, 64).remove(0);
    layout.buffers[0].page_bytes *= 2;
    let error = layout.validate().unwrap_err();
    assert_eq!(error.to_string(), "layer 0 (latent): a page of 147456 bytes is not 64 tokens of 1152 bytes");
}

#[test]
fn b043_page_counts_are_each_rank_s_own() {
    let model = heads(1, 8, 128, 128);
    let prefill = side("tp=2", &model, 16);
    let decode = [side("tp=2,pages=111680", &model, 16).remove(0), side("tp=2,pages=111488", &model, 16).remove(1)];
    let mut plan = Plan::default();
    let mut to = |rank: usize| {
        pair(&prefill[rank], &decode[rank]).unwrap().plan(PageId::list(&[1]), PageId::list(&[111_500]), &mut plan)
    };
    assert_eq!(to(0), Ok(()));
    assert_eq!(
        to(1).unwrap_err().to_string(),
        "page 111500 of decode pp0.tp1 (place 0 in its list) is out of range: its buffer for layer 0 (key) has 111488 pages"
    );
}

#[test]
fn b045_unequal_lists_are_a_typed_error() {
    let layouts = side("pp=1", &latents(1), 64);
    let pairing = pair(&layouts[0], &layouts[0]).unwrap();
    let error = pairing.plan(PageId::list(&[1, 2]), PageId::list(&[]), &mut Plan::default()).unwrap_err();
    assert_eq!(error, PlanError::PageCount { prefill: 2, decode: 0 });
    assert_eq!(
        error.to_string(),
        "prefill lists 2 pages and decode 0; the lists are the same tokens on the two sides and have the same length"
    );
}

#[test]
fn b047_nothing_to_send_is_legal() {
    let layouts = side("pp=1", &latents(3), 64);
    let pairing = pair(&layouts[0], &layouts[0]).unwrap();
    let mut plan = Plan::default();
    pairing.plan(&[], &[], &mut plan).unwrap();
    assert_eq!((plan.bytes(), plan.slice_count(), plan.groups().len()), (0, 0, 0));
}

#[test]
fn b051_element_types_are_compared_when_peers_meet() {
    let model = heads(1, 8, 128, 128);
    let (prefill, decode) = (side("pp=1", &model, 16), side("pp=1,dtype=fp8", &model, 16));
    let error = pair(&prefill[0], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "dtype");
    assert_eq!(
        error.to_string(),
        "the element types differ: prefill pp0.tp0 has bf16 (pages of 32768 bytes), decode pp0.tp0 has fp8 (pages of 16384 bytes); nothing converts between them, so set the same KV-cache dtype on both sides"
    );
}

#[test]
fn b055_tokens_and_heads_swapped_with_the_same_product() {
    let (a, b) = (side("pp=1", &heads(1, 8, 128, 128), 16), side("pp=1", &heads(1, 16, 128, 128), 8));
    let mut b = b[0].clone();
    assert_eq!(a[0].buffers[0].page_bytes, b.buffers[0].page_bytes);
    b.model = a[0].model.clone();
    let error = pair(&a[0], &b).unwrap_err();
    assert_eq!(error.kind(), "head_geometry");
    assert_eq!(
        error.to_string(),
        "layer 0 (key): prefill pp0.tp0 has heads 0..8 of 8 in 2048 bytes a token and 16 tokens a page, decode pp0.tp0 has heads 0..16 of 16 in 4096 bytes a token and 8 tokens a page; heads and head sizes have to agree"
    );
}

#[test]
fn b059_the_fingerprint_is_of_what_must_match_alone() {
    let model = latents(61);
    let (a, b) = (side("pp=4,tp=2", &model, 16), side("pp=1,tp=4", &model, 128));
    assert_eq!(a[0].model.fingerprint, b[0].model.fingerprint);
    let other = side("pp=4,tp=2", &latents(60), 16);
    let error = pair(&a[0], &other[0]).unwrap_err();
    assert_eq!(error.kind(), "model");
    assert!(error.to_string().contains("with 61 layers") && error.to_string().contains("with 60 layers"), "{error}");
}

#[test]
fn b127_ends_that_wrap_or_pass_the_region() {
    let model = latents(1);
    let mut layout = side("pages=4", &model, 64).remove(0);
    assert_eq!(layout.regions, [4 * 73_728]);
    layout.validate().unwrap();
    let at = |offset: u64| {
        let mut layout = layout.clone();
        layout.buffers[0].offset = offset;
        layout.validate()
    };
    for offset in [1, u64::MAX - 10, u64::MAX] {
        assert!(matches!(at(offset), Err(LayoutError::OutsideRegion { .. })), "{offset}");
    }
    layout.regions[0] = u64::MAX;
    layout.buffers[0].page_count = u32::MAX;
    layout.buffers[0].token_bytes = u64::MAX / 64;
    layout.buffers[0].page_bytes = u64::MAX / 64 * 64;
    assert!(matches!(layout.validate(), Err(LayoutError::OutsideRegion { .. })));
}

#[test]
fn b137_offsets_beyond_32_bits_are_exact() {
    let model = latents(1);
    let mut layout = side("pages=131072", &model, 64).remove(0);
    layout.buffers[0].offset = 5 * GIB + 64;
    layout.regions[0] += 5 * GIB + 64;
    let pairing = pair(&layout, &layout).unwrap();
    assert_eq!(pairing.tables()[0].src_base, 5 * GIB + 64);
    let pages: Vec<i32> = (10_000..110_000).collect();
    let found = slices(&pairing, &pages, &pages);
    assert_eq!(found, [(BufferKey::main(Role::Latent, 0), 737_280_000, 737_280_000, 7_372_800_000)]);
}

#[test]
fn unknown_architectures_say_what_to_give_by_hand() {
    let error =
        ModelShape::from_config_json(r#"{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}"#).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(r#"model type "mamba" (architecture "MambaForCausalLM") is not known; known are deepseek_v2"#),
        "{text}"
    );
    assert!(text.contains("ModelShape::by_hand"), "{text}");
    let model = ModelShape::by_hand("own", Attention::Latent { dim: 8 }, vec![LayerKind::Full; 2]).unwrap();
    assert_eq!(side("pp=2", &model, 16).len(), 2);
}
