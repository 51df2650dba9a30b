//! One side of a cluster, and how it is written down: `pp=4,tp=2,layers=15+15+15+16`.

use std::str::FromStr;

use crate::{Buffer, BufferKey, CacheLayout, Dtype, Heads, Mismatch, ModelShape, Order, Part, Rank, Role, Shard};

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
    /// Layers of each stage, where they are given; else they are split evenly with the remainder on the last stages.
    pub layers: Option<Vec<u32>>,
    /// Layers of a draft model, on the last stage.
    pub draft: u32,
    /// Order of heads and tokens.
    pub order: Order,
    /// Tokens of a page, where this side has its own.
    pub page_tokens: Option<u32>,
    /// Element type, where this side has its own.
    pub dtype: Option<Dtype>,
    /// Pages of each buffer.
    pub pages: u32,
}

impl Default for Side {
    /// One rank, all layers, no draft, token-major, 65,536 pages.
    fn default() -> Self {
        Self {
            pp: 1,
            tp: 1,
            layers: None,
            draft: 0,
            order: Order::TokenMajor,
            page_tokens: None,
            dtype: None,
            pages: 65_536,
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
                "layers" => {
                    let layers: Result<Vec<u32>, _> = value.split('+').map(str::parse).collect();
                    side.layers = Some(layers.map_err(|_| error(format!("layers={value} is not like 15+15+15+16")))?);
                }
                "draft" => side.draft = number(0)?,
                "order" => side.order = value.parse().map_err(|e| error(format!("order={value}: {e}")))?,
                "page" => side.page_tokens = Some(number(1)?),
                "dtype" => side.dtype = Some(value.parse().map_err(|e| error(format!("dtype={value}: {e}")))?),
                "pages" => side.pages = number(1)?,
                _ => {
                    let known = "pp, tp, layers, draft, order, page, dtype, pages";
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
    /// [`Mismatch`] of kind `config` for a side that contradicts itself or a model that cannot be planned yet, and of kind
    /// `split` for heads that do not divide by the tensor ranks.
    pub fn layouts(&self, model: &ModelShape, page_tokens: u32, dtype: Dtype) -> Result<Vec<CacheLayout>, Mismatch> {
        if let Some(what) = model.uncovered() {
            return Err(Mismatch::Unsupported { model: model.name().into(), what });
        }
        let error = |problem: String| Mismatch::Side { side: self.to_string(), problem };
        // Before anything is allocated by these numbers.
        let ranks = u64::from(self.pp).saturating_mul(self.tp.into());
        if self.pp == 0
            || self.tp == 0
            || u64::from(self.pp) > CacheLayout::MAX_STAGES as u64
            || ranks > CacheLayout::MAX_RANKS
        {
            return Err(error(format!(
                "{} stages of {} ranks are not possible; a side has up to {} stages and {} ranks",
                self.pp,
                self.tp,
                CacheLayout::MAX_STAGES,
                CacheLayout::MAX_RANKS
            )));
        }
        let stages = self.stages(model.layer_count());
        if stages.len() != self.pp as usize {
            return Err(error(format!(
                "layers gives {} stages, but pp={}; give as many layer counts as stages",
                stages.len(),
                self.pp
            )));
        }
        if let Some(stage) = stages.iter().position(|layers| *layers == 0) {
            return Err(error(format!(
                "stage {stage} has no layers; give each stage one at least, or use fewer stages"
            )));
        }
        let layers = stages.iter().map(|layers| u64::from(*layers)).sum::<u64>() + u64::from(self.draft);
        let buffers = layers.saturating_mul(model.attention().roles().len() as u64).saturating_mul(self.tp.into());
        if layers > u64::from(CacheLayout::MAX_LAYERS) || buffers > CacheLayout::MAX_SIDE_BUFFERS {
            return Err(error(format!(
                "{layers} layers and {buffers} buffers on all ranks are more than the limits of {} and {}",
                CacheLayout::MAX_LAYERS,
                CacheLayout::MAX_SIDE_BUFFERS
            )));
        }
        let page_tokens = self.page_tokens.unwrap_or(page_tokens);
        let dtype = self.dtype.unwrap_or(dtype);
        let ranks = (0..self.pp).flat_map(|pp| (0..self.tp).map(move |tp| Rank { pp, tp }));
        ranks
            .map(|rank| {
                let shard = Shard::new(rank, stages.clone(), self.tp).with_draft_layers(self.draft);
                let layout = self.layout(model, page_tokens, dtype, shard)?;
                layout.validate().map_err(|problem| error(problem.to_string()))?;
                Ok(layout)
            })
            .collect()
    }

    fn layout(
        &self,
        model: &ModelShape,
        page_tokens: u32,
        dtype: Dtype,
        shard: Shard,
    ) -> Result<CacheLayout, Mismatch> {
        let error = |problem: String| Mismatch::Side { side: self.to_string(), problem };
        let mut layout = CacheLayout::new(model, shard, page_tokens, dtype).with_order(self.order);
        for part in [Part::Main, Part::Draft] {
            for role in model.attention().roles() {
                let (token_bytes, heads) = self.token(model, *role, dtype, layout.rank().tp)?;
                for layer in layout.shard.own_layers(part) {
                    let key = BufferKey { part, layer, role: *role };
                    let mut buffer = Buffer::new(key, 0, 0, page_tokens, token_bytes, self.pages);
                    buffer.heads = heads;
                    let len = buffer.total_bytes().filter(|_| buffer.page_bytes != u64::MAX);
                    let len = len.ok_or_else(|| {
                        let Self { pages, .. } = self;
                        error(format!(
                            "{pages} pages of {page_tokens} tokens of {token_bytes} bytes do not fit 64 bits"
                        ))
                    })?;
                    buffer.region = layout.add_region(len);
                    layout.add_buffer(buffer);
                }
            }
        }
        Ok(layout)
    }

    /// Bytes of a token in a buffer of a role on a tensor rank, and its heads there.
    fn token(
        &self,
        model: &ModelShape,
        role: Role,
        dtype: Dtype,
        tp_rank: u32,
    ) -> Result<(u64, Option<Heads>), Mismatch> {
        let Some((dim, total)) = model.attention().geometry(role) else {
            let what = format!("its {role} buffers");
            return Err(Mismatch::Unsupported { model: model.name().into(), what });
        };
        // 32 bits times at most 4.
        let head_bytes = u64::from(dim) * dtype.bytes();
        let Some(total) = total else { return Ok((head_bytes, None)) };
        let tp = self.tp;
        let count = if total.is_multiple_of(tp) {
            total / tp
        } else if tp.is_multiple_of(total) {
            1
        } else {
            return Err(Mismatch::IndivisibleHeads { side: self.to_string(), heads: total, tp });
        };
        let token_bytes = head_bytes.checked_mul(count.into()).ok_or_else(|| {
            let problem = format!("{count} heads of {head_bytes} bytes do not fit 64 bits");
            Mismatch::Side { side: self.to_string(), problem }
        })?;
        Ok((token_bytes, Some(Heads::of_rank(total, tp, tp_rank))))
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pp={},tp={}", self.pp, self.tp)?;
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
        write!(f, ",pages={}", self.pages)
    }
}

#[cfg(test)]
mod tests;
