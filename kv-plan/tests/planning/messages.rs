//! The text of every error, and its kind. Users search for these texts and programs compare the kinds: they change on purpose only.

use kv_plan::{
    Attention, Buffer, BufferKey, CacheLayout, ConfigError, Dtype, Heads, LayerKind, LayoutError, ModelShape, Order,
    PageId, Plan, PlanError, Rank, Role, Shard, Side, coverage, pair,
};

use crate::common::{deepseek, heads, latents, layouts_of, llama, paired, refusal, side};

const SEED: &str = "layer 60 (latent) of prefill pp3.tp0 is missing at decode pp0.tp0: the receiver has 60 latent tables and the model 61 layers (prefill has 61 on all stages, decode 60); the model and the pipeline settings (pp, layers) of both sides have to agree";

#[test]
fn the_seed_case() {
    let error = refusal(&deepseek(), "pp=4", "pp=1,layers=60");
    assert_eq!((error.kind(), error.to_string().as_str()), ("missing_layer", SEED));
}

#[test]
fn mismatches_of_sides() {
    let (mla, gqa) = (deepseek(), llama());
    for (model, prefill, decode, kind, text) in [
        (
            &mla,
            "pp=4,layers=15+15+15+15",
            "pp=1",
            "uncovered_layer",
            "layer 60 (latent) of decode pp0.tp0 is never written: no prefill rank has it (prefill has 60 layers on all stages, decode 61, the model 61); the model and the pipeline settings (pp, layers) of both sides have to agree",
        ),
        (
            &mla,
            "draft=2",
            "draft=1",
            "missing_layer",
            "draft layer 1 (latent) of prefill pp0.tp0 is missing at decode pp0.tp0: the receiver has 1 latent tables and the model 2 layers (prefill has 2 on all stages, decode 1); the model and the pipeline settings (pp, layers) of both sides have to agree",
        ),
        (
            &mla,
            "pp=1",
            "dtype=fp8",
            "dtype",
            "the element types differ: prefill pp0.tp0 has bf16 (pages of 18432 bytes), decode pp0.tp0 has fp8 (pages of 9216 bytes); nothing converts between them, so set the same KV-cache dtype on both sides",
        ),
        (
            &gqa,
            "tp=3",
            "tp=2",
            "split",
            "pp=1,tp=3,order=nhd,pages=65536: 8 key-value heads do not divide by tp=3; choose a tp that divides the heads, or is a multiple of them",
        ),
        (
            &mla,
            "layers=60",
            "layers=60",
            "config",
            "prefill pp0.tp0 and decode pp0.tp0 have 60 layers on all stages of their sides, but the model has 61; give all of the model's layers to the stages of both sides",
        ),
    ] {
        let error = refusal(model, prefill, decode);
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
    }
}

#[test]
fn mismatches_of_ranks() {
    let (mla, gqa) = (side(&deepseek(), "pp=1", 64), side(&llama(), "pp=1", 64));
    let error = pair(&mla[0], &gqa[0]).unwrap_err();
    let text = format!(
        "the models differ: prefill pp0.tp0 has deepseek_v3 with 61 layers (fingerprint {:016x}), decode pp0.tp0 has llama with 80 layers (fingerprint {:016x}); start both sides with the same model",
        deepseek().fingerprint(),
        llama().fingerprint()
    );
    assert_eq!((error.kind(), error.to_string()), ("model", text));

    let error = coverage(&[&mla[0], &mla[0]], &mla[0]).unwrap_err();
    let text = "layer 0 (latent) of decode pp0.tp0 is claimed by prefill pp0.tp0 and by prefill pp0.tp0; each layer belongs to one stage, so give each stage only its own layers and list each rank once";
    assert_eq!((error.kind(), error.to_string().as_str()), ("duplicate_layer", text));

    let mut other = side(&heads(1, 4, 8, 8), "pp=1", 4).remove(0);
    let prefill = side(&heads(1, 4, 6, 8), "pp=1", 4).remove(0);
    other.model = prefill.model.clone();
    let error = pair(&prefill, &other).unwrap_err();
    let text = "layer 0 (key): prefill pp0.tp0 has heads 0..4 of 4 in 48 bytes a token and 4 tokens a page, decode pp0.tp0 has heads 0..4 of 4 in 64 bytes a token and 4 tokens a page; heads and head sizes have to agree";
    assert_eq!((error.kind(), error.to_string().as_str()), ("head_geometry", text));

    let (prefill, mut decode) =
        (side(&latents(1, 288), "pp=1", 4).remove(0), side(&latents(1, 328), "pp=1", 4).remove(0));
    decode.model = prefill.model.clone();
    let error = pair(&prefill, &decode).unwrap_err();
    let text = "layer 0 (latent): a token has 576 bytes at prefill pp0.tp0 and 656 bytes at decode pp0.tp0; nothing converts between them, so set the same form of the cache (dtype, packing) on both sides";
    assert_eq!((error.kind(), error.to_string().as_str()), ("head_geometry", text));

    let mut broken = mla[0].clone();
    broken.regions.pop();
    let error = pair(&mla[0], &broken).unwrap_err();
    let text = "the layout of decode pp0.tp0 is not valid: layer 60 (latent) lies in region 60, but there are 60";
    assert_eq!((error.kind(), error.to_string().as_str()), ("config", text));
    let error = pair(&broken, &mla[0]).unwrap_err();
    assert!(error.to_string().starts_with("the layout of prefill pp0.tp0 is not valid: "), "{error}");

    let huge = huge_pages(2, 1 << 63, 1);
    let error = pair(&huge, &huge).unwrap_err();
    let text = "a page of all that prefill pp0.tp0 sends to decode pp0.tp0 has more than 2^64 bytes";
    assert_eq!((error.kind(), error.to_string().as_str()), ("config", text));
}

