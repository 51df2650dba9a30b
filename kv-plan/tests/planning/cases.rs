//! What users of other systems ran into, restated as cases: those that planning decides. Numbers are those of the report.
//!
//! | not here | reason |
//! |---|---|
//! | B031, B037 | releases and admission are the engine's; that a combination is refused when two ranks meet is every test of a refusal |
//! | B035 | a request names its data-parallel group to the engine: `a_request_comes_from_one_data_parallel_group` in the root package's `tests/pools.rs` |
//! | B059 | the version is decoded before a layout: of the engine; what of it is pairing is `b059_…` |
//! | scales of an 8-bit cache in buffers of their own | not planned; fold them into the bytes of a token |

use kv_plan::{
    Attention, Buffer, BufferKey, CacheLayout, Dtype, HeadGroup, Heads, LayerKind, ModelShape, PageId, PageList, Pages,
    Part, Plan, PlanError, Pool, PoolKind, Rank, Role, Shard, Side, coverage, pair,
};

use crate::common::{cluster, deepseek, heads, latents, layouts_of, llama, of_key, paired, refusal, side, slices};

/// The places in decode's list, keys before values, that a prefill stage writes.
fn places(prefill: &CacheLayout, decode: &CacheLayout, role: Role) -> Vec<usize> {
    let pairing = paired(prefill, decode);
    let place = |key| decode.buffers.iter().position(|buffer| buffer.key == key).unwrap();
    pairing.tables().iter().filter(|table| table.key.role == role).map(|table| place(table.key)).collect()
}

#[test]
fn b001_values_of_uneven_stages_land_in_the_tables_of_values() {
    let model = heads(15, 2, 8, 8);
    let (prefill, decode) = (side(&model, "layers=7+8", 4), side(&model, "pp=1", 4));
    assert_eq!(places(&prefill[0], &decode[0], Role::Key), (0..7).collect::<Vec<_>>());
    assert_eq!(places(&prefill[0], &decode[0], Role::Value), (15..22).collect::<Vec<_>>());
    assert_eq!(places(&prefill[1], &decode[0], Role::Key), (7..15).collect::<Vec<_>>());
    assert_eq!(places(&prefill[1], &decode[0], Role::Value), (22..30).collect::<Vec<_>>());
    let covered = coverage(&prefill.iter().collect::<Vec<_>>(), &decode[0]).unwrap();
    assert_eq!((covered.written, covered.left_alone.len()), (30, 0));
}

#[test]
fn b003_a_draft_of_decode_does_not_shift_the_values_and_is_left_alone() {
    let model = heads(15, 2, 8, 8);
    let (prefill, decode) = (side(&model, "layers=3+4+4+4", 4), side(&model, "pp=1,draft=1", 4));
    assert_eq!(decode[0].buffers.len(), 32);
    assert_eq!(places(&prefill[0], &decode[0], Role::Value), [15, 16, 17]);
    assert_eq!(places(&prefill[3], &decode[0], Role::Value), [26, 27, 28, 29]);
    let covered = coverage(&prefill.iter().collect::<Vec<_>>(), &decode[0]).unwrap();
    assert_eq!(covered.written, 30);
    assert_eq!(covered.left_alone, [BufferKey::draft(Role::Key, 0), BufferKey::draft(Role::Value, 0)]);
}

#[test]
fn b005_a_stage_of_a_longer_model_pairs_by_layer_number() {
    let model = latents(78, 8);
    let (prefill, decode) = (side(&model, "layers=20+20+38", 4), side(&model, "pp=1", 4));
    assert_eq!(places(&prefill[1], &decode[0], Role::Latent), (20..40).collect::<Vec<_>>());
    assert_eq!(slices(&paired(&prefill[1], &decode[0]), &[4, 5], &[1, 2]).len(), 20);
    let same = side(&model, "pp=1", 4);
    assert_eq!(places(&same[0], &decode[0], Role::Latent), (0..78).collect::<Vec<_>>());
    // There are no lists without layer numbers here; a list that is too short for its numbers names both counts.
    let error = refusal(&model, "layers=20+20+38", "layers=20");
    assert!(error.to_string().contains("20 latent tables and the model 78 layers"), "{error}");
}

