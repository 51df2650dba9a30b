//! The known ways in which a transfer corrupts a cache without an error, each a test: those that planning decides.
//!
//! | way | where it is decided |
//! |---|---|
//! | different tensor splits; convolution states; sliding windows with pools of their own | not planned yet, and refused by name: below |
//! | auxiliary items of another size, aborts, late successes, restarted peers, sending too early | not by planning |

use kv_plan::{
    BufferKey, Heads, LayoutError, Mismatch, PageId, PageList, Part, Plan, PlanError, Pool, Role, coverage, pair,
};

use crate::common::{cluster, deepseek, heads, latents, llama, model, of_key, paired, refusal, side, slices};

/// Way 1, a receiver that holds only its own stage: prefill stage 2 of 4 is in the second half of decode.
#[test]
fn pairing_is_by_key_where_the_receiver_holds_only_its_own_stage() {
    let (prefill, decode) = (side(&deepseek(), "pp=4", 64), side(&deepseek(), "pp=2", 64));
    let pairing = paired(&prefill[2], &decode[1]);
    let layers: Vec<u32> = pairing.tables().iter().map(|table| table.key.layer).collect();
    assert_eq!(layers, (30..45).collect::<Vec<_>>());
    // By place in the list, layer 30 of decode's second stage (layers 30 to 60) is its first table, not its thirtieth.
    assert_eq!(pairing.tables()[0].dst_region, 0);
    assert!(paired(&prefill[0], &decode[1]).tables().is_empty());
}

/// Way 1, lists in an order of their own: what a buffer is decides, not where it stands.
#[test]
fn pairing_is_by_key_whatever_the_order_of_the_lists() {
    let (prefill, mut decode) = (side(&llama(), "pp=3", 16), side(&llama(), "pp=1", 16));
    let straight = paired(&prefill[1], &decode[0]);
    decode[0].buffers.reverse();
    assert_eq!(paired(&prefill[1], &decode[0]).tables(), straight.tables());
}

/// Way 1, with a draft at the end of the list: it neither takes part nor shifts anything.
#[test]
fn a_draft_at_the_end_of_the_list_shifts_nothing() {
    let prefill = side(&llama(), "pp=3", 16);
    let (plain, draft) = (side(&llama(), "pp=1", 16), side(&llama(), "pp=1,draft=2", 16));
    let places = |decode| -> Vec<_> {
        let pairing = paired(&prefill[2], decode);
        pairing.tables().iter().map(|table| (table.key, decode.buffers[table.dst_region as usize].key)).collect()
    };
    assert_eq!(places(&plain[0]), places(&draft[0]));
    assert!(places(&draft[0]).iter().all(|(src, dst)| src == dst && src.part == Part::Main));
}

/// Way 2: 80 layers in stages of 26, 27 and 27 with one draft layer at decode. Guessed from lengths, values land at 78, 107 and
/// 134; the right tables are 80, 106 and 133.
#[test]
fn a_draft_is_declared_and_never_guessed_from_lengths() {
    let (prefill, decode) = (side(&llama(), "pp=3", 16), side(&llama(), "pp=1,draft=1", 16));
    let first_value = |stage: usize| {
        let pairing = paired(&prefill[stage], &decode[0]);
        pairing.tables().iter().find(|table| table.key.role == Role::Value).unwrap().dst_region
    };
    assert_eq!([0, 1, 2].map(first_value), [80, 106, 133]);
}

