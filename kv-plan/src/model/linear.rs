//! The states of linear attention.

use serde::{Deserialize, Serialize};

use crate::CacheLayout;

/// The state that a layer of linear attention keeps for each request, whatever its length: the last inputs of a short convolution
/// over several groups of channels, each of which tensor parallelism divides for itself, and a recurrent state by head.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinearState {
    /// Channels of each group of the convolution, in the order in which they lie.
    pub conv_channels: Vec<u32>,
    /// Inputs that are kept of each channel: the length of the kernel less one.
    pub conv_taps: u32,
    /// Heads of the recurrent state.
    pub heads: u32,
    /// Elements of a head's recurrent state, of 4 bytes.
    pub head_elements: u32,
}

impl LinearState {
    /// A gated delta net (Qwen3-Next): queries and keys of `key_heads` heads of `key_dim`, values of `value_heads` heads of
    /// `value_dim`, all convolved with a kernel of so many inputs. Saturates; sizes that are not possible are refused with the model.
    pub fn gated_delta(key_heads: u32, key_dim: u32, value_heads: u32, value_dim: u32, kernel: u32) -> Self {
        let keys = key_heads.saturating_mul(key_dim);
        Self {
            conv_channels: vec![keys, keys, value_heads.saturating_mul(value_dim)],
            conv_taps: kernel.saturating_sub(1),
            heads: value_heads,
            head_elements: key_dim.saturating_mul(value_dim),
        }
    }

    /// What of it is not possible.
    pub(super) fn problem(&self) -> Option<String> {
        let groups = self.conv_channels.len();
        if groups == 0 || groups > CacheLayout::MAX_GROUPS {
            return Some(format!(
                "has {groups} groups of channels; between 1 and {} are possible",
                CacheLayout::MAX_GROUPS
            ));
        }
        let sizes = [self.conv_taps, self.heads, self.head_elements];
        (self.conv_channels.contains(&0) || sizes.contains(&0)).then(|| "has a size of zero".into())
    }
}
