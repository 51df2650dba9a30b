//! Models and sides that the tests share.

use kv_plan::{
    Attention, BufferKey, CacheLayout, Dtype, LayerKind, Mismatch, ModelShape, PageId, Pairing, Plan, PlannedSlice,
    Routes, Side, pair, routes,
};

/// The models whose configurations are in `tests/data/models`, with their file names.
pub(crate) const MODELS: [(&str, &str); 6] = [
    ("deepseek-v3", include_str!("../../../tests/data/models/deepseek-v3.json")),
    ("gpt-oss-120b", include_str!("../../../tests/data/models/gpt-oss-120b.json")),
    ("llama-3-70b", include_str!("../../../tests/data/models/llama-3-70b.json")),
    ("qwen3-32b", include_str!("../../../tests/data/models/qwen3-32b.json")),
    ("qwen3-next-80b", include_str!("../../../tests/data/models/qwen3-next-80b.json")),
    ("smollm2-135m", include_str!("../../../tests/data/models/smollm2-135m.json")),
];

pub(crate) fn model(name: &str) -> ModelShape {
    let (_, config) = MODELS.iter().find(|(file, _)| *file == name).unwrap();
    ModelShape::from_config_json(config).unwrap()
}

/// DeepSeek-V3: 61 layers, 1,152 bytes a token.
pub(crate) fn deepseek() -> ModelShape {
    model("deepseek-v3")
}

/// Llama-3-70B: 80 layers of 8 heads of 128.
pub(crate) fn llama() -> ModelShape {
    model("llama-3-70b")
}

/// Keys and values, made by hand.
pub(crate) fn heads(layers: usize, kv_heads: u32, key_dim: u32, value_dim: u32) -> ModelShape {
    let attention = Attention::Heads { kv_heads, key_dim, value_dim };
    ModelShape::by_hand("by hand", attention, vec![LayerKind::Full; layers]).unwrap()
}

/// Latents, made by hand.
pub(crate) fn latents(layers: usize, dim: u32) -> ModelShape {
    ModelShape::by_hand("by hand", Attention::Latent { dim }, vec![LayerKind::Full; layers]).unwrap()
}

pub(crate) fn layouts_of(model: &ModelShape, spec: &str, page: u32) -> Result<Vec<CacheLayout>, Mismatch> {
    spec.parse::<Side>()?.layouts(model, page, model.dtype().unwrap_or(Dtype::Bf16))
}

/// The layouts of all ranks of a side.
pub(crate) fn side(model: &ModelShape, spec: &str, page: u32) -> Vec<CacheLayout> {
    layouts_of(model, spec, page).unwrap()
}

/// One cluster's routes, or why there are none.
pub(crate) fn cluster(model: &ModelShape, prefill: &str, decode: &str) -> Result<Routes, Mismatch> {
    routes(&layouts_of(model, prefill, 16)?, &layouts_of(model, decode, 16)?)
}

/// Why two sides do not fit.
pub(crate) fn refusal(model: &ModelShape, prefill: &str, decode: &str) -> Mismatch {
    cluster(model, prefill, decode).expect_err("they do not fit")
}

/// Plans a request and writes its slices out.
pub(crate) fn slices(pairing: &Pairing, src: &[i32], dst: &[i32]) -> Vec<PlannedSlice> {
    let mut plan = Plan::default();
    pairing.plan(PageId::list(src), PageId::list(dst), &mut plan).unwrap();
    plan.slices(pairing).collect()
}

/// Pairs what has to fit.
pub(crate) fn paired(prefill: &CacheLayout, decode: &CacheLayout) -> Pairing {
    pair(prefill, decode).unwrap()
}

/// Offsets and length of the slices of one buffer.
pub(crate) fn of_key(slices: &[PlannedSlice], key: BufferKey) -> Vec<(u64, u64, u64)> {
    slices
        .iter()
        .filter(|slice| slice.key == key)
        .map(|slice| (slice.src_offset, slice.dst_offset, slice.len))
        .collect()
}

/// What pairing and coverage look at, without where it lies in memory.
pub(crate) fn without_places(layout: &CacheLayout) -> CacheLayout {
    let mut layout = layout.clone();
    for buffer in &mut layout.buffers {
        (buffer.region, buffer.offset) = (0, 0);
    }
    layout.buffers.sort_unstable_by_key(|buffer| buffer.key);
    layout.regions.clear();
    layout
}
