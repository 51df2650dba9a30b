use super::*;
use crate::Rank;

#[test]
fn ranks_are_written_and_read() {
    let rank = Rank::new(3, 12);
    assert_eq!(rank.to_string(), "pp3.tp12");
    assert_eq!("pp3.tp12".parse(), Ok(rank));
    let rank = rank.with_cp(2).with_dp(1);
    assert_eq!((rank.to_string(), "pp3.tp12.cp2.dp1".parse()), ("pp3.tp12.cp2.dp1".into(), Ok(rank)));
    assert_eq!("pp0.tp1.dp4".parse(), Ok(Rank::new(0, 1).with_dp(4)));
    for wrong in [
        "",
        "pp3",
        "pp3.tp",
        "tp3.pp0",
        "pp3.tp0.xx0",
        "pp3.tp0.dp1.cp1",
        "pp3.tp0.cp",
        "pp3.tp0.cp1.dp1.ep0",
        "pp+3.tp0",
        "pp 3.tp0",
        "pp4294967296.tp0",
        "3.0",
    ] {
        let error = wrong.parse::<Rank>().unwrap_err().to_string();
        assert!(error.contains(&format!("{wrong:?}")) && error.contains("pp3.tp0"), "{error}");
    }
}

#[test]
fn ranks_sort_by_stage_and_then_by_tensor_rank() {
    let mut ranks = [(1, 0), (0, 1), (0, 0)].map(|(pp, tp)| Rank::new(pp, tp));
    ranks.sort();
    assert_eq!(ranks.map(|rank| rank.to_string()), ["pp0.tp0", "pp0.tp1", "pp1.tp0"]);
}

#[test]
fn keys_are_ordered_by_part_layer_and_role() {
    let mut keys = [
        BufferKey::draft(Role::Key, 0),
        BufferKey::main(Role::Key, 1),
        BufferKey::main(Role::Value, 0),
        BufferKey::main(Role::Key, 0),
    ];
    keys.sort();
    let names = keys.map(|key| key.to_string());
    assert_eq!(names, ["layer 0 (key)", "layer 0 (value)", "layer 1 (key)", "draft layer 0 (key)"]);
}

#[test]
fn types_and_orders_go_by_their_usual_names() {
    for (name, dtype, bytes) in [
        ("bf16", Dtype::Bf16, 2),
        ("bfloat16", Dtype::Bf16, 2),
        ("float16", Dtype::F16, 2),
        ("float32", Dtype::F32, 4),
        ("fp8", Dtype::Fp8, 1),
        ("float8_e4m3fn", Dtype::Fp8, 1),
    ] {
        assert_eq!((name.parse(), dtype.bytes()), (Ok(dtype), bytes));
    }
    assert_eq!("hnd".parse(), Ok(Order::HeadMajor));
    assert_eq!("int4".parse::<Dtype>().unwrap_err().to_string(), r#""int4" is not one of bf16, f16, f32, fp8"#);
    assert_eq!("dhn".parse::<Order>().unwrap_err().to_string(), r#""dhn" is not one of nhd, hnd"#);
}

#[test]
fn names_are_the_same_in_json() {
    assert_eq!(json(Part::Draft), r#""draft""#);
    for role in [Role::Key, Role::Value, Role::Latent, Role::Index, Role::Conv, Role::Recurrent] {
        assert_eq!(json(role), format!(r#""{role}""#));
    }
    assert_eq!(json(Order::HeadMajor), r#""hnd""#);
    assert_eq!(json(Dtype::Fp8), r#""fp8""#);
}

fn json(value: impl Serialize) -> String {
    serde_json::to_string(&value).unwrap()
}

#[test]
fn page_lists_are_views_of_plain_numbers() {
    let numbers = [3, -1];
    assert_eq!(PageId::list(&numbers), [PageId(3), PageId(-1)]);
    assert_eq!(PageId(-1).to_string(), "-1");
}
