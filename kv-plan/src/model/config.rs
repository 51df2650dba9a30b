//! Reading a Hugging Face `config.json`.

use serde_json::{Map, Value};

use super::{Attention, LayerKind, LinearState, ModelShape};
use crate::CacheLayout;

/// Why a model's configuration does not give a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It is not a JSON object.
    #[error("the model's configuration is not a JSON object: {0}")]
    Json(String),
    /// The architecture is not known.
    #[error(
        "model type {model_type:?} (architecture {architecture:?}) is not known; known are {known}; give its shape by hand instead (ModelShape::by_hand): key-value heads with the elements of a head's key and value, or the elements of a latent, and the kind of each layer"
    )]
    UnknownArchitecture {
        /// The configuration's `model_type`; empty without one.
        model_type: String,
        /// The first of the configuration's `architectures`; empty without any.
        architecture: String,
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

impl ConfigError {
    pub(super) fn layer_count(count: u64) -> Self {
        let problem = format!("gives {count} layers; between 1 and {} are possible", CacheLayout::MAX_LAYERS);
        Self::Field { field: "num_hidden_layers", problem }
    }
}

/// Model types with multi-head latent attention.
const LATENT: &[&str] = &["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2"];

/// Model types with keys and values by head.
const HEADS: &[&str] = &[
    "gemma",
    "gemma2",
    "gemma3",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl",
    "qwen3_vl_moe",
    "seed_oss",
];

/// Model types with sliding windows in all layers but every n-th, where `layer_types` does not say so.
const SLIDING_BUT_EVERY: &[(&str, u32)] = &[("gemma2", 2), ("gemma3", 6), ("gpt_oss", 2)];

pub(super) fn read(json: &str) -> Result<ModelShape, ConfigError> {
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
        fields.latent()?
    } else if HEADS.contains(&family) {
        fields.heads()?
    } else {
        let architectures = fields.get("architectures").and_then(Value::as_array);
        let architecture = architectures.and_then(|list| list.first()).and_then(Value::as_str);
        return Err(ConfigError::UnknownArchitecture {
            model_type: model_type.into(),
            architecture: architecture.unwrap_or_default().into(),
            known: LATENT.iter().chain(HEADS).copied().collect::<Vec<_>>().join(", "),
        });
    };
    let mut shape = ModelShape::by_hand(family, attention, fields.layers(family)?)?;
    if shape.layers.contains(&LayerKind::Linear) {
        shape = shape.with_linear(fields.linear()?)?;
    }
    // Zero is what models without a draft say.
    shape.draft_layers = match fields.get("num_nextn_predict_layers").and_then(Value::as_u64) {
        Some(count) => u32::try_from(count).unwrap_or(u32::MAX).min(CacheLayout::MAX_LAYERS),
        None => 0,
    };
    shape.dtype = fields.text("torch_dtype").or_else(|| fields.text("dtype")).and_then(|name| name.parse().ok());
    Ok(shape)
}

/// The fields of a configuration, with errors that name them.
struct Fields<'a> {
    inner: &'a Map<String, Value>,
    outer: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn get(&self, field: &str) -> Option<&Value> {
        let given = |map: &'_ Map<String, Value>| map.get(field).is_some_and(|value| !value.is_null());
        let map = if given(self.inner) { self.inner } else { self.outer };
        map.get(field).filter(|value| !value.is_null())
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

    fn latent(&self) -> Result<Attention, ConfigError> {
        let dim = self.number("kv_lora_rank")?.checked_add(self.number("qk_rope_head_dim")?);
        let dim = dim.ok_or_else(|| ConfigError::Field { field: "kv_lora_rank", problem: "is too large".into() })?;
        Ok(Attention::Latent { dim })
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

    fn linear(&self) -> Result<LinearState, ConfigError> {
        let kernel = self.number("linear_conv_kernel_dim")?;
        if kernel < 2 {
            let problem = "is 1; a kernel of at least 2 inputs keeps a state".into();
            return Err(ConfigError::Field { field: "linear_conv_kernel_dim", problem });
        }
        Ok(LinearState::gated_delta(
            self.number("linear_num_key_heads")?,
            self.number("linear_key_head_dim")?,
            self.number("linear_num_value_heads")?,
            self.number("linear_value_head_dim")?,
            kernel,
        ))
    }

    /// The kind of each layer: from `layer_types`, or from the fields that say the same in older configurations.
    fn layers(&self, family: &str) -> Result<Vec<LayerKind>, ConfigError> {
        let count = self.number("num_hidden_layers")?;
        // Before anything is allocated by this number.
        if count > CacheLayout::MAX_LAYERS {
            return Err(ConfigError::layer_count(count.into()));
        }
        let full = match self.optional("index_head_dim")? {
            Some(dim) => LayerKind::Indexed { dim },
            None => LayerKind::Full,
        };
        if let Some(Value::Array(kinds)) = self.get("layer_types") {
            if kinds.len() != count as usize {
                let problem = format!("has {} entries where num_hidden_layers is {count}", kinds.len());
                return Err(ConfigError::Field { field: "layer_types", problem });
            }
            return kinds.iter().map(|kind| self.layer(kind, full)).collect();
        }
        if let Some(interval) = self.optional("full_attention_interval")? {
            return Ok(every(count, interval, full, LayerKind::Linear));
        }
        let uses_window = self.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(true);
        let window = if uses_window { self.optional("sliding_window")? } else { None };
        let Some(window) = window else { return Ok(vec![full; count as usize]) };
        let sliding = LayerKind::SlidingWindow { window };
        if let Some((_, each)) = SLIDING_BUT_EVERY.iter().find(|(name, _)| *name == family) {
            return Ok(every(count, *each, full, sliding));
        }
        // The first layers of some models are without a window; a bound of 0 is what it says.
        let first = self.get("max_window_layers").and_then(Value::as_u64).unwrap_or(0);
        Ok((0..u64::from(count)).map(|layer| if layer < first { full } else { sliding }).collect())
    }

    fn layer(&self, kind: &Value, full: LayerKind) -> Result<LayerKind, ConfigError> {
        match kind.as_str() {
            Some("full_attention") => Ok(full),
            Some("sliding_attention") => Ok(LayerKind::SlidingWindow { window: self.number("sliding_window")? }),
            Some("linear_attention") => Ok(LayerKind::Linear),
            _ => {
                let known = "full_attention, sliding_attention and linear_attention";
                Err(ConfigError::Field {
                    field: "layer_types",
                    problem: format!("has the entry {kind}; {known} are known"),
                })
            }
        }
    }
}

/// So many layers, of which every `interval`-th is the one kind and the others are the other.
fn every(count: u32, interval: u32, kind: LayerKind, other: LayerKind) -> Vec<LayerKind> {
    (1..=count).map(|number| if number.is_multiple_of(interval) { kind } else { other }).collect()
}
