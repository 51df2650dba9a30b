//! The name of a rank.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A rank of one side: its place in the grid of data-parallel groups, pipeline stages, context-parallel and tensor-parallel ranks.
///
/// Written `pp3.tp0`; context-parallel rank and data-parallel group follow where they are not 0: `pp0.tp1.cp2.dp3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rank {
    /// Data-parallel group, from 0. Groups are whole copies of a side, and a request is in one of them.
    pub dp: u32,
    /// Pipeline stage, from 0.
    pub pp: u32,
    /// Context-parallel rank, from 0: which of a request's pages the rank holds.
    pub cp: u32,
    /// Tensor-parallel rank, from 0.
    pub tp: u32,
}

impl Rank {
    /// The rank of a side without context and data parallelism.
    pub const fn new(pp: u32, tp: u32) -> Self {
        Self { dp: 0, pp, cp: 0, tp }
    }

    /// The same with a context-parallel rank.
    #[must_use]
    pub const fn with_cp(self, cp: u32) -> Self {
        Self { cp, ..self }
    }

    /// The same in a data-parallel group.
    #[must_use]
    pub const fn with_dp(self, dp: u32) -> Self {
        Self { dp, ..self }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = format!("pp{}.tp{}", self.pp, self.tp);
        for (axis, number) in [("cp", self.cp), ("dp", self.dp)] {
            if number > 0 {
                name += &format!(".{axis}{number}");
            }
        }
        f.pad(&name)
    }
}

/// A text that does not name a rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} does not name a rank; write pp and the stage, a point, tp and the tensor rank, as in pp3.tp0, and where there are any .cp and .dp behind it"
)]
pub struct ParseRankError {
    text: String,
}

impl FromStr for Rank {
    type Err = ParseRankError;

    fn from_str(text: &str) -> Result<Self, ParseRankError> {
        // Digits alone: "pp+3" is a number to `parse`, but names no rank.
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let parse = || {
            let mut axes = text.split('.').peekable();
            let mut required = |axis| number(axes.next()?.strip_prefix(axis)?);
            let mut rank = Self::new(required("pp")?, required("tp")?);
            let mut optional = |axis| match axes.peek().and_then(|text| text.strip_prefix(axis)) {
                Some(text) => {
                    axes.next();
                    number(text)
                }
                None => Some(0),
            };
            (rank.cp, rank.dp) = (optional("cp")?, optional("dp")?);
            axes.next().is_none().then_some(rank)
        };
        parse().ok_or_else(|| ParseRankError { text: text.into() })
    }
}
