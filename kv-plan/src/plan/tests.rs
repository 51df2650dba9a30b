use super::*;
use crate::{Attention, BufferKey, CacheLayout, Dtype, LayerKind, ModelShape, PageId, Role, Side, pair};

fn layout(spec: &str) -> CacheLayout {
    let attention = Attention::Heads { kv_heads: 2, key_dim: 6, value_dim: 4 };
    let model = ModelShape::by_hand("small", attention, vec![LayerKind::Full; 3]).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, 8, Dtype::F32).unwrap().remove(0)
}

fn pairing() -> Pairing {
    pair(&layout("draft=1,pages=100"), &layout("draft=1,pages=300")).unwrap()
}

fn runs(src: &[i32], dst: &[i32]) -> Vec<(u64, u64, u64)> {
    let mut plan = Plan::default();
    pairing().plan(PageId::list(src), PageId::list(dst), &mut plan).unwrap();
    // The draft has the same.
    let group = plan.groups().first();
    group.iter().flat_map(|group| plan.runs(group)).map(|run| (run.src / 8, run.dst / 8, run.count / 8)).collect()
}

#[test]
fn neighbours_that_step_by_one_on_both_sides_are_one_run() {
    let (src, dst) = ([5, 6, 7, 12, 13, 20], [100, 101, 102, 103, 104, 200]);
    assert_eq!(runs(&src, &dst), [(5, 100, 3), (12, 103, 2), (20, 200, 1)]);
    assert_eq!(runs(&[0, 1, 2, 3], &[9, 10, 11, 12]), [(0, 9, 4)]);
    assert_eq!(runs(&[3, 2, 1], &[3, 2, 1]), [(3, 3, 1), (2, 2, 1), (1, 1, 1)]);
    assert_eq!(runs(&[1, 2], &[4, 3]), [(1, 4, 1), (2, 3, 1)]);
    assert_eq!(runs(&[4, 4], &[1, 2]), [(4, 1, 1), (4, 2, 1)]);
    assert_eq!(runs(&[], &[]), []);
}

#[test]
fn bytes_and_slices_are_those_of_all_tables() {
    let (pairing, mut plan) = (pairing(), Plan::default());
    assert_eq!(pairing.tables().len(), 8);
    assert_eq!(pairing.bytes_per_token(), 4 * 2 * (6 + 4) * 4);
    pairing.plan(PageId::list(&[1, 2, 9]), PageId::list(&[7, 8, 3]), &mut plan).unwrap();
    assert_eq!((plan.bytes(), plan.slice_count()), (3 * 8 * pairing.bytes_per_token(), 2 * 8));
    assert_eq!(plan.slices(&pairing).map(|slice| slice.len).sum::<u64>(), plan.bytes());
    let first = plan.slices(&pairing).next().unwrap();
    let (key_page, key) = (8 * 2 * 6 * 4, BufferKey::main(Role::Key, 0));
    assert_eq!(first, PlannedSlice { key, src_offset: key_page, dst_offset: 7 * key_page, len: 2 * key_page });
}

#[test]
fn layers_are_counted_through_the_draft() {
    let (pairing, mut plan) = (pairing(), Plan::default());
    // The main model's tables are one section, the draft's another.
    let of = |layers: Range<u32>| {
        let tables = pairing.sections().iter().flat_map(|section| pairing.tables_of(section, Some(&layers)));
        tables.collect::<Vec<_>>()
    };
    assert_eq!(of(0..3), Vec::from_iter(0..6));
    assert_eq!(of(1..2), [2, 3]);
    assert_eq!(of(3..4), [6, 7]);
    assert_eq!(of(2..u32::MAX), [4, 5, 6, 7]);
    assert!(of(4..9).is_empty() && of(Range { start: 3, end: 1 }).is_empty());
    let pages = PageId::list(&[1]);
    pairing.plan_layers(Some(1..2), pages, pages, &mut plan).unwrap();
    assert_eq!((plan.bytes(), plan.slice_count()), (8 * pairing.bytes_per_token() / 4, 2));
    pairing.plan_layers(Some(4..9), pages, pages, &mut plan).unwrap();
    assert!(plan.is_empty() && plan.bytes() == 0);
}

#[test]
fn a_plan_that_failed_is_empty() {
    let (pairing, mut plan) = (pairing(), Plan::default());
    let good = PageId::list(&[1, 2]);
    for (src, dst) in [([1, 100], [1, 2]), ([1, 2], [1, 300]), ([1, 2], [3, 3]), ([-1, 2], [3, 4])] {
        pairing.plan(good, good, &mut plan).unwrap();
        pairing.plan(PageId::list(&src), PageId::list(&dst), &mut plan).unwrap_err();
        assert!(plan.is_empty() && plan.bytes() == 0 && plan.slices(&pairing).next().is_none());
    }
}

#[test]
fn sizes_near_the_end_of_64_bits_are_an_error() {
    // Two tables of one page each that together have more bytes than 64 bits count.
    let mut huge = layout("pp=3");
    for (buffer, region) in huge.buffers.iter_mut().zip(&mut huge.regions) {
        let token_bytes = u64::MAX / 8 / 2 * 2;
        (buffer.token_bytes, buffer.page_bytes, buffer.page_count) = (token_bytes, token_bytes * 8, 1);
        (buffer.page_stride, buffer.groups[0].head_bytes) = (token_bytes * 8, token_bytes / 2);
        *region = token_bytes * 8;
    }
    huge.validate().unwrap();
    let error = pair(&huge, &huge).unwrap_err();
    assert_eq!(error.kind(), "config");
    assert_eq!(
        error.to_string(),
        "a page of all that prefill pp0.tp0 sends to decode pp0.tp0 has more than 2^64 bytes"
    );
    // One table.
    huge.model = ModelShape::by_hand("small", Attention::Latent { dim: 1 }, vec![LayerKind::Full; 3]).unwrap();
    huge.buffers.truncate(1);
    (huge.buffers[0].key.role, huge.buffers[0].groups) = (Role::Latent, Vec::new());
    let pairing = pair(&huge, &huge).unwrap();
    let mut plan = Plan::default();
    pairing.plan(PageId::list(&[0]), PageId::list(&[0]), &mut plan).unwrap();
    assert_eq!(plan.bytes(), u64::MAX / 8 / 2 * 2 * 8);
}