#[test]
fn b007_several_buffers_of_a_layer_pair_by_role_and_layer() {
    let model = heads(6, 2, 8, 8);
    let (prefill, decode) = (side(&model, "layers=3+2+1", 4), side(&model, "pp=1", 4));
    assert_eq!(places(&prefill[1], &decode[0], Role::Key), [3, 4]);
    assert_eq!(places(&prefill[1], &decode[0], Role::Value), [9, 10]);
}

#[test]
fn b009_layers_of_stages_have_to_add_up() {
    let model = latents(10, 8);
    let error = layouts_of(&model, "pp=8,layers=4", 4).unwrap_err();
    assert!(error.to_string().contains("layers gives 1 stages, but pp=8"), "{error}");
    assert!(cluster(&model, "pp=8,layers=2+1+1+1+1+1+1+2", "pp=1").is_ok());
    let error = refusal(&model, "pp=8,layers=2+1+1+1+1+1+1+1", "pp=1");
    assert_eq!(error.kind(), "uncovered_layer");
    assert!(error.to_string().contains("prefill has 9 layers on all stages, decode 10"), "{error}");
}

#[test]
fn b011_draft_layers_use_the_page_list_of_the_request() {
    let model = heads(120, 4, 8, 8);
    let (prefill, decode) = (side(&model, "draft=1", 16), side(&model, "draft=1", 16));
    // 240 tables of the model and 2 of the draft, 5 scattered pages.
    let moves = slices(&paired(&prefill[0], &decode[0]), &[1, 3, 5, 7, 9], &[2, 4, 6, 8, 10]);
    assert_eq!(moves.len(), 242 * 5);
    // Without the draft on one side its two tables are named, not lost.
    let draft = [BufferKey::draft(Role::Key, 0), BufferKey::draft(Role::Value, 0)];
    assert_eq!(paired(&prefill[0], &side(&model, "pp=1", 16)[0]).unsent(), draft);
    assert_eq!(paired(&side(&model, "pp=1", 16)[0], &decode[0]).left_alone(), draft);
    // A draft of one layer against one of two is an error.
    assert_eq!(refusal(&model, "draft=1", "draft=2").kind(), "uncovered_layer");
    assert_eq!(refusal(&model, "draft=2", "draft=1").kind(), "missing_layer");
}

#[test]
fn b013_a_window_of_the_draft_that_one_side_lacks_is_named() {
    let model = latents(2, 4);
    let draft =
        |kinds: &[LayerKind]| ModelShape::by_hand("draft", Attention::Latent { dim: 4 }, kinds.to_vec()).unwrap();
    let of = |kinds: &[LayerKind]| {
        let mut side = Side::default();
        (side.draft, side.draft_model) = (kinds.len() as u32, Some(draft(kinds)));
        side.layouts(&model, 4, Dtype::Bf16).unwrap().remove(0)
    };
    let window = LayerKind::SlidingWindow { window: 8 };
    let error = pair(&of(&[LayerKind::Full]), &of(&[LayerKind::Full, window])).unwrap_err();
    assert_eq!(error.kind(), "uncovered_layer");
    assert!(error.to_string().contains("draft layer 1"), "{error}");
    assert_eq!(pair(&of(&[LayerKind::Full]), &of(&[window])).unwrap_err().kind(), "model");
}

