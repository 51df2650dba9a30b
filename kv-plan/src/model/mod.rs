//! What a model's cache is made of: read from its `config.json`, or given by hand.

mod config;
mod fingerprint;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::config::ConfigError;
use crate::{CacheLayout, Dtype, Role};

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
    /// Attention over all tokens: a page of every token, of keys and values or of latents.
    Full,
    /// Attention over the last tokens only, with a page pool of its own. Not planned yet.
    SlidingWindow {
        /// Tokens of the window.
        window: u32,
    },
    /// Linear attention: a state a request instead of pages. Not planned yet.
    Linear,
    /// Attention over all tokens that an indexer chooses from: index keys of their own beside the pages. Not planned yet.
    Indexed {
        /// Elements of an index key.
        dim: u32,
    },
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
}

impl ModelShape {
    /// A model given by hand: how its attention layers keep what they have seen, and the kind of each layer.
    ///
    /// # Errors
    /// [`ConfigError::Field`] for sizes of zero, and for no or more than [`CacheLayout::MAX_LAYERS`] layers.
    pub fn by_hand(name: impl Into<String>, attention: Attention, layers: Vec<LayerKind>) -> Result<Self, ConfigError> {
        let sizes: &[(&'static str, u32)] = match attention {
            Attention::Heads { kv_heads, key_dim, value_dim } => {
                &[("kv_heads", kv_heads), ("key_dim", key_dim), ("value_dim", value_dim)]
            }
            Attention::Latent { dim } => &[("dim", dim)],
        };
        if let Some((field, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Field { field, problem: "is zero".into() });
        }
        if layers.is_empty() || layers.len() > CacheLayout::MAX_LAYERS as usize {
            return Err(ConfigError::layer_count(layers.len() as u64));
        }
        Ok(Self { name: name.into(), attention, layers, dtype: None })
    }

    /// Reads the fields of a Hugging Face `config.json` that decide the cache. Other fields are ignored; a `text_config` is read
    /// in place of the whole where there is one.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn from_config_json(json: &str) -> Result<Self, ConfigError> {
        config::read(json)
    }

    /// Its name, for messages: its model type where it was read from a configuration.
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
        u32::try_from(self.layers.len()).unwrap_or(CacheLayout::MAX_LAYERS)
    }

    /// The type that its configuration names, if any: what a cache has where nothing else is configured.
    pub fn dtype(&self) -> Option<Dtype> {
        self.dtype
    }

    /// The layers that can be planned today.
    pub fn covered_layers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.layers).filter(|(_, kind)| **kind == LayerKind::Full).map(|(layer, _)| layer)
    }

    /// What of the model cannot be planned yet, which layers and why, in words; `None` when all of it can.
    pub fn uncovered(&self) -> Option<String> {
        type Is = fn(&LayerKind) -> bool;
        let reasons: [(Is, &str); 3] = [
            (
                |kind| matches!(kind, LayerKind::SlidingWindow { .. }),
                "have sliding-window attention, whose pages are a pool of their own",
            ),
            (
                |kind| matches!(kind, LayerKind::Linear),
                "have linear attention, which keeps a state for each request and no pages",
            ),
            (
                |kind| matches!(kind, LayerKind::Indexed { .. }),
                "have a sparse-attention indexer, which keeps keys of its own",
            ),
        ];
        let found: Vec<String> = reasons.iter().filter_map(|(is, why)| self.layers_that(*is, why)).collect();
        (!found.is_empty()).then(|| found.join("; "))
    }

    fn layers_that(&self, is: fn(&LayerKind) -> bool, why: &str) -> Option<String> {
        let layers: Vec<u32> = (0..).zip(&self.layers).filter(|(_, kind)| is(kind)).map(|(layer, _)| layer).collect();
        let of = self.layers.len();
        (!layers.is_empty()).then(|| format!("{} of {of} layers ({}) {why}", layers.len(), ranges(&layers)))
    }

    /// A number that the two sides of a deployment share, and that nothing enters in which they may differ: not their splits,
    /// not their page sizes, not their element types. It stays the same over versions of this crate.
    ///
    /// It is 64-bit FNV-1a over these bytes, numbers as 4 bytes with the least significant first: the length of the name and the
    /// name; 0, key-value heads, key elements and value elements of a head, or 1 and the elements of a latent; the number
    /// of layers; and for each layer 0 (full), 1 and the window (sliding), 2 (linear), or 3 and the index elements (indexed).
    pub fn fingerprint(&self) -> u64 {
        fingerprint::of(self)
    }
}

/// Ascending numbers with neighbours joined: `0-2, 4, 6-7`.
fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(*number) => *end = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let written = parts.iter().map(|(start, end)| match start == end {
        true => start.to_string(),
        false => format!("{start}-{end}"),
    });
    written.collect::<Vec<_>>().join(", ")
}
