//! One side of a cluster, and how it is written down: `pp=4,tp=2,layers=15+15+15+16`.

mod build;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use crate::{CacheLayout, Dtype, Mismatch, ModelShape, Order, Part, Pool, PoolKind};

/// How one side (prefill or decode) of a cluster is configured.
///
/// ```
/// use kv_plan::Side;
///
/// let side: Side = "pp=4,tp=2,order=nhd".parse()?;
/// assert_eq!((side.pp, side.tp), (4, 2));
/// assert_eq!(side.stages(61), [15, 15, 15, 16]);
/// # Ok::<(), kv_plan::Mismatch>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Side {
    /// Pipeline stages.
    pub pp: u32,
    /// Tensor ranks of each stage.
    pub tp: u32,
    /// Context-parallel ranks, over which a request's pages go round.
    pub cp: u32,
    /// Data-parallel groups, each a whole copy.
    pub dp: u32,
    /// Layers of each stage, where they are given; else they are split evenly with the remainder on the last stages.
    pub layers: Option<Vec<u32>>,
    /// Layers of a draft model, on the last stage.
    pub draft: u32,
    /// The draft model, where it is of another kind than the main model.
    pub draft_model: Option<ModelShape>,
    /// Order of heads and tokens.
    pub order: Order,
    /// Tokens of a page, where this side has its own.
    pub page_tokens: Option<u32>,
    /// Tokens of a page of sliding-window attention, where they differ.
    pub window_page_tokens: Option<u32>,
    /// Tokens of a page of the draft model, where they differ.
    pub draft_page_tokens: Option<u32>,
    /// Element type, where this side has its own.
    pub dtype: Option<Dtype>,
    /// Pages of each buffer.
    pub pages: u32,
    /// Slots of each buffer of states.
    pub slots: u32,
}

impl Default for Side {
    /// One rank, all layers, no draft, token-major, 65,536 pages, 1,024 slots.
    fn default() -> Self {
        Self {
            pp: 1,
            tp: 1,
            cp: 1,
            dp: 1,
            layers: None,
            draft: 0,
            draft_model: None,
            order: Order::TokenMajor,
            page_tokens: None,
            window_page_tokens: None,
            draft_page_tokens: None,
            dtype: None,
            pages: 65_536,
            slots: 1_024,
        }
    }
}

impl FromStr for Side {
    type Err = Mismatch;

    /// Reads `key=value` pairs separated by commas; keys that are not given keep their defaults. `layers` without `pp` gives
    /// the number of stages too.
    fn from_str(text: &str) -> Result<Self, Mismatch> {
        let error = |problem: String| Mismatch::Side { side: format!("{text:?}"), problem };
        let mut side = Self::default();
        let mut given: Vec<&str> = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(error(format!("{pair:?} is not key=value")));
            };
            if given.contains(&key) {
                return Err(error(format!("{key} is given twice")));
            }
            given.push(key);
            let number = |least: u32| match value.parse::<u32>() {
                Ok(number) if number >= least => Ok(number),
                _ => Err(error(format!("{key}={value} is not a number from {least} up"))),
            };
            match key {
                "pp" => side.pp = number(1)?,
                "tp" => side.tp = number(1)?,
                "cp" => side.cp = number(1)?,
                "dp" => side.dp = number(1)?,
                "layers" => {
                    let layers: Result<Vec<u32>, _> = value.split('+').map(str::parse).collect();
                    side.layers = Some(layers.map_err(|_| error(format!("layers={value} is not like 15+15+15+16")))?);
                }
                "draft" => side.draft = number(0)?,
                "order" => side.order = value.parse().map_err(|e| error(format!("order={value}: {e}")))?,
                "page" => side.page_tokens = Some(number(1)?),
                "window_page" => side.window_page_tokens = Some(number(1)?),
                "draft_page" => side.draft_page_tokens = Some(number(1)?),
                "dtype" => side.dtype = Some(value.parse().map_err(|e| error(format!("dtype={value}: {e}")))?),
                "pages" => side.pages = number(1)?,
                "slots" => side.slots = number(1)?,
                _ => {
                    let known =
                        "pp, tp, cp, dp, layers, draft, order, page, window_page, draft_page, dtype, pages, slots";
                    return Err(error(format!("{key} is not known; known are {known}")));
                }
            }
        }
        if let (Some(layers), false) = (&side.layers, given.contains(&"pp")) {
            side.pp = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        }
        Ok(side)
    }
}

impl Side {
    /// The layers of each stage for a model of `layers` layers.
    pub fn stages(&self, layers: u32) -> Vec<u32> {
        if let Some(given) = &self.layers {
            return given.clone();
        }
        let (each, rest) = (layers / self.pp.max(1), layers % self.pp.max(1));
        (0..self.pp).map(|stage| each + u32::from(stage >= self.pp - rest)).collect()
    }

    /// The layout of each rank, ordered by rank. Each buffer is a region of its own. `page_tokens` and `dtype` are those of the
    /// cluster, where the side has none of its own.
    ///
    /// The layers of a side need not add up to the model's: whether the two sides fit is what [`pair`](crate::pair()) finds out.
    ///
    /// # Errors
    /// [`Mismatch`] of kind `config` for a side that contradicts itself, and of kind `split` for heads that do not divide by the
    /// tensor ranks.
    pub fn layouts(&self, model: &ModelShape, page_tokens: u32, dtype: Dtype) -> Result<Vec<CacheLayout>, Mismatch> {
        build::layouts(self, model, page_tokens, dtype)
    }

    /// Tokens of a page of a pool; `page_tokens` is the cluster's, where the side has none of its own.
    pub fn page_tokens_of(&self, pool: Pool, page_tokens: u32) -> u32 {
        let own = match (pool, pool.kind) {
            (_, PoolKind::State) => Some(1),
            (Pool { part: Part::Draft, .. }, _) => self.draft_page_tokens,
            (_, PoolKind::Window) => self.window_page_tokens,
            _ => None,
        };
        own.or(self.page_tokens).unwrap_or(page_tokens)
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pp={},tp={}", self.pp, self.tp)?;
        for (key, number) in [("cp", self.cp), ("dp", self.dp)] {
            if number > 1 {
                write!(f, ",{key}={number}")?;
            }
        }
        if let Some(layers) = &self.layers {
            let layers: Vec<String> = layers.iter().map(u32::to_string).collect();
            write!(f, ",layers={}", layers.join("+"))?;
        }
        if self.draft > 0 {
            write!(f, ",draft={}", self.draft)?;
        }
        write!(f, ",order={}", self.order)?;
        if let Some(page) = self.page_tokens {
            write!(f, ",page={page}")?;
        }
        if let Some(dtype) = self.dtype {
            write!(f, ",dtype={dtype}")?;
        }
        for (key, page) in [("window_page", self.window_page_tokens), ("draft_page", self.draft_page_tokens)] {
            if let Some(page) = page {
                write!(f, ",{key}={page}")?;
            }
        }
        write!(f, ",pages={}", self.pages)?;
        if self.slots != Self::default().slots {
            write!(f, ",slots={}", self.slots)?;
        }
        Ok(())
    }
}