/// Way 3: sliding and full layers that alternate: stage 1's nine layers are 9 to 17, full ones among them the odd ones, each in its own
/// pool, whatever their place in a list.
#[test]
fn hybrid_attention_under_pipeline_stages_pairs_by_layer() {
    let model = model("gpt-oss-120b");
    let (prefill, decode) = (side(&model, "pp=4", 64), side(&model, "pp=1", 64));
    let pairing = paired(&prefill[1], &decode[0]);
    let layers = |pool: Pool| -> Vec<u32> {
        let sections = pairing.sections().iter().filter(|section| section.pool == pool);
        let tables = sections.flat_map(|section| &pairing.tables()[section.tables.clone()]);
        tables.filter(|table| table.key.role == Role::Key).map(|table| table.key.layer).collect()
    };
    assert_eq!(layers(Pool::FULL), [9, 11, 13, 15, 17]);
    assert_eq!(layers(Pool::WINDOW), [10, 12, 14, 16]);
    // In decode's list of 18 full layers those are the fifth to the ninth.
    let full: Vec<u32> = (0..36).filter(|layer| layer % 2 == 1).collect();
    assert_eq!(layers(Pool::FULL).iter().map(|l| full.binary_search(l).unwrap()).collect::<Vec<_>>(), [4, 5, 6, 7, 8]);
}

/// Way 4: a stage that registers a layer of another stage.
#[test]
fn a_layer_that_the_stage_does_not_own_is_refused() {
    let (mut prefill, decode) = (side(&deepseek(), "pp=4", 64), side(&deepseek(), "pp=1", 64));
    prefill[1].buffers[0].key.layer = 14;
    let error = pair(&prefill[1], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "duplicate_layer");
    assert!(error.to_string().contains("pp1.tp0 has a buffer for layer 14 (latent)"), "{error}");
}

/// Way 4: two senders that claim the same layer.
#[test]
fn two_claims_of_a_layer_are_refused() {
    let (prefill, decode) = (side(&deepseek(), "pp=4", 64), side(&deepseek(), "pp=1", 64));
    let [a, b, c, d] = prefill.as_slice() else { panic!("four stages") };
    // Another side's stage, with other layers, among them 14 of our first stage.
    let other = side(&deepseek(), "pp=4,layers=14+15+16+16", 64);
    let error = coverage(&[a, &other[1], b, c, d], &decode[0]).unwrap_err();
    let Mismatch::DuplicateLayer { key, first, second, .. } = &error else { panic!("{error}") };
    assert_eq!((*key, first.pp, second.pp), (BufferKey::main(Role::Latent, 14), 0, 1));
    let error = coverage(&[a, b, b, c, d], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "duplicate_layer");
}

/// Way 4: twice in one list.
#[test]
fn a_key_twice_in_one_layout_is_refused() {
    let mut layout = side(&latents(2, 4), "pp=1", 4).remove(0);
    layout.buffers[1].key.layer = 0;
    let rank = layout.rank();
    let key = BufferKey::main(Role::Latent, 0);
    assert_eq!(layout.validate(), Err(LayoutError::DuplicateBuffer { key, rank }));
}

/// Way 5: 2 heads on 4 ranks are 0, 0, 1, 1; equal splits send rank to rank.
#[test]
fn replicated_heads_are_neighbours() {
    let model = heads(1, 2, 8, 8);
    let ranks = side(&model, "tp=4", 4);
    let of = |rank: usize| ranks[rank].buffers[0].heads().unwrap();
    assert_eq!([0, 1, 2, 3].map(|rank| of(rank).first), [0, 0, 1, 1]);
    assert_eq!(of(3), Heads { first: 1, count: 1, total: 2 });
    let routes = cluster(&model, "tp=4", "tp=4").unwrap();
    assert!(routes.pairings().iter().all(|pairing| pairing.prefill_rank() == pairing.decode_rank()));
    assert_eq!(routes.pairings().len(), 4);
    // From 1 rank to 4: heads 0, 0, 1, 1.
    let (one, four) = (side(&model, "tp=1", 4), side(&model, "tp=4", 4));
    let first = |rank: usize| paired(&one[0], &four[rank]).tables()[0].heads.unwrap().first;
    assert_eq!([0, 1, 2, 3].map(first), [0, 0, 1, 1]);
}

