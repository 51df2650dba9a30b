//! What a model's cache is made of: read from its `config.json`, or given by hand.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Dtype, Role};

/// How attention layers keep what they have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Attention {
    /// Keys and values by head (MHA, GQA, MQA).
    Heads {
        /// Key-value heads of the whole model.
        kv_heads: u32,
        /// Elements of one head's key.
        key_dim: u32,
        /// Elements of one head's value.
        value_dim: u32,
    },
    /// One latent for all heads (MLA).
    Latent {
        /// Elements of a token's latent: the rank of the joint compression and the rotary part.
        dim: u32,
    },
}

impl Attention {
    /// The buffers of one layer.
    pub fn roles(&self) -> &'static [Role] {
        match self {
            Self::Heads { .. } => &[Role::Key, Role::Value],
            Self::Latent { .. } => &[Role::Latent],
        }
    }

    /// Elements of one head of a role, and the number of heads: for a latent the whole latent and `None`.
    pub fn geometry(&self, role: Role) -> Option<(u32, Option<u32>)> {
        match (*self, role) {
            (Self::Heads { kv_heads, key_dim, .. }, Role::Key) => Some((key_dim, Some(kv_heads))),
            (Self::Heads { kv_heads, value_dim, .. }, Role::Value) => Some((value_dim, Some(kv_heads))),
            (Self::Latent { dim }, Role::Latent) => Some((dim, None)),
            _ => None,
        }
    }
}

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LayerKind {
    /// Attention over all tokens: a page of every token.
    Full,
    /// Attention over the last tokens only, with a page pool of its own. Not planned yet.
    SlidingWindow {
        /// Tokens of the window.
        window: u32,
    },
    /// Linear attention: a state a request instead of pages. Not planned yet.
    Linear,
}

/// What a model's cache is made of.
///
/// ```
/// use kv_plan::{Attention, ModelShape};
///
/// let config = r#"{"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
///                  "num_attention_heads": 64, "num_key_value_heads": 8}"#;
/// let shape = ModelShape::from_config_json(config)?;
/// assert_eq!(shape.layers().len(), 80);
/// assert_eq!(*shape.attention(), Attention::Heads { kv_heads: 8, key_dim: 128, value_dim: 128 });
/// # Ok::<(), kv_plan::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    name: String,
    attention: Attention,
    layers: Vec<LayerKind>,
    dtype: Option<Dtype>,
    /// Why the model as a whole is not covered, where that is not a matter of single layers.
    uncovered: Option<String>,
}

/// Why a model's configuration does not give a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It is not a JSON object.
    #[error("the model's configuration is not a JSON object: {0}")]
    Json(String),
    /// The architecture is not known.
    #[error(
        "model type {model_type:?} is not known; known are {known}; give its shape by hand instead (ModelShape::by_hand: attention and layers)"
    )]
    UnknownArchitecture {
        /// What the configuration says.
        model_type: String,
        /// What is known.
        known: String,
    },
    /// A field is missing or has no sensible value.
    #[error("field {field:?} of the model's configuration {problem}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// The most layers that a model may have: a bound on what a configuration can make us allocate.
pub(crate) const MAX_LAYERS: u32 = 4096;

const LATENT: &[&str] = &["deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"];
const HEADS: &[&str] = &[
    "gemma",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
];

