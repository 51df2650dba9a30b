//! Engines for tests: small caches, keys, and a way to make a decode and a prefill side of any split.
#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

pub(crate) mod named;

use std::time::Duration;

use kvferry::{
    Engine, EngineBuilder, EngineConfig, Role,
    kv_plan::{CacheLayout, Dtype, ModelShape, PageId, Side},
    transport_core::Memory,
    transport_quic::{Authentication, Identity, QuicConfig, TrustedKeys},
};

/// A latent model of six layers: 128 bytes a token and layer.
pub(crate) const MODEL: &str =
    r#"{"model_type": "deepseek_v3", "num_hidden_layers": 6, "kv_lora_rank": 48, "qk_rope_head_dim": 16}"#;

/// No wait of a test is longer.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Layouts of all ranks of a side, pages of 16 tokens.
pub(crate) fn layouts(spec: &str) -> Vec<CacheLayout> {
    let model = ModelShape::from_config_json(MODEL).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, 16, Dtype::Bf16).unwrap()
}

/// The rank of a side with this place in the order of ranks.
pub(crate) fn layout(spec: &str, place: usize) -> CacheLayout {
    layouts(spec).swap_remove(place)
}

/// Memory for a layout, zeroed.
pub(crate) fn memories(layout: &CacheLayout) -> Vec<Memory> {
    layout.region_lens().iter().map(|len| Memory::host(*len as usize).unwrap()).collect()
}

/// An engine and its cache.
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) memories: Vec<Memory>,
    pub(crate) layout: CacheLayout,
}

/// Keys of everybody who takes part, each of which trusts all.
pub(crate) struct Keys {
    pub(crate) trusted: TrustedKeys,
}

impl Keys {
    pub(crate) fn new() -> Self {
        Self { trusted: TrustedKeys::new() }
    }

    pub(crate) fn identity(&self) -> Identity {
        let identity = Identity::generate();
        self.trusted.insert(identity.public_key());
        identity
    }

    pub(crate) fn node(&self, role: Role, layout: CacheLayout) -> Node {
        self.node_with(role, layout, self.identity(), config())
    }

    pub(crate) fn node_with(&self, role: Role, layout: CacheLayout, identity: Identity, config: EngineConfig) -> Node {
        self.node_of(role, layout, identity, |builder| builder.config(config))
    }

    /// An engine whose builder gets what else it needs.
    pub(crate) fn node_of(
        &self,
        role: Role,
        layout: CacheLayout,
        identity: Identity,
        more: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Node {
        let memories = memories(&layout);
        let builder = Engine::builder(role, Authentication::raw_keys(identity, self.trusted.clone()))
            .cache(layout.clone(), memories.clone());
        Node { engine: more(builder).build().unwrap(), memories, layout }
    }
}

/// A configuration with short bounds.
pub(crate) fn config() -> EngineConfig {
    EngineConfig::default()
        .with_request_timeout(Duration::from_secs(20))
        .with_drain_timeout(Duration::from_secs(2))
        .with_quic(QuicConfig::default().with_peer_loss_timeout(Duration::from_secs(2)))
}

impl Node {
    /// Fills every page with bytes that name layer and page.
    pub(crate) fn fill(&self) {
        for buffer in &self.layout.buffers {
            for page in 0..buffer.page_count {
                let offset = buffer.offset + u64::from(page) * buffer.page_bytes;
                let memory = &self.memories[buffer.region as usize];
                memory.fill(offset, buffer.page_bytes, mark(buffer.key.layer, page)).unwrap();
            }
        }
    }

    /// Whether a page holds, in every layer, what `fill` wrote into the page `from`, or zeroes without one.
    pub(crate) fn holds(&self, page: i32, from: Option<i32>) -> bool {
        self.layout.buffers.iter().all(|buffer| {
            let mut bytes = vec![0; buffer.page_bytes as usize];
            let offset = buffer.offset + page as u64 * buffer.page_bytes;
            self.memories[buffer.region as usize].read_at(offset, &mut bytes).unwrap();
            let expected = from.map_or(0, |from| mark(buffer.key.layer, from as u32));
            bytes.iter().all(|byte| *byte == expected)
        })
    }
}

fn mark(layer: u32, page: u32) -> u8 {
    (1 + (layer * 31 + page * 7) % 255) as u8
}

pub(crate) fn pages(pages: &[i32]) -> &[PageId] {
    PageId::list(pages)
}