/// Way 6: the groups of a convolution state are divided one by one: 2,048, 2,048 and 4,096 channels of 6 bytes.
#[test]
fn convolution_states_move_group_by_group() {
    let model = model("qwen3-next-80b");
    let (prefill, decode) = (side(&model, "tp=1", 64), side(&model, "tp=2", 64));
    let conv = BufferKey::main(Role::Conv, 0);
    assert_eq!(prefill[0].buffer(conv).unwrap().token_bytes, 49_152);
    assert_eq!(prefill[0].buffer(BufferKey::main(Role::Recurrent, 0)).unwrap().token_bytes, 2_097_152);
    let (pairing, mut plan) = (paired(&prefill[0], &decode[1]), Plan::default());
    let (from, to) = ([3], [5]);
    let src = [PageList::new(Pool::STATE, PageId::list(&from))];
    let dst = [PageList::new(Pool::STATE, PageId::list(&to))];
    pairing.plan(&src[..], &dst[..], &mut plan).unwrap();
    let moves = of_key(&plan.slices(&pairing).collect::<Vec<_>>(), conv);
    let (there, here) = (3 * 49_152, 5 * 24_576);
    // The second half of each group.
    let expected = [(6_144, 0, 6_144), (18_432, 6_144, 6_144), (36_864, 12_288, 12_288)];
    assert_eq!(moves, expected.map(|(src, dst, len)| (there + src, here + dst, len)));
}

/// Way 7: keys of 192 elements and values of 128 have pages of their own sizes.
#[test]
fn key_page_bytes_are_not_used_for_values() {
    let model = heads(2, 4, 192, 128);
    let (prefill, decode) = (side(&model, "pp=2", 64), side(&model, "pp=1", 64));
    let slices = slices(&paired(&prefill[1], &decode[0]), &[3, 4], &[7, 8]);
    assert_eq!(of_key(&slices, BufferKey::main(Role::Key, 1)), [(3 * 98_304, 7 * 98_304, 2 * 98_304)]);
    assert_eq!(of_key(&slices, BufferKey::main(Role::Value, 1)), [(3 * 65_536, 7 * 65_536, 2 * 65_536)]);
}

/// Way 7, head sizes that differ between the sides.
#[test]
fn head_sizes_that_differ_are_refused() {
    // As one whose fingerprint does not say so: the bytes themselves are compared.
    let (mut prefill, decode) = (side(&heads(1, 4, 128, 128), "pp=1", 16), side(&heads(1, 4, 192, 128), "pp=1", 16));
    prefill[0].model = decode[0].model.clone();
    let error = pair(&prefill[0], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "head_geometry");
    assert!(error.to_string().contains("1024") && error.to_string().contains("1536"), "{error}");
}

/// Way 8: packed latents of 656 bytes a token against plain ones of 576: never with the sender's page bytes at the receiver.
#[test]
fn token_bytes_that_differ_are_refused() {
    let (prefill, mut decode) = (side(&latents(1, 288), "pp=1", 64), side(&latents(1, 288), "pp=1", 64));
    let buffer = &mut decode[0].buffers[0];
    (buffer.token_bytes, buffer.page_bytes, buffer.page_stride) = (656, 64 * 656, 64 * 656);
    decode[0].regions[0] = 64 * 656 * 65_536;
    let error = pair(&prefill[0], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "head_geometry");
    assert!(error.to_string().contains("576 bytes") && error.to_string().contains("656 bytes"), "{error}");
    assert_eq!(refusal(&deepseek(), "pp=1", "dtype=fp8").kind(), "dtype");
}

/// Way 9: lists of different lengths, in both directions, and a longer list is not cut.
#[test]
fn lists_of_different_lengths_are_refused_and_never_cut() {
    let layouts = side(&latents(1, 4), "pp=1", 4);
    let pairing = paired(&layouts[0], &layouts[0]);
    let mut plan = Plan::default();
    for (src, dst) in [(&[1, 2, 3][..], &[1, 2][..]), (&[1, 2], &[1, 2, 3]), (&[1, 2], &[]), (&[], &[1])] {
        let error = pairing.plan(PageId::list(src), PageId::list(dst), &mut plan).unwrap_err();
        assert_eq!(error, PlanError::PageCount { prefill: src.len(), decode: dst.len() });
        assert!(plan.is_empty() && plan.bytes() == 0, "a refused plan moves nothing");
    }
}