#[test]
fn b015_pages_of_the_draft_have_a_size_of_their_own() {
    let model = heads(1, 2, 4, 4);
    let layouts = side(&model, "draft=1,page=128,draft_page=32", 128);
    let (pairing, mut plan) = (paired(&layouts[0], &layouts[0]), Plan::default());
    let draft = Pool { part: Part::Draft, kind: PoolKind::Full };
    let (main, eight) = ([3, 1], [7, 5, 3, 1, 9, 11, 13, 15]);
    let lists = [PageList::new(Pool::FULL, PageId::list(&main)), PageList::new(draft, PageId::list(&eight))];
    pairing.plan(&lists[..], &lists[..], &mut plan).unwrap();
    assert_eq!(plan.bytes(), 256 * pairing.bytes_per_token());
    assert_eq!(plan.slice_count(), 2 * (2 + 8));
    // One list for both pools cannot be right, and what it would leave out is noticed.
    let wrong = [PageList::new(Pool::FULL, PageId::list(&main)), PageList::new(draft, PageId::list(&main))];
    let error = pairing.plan(Pages::from(&wrong[..]).tokens(0..256), &lists[..], &mut plan).unwrap_err();
    assert_eq!(error.kind(), "page_count");
    assert!(error.to_string().contains("2 pages of 32 tokens (pool draft full)"), "{error}");
    // Within one pool all pages have one size.
    let mut layout = layouts[0].clone();
    let buffer = &mut layout.buffers[1];
    (buffer.page_tokens, buffer.page_bytes, buffer.page_stride) = (32, 32 * 16, 32 * 16);
    assert!(layout.validate().unwrap_err().to_string().contains("32 tokens a page"));
}

#[test]
fn b017_indexer_keys_pair_by_layer_beside_the_latents() {
    // 78 latents of 576 elements, and index keys in every layer from 57 on.
    let kinds = (0..78).map(|layer| if layer < 57 { LayerKind::Full } else { LayerKind::Indexed { dim: 128 } });
    let model = ModelShape::by_hand("indexed", Attention::Latent { dim: 576 }, kinds.collect()).unwrap();
    let (prefill, decode) = (side(&model, "layers=20+20+38,pages=9", 64), side(&model, "pages=9", 64));
    assert_eq!(decode[0].buffers.len(), 78 + 21);
    assert_eq!(decode[0].buffer(BufferKey::main(Role::Latent, 0)).unwrap().page_bytes, 73_728);
    assert_eq!(paired(&prefill[1], &decode[0]).tables().len(), 20);
    let last = paired(&prefill[2], &decode[0]);
    let index: Vec<u32> = last.tables().iter().filter(|t| t.key.role == Role::Index).map(|t| t.key.layer).collect();
    assert_eq!((last.tables().len(), index), (38 + 21, (57..78).collect()));
    // In 8 bits a key has its scale: 128 + 4 bytes a token.
    let packed = side(&model, "dtype=fp8,pages=9", 64).remove(0);
    assert_eq!(packed.buffer(BufferKey::main(Role::Index, 60)).unwrap().page_bytes, 8_448);
    // An index table for a layer that has none, and one that is left out, are named.
    let mut layout = decode[0].clone();
    let first = layout.buffers.iter().position(|buffer| buffer.key.role == Role::Index).unwrap();
    layout.buffers[first].key.layer = 3;
    assert!(layout.validate().unwrap_err().to_string().contains("layer 3 (index)"));
    let mut layout = decode[0].clone();
    layout.buffers.remove(first);
    let error = layout.validate().unwrap_err().to_string();
    assert!(
        error.contains("layer 57 (index)") && error.contains("20 index tables") && error.contains("21 layers"),
        "{error}"
    );
}

