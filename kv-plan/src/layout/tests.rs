use super::*;
use crate::{Attention, Heads, LayerKind, PageId, Side};

fn model() -> ModelShape {
    let attention = Attention::Heads { kv_heads: 2, key_dim: 3, value_dim: 2 };
    ModelShape::by_hand("small", attention, vec![LayerKind::Full; 4]).unwrap()
}

fn layout(spec: &str) -> CacheLayout {
    spec.parse::<Side>().unwrap().layouts(&model(), 4, Dtype::Bf16).unwrap().pop().unwrap()
}

#[test]
fn packed_buffers_follow_each_other_in_one_region() {
    let packed = layout("pages=3").packed(64).unwrap();
    packed.validate().unwrap();
    // Keys have 3 pages of 48 bytes, values of 32.
    let offsets: Vec<u64> = packed.buffers.iter().map(|buffer| buffer.offset).collect();
    assert_eq!(offsets, [0, 192, 384, 576, 768, 896, 1024, 1152]);
    assert_eq!(packed.region_lens(), [1152 + 96]);
    let tight = layout("pages=3").packed(0).unwrap();
    assert_eq!(tight.region_lens(), [4 * (144 + 96)]);
}

#[test]
fn packing_what_does_not_fit_is_an_error() {
    let mut layout = layout("pages=1");
    for buffer in &mut layout.buffers {
        buffer.page_bytes = u64::MAX / 2;
    }
    let error = layout.clone().packed(1).unwrap_err();
    assert_eq!(error.to_string(), "layer 2 (key) ends beyond 2^64 bytes");
    assert!(layout.packed(u64::MAX).is_err());
}

#[test]
fn a_layout_goes_through_json() {
    let layout = layout("pp=2,tp=2,draft=1,order=hnd,pages=7");
    let json = serde_json::to_string(&layout).unwrap();
    assert_eq!(serde_json::from_str::<CacheLayout>(&json).unwrap(), layout);
    assert!(json.contains(r#""key":{"part":"main","layer":2,"role":"key"}"#), "{json}");
}

#[test]
fn stages_say_which_layers_are_whose() {
    let shard = Shard::new(Rank::new(1, 0), vec![3, 2, 4], 1).with_draft_layers(2);
    assert_eq!([0, 1, 2, 3].map(|stage| shard.stage_layers(stage)), [0..3, 3..5, 5..9, 9..9]);
    assert_eq!([0, 2, 3, 8, 9].map(|layer| shard.stage_of(layer)), [Some(0), Some(0), Some(1), Some(2), None]);
    assert_eq!((shard.total_layers(), shard.stage_count()), (9, 3));
    assert_eq!([0, 1, 2, 3].map(|stage| shard.draft_layers_of(stage)), [0..0, 0..0, 0..2, 0..0]);
    assert_eq!((shard.own_layers(Part::Main), shard.own_layers(Part::Draft)), (3..5, 0..0));
    // Numbers of a hostile peer neither wrap nor panic.
    let hostile = Shard::new(Rank::new(u32::MAX, 0), vec![u32::MAX; 3], 1);
    assert_eq!(hostile.total_layers(), u32::MAX);
    assert_eq!(hostile.own_layers(Part::Main), u32::MAX..u32::MAX);
    assert_eq!(hostile.draft_layers_of(u32::MAX), 0..0);
}

#[test]
fn heads_of_ranks() {
    let heads = |total, tp| (0..tp).map(|rank| Heads::of_rank(total, tp, rank).first).collect::<Vec<_>>();
    assert_eq!(heads(8, 4), [0, 2, 4, 6]);
    // With more ranks than heads, neighbours hold the same one.
    assert_eq!(heads(2, 4), [0, 0, 1, 1]);
    assert_eq!(Heads::of_rank(2, 4, 3).to_string(), "heads 1..2 of 2");
    assert_eq!(Heads::of_rank(8, 4, 1), Heads { first: 2, count: 2, total: 8 });
}

#[test]
fn page_lists_of_a_receiver_are_checked() {
    let mut layout = layout("pages=10");
    layout.buffers[3].page_count = 8;
    assert_eq!(layout.page_count(Pool::FULL), 8);
    assert_eq!(layout.check_pages(PageId::list(&[7, 0, 3])), Ok(()));
    assert_eq!(layout.check_pages(PageId::list(&[3, 3])).unwrap_err().kind(), "duplicate_page");
    let error = layout.check_pages(PageId::list(&[0, 8])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "page 8 of decode pp0.tp0 (place 1 in its list) is out of range: its buffer for layer 3 (key) has 8 pages"
    );
}
