//! The names of what a cache is made of.

use std::{fmt, str::FromStr};

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::PlanError;

/// Which model a buffer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Part {
    /// The model that is served.
    Main,
    /// The small model that drafts tokens for speculative decoding. Its layers are counted from 0.
    Draft,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Main => "main",
            Self::Draft => "draft",
        })
    }
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Keys of multi-head or grouped-query attention.
    Key,
    /// Values of multi-head or grouped-query attention.
    Value,
    /// The joint latent of multi-head latent attention; the same on every tensor-parallel rank.
    Latent,
    /// Keys of a sparse-attention indexer.
    Index,
    /// Convolution state of a linear-attention layer, one slot a request.
    Conv,
    /// Recurrent state of a linear-attention layer, one slot a request.
    Recurrent,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Key => "key",
            Self::Value => "value",
            Self::Latent => "latent",
            Self::Index => "index",
            Self::Conv => "conv",
            Self::Recurrent => "recurrent",
        })
    }
}

impl Role {
    /// Whether it is kept by the token, in pages; else there is one state a request, in a slot.
    pub const fn is_paged(self) -> bool {
        !matches!(self, Self::Conv | Self::Recurrent)
    }
}

/// Which kind of page list a buffer goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PoolKind {
    /// Pages of all tokens of a request.
    Full,
    /// Pages of sliding-window attention: only the last tokens of a request are needed.
    Window,
    /// One slot a request, for the states of linear attention. A slot counts as a page of one token.
    State,
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Full => "full",
            Self::Window => "window",
            Self::State => "state",
        })
    }
}

/// A pool of pages (or slots) that a request has one list of: all buffers of a pool hold the same tokens in the same pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pool {
    /// Whose.
    pub part: Part,
    /// What for.
    pub kind: PoolKind,
}

impl Pool {
    /// The main model's pages of all tokens.
    pub const FULL: Self = Self { part: Part::Main, kind: PoolKind::Full };
    /// The main model's pages of sliding-window attention.
    pub const WINDOW: Self = Self { part: Part::Main, kind: PoolKind::Window };
    /// The main model's slots of states.
    pub const STATE: Self = Self { part: Part::Main, kind: PoolKind::State };
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Main => self.kind.fmt(f),
            Part::Draft => write!(f, "draft {}", self.kind),
        }
    }
}

/// What a buffer is: the name by which buffers of two ranks are paired. Never its place in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BufferKey {
    /// Which model.
    pub part: Part,
    /// The layer's number in the whole model, whatever stage holds it.
    pub layer: u32,
    /// What it holds.
    pub role: Role,
}

impl BufferKey {
    /// A key of the main model.
    pub const fn main(role: Role, layer: u32) -> Self {
        Self { part: Part::Main, layer, role }
    }

    /// A key of the draft model.
    pub const fn draft(role: Role, layer: u32) -> Self {
        Self { part: Part::Draft, layer, role }
    }
}

impl fmt::Display for BufferKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Main => write!(f, "layer {} ({})", self.layer, self.role),
            Part::Draft => write!(f, "draft layer {} ({})", self.layer, self.role),
        }
    }
}

/// The number of a page in a rank's buffers. A type of its own, so that a scheduler's logical block number does not become
/// one by accident. Negative numbers mark absent pages in some systems; every plan refuses them.
///
/// ```compile_fail
/// let block: i32 = 7;
/// let page: kv_plan::PageId = block;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct PageId(pub i32);

impl PageId {
    /// The pages with these numbers.
    pub fn list(pages: &[i32]) -> &[Self] {
        bytemuck::cast_slice(pages)
    }

    /// Writes runs of pages, each the first one and how many, out into a list, whose former contents go. A list that is used
    /// again allocates only for more pages than ever before.
    ///
    /// ```
    /// use kv_plan::PageId;
    ///
    /// let mut pages = Vec::new();
    /// PageId::expand(&[(PageId(5), 3), (PageId(12), 2)], &mut pages)?;
    /// assert_eq!(pages, PageId::list(&[5, 6, 7, 12, 13]));
    /// # Ok::<(), kv_plan::PlanError>(())
    /// ```
    ///
    /// # Errors
    /// [`PlanError::Overflow`] for pages whose numbers do not fit 31 bits; the list is empty then.
    pub fn expand(runs: &[(Self, u32)], into: &mut Vec<Self>) -> Result<(), PlanError> {
        into.clear();
        for (first, count) in runs {
            let end = i32::try_from(*count).ok().and_then(|count| first.0.checked_add(count));
            let Some(end) = end else {
                into.clear();
                return Err(PlanError::Overflow);
            };
            into.extend((first.0..end).map(Self));
        }
        Ok(())
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The type of a cache's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Dtype {
    /// 16-bit brain float.
    Bf16,
    /// 16-bit IEEE float.
    F16,
    /// 32-bit IEEE float.
    F32,
    /// 8-bit float of any of its forms.
    Fp8,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::Fp8 => 1,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Fp8 => "fp8",
        })
    }
}

/// A text that names no type or order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not one of {known}")]
pub struct ParseNameError {
    text: String,
    known: &'static str,
}

impl FromStr for Dtype {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        match text {
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "f16" | "fp16" | "float16" | "half" => Ok(Self::F16),
            "f32" | "fp32" | "float32" | "float" => Ok(Self::F32),
            "fp8" | "float8_e4m3fn" | "float8_e5m2" => Ok(Self::Fp8),
            _ => Err(ParseNameError { text: text.into(), known: "bf16, f16, f32, fp8" }),
        }
    }
}

/// How heads and tokens follow each other inside a page of keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Order {
    /// Token-major, "NHD": `[page][token][head][dim]`.
    #[serde(rename = "nhd")]
    TokenMajor,
    /// Head-major, "HND": `[page][head][token][dim]`.
    #[serde(rename = "hnd")]
    HeadMajor,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::TokenMajor => "nhd",
            Self::HeadMajor => "hnd",
        })
    }
}

impl FromStr for Order {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        match text {
            "nhd" => Ok(Self::TokenMajor),
            "hnd" => Ok(Self::HeadMajor),
            _ => Err(ParseNameError { text: text.into(), known: "nhd, hnd" }),
        }
    }
}

#[cfg(test)]
mod tests;
