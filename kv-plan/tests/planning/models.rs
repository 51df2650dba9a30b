//! The model files: what is read from them, and what is refused by name.

use kv_plan::{Attention, Dtype, LayerKind, ModelShape, Pool, Role};

use crate::common::{MODELS, model, side};

#[test]
fn every_file_is_read() {
    let shapes: Vec<_> = MODELS
        .iter()
        .map(|(file, _)| {
            let shape = model(file);
            (
                shape.name().to_owned(),
                *shape.attention(),
                shape.layers().len(),
                shape.layers().iter().filter(|kind| **kind == LayerKind::Full).count(),
                shape.dtype(),
            )
        })
        .collect();
    let heads = |kv_heads, dim| Attention::Heads { kv_heads, key_dim: dim, value_dim: dim };
    let bf16 = Some(Dtype::Bf16);
    assert_eq!(
        shapes,
        [
            ("deepseek_v3".into(), Attention::Latent { dim: 576 }, 61, 61, bf16),
            ("gpt_oss".into(), heads(8, 64), 36, 18, None),
            ("llama".into(), heads(8, 128), 80, 80, bf16),
            ("qwen3".into(), heads(8, 128), 64, 64, bf16),
            ("qwen3_next".into(), heads(2, 256), 48, 12, bf16),
            ("llama".into(), heads(3, 64), 30, 30, bf16),
        ]
    );
}

#[test]
fn bytes_of_a_token_and_of_a_page_are_those_of_the_public_models() {
    for (file, spec, token, page_of_64) in [
        ("deepseek-v3", "pp=1", 1_152, 73_728),
        ("deepseek-v3", "dtype=fp8", 576, 36_864),
        ("llama-3-70b", "tp=1", 2_048, 131_072),
        ("llama-3-70b", "tp=4", 512, 32_768),
        ("llama-3-70b", "tp=8", 256, 16_384),
    ] {
        for layout in side(&model(file), spec, 64) {
            for buffer in &layout.buffers {
                assert_eq!((buffer.token_bytes, buffer.page_bytes), (token, page_of_64), "{file} {spec}");
            }
        }
    }
}

#[test]
fn layers_of_every_kind_have_their_buffers() {
    let oss = side(&model("gpt-oss-120b"), "tp=8", 64).remove(0);
    assert_eq!(oss.pools(), [Pool::FULL, Pool::WINDOW]);
    assert_eq!(model("gpt-oss-120b").layers()[0], LayerKind::SlidingWindow { window: 128 });
    assert!(oss.buffers.iter().all(|buffer| (buffer.token_bytes, buffer.page_bytes) == (128, 8_192)));
    for (tp, token, conv, recurrent) in
        [(1, 1_024, 49_152, 2_097_152), (2, 512, 24_576, 1_048_576), (4, 512, 12_288, 524_288)]
    {
        let next = side(&model("qwen3-next-80b"), &format!("tp={tp}"), 64).remove(0);
        assert_eq!(next.pools(), [Pool::FULL, Pool::STATE]);
        let bytes =
            |role| next.buffers.iter().filter(|b| b.key.role == role).map(|b| b.token_bytes).collect::<Vec<_>>();
        assert_eq!(bytes(Role::Key), [token; 12]);
        assert_eq!(bytes(Role::Conv), [conv; 36]);
        assert_eq!(bytes(Role::Recurrent), [recurrent; 36]);
    }
    assert_eq!(model("deepseek-v3").draft_layers(), 1);
}

#[test]
fn stages_are_split_as_the_serving_systems_do() {
    let stages = |file: &str, spec: &str| side(&model(file), spec, 16)[0].shard.stages.clone();
    assert_eq!(stages("deepseek-v3", "pp=4"), [15, 15, 15, 16]);
    assert_eq!(stages("llama-3-70b", "pp=3"), [26, 27, 27]);
    let side: kv_plan::Side = "pp=4".parse().unwrap();
    assert_eq!(side.stages(94), [23, 23, 24, 24]);
}

