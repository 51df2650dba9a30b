//! What one buffer of a model has on one tensor rank.

use super::{Attention, LayerKind, ModelShape};
use crate::{Dtype, HeadGroup, Heads, PoolKind, Role};

/// Bytes of an element of a recurrent state, which is kept in single precision.
const RECURRENT_BYTES: u64 = 4;
/// Elements of an 8-bit index key that share a scale of [`SCALE_BYTES`].
const SCALE_ELEMENTS: u32 = 128;
const SCALE_BYTES: u64 = 4;

/// What one buffer has on one tensor rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) pool: PoolKind,
    pub(crate) token_bytes: u64,
    pub(crate) groups: Vec<HeadGroup>,
}

/// Why a buffer has no geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoGeometry {
    /// A layer of this kind has no such buffer, or the model does not say what it looks like.
    NoBuffer,
    /// So many heads cannot be split over the tensor ranks.
    Indivisible(u32),
    /// Its sizes do not fit 64 bits.
    Overflow,
}

impl ModelShape {
    /// A buffer of a layer of some kind on a tensor rank of `tp`.
    pub(crate) fn geometry(
        &self,
        kind: LayerKind,
        role: Role,
        dtype: Dtype,
        tp: u32,
        tp_rank: u32,
    ) -> Result<Geometry, NoGeometry> {
        let group = |total: u32, head_bytes: u64| match Heads::divide(total, tp) {
            true => Ok(HeadGroup { heads: Heads::of_rank(total, tp, tp_rank), head_bytes }),
            false => Err(NoGeometry::Indivisible(total)),
        };
        let elements = |count: u32| u64::from(count) * dtype.bytes();
        let (whole, groups) = match (kind, role, self.attention, &self.linear) {
            (LayerKind::Linear, Role::Conv, _, Some(linear)) => {
                let bytes = u64::from(linear.conv_taps) * self.dtype.unwrap_or(Dtype::Bf16).bytes();
                let groups: Result<Vec<_>, _> = linear.conv_channels.iter().map(|total| group(*total, bytes)).collect();
                (0, groups?)
            }
            (LayerKind::Linear, Role::Recurrent, _, Some(linear)) => {
                (0, vec![group(linear.heads, u64::from(linear.head_elements) * RECURRENT_BYTES)?])
            }
            (LayerKind::Linear, ..) => return Err(NoGeometry::NoBuffer),
            (LayerKind::Indexed { dim }, Role::Index, ..) => (index_bytes(dim, dtype), Vec::new()),
            (_, Role::Key, Attention::Heads { kv_heads, key_dim, .. }, _) => {
                (0, vec![group(kv_heads, elements(key_dim))?])
            }
            (_, Role::Value, Attention::Heads { kv_heads, value_dim, .. }, _) => {
                (0, vec![group(kv_heads, elements(value_dim))?])
            }
            (_, Role::Latent, Attention::Latent { dim }, _) => (elements(dim), Vec::new()),
            _ => return Err(NoGeometry::NoBuffer),
        };
        let token_bytes = groups.iter().try_fold(whole, |sum: u64, group| sum.checked_add(group.bytes()?));
        Ok(Geometry { pool: kind.pool(), token_bytes: token_bytes.ok_or(NoGeometry::Overflow)?, groups })
    }
}

/// Bytes of an index key: 8-bit ones carry their scales.
fn index_bytes(dim: u32, dtype: Dtype) -> u64 {
    match dtype {
        Dtype::Fp8 => u64::from(dim) + u64::from(dim.div_ceil(SCALE_ELEMENTS)) * SCALE_BYTES,
        _ => u64::from(dim) * dtype.bytes(),
    }
}
