//! What is wrong with the page lists of a request.

use crate::{BufferKey, PageId, Pool, Rank, error::End};

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
    /// A list that does not have the pages of the tokens that move.
    #[error(
        "{end} {rank} lists {pages} pages of {page_tokens} tokens (pool {pool}) from token {first_token} on, but tokens {start}..{stop} need {needed}; give the pages of just these tokens"
    )]
    PagesOfTokens {
        /// Whose list.
        end: End,
        /// The rank.
        rank: Rank,
        /// The pool.
        pool: Pool,
        /// Pages of the list.
        pages: usize,
        /// Tokens of a page.
        page_tokens: u32,
        /// Where the list begins.
        first_token: u64,
        /// The first token that moves.
        start: u64,
        /// The token after the last one that moves.
        stop: u64,
        /// How many pages hold them on this rank.
        needed: u64,
    },
    /// A list that one side gives for a pool, and the other does not.
    #[error(
        "{end} {rank} lists no pages of the pool {pool}, and the other side does; give the pages of every pool on both sides"
    )]
    NoList {
        /// Who lists none.
        end: End,
        /// The rank.
        rank: Rank,
        /// The pool.
        pool: Pool,
    },
    /// Two lists of the same pool.
    #[error("{end} {rank} lists pages of the pool {pool} twice; give one list for each pool")]
    ListedTwice {
        /// Whose list.
        end: End,
        /// The rank.
        rank: Rank,
        /// The pool.
        pool: Pool,
    },
    /// The two sides say that different tokens move, or do not say which.
    #[error("{problem}; say on both sides, or on one, which tokens of the request move")]
    Tokens {
        /// What is wrong.
        problem: String,
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
            Self::PageCount { .. } | Self::PagesOfTokens { .. } | Self::NoList { .. } => "page_count",
            Self::PageRange { .. } => "page_range",
            Self::DuplicatePage { .. } => "duplicate_page",
            Self::Overflow | Self::ListedTwice { .. } | Self::Tokens { .. } => "config",
        }
    }
}

fn holder(key: Option<BufferKey>) -> String {
    key.map_or_else(|| "the rank has".into(), |key| format!("its buffer for {key} has"))
}