#[test]
fn models_that_differ_have_other_fingerprints_and_the_same_model_the_same() {
    let prints: std::collections::BTreeSet<u64> = MODELS.iter().map(|(file, _)| model(file).fingerprint()).collect();
    assert_eq!(prints.len(), MODELS.len());
    // A fingerprint is exchanged between versions: this one is fixed for good.
    assert_eq!(model("deepseek-v3").fingerprint(), FINGERPRINT_OF_DEEPSEEK_V3);
    // A field that does not decide the cache changes nothing, nor does another spelling of the element type.
    let config = r#"{"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "dtype": "float16", "rope_theta": 10000}"#;
    let other = ModelShape::from_config_json(config).unwrap();
    assert_eq!((other.fingerprint(), other.dtype()), (FINGERPRINT_OF_DEEPSEEK_V3, Some(Dtype::F16)));
}

/// Computed by another program, by the rule that [`ModelShape::fingerprint`] states.
const FINGERPRINT_OF_DEEPSEEK_V3: u64 = 0x4555_f4d0_f7d1_b97c;

#[test]
fn configurations_are_read_in_their_usual_variants() {
    let read = |fields: &str| ModelShape::from_config_json(&format!("{{{fields}}}")).map_err(|error| error.to_string());
    let base = r#""model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8"#;
    // Without key-value heads there are as many as query heads; without a head size it is hidden size by heads.
    let shape = read(&format!(r#"{base}, "hidden_size": 64"#)).unwrap();
    assert_eq!(*shape.attention(), Attention::Heads { kv_heads: 8, key_dim: 8, value_dim: 8 });
    let shape = read(&format!(r#"{base}, "head_dim": 192, "v_head_dim": 128, "num_key_value_heads": 2"#)).unwrap();
    assert_eq!(*shape.attention(), Attention::Heads { kv_heads: 2, key_dim: 192, value_dim: 128 });
    let nested = read(
        r#""model_type": "outer", "text_config": {"model_type": "qwen3_vl_text", "num_hidden_layers": 2,
        "num_attention_heads": 4, "head_dim": 16}"#,
    );
    assert_eq!(nested.unwrap().name(), "qwen3_vl");
    let linear = read(
        r#""model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4,
        "num_attention_heads": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4"#,
    );
    let kinds = linear.unwrap().layers().to_vec();
    assert_eq!((0..8).filter(|layer| kinds[*layer] == LayerKind::Full).collect::<Vec<_>>(), [3, 7]);
}

#[test]
fn configurations_that_make_no_sense_are_refused_with_the_field() {
    let refused = |fields: &str| ModelShape::from_config_json(&format!("{{{fields}}}")).unwrap_err().to_string();
    let base = r#""model_type": "llama", "num_attention_heads": 8, "head_dim": 16"#;
    for (fields, says) in [
        (r#""model_type": "llama", "num_hidden_layers": 2"#.into(), "num_attention_heads"),
        (r#""model_type": "deepseek_v3", "num_hidden_layers": 2"#.into(), "kv_lora_rank"),
        (
            r#""model_type": "deepseek_v3", "kv_lora_rank": 4294967295, "qk_rope_head_dim": 1, "num_hidden_layers": 1"#
                .into(),
            "too large",
        ),
        (format!(r#"{base}, "num_hidden_layers": 0"#), "is zero"),
        (format!(r#"{base}, "num_hidden_layers": -3"#), "-3"),
        (format!(r#"{base}, "num_hidden_layers": "many""#), "many"),
        (format!(r#"{base}, "num_hidden_layers": 4294967295"#), "gives 4294967295 layers"),
        (format!(r#"{base}, "num_hidden_layers": 18446744073709551616"#), "num_hidden_layers"),
        (format!(r#"{base}, "num_hidden_layers": 2, "layer_types": ["full_attention"]"#), "has 1 entries"),
        (format!(r#"{base}, "num_hidden_layers": 1, "layer_types": ["spiral_attention"]"#), "spiral_attention"),
    ] {
        let said = refused(&fields);
        assert!(said.contains(says), "{fields}: {said}");
    }
}