#[test]
fn b019_bytes_of_a_page_scale_with_the_heads_of_a_rank() {
    for (heads_, prefill, decode, ratio) in [(32, 4, 8, 2), (8, 2, 8, 4), (4, 4, 8, 1), (2, 4, 8, 1), (8, 8, 16, 1)] {
        let model = heads(1, heads_, 64, 64);
        let page = |tp: u32| {
            let layouts = side(&model, &format!("tp={tp}"), 16);
            assert!(layouts.iter().all(|layout| layout.validate().is_ok()));
            layouts[0].buffers[0].page_bytes
        };
        assert_eq!(page(prefill), ratio * page(decode), "{heads_} heads, tp {prefill} to {decode}");
        assert!(cluster(&model, &format!("tp={prefill}"), &format!("tp={decode}")).is_ok());
    }
    // Page bytes that do not follow from the heads of the rank: 8 heads on 2 ranks, with the page of 1 head of 8.
    let mut layouts = side(&heads(1, 8, 64, 64), "tp=2", 16);
    let decode = layouts.clone();
    let buffer = &mut layouts[0].buffers[0];
    (buffer.token_bytes, buffer.page_bytes, buffer.page_stride) = (128, 16 * 128, 16 * 128);
    buffer.groups[0].head_bytes = 32;
    let error = pair(&layouts[0], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "head_geometry");
    assert!(
        error.to_string().contains("128 bytes a token") && error.to_string().contains("512 bytes a token"),
        "{error}"
    );
    let buffer = &mut layouts[0].buffers[0];
    buffer.groups[0] = HeadGroup { heads: Heads { first: 0, count: 1, total: 8 }, head_bytes: 128 };
    let error = pair(&layouts[0], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "split");
    assert!(error.to_string().contains("heads 0..1 of 8") && error.to_string().contains("heads 0..4 of 8"), "{error}");
}

#[test]
fn b021_two_heads_of_one_rank_go_to_four_as_0_0_1_1() {
    let model = heads(1, 2, 64, 64);
    let (prefill, decode) = (side(&model, "tp=1", 1), side(&model, "tp=4", 1));
    let page = prefill[0].buffers[0].page_bytes;
    let reads = |rank: usize| {
        let moves = slices(&paired(&prefill[0], &decode[rank]), &[0], &[0]);
        of_key(&moves, BufferKey::main(Role::Key, 0))
    };
    let ends: Vec<u64> = (0..4).map(|rank| reads(rank)[0].0 + reads(rank)[0].2).collect();
    assert_eq!(ends, [page / 2, page / 2, page, page]);
    assert_eq!(reads(3), [(page / 2, 0, page / 2)]);
}

#[test]
fn b023_every_replica_of_a_head_gets_it() {
    let routes = cluster(&heads(1, 2, 8, 8), "tp=2", "tp=8").unwrap();
    for sender in 0..2 {
        let receivers: Vec<u32> = routes.receivers(Rank::new(0, sender)).map(|rank| rank.tp).collect();
        assert_eq!(receivers, (4 * sender..4 * sender + 4).collect::<Vec<_>>());
    }
    assert_eq!(routes.pairings().len(), 8);
}

#[test]
fn b025_half_a_million_pieces_are_planned_as_a_few_runs() {
    let model = heads(64, 8, 128, 128);
    let (prefill, decode) = (side(&model, "tp=2", 64), side(&model, "tp=1", 64));
    let (pairing, mut plan) = (paired(&prefill[1], &decode[0]), Plan::default());
    let pages: Vec<PageId> = (0..64).map(PageId).collect();
    pairing.plan(&pages, &pages, &mut plan).unwrap();
    assert_eq!((plan.slice_count(), plan.groups().len(), plan.runs(&plan.groups()[0]).len()), (524_288, 1, 1));
    assert!(plan.slices(&pairing).all(|slice| slice.len == 1_024));
}

#[test]
fn b033_a_receiver_hears_from_those_who_have_something_for_it() {
    // 16 prefill ranks, and 4 groups of 4 decode ranks: a quarter of the layers from each of four.
    let routes = cluster(&latents(8, 4), "tp=16", "tp=4,dp=4").unwrap();
    for dp in 0..4 {
        let senders: Vec<u32> = routes.senders(Rank::new(0, 1).with_dp(dp)).map(|rank| rank.tp).collect();
        assert_eq!(senders, [4, 5, 6, 7]);
    }
    assert!(routes.pairings().iter().all(|pairing| pairing.tables().len() == 2));
}

