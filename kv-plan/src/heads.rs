//! What tensor parallelism divides: heads, and the channels of states.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which heads a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Heads {
    /// The first one's number in the whole model.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// How many the whole model has.
    pub total: u32,
}

impl Heads {
    /// What is not divided: one "head" that every rank holds.
    pub const WHOLE: Self = Self { first: 0, count: 1, total: 1 };

    /// The heads of a tensor rank of `tp`, where one of the numbers divides the other: with more ranks than heads, neighbouring
    /// ranks hold the same one.
    pub fn of_rank(total: u32, tp: u32, tp_rank: u32) -> Self {
        // Below `total` for every rank below `tp`.
        let first = u64::from(tp_rank) * u64::from(total) / u64::from(tp.max(1));
        Self { first: u32::try_from(first).unwrap_or(u32::MAX), count: (total / tp.max(1)).max(1), total }
    }

    /// Whether `total` heads can be split over `tp` ranks: each rank has as many, or each head as many ranks.
    pub fn divide(total: u32, tp: u32) -> bool {
        total > 0 && tp > 0 && (total.is_multiple_of(tp) || tp.is_multiple_of(total))
    }

    /// On how many of `tp` ranks each head is.
    pub fn replicas(total: u32, tp: u32) -> u32 {
        (tp / total.max(1)).max(1)
    }

    /// The number after its last one.
    pub fn end(&self) -> u32 {
        self.first.saturating_add(self.count)
    }

    /// What it has in common with another range.
    pub(crate) fn overlap(&self, other: &Self) -> Option<(u32, u32)> {
        let (first, end) = (self.first.max(other.first), self.end().min(other.end()));
        (first < end).then(|| (first, end - first))
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = u64::from(self.first) + u64::from(self.count);
        write!(f, "heads {}..{end} of {}", self.first, self.total)
    }
}

/// Heads of one size that lie beside each other in a token. Keys and values have one group; a convolution state has several,
/// each of which is divided for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadGroup {
    /// Which heads.
    pub heads: Heads,
    /// Bytes of one head of one token (of one channel of a state).
    pub head_bytes: u64,
}

impl HeadGroup {
    /// Bytes of all its heads of one token; `None` where they do not fit 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        u64::from(self.heads.count).checked_mul(self.head_bytes)
    }
}
