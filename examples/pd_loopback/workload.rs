//! The requests: which pages each has on either side. Both sides compute it from the same few numbers.

use kvferry::kv_plan::{CacheLayout, Dtype, Mismatch, ModelShape, PageId, Side};
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
            let page = side.page_tokens.unwrap_or(self.page);
            let needed = u64::from(self.tokens.div_ceil(page.max(1))) * u64::from(self.wave_len());
            side.pages = u32::try_from(needed + needed / 4 + 1).unwrap_or(u32::MAX);
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

    /// The pages of a request on one side: scattered over the whole cache, and disjoint from those of the requests that are in
    /// flight with it.
    pub(crate) fn pages(&self, end: End, layout: &CacheLayout, request: u64) -> Result<Vec<PageId>, Refused> {
        let each = self.tokens.div_ceil(layout.page_tokens) as usize;
        let wave = u64::from(self.wave_len());
        let salt = match end {
            End::Prefill => 1,
            End::Decode => 2,
        };
        let mut random = Random(self.seed ^ (request / wave).wrapping_mul(0x5851_f42d_4c95_7f2d) ^ (salt << 60));
        let mut pages: Vec<i32> = (0..i32::try_from(layout.page_count()).unwrap_or(i32::MAX)).collect();
        for last in (1..pages.len()).rev() {
            pages.swap(last, (random.next() % (last as u64 + 1)) as usize);
        }
        let first = (request % wave) as usize * each;
        let own = pages.get(first..first + each).ok_or_else(|| Refused {
            kind: "page_range".into(),
            message: format!(
                "{wave} requests of {} tokens at a time need {} pages, but {} has {}; raise pages or lower --tokens",
                self.tokens,
                each as u64 * wave,
                layout.rank(),
                layout.page_count()
            ),
        })?;
        Ok(own.iter().map(|page| PageId(*page)).collect())
    }

    /// The seed of a request's contents.
    pub(crate) fn contents(&self, request: u64) -> u64 {
        Random(self.seed.wrapping_add(request)).next()
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