#[test]
fn b029_pages_of_keys_and_of_values_have_sizes_of_their_own() {
    let layouts = side(&heads(1, 4, 192, 128), "pp=1", 64);
    let bytes: Vec<u64> = layouts[0].buffers.iter().map(|buffer| buffer.page_bytes).collect();
    assert_eq!(bytes, [98_304, 65_536]);
    let moves = slices(&paired(&layouts[0], &layouts[0]), &[3], &[3]);
    assert_eq!(of_key(&moves, BufferKey::main(Role::Key, 0)), [(294_912, 294_912, 98_304)]);
    assert_eq!(of_key(&moves, BufferKey::main(Role::Value, 0)), [(196_608, 196_608, 65_536)]);
}

#[test]
fn b039_pages_of_16_and_of_128_tokens_hold_the_same() {
    let model = heads(1, 8, 128, 128);
    let moves = |order: &str| {
        let spec = |page: u32| format!("page={page},order={order}");
        let (prefill, decode) = (side(&model, &spec(16), 1), side(&model, &spec(128), 1));
        let (pairing, mut plan) = (paired(&prefill[0], &decode[0]), Plan::default());
        let (src, dst) = ([0, 2, 4, 6, 8, 10, 12], [0]);
        pairing.plan(Pages::from(PageId::list(&src)).tokens(0..100), PageId::list(&dst), &mut plan).unwrap();
        of_key(&plan.slices(&pairing).collect::<Vec<_>>(), BufferKey::main(Role::Key, 0))
    };
    let by_token = moves("nhd");
    assert_eq!(by_token.len(), 7);
    assert!(by_token.iter().enumerate().all(|(page, (_, dst, _))| *dst == page as u64 * 16 * 2_048));
    assert_eq!(by_token[6].2, 8_192);
    let by_head = moves("hnd");
    assert_eq!(by_head.len(), 56);
    for (head, of_head) in by_head.chunks(7).enumerate() {
        let places = of_head.iter().map(|(_, dst, _)| *dst).collect::<Vec<_>>();
        assert_eq!(places, (0..7).map(|page| head as u64 * 128 * 256 + page * 16 * 256).collect::<Vec<_>>());
    }
}

#[test]
fn b041_page_bytes_have_to_be_tokens_times_their_bytes() {
    let mut layout = side(&latents(1, 8), "pp=1", 16).remove(0);
    // Pages of 128 tokens in the kernel, of 16 in the layout.
    layout.buffers[0].page_bytes = 128 * 16;
    let error = layout.validate().unwrap_err();
    assert_eq!(error.to_string(), "layer 0 (latent): a page of 2048 bytes is not 16 tokens of 16 bytes");
}

#[test]
fn b043_the_number_of_pages_is_each_ranks_own() {
    let model = heads(2, 8, 8, 8);
    let pages = |spec: &str, rank: usize| side(&model, spec, 1).remove(rank);
    let (prefill, first) = (pages("tp=2,pages=120000", 0), pages("tp=2,pages=111680", 0));
    let (other, second) = (pages("tp=2,pages=120000", 1), pages("tp=2,pages=111488", 1));
    assert_eq!(slices(&paired(&prefill, &first), &[1], &[111_500]).len(), 4);
    let mut plan = Plan::default();
    let (src, dst) = ([1], [111_500]);
    let error = paired(&other, &second).plan(PageId::list(&src), PageId::list(&dst), &mut plan).unwrap_err();
    assert_eq!(error.kind(), "page_range");
    assert!(error.to_string().contains("111500") && error.to_string().contains("111488"), "{error}");
    assert_eq!(second.check_pages(PageId::list(&dst)), Err(error));
    assert_eq!(first.check_pages(PageId::list(&dst)), Ok(()));
}

