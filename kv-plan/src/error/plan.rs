//! What is wrong with the page lists of a request.

use crate::{BufferKey, PageId, Rank, error::End};

/// What is wrong with the page lists of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The two lists have different lengths.
    #[error(
        "prefill lists {prefill} pages and decode {decode}; the lists are the same tokens on the two sides and have the same length"
    )]
    PageCount {
        /// Pages of the sender.
        prefill: usize,
        /// Pages of the receiver.
        decode: usize,
    },
    /// A page that the rank does not have.
    #[error("page {page} of {end} {rank} (place {place} in its list) is out of range: {} {page_count} pages{}", holder(*key), if page.0 < 0 { ", and negative numbers mark absent pages" } else { "" })]
    PageRange {
        /// The page.
        page: PageId,
        /// Its place in the list, from 0.
        place: usize,
        /// Whose list.
        end: End,
        /// The rank.
        rank: Rank,
        /// Pages that its smallest buffer has.
        page_count: u32,
        /// The smallest buffer; `None` for a rank without buffers.
        key: Option<BufferKey>,
    },
    /// A page twice on the receiving side.
    #[error(
        "page {page} is twice in the list of decode {rank} (again at place {place}); two pages of a request would overwrite each other"
    )]
    DuplicatePage {
        /// The page.
        page: PageId,
        /// Its second place in the list, from 0.
        place: usize,
        /// The receiving rank.
        rank: Rank,
    },
    /// The bytes of the plan do not fit 64 bits.
    #[error("the plan moves more than 2^64 bytes")]
    Overflow,
}

impl PlanError {
    /// The kind of the error, a stable word for programs: `page_count`, `page_range`, `duplicate_page` or `config`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::PageCount { .. } => "page_count",
            Self::PageRange { .. } => "page_range",
            Self::DuplicatePage { .. } => "duplicate_page",
            Self::Overflow => "config",
        }
    }
}

fn holder(key: Option<BufferKey>) -> String {
    key.map_or_else(|| "the rank has".into(), |key| format!("its buffer for {key} has"))
}
