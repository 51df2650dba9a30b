use crate::*;

fn explained(prefill: &str, decode: &str) -> String {
    let attention = Attention::Heads { kv_heads: 4, key_dim: 8, value_dim: 4 };
    let model = ModelShape::by_hand("small", attention, vec![LayerKind::Full; 6]).unwrap();
    let rank = |spec: &str| spec.parse::<Side>().unwrap().layouts(&model, 16, Dtype::Bf16).unwrap().remove(0);
    let text = explain(&rank(prefill), &rank(decode)).to_string();
    // The fingerprint is tested elsewhere.
    let fingerprint = format!("{:016x}", model.fingerprint());
    text.replace(&fingerprint, "…").replace(" \n", "\n")
}

#[test]
fn what_is_planned_is_marked_and_said_to_fit() {
    let text = explained("pp=2,tp=4", "tp=2,page=32,order=hnd");
    let marked: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("~ ")).collect();
    let what: Vec<String> = marked.iter().map(|line| line.split("  ").next().unwrap_or_default().to_owned()).collect();
    assert_eq!(
        what,
        [
            "layers",
            "tensor ranks",
            "order of heads and tokens",
            "pages of the pool full",
            "key tables of this rank",
            "value tables of this rank"
        ]
    );
    assert!(text.contains("3: heads 0..1 of 4, 16 bytes a token, 256 a page"), "{text}");
    assert!(text.ends_with("they fit; what is marked with ~ differs, and is planned"), "{text}");
}

#[test]
fn what_does_not_fit_is_marked_and_comes_with_its_error() {
    let text = explained("pp=2", "layers=5,dtype=fp8");
    let marked: Vec<&str> = text.lines().filter(|line| line.starts_with("! ")).collect();
    assert_eq!(marked.len(), 4, "{text}");
    for (line, what) in marked.iter().zip(["layers", "element type", "key tables", "value tables"]) {
        assert!(line.starts_with(&format!("! {what}")), "{text}");
    }
    assert!(
        text.lines().last().unwrap_or_default().starts_with("they do not fit (dtype): the element types differ"),
        "{text}"
    );
    assert!(explained("tp=2", "tp=2").ends_with("they fit, and nothing differs"));
}

#[test]
fn long_names_and_many_stages_are_cut() {
    let model = ModelShape::by_hand("m".repeat(200), Attention::Latent { dim: 4 }, vec![LayerKind::Full; 512]).unwrap();
    let side = Side { pp: 512, ..Side::default() };
    let layouts = side.layouts(&model, 16, Dtype::Bf16).unwrap();
    let text = explain(&layouts[0], &layouts[511]).to_string();
    assert!(text.lines().all(|line| line.chars().count() < 250), "{text}");
}