#[test]
fn b045_lists_of_two_pages_and_of_none_are_refused() {
    let layout = side(&latents(1, 8), "pp=1", 64).remove(0);
    let (mut plan, src) = (Plan::default(), [1, 2]);
    let error = paired(&layout, &layout).plan(PageId::list(&src), &[], &mut plan).unwrap_err();
    assert_eq!(error, PlanError::PageCount { prefill: 2, decode: 0 });
    assert!(error.to_string().contains("lists 2 pages and decode 0"), "{error}");
}

#[test]
fn b047_a_request_that_decode_already_holds_is_an_empty_plan() {
    let (prefill, decode) = (side(&deepseek(), "pp=4", 64), side(&deepseek(), "pp=1", 64));
    let pairing = paired(&prefill[3], &decode[0]);
    let mut plan = Plan::default();
    pairing.plan(&[], &[], &mut plan).unwrap();
    assert!(plan.is_empty());
    assert_eq!((plan.bytes(), plan.slice_count(), plan.slices(&pairing).count()), (0, 0, 0));
    // Also after a plan that was not empty, and for layers that the sender does not have.
    let pages = [1];
    pairing.plan(PageId::list(&pages), PageId::list(&pages), &mut plan).unwrap();
    pairing.plan_layers(Some(0..45), PageId::list(&pages), PageId::list(&pages), &mut plan).unwrap();
    assert!(plan.is_empty() && plan.bytes() == 0);
}

