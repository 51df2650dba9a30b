//! The two sides, and what moves between them.

use std::fs;

use kv_plan::{
    CacheLayout, Dtype, End, Mismatch, ModelShape, PageId, PageList, Pages, Pairing, Plan, PlanError, PlannedSlice,
    Pool, PoolKind, Rank, Routes, Side, explain, routes,
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
        if args.explain
            && let Some((prefill, decode)) = prefill.first().zip(decode.first())
        {
            println!("{}", explain(prefill, decode));
        }
        let routes = routes(&prefill, &decode)?;
        Ok(Self { model, prefill, decode, routes })
    }

    /// The transfers that the arguments select, ordered by sender and receiver; of a request, if there is one.
    pub(crate) fn transfers(&self, args: &Args, request: Option<&PageLists>) -> Result<Vec<Transfer>, Failure> {
        let mut plan = Plan::default();
        let mut transfers = Vec::new();
        for pairing in self.routes.pairings() {
            // The lists have to be right at all ranks, whatever is shown of them.
            if let Some(lists) = request {
                self.plan(args, lists, pairing, &mut plan)?;
            }
            let selected = args.from.is_none_or(|rank| rank == pairing.prefill_rank())
                && args.to.is_none_or(|rank| rank == pairing.decode_rank());
            if selected {
                let bytes = if request.is_some() { plan.bytes() } else { pairing.bytes_per_token() };
                let slices = request.map(|_| sorted(plan.slices(pairing).collect()));
                transfers.push(Transfer { pairing: pairing.clone(), bytes, slices });
            }
        }
        Ok(transfers)
    }

    /// Plans the request between two ranks.
    fn plan(&self, args: &Args, lists: &PageLists, pairing: &Pairing, plan: &mut Plan) -> Result<(), Failure> {
        let find = |side: &[CacheLayout], rank| side.iter().find(|layout| layout.rank() == rank).cloned();
        let sides = find(&self.prefill, pairing.prefill_rank()).zip(find(&self.decode, pairing.decode_rank()));
        let Some((prefill, decode)) = sides else { return Ok(()) };
        let (src, dst) = (dealt(&prefill, &lists.src), dealt(&decode, &lists.dst));
        let (src_slot, dst_slot) = ([PageId(args.src_slot)], [PageId(args.dst_slot)]);
        // One list is for all pools of pages, and a slot for the states.
        let of = |pages, slot| {
            let list = move |pool: Pool| PageList::new(pool, if pool.kind == PoolKind::State { slot } else { pages });
            pairing.pools().map(list).collect::<Vec<_>>()
        };
        let (src, dst) = (of(&src[..], &src_slot[..]), of(&dst[..], &dst_slot[..]));
        let mut pages = Pages::from(&src[..]);
        if let Some(tokens) = args.tokens.map_or_else(|| self.tokens_of(lists), |tokens| Ok(Some(tokens)))? {
            pages = pages.tokens(0..tokens);
        }
        Ok(pairing.plan(pages, &dst[..], plan)?)
    }

    /// The tokens of the request, where the pages of a rank do not tell: with context parallelism. The lists of both sides have to
    /// be of the same tokens.
    fn tokens_of(&self, lists: &PageLists) -> Result<Option<u64>, Failure> {
        let side = |side: &[CacheLayout]| side.first().map(|layout| (layout.shard.cp, u64::from(layout.page_tokens)));
        let Some(((src_cp, src_tokens), (dst_cp, dst_tokens))) = side(&self.prefill).zip(side(&self.decode)) else {
            return Ok(None);
        };
        if src_cp == 1 && dst_cp == 1 {
            return Ok(None);
        }
        let (src, dst) = (lists.src.len() as u64, lists.dst.len() as u64);
        let tokens = (src * src_tokens).min(dst * dst_tokens);
        if tokens.div_ceil(src_tokens) == src && tokens.div_ceil(dst_tokens) == dst {
            return Ok(Some(tokens));
        }
        Err(Failure::from(PlanError::PageCount { prefill: lists.src.len(), decode: lists.dst.len() }))
    }

    /// Bytes that move in all: of a request, or else of a token, which one data-parallel group of each side has, and one of its
    /// context-parallel ranks.
    pub(crate) fn bytes(&self, args: &Args, transfers: &[Transfer]) -> u64 {
        let is_whole = args.from.is_none() && args.to.is_none();
        if is_whole && transfers.iter().all(|transfer| transfer.slices.is_none()) {
            return self.routes.bytes_per_token();
        }
        transfers.iter().map(|transfer| transfer.bytes).fold(0, u64::saturating_add)
    }
}

/// Those of a request's pages that a context-parallel rank holds.
fn dealt(layout: &CacheLayout, pages: &[PageId]) -> Vec<PageId> {
    let (rank, of) = (layout.rank().cp as usize, layout.shard.cp as usize);
    pages.iter().copied().skip(rank).step_by(of.max(1)).collect()
}

/// Slices by buffer, with those joined that are neighbours on both sides.
fn sorted(mut slices: Vec<PlannedSlice>) -> Vec<PlannedSlice> {
    slices.sort_by_key(|slice| slice.key);
    let mut joined: Vec<PlannedSlice> = Vec::with_capacity(slices.len());
    for slice in slices {
        match joined.last_mut() {
            Some(last)
                if last.key == slice.key
                    && last.src_offset + last.len == slice.src_offset
                    && last.dst_offset + last.len == slice.dst_offset =>
            {
                last.len += slice.len;
            }
            _ => joined.push(slice),
        }
    }
    joined
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
