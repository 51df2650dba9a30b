//! The command line.

use std::{
    num::{IntErrorKind, ParseIntError},
    path::PathBuf,
};

use clap::Parser;
use kv_plan::{Dtype, PageId, Rank, Side};

use crate::Failure;

/// Says whether a prefill side and a decode side work together, and what moves between their ranks.
///
/// A SPEC is key=value pairs separated by commas: pp (stages, 1), tp (tensor ranks, 1), cp (context-parallel ranks, 1), dp
/// (data-parallel groups, 1), layers (of each stage, as 15+15+15+16), draft (layers of a draft model, 0), order (nhd or hnd),
/// page, window_page, draft_page and dtype (where they differ from --page and --dtype), pages (of each buffer, 65536), slots (of
/// each state, 1024).
///
/// The page lists are those of a whole request, for all pools of pages; context-parallel ranks are dealt theirs in turn.
#[derive(Debug, Parser)]
#[command(name = "plan")]
pub(crate) struct Args {
    /// The model's config.json
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,

    /// Tokens of a page
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) page: u32,

    /// Element type of the cache: bf16, f16, f32 or fp8 [default: the model's, else bf16]
    #[arg(long)]
    pub(crate) dtype: Option<Dtype>,

    /// How the prefill side is split
    #[arg(long, value_name = "SPEC")]
    pub(crate) prefill: Side,

    /// How the decode side is split
    #[arg(long, value_name = "SPEC")]
    pub(crate) decode: Side,

    /// Pages of a request at the senders, separated by commas
    #[arg(long, value_name = "LIST", requires = "dst_pages", allow_hyphen_values = true)]
    src_pages: Option<String>,

    /// The same pages at the receivers
    #[arg(long, value_name = "LIST", requires = "src_pages", allow_hyphen_values = true)]
    dst_pages: Option<String>,

    /// Tokens that the pages hold [default: all that fit]
    #[arg(long, value_name = "N", requires = "src_pages")]
    pub(crate) tokens: Option<u64>,

    /// Slot of the request's states at the senders, for models with linear attention
    #[arg(long, value_name = "N", requires = "src_pages", default_value_t = 0)]
    pub(crate) src_slot: i32,

    /// Slot of the same states at the receivers
    #[arg(long, value_name = "N", requires = "src_pages", default_value_t = 0)]
    pub(crate) dst_slot: i32,

    /// Show this sender only, as in pp3.tp0
    #[arg(long, value_name = "RANK")]
    pub(crate) from: Option<Rank>,

    /// Show this receiver only
    #[arg(long, value_name = "RANK")]
    pub(crate) to: Option<Rank>,

    /// Print one JSON document instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw who sends what to whom into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print the layouts of the two sides beside each other, and what differs
    #[arg(long, conflicts_with = "json")]
    pub(crate) explain: bool,
}

impl Args {
    /// The page lists of the two sides, if they were given.
    pub(crate) fn pages(&self) -> Result<Option<PageLists>, Failure> {
        let (Some(src), Some(dst)) = (&self.src_pages, &self.dst_pages) else { return Ok(None) };
        Ok(Some(PageLists { src: list("--src-pages", src)?, dst: list("--dst-pages", dst)? }))
    }
}

/// The pages of a request: the same tokens at the senders and at the receivers.
pub(crate) struct PageLists {
    pub(crate) src: Vec<PageId>,
    pub(crate) dst: Vec<PageId>,
}

fn list(argument: &str, text: &str) -> Result<Vec<PageId>, Failure> {
    let numbers = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
    numbers.map(|number| page(argument, number)).collect()
}

fn page(argument: &str, text: &str) -> Result<PageId, Failure> {
    text.parse().map(PageId).map_err(|error: ParseIntError| match error.kind() {
        // A number, but of no page that there can be.
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => Failure::Unfit {
            kind: "page_range",
            message: format!("{argument}: page {text} is out of range: page numbers have 32 bits"),
        },
        _ => Failure::Usage(format!("{argument}: {text:?} is not a page number")),
    })
}