/// Pages of one token of so many bytes, each buffer in a region of its own.
fn huge_pages(layers: u32, token_bytes: u64, pages: u32) -> CacheLayout {
    let model = latents(layers as usize, 1);
    let mut layout = CacheLayout::new(&model, Shard::new(Rank::new(0, 0), vec![layers], 1), 1, Dtype::Fp8);
    for layer in 0..layers {
        let region = layout.add_region(token_bytes * u64::from(pages));
        layout.add_buffer(Buffer::new(BufferKey::main(Role::Latent, layer), region, 0, 1, token_bytes, pages));
    }
    layout
}

#[test]
fn sides_that_contradict_themselves() {
    for (spec, text) in [
        ("pp", r#""pp": "pp" is not key=value"#),
        ("pp=1,pp=2", r#""pp=1,pp=2": pp is given twice"#),
        ("pp=0", r#""pp=0": pp=0 is not a number from 1 up"#),
        ("tp=-1", r#""tp=-1": tp=-1 is not a number from 1 up"#),
        ("pp=4294967296", r#""pp=4294967296": pp=4294967296 is not a number from 1 up"#),
        ("layers=4+x", r#""layers=4+x": layers=4+x is not like 15+15+15+16"#),
        ("order=dhn", r#""order=dhn": order=dhn: "dhn" is not one of nhd, hnd"#),
        ("dtype=int4", r#""dtype=int4": dtype=int4: "int4" is not one of bf16, f16, f32, fp8"#),
        (
            "ep=2",
            r#""ep=2": ep is not known; known are pp, tp, cp, dp, layers, draft, order, page, window_page, draft_page, dtype, pages, slots"#,
        ),
        (
            "pp=3,layers=1+1",
            "pp=3,tp=1,layers=1+1,order=nhd,pages=65536: layers gives 2 stages, but pp=3; give as many layer counts as stages",
        ),
        (
            "layers=2+0",
            "pp=2,tp=1,layers=2+0,order=nhd,pages=65536: stage 1 has no layers; give each stage one at least, or use fewer stages",
        ),
        (
            "pp=3",
            "pp=3,tp=1,order=nhd,pages=65536: stage 0 has no layers; give each stage one at least, or use fewer stages",
        ),
        (
            "pp=4294967295,tp=4294967295",
            "pp=4294967295,tp=4294967295,order=nhd,pages=65536: 4294967295 stages of 4294967295 ranks are not possible; a side has up to 512 stages and 4096 ranks",
        ),
        (
            "layers=4294967295",
            "pp=1,tp=1,layers=4294967295,order=nhd,pages=65536: 4294967295 layers and 4294967295 buffers on all ranks are more than the limits of 4096 and 262144",
        ),
        (
            "layers=4096,tp=128",
            "pp=1,tp=128,layers=4096,order=nhd,pages=65536: 4096 layers and 524288 buffers on all ranks are more than the limits of 4096 and 262144",
        ),
        (
            "pages=4294967295,page=4294967295",
            "pp=1,tp=1,order=nhd,page=4294967295,pages=4294967295: 4294967295 pages of 4294967295 tokens of 1152 bytes do not fit 64 bits",
        ),
    ] {
        let error = layouts_of(&latents(2, 576), spec, 16).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), ("config", text));
    }
}

fn named(name: &str) -> ModelShape {
    let attention = Attention::Heads { kv_heads: 4, key_dim: 8, value_dim: 8 };
    ModelShape::by_hand(name, attention, vec![LayerKind::Full; 2]).unwrap()
}

#[test]
fn layouts_that_contradict_themselves() {
    let said = |change: &dyn Fn(&mut CacheLayout)| {
        let mut layout = side(&heads(2, 4, 8, 8), "pp=2,tp=2,pages=10,draft=1", 4).remove(3);
        change(&mut layout);
        let error = layout.validate().unwrap_err();
        assert_eq!(error, layout.validate().unwrap_err());
        (error.kind(), error.to_string())
    };
    let told = |kind: &'static str, text: &str| (kind, text.to_owned());
    assert_eq!(said(&|l| l.shard.stages = vec![1; 513]), told("config", "513 stages, more than the limit of 512"));
    assert_eq!(said(&|l| l.shard.tp = u32::MAX), told("config", "8589934590 ranks, more than the limit of 4096"));
    assert_eq!(
        said(&|l| l.shard.draft_layers = u32::MAX),
        told("config", "4294967297 layers on all stages, more than the limit of 4096")
    );
    assert_eq!(said(&|l| l.regions = vec![1; 65_537]), told("config", "65537 regions, more than the limit of 65536"));
    assert_eq!(
        said(&|l| l.buffers = vec![l.buffers[0].clone(); 65_537]),
        told("config", "65537 buffers, more than the limit of 65536")
    );
    assert_eq!(
        said(&|l| l.model = named(&"x".repeat(257))),
        told("config", "257 bytes in the model's name, more than the limit of 256")
    );
    assert_eq!(
        said(&|l| (l.shard.draft_layers, l.shard.tp) = (4000, 2048)),
        told("config", "16392192 buffers on all ranks, more than the limit of 262144")
    );
    assert_eq!(said(&|l| l.model = named("a\nb")), told("config", r#"the model's name "a\nb" has control characters"#));
    assert_eq!(said(&|l| l.page_tokens = 0), told("config", "the number of tokens of a page must not be zero"));
    assert_eq!(said(&|l| l.shard.tp = 0), told("config", "the number of tensor ranks must not be zero"));
    assert_eq!(said(&|l| l.shard.stages.clear()), told("config", "the number of stages must not be zero"));
    assert_eq!(said(&|l| l.shard.stages[0] = 0), told("config", "the number of layers of a stage must not be zero"));
    assert_eq!(
        said(&|l| l.shard.rank.pp = 2),
        told("config", "pp2.tp1 is not one of 2 stages with 2 tensor ranks each")
    );
    assert_eq!(said(&|l| l.buffers.clear()), told("config", "pp1.tp1 has no buffers of the main model"));
    assert_eq!(
        said(&|l| l.buffers[0].page_count = 0),
        told(
            "config",
            "the number of bytes of a token, or of pages of a buffer, or of tokens of a page, must not be zero"
        )
    );
    assert_eq!(
        said(&|l| l.buffers[1].key = l.buffers[0].key),
        told("duplicate_layer", "pp1.tp1 has two buffers for layer 1 (key); each part, layer and role has one")
    );
    assert_eq!(
        said(&|l| l.buffers[0].key.layer = 0),
        told(
            "duplicate_layer",
            "pp1.tp1 has a buffer for layer 0 (key), but its stage has the layers 1 to 2 (exclusive); register only layers of the own stage"
        )
    );
    assert_eq!(
        said(&|l| l.buffers[0].page_bytes += 1),
        told("config", "layer 1 (key): a page of 129 bytes is not 4 tokens of 32 bytes")
    );
    let too_many = Heads { first: 3, count: 2, total: 4 };
    assert_eq!(
        said(&|l| l.buffers[0].groups[0].heads = too_many),
        told("config", "layer 1 (key): heads 3..5 of 4 in 32 bytes a token is not possible")
    );
    assert_eq!(
        said(&|l| l.buffers[0].groups.clear()),
        told("config", "layer 1 (key): keys and values have heads, and this buffer does not say which")
    );
    assert_eq!(said(&|l| l.buffers[0].region = 9), told("config", "layer 1 (key) lies in region 9, but there are 4"));
    assert_eq!(
        said(&|l| l.buffers[0].offset = u64::MAX),
        told(
            "config",
            "layer 1 (key): 10 pages of 128 bytes at offset 18446744073709551615 do not lie inside a region of 1280 bytes"
        )
    );
    assert_eq!(
        said(&|l| l.buffers[1].region = 0),
        told("config", "layer 1 (key) and layer 1 (value) overlap in region 0")
    );
    let unpacked = huge_pages(2, 1 << 63, 1).packed(1);
    let key = BufferKey::main(Role::Latent, 1);
    assert_eq!(unpacked, Err(LayoutError::Overflow { key }));
    assert_eq!(unpacked.unwrap_err().to_string(), "layer 1 (latent) ends beyond 2^64 bytes");
}

#[test]
fn page_lists() {
    let layout = side(&latents(1, 8), "pages=10", 4).remove(0);
    let pairing = paired(&layout, &layout);
    let mut plan = Plan::default();
    let mut said = |src: &[i32], dst: &[i32]| {
        let error = pairing.plan(PageId::list(src), PageId::list(dst), &mut plan).unwrap_err();
        (error.kind(), error.to_string())
    };
    let told = |kind: &'static str, text: &str| (kind, text.to_owned());
    assert_eq!(
        said(&[1, 2, 3], &[1, 2]),
        told(
            "page_count",
            "prefill lists 3 pages and decode 2; the lists are the same tokens on the two sides and have the same length"
        )
    );
    assert_eq!(
        said(&[1, 2], &[9, 10]),
        told(
            "page_range",
            "page 10 of decode pp0.tp0 (place 1 in its list) is out of range: its buffer for layer 0 (latent) has 10 pages"
        )
    );
    assert_eq!(
        said(&[-1], &[0]),
        told(
            "page_range",
            "page -1 of prefill pp0.tp0 (place 0 in its list) is out of range: its buffer for layer 0 (latent) has 10 pages, and negative numbers mark absent pages"
        )
    );
    assert_eq!(
        said(&[1, 2, 3], &[7, 8, 7]),
        told(
            "duplicate_page",
            "page 7 is twice in the list of decode pp0.tp0 (again at place 2); two pages of a request would overwrite each other"
        )
    );
    let error = PlanError::PageRange {
        page: PageId(3),
        place: 0,
        end: kv_plan::End::Decode,
        rank: Rank::new(1, 0),
        page_count: 0,
        key: None,
    };
    assert_eq!(
        error.to_string(),
        "page 3 of decode pp1.tp0 (place 0 in its list) is out of range: the rank has 0 pages"
    );

    let huge = huge_pages(4, 1 << 61, 4);
    let pages = [0, 1];
    let error = paired(&huge, &huge).plan(PageId::list(&pages), PageId::list(&pages), &mut plan).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), ("config", "the plan moves more than 2^64 bytes"));
}

#[test]
fn configurations() {
    let said = |json: &str| ModelShape::from_config_json(json).unwrap_err().to_string();
    assert_eq!(said("[]"), "the model's configuration is not a JSON object: it is another kind of JSON value");
    assert!(said("{").starts_with("the model's configuration is not a JSON object: EOF while parsing"));
    let unknown = said(r#"{"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}"#);
    assert!(
        unknown
            .starts_with(r#"model type "rwkv" (architecture "RwkvForCausalLM") is not known; known are deepseek_v2, "#)
    );
    assert!(unknown.ends_with("give its shape by hand instead (ModelShape::by_hand): key-value heads with the elements of a head's key and value, or the elements of a latent, and the kind of each layer"));
    assert!(said("{}").starts_with(r#"model type "" (architecture "") is not known"#));
    assert_eq!(
        said(r#"{"model_type": "llama", "num_attention_heads": 0}"#),
        r#"field "num_attention_heads" of the model's configuration is zero"#
    );
    assert_eq!(
        said(r#"{"model_type": "llama", "num_attention_heads": 7, "hidden_size": 15}"#),
        r#"field "hidden_size" of the model's configuration (15) does not divide by num_attention_heads (7); give head_dim"#
    );
    let by_hand = |dim, layers| ModelShape::by_hand("x", Attention::Latent { dim }, vec![LayerKind::Full; layers]);
    let zero = ConfigError::Field { field: "dim", problem: "is zero".into() };
    assert_eq!(by_hand(0, 1), Err(zero));
    let text =
        r#"field "num_hidden_layers" of the model's configuration gives 4097 layers; between 1 and 4096 are possible"#;
    assert_eq!(by_hand(1, 4097).unwrap_err().to_string(), text);
    assert!(by_hand(1, 0).is_err());
}

#[test]
fn names() {
    for rank in ["", "3", "pp3", "pp3.tp", "pp3.tp+1", "tp0.pp3", "pp3.tp0.ep1", "pp-1.tp0", "pp4294967296.tp0"] {
        let text = format!(
            "{rank:?} does not name a rank; write pp and the stage, a point, tp and the tensor rank, as in pp3.tp0, and where there are any .cp and .dp behind it"
        );
        assert_eq!(rank.parse::<Rank>().unwrap_err().to_string(), text);
    }
    assert_eq!("pp3.tp0".parse(), Ok(Rank::new(3, 0)));
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::Fp8] {
        assert_eq!(dtype.to_string().parse(), Ok(dtype));
    }
    for order in [Order::TokenMajor, Order::HeadMajor] {
        assert_eq!(order.to_string().parse(), Ok(order));
    }
    let side: Side = "pp=4,tp=2,layers=1+2+3+4,draft=1,order=hnd,page=16,dtype=fp8,pages=9".parse().unwrap();
    assert_eq!(side.to_string(), "pp=4,tp=2,layers=1+2+3+4,draft=1,order=hnd,page=16,dtype=fp8,pages=9");
    assert_eq!(side.to_string().parse(), Ok(side));
}