/// Way 10: pages that do not exist, absent pages, and one page twice at the receiver.
#[test]
fn pages_out_of_range_absent_or_twice_are_refused() {
    let (prefill, decode) = (side(&latents(1, 4), "pages=10", 4), side(&latents(1, 4), "pages=8", 4));
    let pairing = paired(&prefill[0], &decode[0]);
    let mut plan = Plan::default();
    let mut kind = |src: &[i32], dst: &[i32]| {
        let planned = pairing.plan(PageId::list(src), PageId::list(dst), &mut plan);
        assert_eq!(planned.is_err(), plan.is_empty());
        planned.map_or_else(|error| error.kind(), |()| "fits")
    };
    assert_eq!(kind(&[9], &[7]), "fits");
    assert_eq!(kind(&[10], &[7]), "page_range");
    assert_eq!(kind(&[9], &[8]), "page_range");
    assert_eq!(kind(&[-1], &[0]), "page_range");
    assert_eq!(kind(&[0], &[-1]), "page_range");
    assert_eq!(kind(&[i32::MIN], &[i32::MAX]), "page_range");
    assert_eq!(kind(&[1, 2], &[7, 7]), "duplicate_page");
    assert_eq!(kind(&[1, 2, 3], &[7, 6, 7]), "duplicate_page");
    // Twice on the sending side is a prefix that two parts of a request share: nothing is overwritten.
    assert_eq!(kind(&[1, 1], &[6, 7]), "fits");
    assert_eq!(kind(&[1], &[7]), "fits");
}

/// Way 11: splits of which neither divides the other, where the heads divide by both: every rank is read.
#[test]
fn splits_that_do_not_divide_each_other_leave_no_rank_out() {
    let routes = cluster(&heads(1, 6, 8, 8), "tp=3", "tp=2").unwrap();
    let who: Vec<String> =
        routes.pairings().iter().map(|p| format!("{}>{}", p.prefill_rank().tp, p.decode_rank().tp)).collect();
    assert_eq!(who, ["0>0", "1>0", "1>1", "2>1"]);
    // Heads that do not divide by the ranks are refused, by what they are.
    let error = refusal(&llama(), "tp=3", "tp=2");
    assert_eq!(error.kind(), "split");
    assert!(error.to_string().contains("8 key-value heads do not divide by tp=3"), "{error}");
}

/// Way 12: token-major against head-major: each head of each token goes to its place.
#[test]
fn different_orders_move_head_by_head() {
    let model = heads(1, 2, 4, 4);
    let (by_token, by_head) = (side(&model, "pp=1", 3), side(&model, "order=hnd", 3));
    let moves = of_key(&slices(&paired(&by_token[0], &by_head[0]), &[0], &[0]), BufferKey::main(Role::Key, 0));
    // 3 tokens of 2 heads of 8 bytes: the heads of a token are neighbours on one side, the tokens of a head on the other.
    assert_eq!(moves, [(0, 0, 8), (16, 8, 8), (32, 16, 8), (8, 24, 8), (24, 32, 8), (40, 40, 8)]);
    assert!(cluster(&llama(), "order=hnd", "pp=2").is_ok());
}

/// Way 18: a receiver with more layers than all senders together.
#[test]
fn layers_that_nobody_writes_are_refused() {
    let error = refusal(&deepseek(), "pp=4,layers=15+15+15+15", "pp=1");
    assert_eq!(error.kind(), "uncovered_layer");
    assert!(error.to_string().starts_with("layer 60 (latent) of decode pp0.tp0 is never written"), "{error}");
    // Also where the sides agree and a rank is not there.
    let (prefill, decode) = (side(&deepseek(), "pp=4", 64), side(&deepseek(), "pp=1", 64));
    let error = coverage(&[&prefill[0], &prefill[1], &prefill[3]], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "uncovered_layer");
    assert!(error.to_string().starts_with("layer 30 (latent)"), "{error}");
    assert_eq!(coverage(&[], &decode[0]).unwrap_err().kind(), "uncovered_layer");
}
