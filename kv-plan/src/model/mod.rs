//! What a model's cache is made of: read from its `config.json`, or given by hand.

mod config;
mod fingerprint;
mod geometry;
mod linear;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(crate) use self::geometry::{Geometry, NoGeometry};
pub use self::{config::ConfigError, linear::LinearState};
use crate::{CacheLayout, Dtype, PoolKind, Role};

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
}

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LayerKind {
    /// Attention over all tokens: a page of every token, of keys and values or of latents.
    Full,
    /// Attention over the last tokens only, with a page pool of its own.
    SlidingWindow {
        /// Tokens of the window.
        window: u32,
    },
    /// Linear attention: a state a request instead of pages.
    Linear,
    /// Attention over all tokens that an indexer chooses from: index keys of their own in the same pages.
    Indexed {
        /// Elements of an index key.
        dim: u32,
    },
}

impl LayerKind {
    /// The page list that its buffers go by.
    pub fn pool(self) -> PoolKind {
        match self {
            Self::Full | Self::Indexed { .. } => PoolKind::Full,
            Self::SlidingWindow { .. } => PoolKind::Window,
            Self::Linear => PoolKind::State,
        }
    }
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    name: String,
    attention: Attention,
    layers: Vec<LayerKind>,
    linear: Option<LinearState>,
    dtype: Option<Dtype>,
    draft_layers: u32,
}

impl ModelShape {
    /// A model given by hand: how its attention layers keep what they have seen, and the kind of each layer.
    ///
    /// # Errors
    /// [`ConfigError::Field`] for sizes of zero, and for no or more than [`CacheLayout::MAX_LAYERS`] layers.
    pub fn by_hand(name: impl Into<String>, attention: Attention, layers: Vec<LayerKind>) -> Result<Self, ConfigError> {
        let shape = Self { name: name.into(), attention, layers, linear: None, dtype: None, draft_layers: 0 };
        shape.check_sizes()?;
        Ok(shape)
    }

    /// The same with the states of its linear-attention layers, which need them.
    ///
    /// # Errors
    /// [`ConfigError::Field`] for sizes that are not possible.
    pub fn with_linear(self, linear: LinearState) -> Result<Self, ConfigError> {
        let shape = Self { linear: Some(linear), ..self };
        shape.check_sizes()?;
        Ok(shape)
    }

    /// The same with the element type that the model is made for.
    #[must_use]
    pub fn with_dtype(self, dtype: Dtype) -> Self {
        Self { dtype: Some(dtype), ..self }
    }

    /// Whether its sizes are possible: what came from a peer is checked again.
    pub(crate) fn check_sizes(&self) -> Result<(), ConfigError> {
        let sizes: &[(&'static str, u32)] = match self.attention {
            Attention::Heads { kv_heads, key_dim, value_dim } => {
                &[("kv_heads", kv_heads), ("key_dim", key_dim), ("value_dim", value_dim)]
            }
            Attention::Latent { dim } => &[("dim", dim)],
        };
        if let Some((field, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Field { field, problem: "is zero".into() });
        }
        if self.layers.is_empty() || self.layers.len() > CacheLayout::MAX_LAYERS as usize {
            return Err(ConfigError::layer_count(self.layers.len() as u64));
        }
        match self.linear.as_ref().and_then(LinearState::problem) {
            Some(problem) => Err(ConfigError::Field { field: "linear", problem }),
            None => Ok(()),
        }
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

    /// The states of its linear-attention layers.
    pub fn linear(&self) -> Option<&LinearState> {
        self.linear.as_ref()
    }

    /// Layers of the draft model that came with it (`num_nextn_predict_layers`); whether a side runs it is the side's affair.
    pub fn draft_layers(&self) -> u32 {
        self.draft_layers
    }

    /// Tokens of the window of its sliding-window attention, the longest if there are several.
    pub fn window(&self) -> Option<u32> {
        let windows = self.layers.iter().filter_map(|kind| match kind {
            LayerKind::SlidingWindow { window } => Some(*window),
            _ => None,
        });
        windows.max()
    }

    /// The roles of the buffers of a layer of some kind.
    pub fn roles(&self, kind: LayerKind) -> impl Iterator<Item = Role> + use<> {
        let attention = match kind {
            LayerKind::Linear => &[Role::Conv, Role::Recurrent],
            _ => self.attention.roles(),
        };
        let index = matches!(kind, LayerKind::Indexed { .. }).then_some(Role::Index);
        attention.iter().copied().chain(index)
    }

    /// A draft model of so many layers like this model's, with attention over all tokens.
    pub(crate) fn plain_draft(&self, layers: u32) -> Self {
        let layers = vec![LayerKind::Full; layers.min(CacheLayout::MAX_LAYERS) as usize];
        Self { layers, linear: None, draft_layers: 0, ..self.clone() }
    }

    /// Whether both are the same model, whatever types their caches have.
    pub(crate) fn is_same_model(&self, other: &Self) -> bool {
        let Self { name, attention, layers, linear, .. } = self;
        (name, attention, layers, linear) == (&other.name, &other.attention, &other.layers, &other.linear)
    }

    /// A number that the two sides of a deployment share, and that nothing enters in which they may differ: not their splits,
    /// not their page sizes, not their element types. It stays the same over versions of this crate.
    ///
    /// It is 64-bit FNV-1a over these bytes, numbers as 4 bytes with the least significant first: the length of the name and the
    /// name; 0, key-value heads, key elements and value elements of a head, or 1 and the elements of a latent; the number
    /// of layers; for each layer 0 (full), 1 and the window (sliding), 2 (linear), or 3 and the index elements (indexed); and with
    /// states of linear attention the number of channel groups, their channels, taps, heads and elements of a head.
    pub fn fingerprint(&self) -> u64 {
        fingerprint::of(self)
    }
}
