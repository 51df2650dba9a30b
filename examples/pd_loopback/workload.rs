//! The requests: which pages each has on either side. Both sides compute it from the same few numbers.

use kvferry::kv_plan::{CacheLayout, Dtype, Mismatch, ModelShape, PageId, PageList, Pages, Pool, PoolKind, Side};
use serde::{Deserialize, Serialize};

/// The most requests that are in flight at a time; their pages are used again by later ones.
const WAVE: u32 = 4;

/// Everything that decides who holds what and what moves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Workload {
    pub(crate) model: String,
    pub(crate) prefill: String,
    pub(crate) decode: String,
    pub(crate) page: u32,
    pub(crate) tokens: u32,
    pub(crate) requests: u32,
    pub(crate) seed: u64,
}

/// One side of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Prefill,
    Decode,
}

impl Workload {
    /// The layouts of all ranks of a side.
    ///
    /// Each buffer has as many pages as the requests in flight need, and a quarter more that nobody may touch, unless the side
    /// says how many.
    pub(crate) fn layouts(&self, end: End) -> Result<Vec<CacheLayout>, Refused> {
        let model = ModelShape::from_config_json(&self.model)
            .map_err(|error| Refused { kind: "config".into(), message: error.to_string() })?;
        let text = match end {
            End::Prefill => &self.prefill,
            End::Decode => &self.decode,
        };
        let refused = |error: Mismatch| Refused { kind: error.kind().into(), message: error.to_string() };
        let mut side: Side = text.parse().map_err(refused)?;
        if !text.contains("pages=") {
            let own = [side.page_tokens, side.window_page_tokens, side.draft_page_tokens];
            let page = own.into_iter().flatten().min().map_or(self.page, |own| own.min(self.page));
            let needed = u64::from(self.tokens.div_ceil(page.max(1))) * u64::from(self.wave_len());
            side.pages = u32::try_from(needed + needed / 4 + 1).unwrap_or(u32::MAX);
        }
        if !text.contains("slots=") {
            side.slots = self.wave_len() + self.wave_len() / 4 + 1;
        }
        let dtype = model.dtype().unwrap_or(Dtype::Bf16);
        side.layouts(&model, self.page, dtype).map_err(refused)
    }

    /// Requests that are in flight at a time.
    fn wave_len(&self) -> u32 {
        self.requests.clamp(1, WAVE)
    }

    /// The requests, in the groups that are in flight together.
    pub(crate) fn waves(&self) -> Vec<Vec<u64>> {
        let requests: Vec<u64> = (0..u64::from(self.requests)).collect();
        requests.chunks(self.wave_len() as usize).map(<[u64]>::to_vec).collect()
    }

    /// The data-parallel group of a side that a request is in.
    pub(crate) fn group(layout: &CacheLayout, request: u64) -> u32 {
        u32::try_from(request % u64::from(layout.shard.dp)).unwrap_or(0)
    }

    /// The data-parallel group of the prefill side that a request is in.
    pub(crate) fn prefill_group(&self, request: u64) -> u32 {
        let dp = self.prefill.parse::<Side>().map_or(1, |side| side.dp);
        u32::try_from(request % u64::from(dp)).unwrap_or(0)
    }

    /// The pages of a request on one rank, by pool: scattered over the whole cache, and disjoint from those of the requests that
    /// are in flight with it.
    pub(crate) fn pages(&self, end: End, layout: &CacheLayout, request: u64) -> Result<RequestPages, Refused> {
        let lists = layout.pools().into_iter().map(|pool| Ok((pool, self.list(end, layout, pool, request)?)));
        Ok(RequestPages { lists: lists.collect::<Result<_, _>>()?, tokens: self.tokens.into() })
    }

    fn list(&self, end: End, layout: &CacheLayout, pool: Pool, request: u64) -> Result<Vec<PageId>, Refused> {
        let page_tokens = layout.page_tokens_of(pool).unwrap_or(1);
        let each = match pool.kind {
            PoolKind::State => 1,
            _ => (0..self.tokens.div_ceil(page_tokens)).filter(|page| is_own(layout, *page)).count(),
        };
        let (wave, pages) = (u64::from(self.wave_len()), layout.page_count(pool));
        let salt = match end {
            End::Prefill => 1,
            End::Decode => 2,
        };
        let salt = (salt << 60) | ((pool.part as u64) << 58) | ((pool.kind as u64) << 56);
        let mut random = Random(self.seed ^ (request / wave).wrapping_mul(0x5851_f42d_4c95_7f2d) ^ salt);
        let mut shuffled: Vec<i32> = (0..i32::try_from(pages).unwrap_or(i32::MAX)).collect();
        for last in (1..shuffled.len()).rev() {
            shuffled.swap(last, (random.next() % (last as u64 + 1)) as usize);
        }
        let first = (request % wave) as usize * each;
        let own = shuffled.get(first..first + each).ok_or_else(|| Refused {
            kind: "page_range".into(),
            message: format!(
                "{wave} requests of {} tokens at a time need {} pages (pool {pool}), but {} has {pages}; raise pages or lower --tokens",
                self.tokens,
                each as u64 * wave,
                layout.rank(),
            ),
        })?;
        Ok(own.iter().map(|page| PageId(*page)).collect())
    }

    /// The seed of a request's contents.
    pub(crate) fn contents(&self, request: u64) -> u64 {
        Random(self.seed.wrapping_add(request)).next()
    }
}

/// Whether a request's page is one of a context-parallel rank's.
pub(crate) fn is_own(layout: &CacheLayout, page: u32) -> bool {
    page % layout.shard.cp == layout.rank().cp
}

/// The pages of a request on one rank.
pub(crate) struct RequestPages {
    lists: Vec<(Pool, Vec<PageId>)>,
    tokens: u64,
}

impl RequestPages {
    /// The pages of a pool.
    pub(crate) fn of(&self, pool: Pool) -> &[PageId] {
        self.lists.iter().find(|(own, _)| *own == pool).map_or(&[], |(_, pages)| pages)
    }

    /// As the planner takes them.
    pub(crate) fn with<T>(&self, run: impl FnOnce(Pages<'_>) -> T) -> T {
        let lists: Vec<PageList<'_>> = self.lists.iter().map(|(pool, pages)| PageList::new(*pool, pages)).collect();
        run(Pages::from(lists.as_slice()).tokens(0..self.tokens))
    }
}

/// Why a workload cannot be run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
