use super::*;
use crate::{Attention, Heads, LayerKind, Part, Role};

fn model(kv_heads: u32) -> ModelShape {
    let attention = Attention::Heads { kv_heads, key_dim: 128, value_dim: 64 };
    ModelShape::by_hand("small", attention, vec![LayerKind::Full; 6]).unwrap()
}

fn layouts(spec: &str) -> Result<Vec<CacheLayout>, Mismatch> {
    spec.parse::<Side>()?.layouts(&model(8), 16, Dtype::Bf16)
}

#[track_caller]
fn refused(spec: &str, kind: &str, message: &str) {
    let error = layouts(spec).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, message));
}

#[test]
fn a_specification_is_read_and_written() {
    let side: Side = "pp=2, tp=4,layers=2+4,draft=1,order=hnd,page=32,dtype=fp8,pages=7".parse().unwrap();
    assert_eq!((side.pp, side.tp, side.layers.as_deref(), side.draft), (2, 4, Some([2, 4].as_slice()), 1));
    assert_eq!(
        (side.order, side.page_tokens, side.dtype, side.pages),
        (Order::HeadMajor, Some(32), Some(Dtype::Fp8), 7)
    );
    assert_eq!(side.to_string().parse::<Side>().unwrap(), side);
    assert_eq!("".parse::<Side>().unwrap(), Side::default());
    assert_eq!(Side::default().to_string(), "pp=1,tp=1,order=nhd,pages=65536");
    assert_eq!("layers=2+4".parse::<Side>().unwrap().pp, 2);
}

#[test]
fn a_specification_that_cannot_be_read() {
    refused("pp", "config", r#""pp": "pp" is not key=value"#);
    refused("pp=0", "config", r#""pp=0": pp=0 is not a number from 1 up"#);
    refused("pp=-1", "config", r#""pp=-1": pp=-1 is not a number from 1 up"#);
    refused("tp=2,tp=2", "config", r#""tp=2,tp=2": tp is given twice"#);
    refused("layers=2+x", "config", r#""layers=2+x": layers=2+x is not like 15+15+15+16"#);
    refused("order=dhn", "config", r#""order=dhn": order=dhn: "dhn" is not one of nhd, hnd"#);
    refused(
        "ep=2",
        "config",
        r#""ep=2": ep is not known; known are pp, tp, cp, dp, layers, draft, order, page, window_page, draft_page, dtype, pages, slots"#,
    );
}

#[test]
fn layers_that_are_not_given_are_split_with_the_remainder_at_the_end() {
    let stages = |layers: u32, pp: u32| Side { pp, ..Side::default() }.stages(layers);
    assert_eq!(stages(61, 4), [15, 15, 15, 16]);
    assert_eq!(stages(80, 3), [26, 27, 27]);
    assert_eq!(stages(94, 4), [23, 23, 24, 24]);
    assert_eq!(stages(5, 1), [5]);
}

#[test]
fn a_side_that_contradicts_itself() {
    let end = "order=nhd,pages=65536";
    refused(
        "pp=3,layers=3+3",
        "config",
        &format!("pp=3,tp=1,layers=3+3,{end}: layers gives 2 stages, but pp=3; give as many layer counts as stages"),
    );
    refused(
        "pp=7",
        "config",
        &format!("pp=7,tp=1,{end}: stage 0 has no layers; give each stage one at least, or use fewer stages"),
    );
    refused(
        "tp=3",
        "split",
        &format!(
            "pp=1,tp=3,{end}: 8 key-value heads do not divide by tp=3; choose a tp that divides the heads, or is a multiple of them"
        ),
    );
}

#[test]
fn numbers_without_bound_take_no_memory() {
    let end = "order=nhd,pages=65536";
    refused(
        "pp=4294967295,tp=4294967295",
        "config",
        &format!(
            "pp=4294967295,tp=4294967295,{end}: 4294967295 stages of 4294967295 ranks are not possible; a side has up to 512 stages and 4096 ranks"
        ),
    );
    refused(
        "layers=4294967295",
        "config",
        &format!(
            "pp=1,tp=1,layers=4294967295,{end}: 4294967295 layers and 8589934590 buffers on all ranks are more than the limits of 4096 and 262144"
        ),
    );
    assert_eq!(layouts("pages=4294967295,page=4294967295").unwrap_err().kind(), "config");
    let attention = Attention::Heads { kv_heads: u32::MAX, key_dim: u32::MAX, value_dim: 1 };
    let huge = ModelShape::by_hand("huge", attention, vec![LayerKind::Full]).unwrap();
    let error = Side::default().layouts(&huge, 1, Dtype::F32).unwrap_err();
    assert_eq!(error.kind(), "config");
    assert!(error.to_string().ends_with("the heads of a token of layer 0 (key) do not fit 64 bits"), "{error}");
}

#[test]
fn every_rank_has_its_layers_and_heads() {
    let layouts = layouts("pp=2,tp=4,draft=1,pages=3").unwrap();
    let ranks: Vec<String> = layouts.iter().map(|layout| layout.rank().to_string()).collect();
    assert_eq!(ranks[..5], ["pp0.tp0", "pp0.tp1", "pp0.tp2", "pp0.tp3", "pp1.tp0"]);
    for layout in &layouts {
        layout.validate().unwrap();
        let last = layout.rank().pp == 1;
        assert_eq!(layout.table_count(Part::Main, Role::Key), 3);
        assert_eq!(layout.table_count(Part::Draft, Role::Value), usize::from(last));
        for buffer in &layout.buffers {
            let dim = if buffer.key.role == Role::Key { 128 } else { 64 };
            assert_eq!(buffer.token_bytes, 2 * dim * 2);
            assert_eq!(buffer.heads(), Some(Heads { first: layout.rank().tp * 2, count: 2, total: 8 }));
            assert_eq!(layout.region_len(buffer.region), Some(3 * 16 * buffer.token_bytes));
        }
    }
}