#[test]
fn b051_elements_of_other_types_are_refused_with_both_sizes() {
    let model = heads(1, 8, 128, 128);
    // Pages of 16 tokens: 32,768 bytes in bf16, 16,384 in fp8.
    let error = refusal(&model, "pp=1", "dtype=fp8");
    assert_eq!(error.kind(), "dtype");
    for part in ["32768", "16384", "bf16", "fp8"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let layout = side(&model, "dtype=fp8,pages=1000", 16).remove(0);
    assert_eq!(slices(&paired(&layout, &layout), &[0], &[600])[0].dst_offset, 600 * 16_384);
}

#[test]
fn b053_the_order_of_heads_and_tokens_is_part_of_the_layout() {
    let model = heads(1, 4, 128, 128);
    let moves = |order: &str| {
        let (prefill, decode) =
            (side(&model, &format!("order={order}"), 2), side(&model, &format!("tp=2,order={order}"), 2));
        let moves = slices(&paired(&prefill[0], &decode[1]), &[0], &[0]);
        let of = of_key(&moves, BufferKey::main(Role::Key, 0));
        of.into_iter().map(|(src, _, len)| (src, len)).collect::<Vec<_>>()
    };
    assert_eq!(moves("nhd"), [(512, 512), (1_536, 512)]);
    assert_eq!(moves("hnd"), [(1_024, 1_024)]);
}

#[test]
fn b055_tokens_and_heads_that_were_swapped_are_told_apart() {
    let layout = |page_tokens: u32, count: u32| {
        let model = heads(1, count, 64, 64);
        let mut layout = CacheLayout::new(&model, Shard::new(Rank::new(0, 0), vec![1], 1), page_tokens, Dtype::Bf16);
        for role in [Role::Key, Role::Value] {
            let token_bytes = u64::from(count) * 128;
            let region = layout.add_region(10 * u64::from(page_tokens) * token_bytes);
            let buffer = Buffer::new(BufferKey::main(role, 0), region, 0, page_tokens, token_bytes, 10);
            layout.add_buffer(buffer.with_heads(Heads { first: 0, count, total: count }));
        }
        layout
    };
    let (prefill, mut decode) = (layout(16, 8), layout(8, 16));
    assert_eq!(prefill.buffers[0].page_bytes, decode.buffers[0].page_bytes);
    assert_eq!(pair(&prefill, &decode).unwrap_err().kind(), "model");
    // As one whose configuration says the same and whose view is swapped.
    decode.model = prefill.model.clone();
    let error = pair(&prefill, &decode).unwrap_err();
    assert_eq!(error.kind(), "head_geometry");
    for part in ["0..8 of 8", "0..16 of 16", "16 tokens a page", "8 tokens a page"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

/// That a logical block number does not become a page by accident is an example of [`PageId`] that must not compile.
#[test]
fn b057_a_page_is_a_number_below_the_tables_count() {
    let layout = side(&latents(1, 8), "pages=100", 64).remove(0);
    assert!(layout.check_pages(PageId::list(&[0, 99])).is_ok());
    for virtual_page in [100, 4_096, i32::MAX, -1] {
        let pages = [virtual_page];
        assert_eq!(layout.check_pages(PageId::list(&pages)).unwrap_err().kind(), "page_range");
    }
}

#[test]
fn b059_what_may_differ_is_no_mismatch_of_the_model() {
    let model = llama();
    assert!(cluster(&model, "tp=2", "tp=4").is_ok());
    assert!(cluster(&model, "page=16", "page=128").is_ok());
    assert!(cluster(&model, "pp=4,pages=7", "pp=1,pages=9").is_ok());
    // What has to be the same: the model, its number of layers.
    let (longer, other) = (heads(3, 8, 8, 8), heads(2, 8, 8, 8));
    let error = pair(&side(&longer, "pp=1", 16)[0], &side(&other, "pp=1", 16)[0]).unwrap_err();
    assert_eq!(error.kind(), "model");
    assert!(error.to_string().contains("with 3 layers") && error.to_string().contains("with 2 layers"), "{error}");
}

#[test]
fn b127_ranges_that_wrap_around_are_refused() {
    let layout = |offset: u64, region: u64, page_count: u32, token_bytes: u64| {
        let mut layout = CacheLayout::new(&latents(1, 8), Shard::new(Rank::new(0, 0), vec![1], 1), 1, Dtype::Bf16);
        let index = layout.add_region(region);
        layout.add_buffer(Buffer::new(BufferKey::main(Role::Latent, 0), index, offset, 1, token_bytes, page_count));
        layout.validate().map_err(|error| error.to_string())
    };
    // Ends exactly at the end of the region, and one byte behind it.
    assert_eq!(layout(0x1000, 0x2000, 16, 0x100), Ok(()));
    assert!(layout(0x1001, 0x2000, 16, 0x100).unwrap_err().contains("do not lie inside a region of 8192 bytes"));
    // Ends that do not fit 64 bits would wrap around to the start.
    assert!(layout(u64::MAX - 10, u64::MAX, 1, 100).unwrap_err().contains("do not lie inside"));
    assert!(layout(0, u64::MAX, u32::MAX, u64::MAX / 2).unwrap_err().contains("do not lie inside"));
    assert_eq!(layout(u64::MAX - 100, u64::MAX, 1, 100), Ok(()));
    // A length of zero is nothing that a cache has.
    assert!(layout(0, 10, 0, 10).unwrap_err().contains("must not be zero"));
    assert!(layout(0, 10, 1, 0).unwrap_err().contains("must not be zero"));
}

#[test]
fn b137_offsets_and_lengths_beyond_32_bits_are_exact() {
    // Pages of 1 MiB, up to 8 GiB a buffer, behind each other in one region.
    let model = latents(2, 1 << 15);
    let layout = side(&model, "pages=8192", 16).remove(0).packed(64).unwrap();
    let pairing = paired(&layout, &layout);
    assert_eq!(pairing.tables()[1].dst_base, 8 << 30);
    let src: Vec<i32> = (0..4096).collect();
    let dst: Vec<i32> = (4096..8192).collect();
    let moves = slices(&pairing, &src, &dst);
    assert_eq!(of_key(&moves, BufferKey::main(Role::Latent, 1)), [(0, 4 << 30, 4 << 30)]);
    let far = slices(&pairing, &[5121], &[5122]);
    assert_eq!(of_key(&far, BufferKey::main(Role::Latent, 0)), [(5121 << 20, 5122 << 20, 1 << 20)]);
    assert_eq!(layout.table_count(Part::Main, Role::Latent), 2);
}