impl ModelShape {
    /// A model whose layers all are of the same kind.
    ///
    /// # Errors
    /// [`ConfigError::Field`] for sizes of zero and for more than 4,096 layers.
    pub fn by_hand(name: impl Into<String>, attention: Attention, layers: Vec<LayerKind>) -> Result<Self, ConfigError> {
        let sizes = match attention {
            Attention::Heads { kv_heads, key_dim, value_dim } => {
                [("kv_heads", kv_heads), ("key_dim", key_dim), ("value_dim", value_dim)]
            }
            Attention::Latent { dim } => [("dim", dim), ("dim", dim), ("dim", dim)],
        };
        if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Field { field, problem: "is zero".into() });
        }
        if layers.is_empty() || layers.len() > MAX_LAYERS as usize {
            let problem = format!("gives {} layers; between 1 and {MAX_LAYERS} are possible", layers.len());
            return Err(ConfigError::Field { field: "num_hidden_layers", problem });
        }
        Ok(Self { name: name.into(), attention, layers, dtype: None, uncovered: None })
    }

    /// Reads the fields of a Hugging Face `config.json` that decide the cache. Other fields are ignored; a `text_config` is read
    /// in place of the whole where there is one.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn from_config_json(json: &str) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(json).map_err(|error| ConfigError::Json(error.to_string()))?;
        let Value::Object(outer) = &value else {
            return Err(ConfigError::Json("it is another kind of JSON value".into()));
        };
        let inner = match outer.get("text_config") {
            Some(Value::Object(inner)) => inner,
            _ => outer,
        };
        let fields = Fields { inner, outer };
        let model_type = fields.text("model_type").unwrap_or_default();
        // Nested text models are named after their family with "_text" behind it.
        let family = model_type.strip_suffix("_text").unwrap_or(model_type);
        let attention = if LATENT.contains(&family) {
            let dim = fields.number("kv_lora_rank")?.checked_add(fields.number("qk_rope_head_dim")?);
            let dim =
                dim.ok_or_else(|| ConfigError::Field { field: "kv_lora_rank", problem: "is too large".into() })?;
            Attention::Latent { dim }
        } else if HEADS.contains(&family) {
            fields.heads()?
        } else {
            let known: Vec<&str> = LATENT.iter().chain(HEADS).copied().collect();
            return Err(ConfigError::UnknownArchitecture { model_type: model_type.into(), known: known.join(", ") });
        };
        let layers = fields.layers()?;
        let mut shape = Self::by_hand(family, attention, layers)?;
        shape.dtype = fields.text("torch_dtype").or_else(|| fields.text("dtype")).and_then(|name| name.parse().ok());
        if fields.get("index_head_dim").is_some() {
            shape.uncovered = Some("its sparse-attention indexer keeps keys of its own (index_head_dim)".into());
        }
        Ok(shape)
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its attention layers keep what they have seen.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// The kinds of its layers, in order.
    pub fn layers(&self) -> &[LayerKind] {
        &self.layers
    }

    /// The number of its layers.
    pub fn layer_count(&self) -> u32 {
        // `by_hand` has bounded it.
        u32::try_from(self.layers.len()).unwrap_or(MAX_LAYERS)
    }

    /// The type that its configuration names, if any.
    pub fn dtype(&self) -> Option<Dtype> {
        self.dtype
    }

    /// What of the model cannot be planned yet, in words; `None` when all of it can.
    pub fn uncovered(&self) -> Option<String> {
        let of_kind = |kind: fn(&LayerKind) -> bool, what: &str| {
            let layers: Vec<String> =
                self.layers.iter().enumerate().filter(|(_, l)| kind(l)).map(|(i, _)| i.to_string()).collect();
            (!layers.is_empty())
                .then(|| format!("{} of {} layers {what}: {}", layers.len(), self.layers.len(), layers.join(", ")))
        };
        let sliding = of_kind(|kind| matches!(kind, LayerKind::SlidingWindow { .. }), "have sliding-window attention");
        let linear =
            of_kind(|kind| matches!(kind, LayerKind::Linear), "have linear attention, whose state is not in pages");
        let all: Vec<String> = self.uncovered.clone().into_iter().chain(sliding).chain(linear).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// A number that two sides must share: FNV-1a (64 bits) over the name, the attention's sizes and the kind of each layer.
    /// It does not depend on how either side is split, on its page size or its type.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.bytes(self.name.as_bytes());
        match self.attention {
            Attention::Heads { kv_heads, key_dim, value_dim } => {
                [0, kv_heads, key_dim, value_dim].into_iter().for_each(|number| hash.number(number));
            }
            Attention::Latent { dim } => [1, dim].into_iter().for_each(|number| hash.number(number)),
        }
        for layer in &self.layers {
            match layer {
                LayerKind::Full => hash.number(0),
                LayerKind::SlidingWindow { window } => [1, *window].into_iter().for_each(|number| hash.number(number)),
                LayerKind::Linear => hash.number(2),
            }
        }
        hash.0
    }
}

struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn number(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }
}

/// The fields of a configuration, with errors that name them.
struct Fields<'a> {
    inner: &'a Map<String, Value>,
    outer: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn get(&self, field: &str) -> Option<&Value> {
        self.inner.get(field).or_else(|| self.outer.get(field)).filter(|value| !value.is_null())
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.get(field).and_then(Value::as_str)
    }

    fn optional(&self, field: &'static str) -> Result<Option<u32>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
            Some(0) => Err(ConfigError::Field { field, problem: "is zero".into() }),
            Some(number) => Ok(Some(number)),
            None => Err(ConfigError::Field { field, problem: format!("is {value}, not a number of 32 bits") }),
        }
    }

    fn number(&self, field: &'static str) -> Result<u32, ConfigError> {
        self.optional(field)?.ok_or_else(|| ConfigError::Field { field, problem: "is missing".into() })
    }

    fn heads(&self) -> Result<Attention, ConfigError> {
        let heads = self.number("num_attention_heads")?;
        let kv_heads = self.optional("num_key_value_heads")?.unwrap_or(heads);
        let key_dim = match self.optional("head_dim")? {
            Some(dim) => dim,
            None => {
                let hidden = self.number("hidden_size")?;
                if !hidden.is_multiple_of(heads) {
                    let problem = format!("({hidden}) does not divide by num_attention_heads ({heads}); give head_dim");
                    return Err(ConfigError::Field { field: "hidden_size", problem });
                }
                hidden / heads
            }
        };
        let value_dim = self.optional("v_head_dim")?.unwrap_or(key_dim);
        Ok(Attention::Heads { kv_heads, key_dim, value_dim })
    }

    fn layers(&self) -> Result<Vec<LayerKind>, ConfigError> {
        let count = self.number("num_hidden_layers")?;
        if count > MAX_LAYERS {
            let problem = format!("gives {count} layers; between 1 and {MAX_LAYERS} are possible");
            return Err(ConfigError::Field { field: "num_hidden_layers", problem });
        }
        if let Some(Value::Array(kinds)) = self.get("layer_types") {
            if kinds.len() != count as usize {
                let problem = format!("has {} entries where num_hidden_layers is {count}", kinds.len());
                return Err(ConfigError::Field { field: "layer_types", problem });
            }
            return kinds.iter().map(|kind| self.layer(kind)).collect();
        }
        if let Some(interval) = self.optional("full_attention_interval")? {
            let kind =
                |layer: u32| if (layer + 1).is_multiple_of(interval) { LayerKind::Full } else { LayerKind::Linear };
            return Ok((0..count).map(kind).collect());
        }
        Ok(vec![LayerKind::Full; count as usize])
    }

    fn layer(&self, kind: &Value) -> Result<LayerKind, ConfigError> {
        match kind.as_str() {
            Some("full_attention") => Ok(LayerKind::Full),
            Some("sliding_attention") => Ok(LayerKind::SlidingWindow { window: self.number("sliding_window")? }),
            Some("linear_attention") => Ok(LayerKind::Linear),
            _ => Err(ConfigError::Field {
                field: "layer_types",
                problem: format!(
                    "has the entry {kind}; full_attention, sliding_attention and linear_attention are known"
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
