//! The number by which two sides find out whether they serve the same model.

use super::{Attention, LayerKind, ModelShape};

pub(super) fn of(model: &ModelShape) -> u64 {
    let mut hash = Fnv::new();
    hash.number(u32::try_from(model.name.len()).unwrap_or(u32::MAX));
    hash.bytes(model.name.as_bytes());
    match model.attention {
        Attention::Heads { kv_heads, key_dim, value_dim } => hash.numbers(&[0, kv_heads, key_dim, value_dim]),
        Attention::Latent { dim } => hash.numbers(&[1, dim]),
    }
    hash.number(model.layer_count());
    for layer in &model.layers {
        match layer {
            LayerKind::Full => hash.number(0),
            LayerKind::SlidingWindow { window } => hash.numbers(&[1, *window]),
            LayerKind::Linear => hash.number(2),
            LayerKind::Indexed { dim } => hash.numbers(&[3, *dim]),
        }
    }
    if let Some(linear) = &model.linear {
        hash.number(u32::try_from(linear.conv_channels.len()).unwrap_or(u32::MAX));
        hash.numbers(&linear.conv_channels);
        hash.numbers(&[linear.conv_taps, linear.heads, linear.head_elements]);
    }
    hash.0
}

/// 64-bit FNV-1a: a few lines, the same on every machine and in every version, which Rust's own hashers do not promise.
pub(super) struct Fnv(pub(super) u64);

impl Fnv {
    pub(super) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn number(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    fn numbers(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|number| self.number(*number));
    }
}
