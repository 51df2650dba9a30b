//! The two sides, and what moves between them.

use std::fs;

use kv_plan::{
    CacheLayout, Dtype, End, Mismatch, ModelShape, PageId, Pairing, Plan, PlannedSlice, Rank, Routes, Side, routes,
};

use crate::{
    Failure,
    args::{Args, PageLists},
};

/// Both sides of a deployment that fit each other.
pub(crate) struct Cluster {
    pub(crate) model: ModelShape,
    pub(crate) prefill: Vec<CacheLayout>,
    pub(crate) decode: Vec<CacheLayout>,
    routes: Routes,
}

/// What one rank sends to another.
pub(crate) struct Transfer {
    pub(crate) pairing: Pairing,
    /// Bytes of the request, or of a token without one.
    pub(crate) bytes: u64,
    /// What the request moves; `None` without one.
    pub(crate) slices: Option<Vec<PlannedSlice>>,
}

impl Cluster {
    pub(crate) fn read(args: &Args) -> Result<Self, Failure> {
        if args.svg.is_some() {
            return Err(Failure::Usage("--svg is not supported yet; leave it out".into()));
        }
        let path = args.config.display();
        let json = fs::read(&args.config).map_err(|error| Failure::Usage(format!("{path}: {error}")))?;
        let model = ModelShape::from_config_json(&String::from_utf8_lossy(&json))
            .map_err(|error| Failure::Unfit { kind: "config", message: format!("{path}: {error}") })?;
        let dtype = args.dtype.or_else(|| model.dtype()).unwrap_or(Dtype::Bf16);
        let layouts = |end: End, side: &Side| {
            side.layouts(&model, args.page, dtype).map_err(|error| match error {
                // It is the model that is at fault, whichever side it is read for.
                Mismatch::Unsupported { .. } => Failure::from(error),
                _ => Failure::Unfit { kind: error.kind(), message: format!("{end} {error}") },
            })
        };
        let (prefill, decode) = (layouts(End::Prefill, &args.prefill)?, layouts(End::Decode, &args.decode)?);
        check_rank("--from", args.from, &prefill)?;
        check_rank("--to", args.to, &decode)?;
        let routes = routes(&prefill, &decode)?;
        Ok(Self { model, prefill, decode, routes })
    }

    /// The transfers that the arguments select, ordered by sender and receiver; of a request, if there is one.
    pub(crate) fn transfers(&self, args: &Args, request: Option<&PageLists>) -> Result<Vec<Transfer>, Failure> {
        let mut plan = Plan::default();
        let mut used = 0;
        if let Some(PageLists { src, dst }) = request {
            // The whole lists have to be right at all ranks, whatever is shown of them.
            for pairing in self.routes.pairings() {
                pairing.plan(src, dst, &mut plan)?;
            }
            used = self.pages_of_tokens(args.tokens, src.len())?;
        }
        let selected = self.routes.pairings().iter().filter(|pairing| {
            args.from.is_none_or(|rank| rank == pairing.prefill_rank())
                && args.to.is_none_or(|rank| rank == pairing.decode_rank())
        });
        let transfer = |pairing: &Pairing| {
            let Some(PageLists { src, dst }) = request else {
                return Ok(Transfer { pairing: pairing.clone(), bytes: pairing.bytes_per_token(), slices: None });
            };
            let part = |pages| <[PageId]>::get(pages, ..used).unwrap_or_default();
            pairing.plan(part(src), part(dst), &mut plan)?;
            let slices = Some(plan.slices(pairing).collect());
            Ok(Transfer { pairing: pairing.clone(), bytes: plan.bytes(), slices })
        };
        selected.map(transfer).collect()
    }

    /// How many of the listed pages hold the tokens.
    fn pages_of_tokens(&self, tokens: Option<u64>, listed: usize) -> Result<usize, Failure> {
        let (Some(tokens), Some(layout)) = (tokens, self.prefill.first()) else { return Ok(listed) };
        let page_tokens = layout.page_tokens;
        let needed = tokens.div_ceil(page_tokens.into());
        match usize::try_from(needed) {
            Ok(needed) if needed <= listed => Ok(needed),
            _ => Err(Failure::Unfit {
                kind: "page_count",
                message: format!(
                    "{tokens} tokens need {needed} pages of {page_tokens}, but {listed} are listed; list all pages of the request on both sides"
                ),
            }),
        }
    }
}

fn check_rank(argument: &str, rank: Option<Rank>, side: &[CacheLayout]) -> Result<(), Failure> {
    let Some(rank) = rank.filter(|rank| side.iter().all(|layout| layout.rank() != *rank)) else { return Ok(()) };
    let (first, last) = (side.first().map(CacheLayout::rank), side.last().map(CacheLayout::rank));
    match first.zip(last) {
        Some((first, last)) => {
            Err(Failure::Usage(format!("{argument} {rank}: that side has the ranks {first} to {last} only")))
        }
        None => Err(Failure::Usage(format!("{argument} {rank}: that side has no ranks"))),
    }
}
