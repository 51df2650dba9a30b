//! Errors: of a layout by itself, of two layouts that do not fit, and of the page lists of a request.
//!
//! They speak of "prefill" and "decode", never of "ours" and "theirs": both sides find a mismatch, and both print the same.

mod layout;
mod mismatch;
mod plan;

pub use self::{layout::LayoutError, mismatch::Mismatch, plan::PlanError};

/// One of the two ends of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The sender.
    Prefill,
    /// The receiver.
    Decode,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}
