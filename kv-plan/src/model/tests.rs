use super::{fingerprint::Fnv, *};

fn read(json: &str) -> ModelShape {
    ModelShape::from_config_json(json).unwrap()
}

/// A model with this many layers and heads, and more fields.
fn heads(model_type: &str, fields: &str) -> ModelShape {
    read(&format!(
        r#"{{"model_type": "{model_type}", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4 {fields}}}"#
    ))
}

#[test]
fn the_hash_is_the_published_one() {
    let hash = |text: &str| {
        let mut hash = Fnv::new();
        hash.bytes(text.as_bytes());
        hash.0
    };
    assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(hash("foobar"), 0x8594_4171_f739_67e8);
}

/// Peers of another version compare these numbers: a change here is a change of the wire.
#[test]
fn fingerprints_do_not_change_over_versions() {
    let latents = ModelShape::by_hand("m", Attention::Latent { dim: 576 }, vec![LayerKind::Full]).unwrap();
    // 1, 0, 0, 0, "m"; latent, 576; 1 layer, full.
    let mut bytes = vec![1, 0, 0, 0, b'm'];
    for number in [1u32, 576, 1, 0] {
        bytes.extend(number.to_le_bytes());
    }
    let mut hash = Fnv::new();
    hash.bytes(&bytes);
    assert_eq!(latents.fingerprint(), hash.0);
    let kinds = vec![LayerKind::SlidingWindow { window: 128 }, LayerKind::Linear, LayerKind::Indexed { dim: 64 }];
    let attention = Attention::Heads { kv_heads: 8, key_dim: 192, value_dim: 128 };
    let hybrid = ModelShape::by_hand("hybrid", attention, kinds).unwrap();
    let fingerprints = [latents.fingerprint(), hybrid.fingerprint(), heads("llama", "").fingerprint()];
    assert_eq!(fingerprints, [0x265a_7ae2_895a_8095, 0x7966_8254_58c0_8f32, 0x5094_9cdd_9014_b44b]);
}

#[test]
fn the_element_type_is_no_part_of_the_fingerprint() {
    let (a, b) = (heads("llama", r#", "torch_dtype": "bfloat16""#), heads("llama", r#", "dtype": "float32""#));
    assert_eq!((a.dtype(), b.dtype()), (Some(Dtype::Bf16), Some(Dtype::F32)));
    assert_eq!(a.fingerprint(), b.fingerprint());
}

#[test]
fn windows_are_seen_in_all_their_spellings() {
    let sliding = LayerKind::SlidingWindow { window: 16 };
    let kinds = |model_type: &str, fields: &str| heads(model_type, fields).layers().to_vec();
    let full = LayerKind::Full;
    assert_eq!(kinds("mistral", r#", "sliding_window": null"#), [full; 6]);
    assert_eq!(kinds("mistral", r#", "sliding_window": 16"#), [sliding; 6]);
    assert_eq!(
        kinds("qwen2", r#", "sliding_window": 16, "use_sliding_window": false, "max_window_layers": 2"#),
        [full; 6]
    );
    let late = [full, full, sliding, sliding, sliding, sliding];
    assert_eq!(kinds("qwen2", r#", "sliding_window": 16, "use_sliding_window": true, "max_window_layers": 2"#), late);
    let other = [sliding, full, sliding, full, sliding, full];
    assert_eq!(kinds("gpt_oss", r#", "sliding_window": 16"#), other);
    assert_eq!(kinds("gemma3", r#", "sliding_window": 16"#), [sliding, sliding, sliding, sliding, sliding, full]);
}

#[test]
fn nested_text_models_are_read_in_place_of_the_whole() {
    let model = read(
        r#"{"model_type": "qwen3_vl", "torch_dtype": "bfloat16", "hidden_size": 1,
            "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
                            "num_key_value_heads": 2, "head_dim": null, "v_head_dim": 32}}"#,
    );
    assert_eq!(model.name(), "qwen3_vl");
    assert_eq!(*model.attention(), Attention::Heads { kv_heads: 2, key_dim: 64, value_dim: 32 });
    assert_eq!((model.layer_count(), model.dtype()), (2, Some(Dtype::Bf16)));
}

#[test]
fn an_indexer_is_named() {
    let model = read(
        r#"{"model_type": "deepseek_v32", "num_hidden_layers": 3, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "index_head_dim": 128}"#,
    );
    assert_eq!(model.layers(), [LayerKind::Indexed { dim: 128 }; 3]);
    let roles: Vec<Role> = model.roles(model.layers()[0]).collect();
    assert_eq!(roles, [Role::Latent, Role::Index]);
}

#[test]
fn fields_that_make_no_sense_are_named() {
    let error = |fields: &str| {
        let json = format!(r#"{{"model_type": "llama", {fields}}}"#);
        ModelShape::from_config_json(&json).unwrap_err().to_string()
    };
    let named = |field: &str, problem: &str| format!("field {field:?} of the model's configuration {problem}");
    assert_eq!(error(r#""hidden_size": 1"#), named("num_attention_heads", "is missing"));
    assert_eq!(error(r#""num_attention_heads": 0"#), named("num_attention_heads", "is zero"));
    assert_eq!(error(r#""num_attention_heads": -2"#), named("num_attention_heads", "is -2, not a number of 32 bits"));
    let heads = r#""num_attention_heads": 3, "hidden_size": 8"#;
    assert_eq!(error(heads), named("hidden_size", "(8) does not divide by num_attention_heads (3); give head_dim"));
    let sizes = r#""num_attention_heads": 2, "head_dim": 8"#;
    assert_eq!(error(sizes), named("num_hidden_layers", "is missing"));
    let many = format!(r#"{sizes}, "num_hidden_layers": 4294967295"#);
    assert_eq!(error(&many), named("num_hidden_layers", "gives 4294967295 layers; between 1 and 4096 are possible"));
    let short = format!(r#"{sizes}, "num_hidden_layers": 3, "layer_types": ["full_attention"]"#);
    assert_eq!(error(&short), named("layer_types", "has 1 entries where num_hidden_layers is 3"));
    let kind = format!(r#"{sizes}, "num_hidden_layers": 1, "layer_types": ["chunked_attention"]"#);
    assert!(error(&kind).contains(r#"has the entry "chunked_attention"; full_attention"#), "{}", error(&kind));
    assert_eq!(
        ModelShape::from_config_json("[]").unwrap_err().to_string(),
        "the model's configuration is not a JSON object: it is another kind of JSON value"
    );
}
