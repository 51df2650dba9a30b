//! What is drawn at random: a model, two sides, and a request.

use kv_plan::{Attention, CacheLayout, Dtype, LayerKind, LinearState, Mismatch, ModelShape, Order, PageId, Side};
use proptest::{prelude::*, sample::select};

/// Kinds of cases that have to come up.
pub(crate) const KINDS: &[&str] = &[
    "fits",
    "heads",
    "latents",
    "index keys",
    "windows",
    "states",
    "drafts",
    "draft of another kind",
    "more ranks than heads",
    "ranks that do not divide each other",
    "context parallelism",
    "context parallelism at the receiver",
    "mixed orders",
    "other pages",
    "padded pages",
    "a prefix is there",
    "ends inside a page",
    "chunks",
];

#[derive(Clone, Debug)]
pub(crate) struct OneSide {
    pub(crate) stages: Vec<u32>,
    pub(crate) tp: u32,
    pub(crate) cp: u32,
    pub(crate) order: Order,
    pub(crate) page: u32,
    pub(crate) window_page: Option<u32>,
    pub(crate) draft_page: Option<u32>,
    pub(crate) drafts: bool,
    /// How the pages lie: one after the other, padded, or interleaved with those of other buffers.
    pub(crate) lay: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) model: ModelShape,
    pub(crate) draft: Option<ModelShape>,
    pub(crate) prefill: OneSide,
    pub(crate) decode: OneSide,
    /// The first token that moves, the end of the request, and where it is cut into chunks.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) cuts: Vec<u64>,
    /// Pages that the sender lists beyond those that are needed.
    pub(crate) more: u64,
    pub(crate) seed: u64,
}

fn attention() -> impl Strategy<Value = Attention> {
    prop_oneof![
        3 => (select(vec![1u32, 2, 3, 4, 6, 8]), 1u32..4, 1u32..4)
            .prop_map(|(kv_heads, key_dim, value_dim)| Attention::Heads { kv_heads, key_dim, value_dim }),
        1 => (1u32..6).prop_map(|dim| Attention::Latent { dim }),
    ]
}

fn model(layers: usize) -> impl Strategy<Value = ModelShape> {
    let kind = select(vec![0u8, 0, 0, 0, 1, 2, 3]);
    let kinds = (0u8..5, prop::collection::vec(kind, layers));
    (attention(), kinds, 1u32..9, 1u32..4, 1u32..3, select(vec![1u32, 2, 4])).prop_map(
        |(attention, (mix, kinds), window, dim, taps, heads)| {
            let linear = LinearState {
                conv_channels: vec![heads * 2, heads, heads * 4],
                conv_taps: taps,
                heads,
                head_elements: 1,
            };
            let kinds = kinds.into_iter().map(|kind| match (mix, kind) {
                (0 | 1, _) | (_, 0) => LayerKind::Full,
                (_, 1) => LayerKind::SlidingWindow { window },
                (2 | 3, 2) => LayerKind::Linear,
                _ => LayerKind::Indexed { dim },
            });
            ModelShape::by_hand("drawn", attention, kinds.collect()).unwrap().with_linear(linear).unwrap()
        },
    )
}

/// The layers of each stage.
fn stages(layers: u32) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(1u32..=layers, 0..3).prop_map(move |mut cuts| {
        cuts.extend([0, layers]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    })
}

fn side(layers: u32) -> impl Strategy<Value = OneSide> {
    let tp = select(vec![1u32, 1, 2, 2, 3, 4, 6, 8]);
    let cp = select(vec![1u32, 1, 1, 1, 2, 3]);
    let order = select(vec![Order::TokenMajor, Order::HeadMajor]);
    let pages = (1u32..8, prop::option::of(1u32..6), prop::option::of(1u32..6));
    (stages(layers), tp, cp, order, pages, any::<bool>(), 0u8..3).prop_map(
        |(stages, tp, cp, order, (page, window_page, draft_page), drafts, lay)| OneSide {
            stages,
            tp,
            cp,
            order,
            page,
            window_page,
            draft_page,
            drafts,
            lay,
        },
    )
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    (1u32..5)
        .prop_flat_map(|layers| {
            let request = (0u64..24, 0u64..24, prop::collection::vec(0u64..24, 0..3), 0u64..3, any::<u64>());
            let draft = prop::option::weighted(0.3, (1usize..3).prop_flat_map(model));
            (model(layers as usize), draft, side(layers), side(layers), request)
        })
        .prop_map(|(model, draft, prefill, decode, (start, len, cuts, more, seed))| Case {
            model,
            draft,
            prefill,
            decode,
            start,
            end: start + len,
            cuts,
            more,
            seed,
        })
}

impl Case {
    pub(crate) fn layouts(&self, side: &OneSide) -> Result<Vec<CacheLayout>, Mismatch> {
        let mut spec = Side::default();
        (spec.pp, spec.tp, spec.cp) = (side.stages.len() as u32, side.tp, side.cp);
        spec.layers = Some(side.stages.clone());
        (spec.order, spec.page_tokens) = (side.order, Some(side.page));
        (spec.window_page_tokens, spec.draft_page_tokens) = (side.window_page, side.draft_page);
        // Enough for the longest request, with room to scatter it.
        (spec.pages, spec.slots) = (64, 4);
        if side.drafts {
            spec.draft = self.draft.as_ref().map_or(1, ModelShape::layer_count);
            spec.draft_model = self.draft.clone();
        }
        let mut layouts = spec.layouts(&self.model, 1, Dtype::Fp8)?;
        layouts.iter_mut().for_each(|layout| lay(layout, side.lay));
        layouts.iter().for_each(|layout| layout.validate().unwrap());
        Ok(layouts)
    }

    /// The tokens that move, cut into chunks.
    pub(crate) fn chunks(&self) -> Vec<std::ops::Range<u64>> {
        let mut cuts: Vec<u64> = self.cuts.iter().map(|cut| (self.start + cut).min(self.end)).collect();
        cuts.extend([self.start, self.end]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// What it is an example of.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        let layers = self.model.layers();
        let heads = match self.model.attention() {
            Attention::Heads { kv_heads, .. } => Some(*kv_heads),
            _ => None,
        };
        let (a, b) = (&self.prefill, &self.decode);
        let is = |wanted: fn(&LayerKind) -> bool| layers.iter().any(wanted);
        let all = [
            ("fits", self.layouts(a).is_ok() && self.layouts(b).is_ok()),
            ("heads", heads.is_some()),
            ("latents", heads.is_none()),
            ("index keys", is(|kind| matches!(kind, LayerKind::Indexed { .. }))),
            ("windows", is(|kind| matches!(kind, LayerKind::SlidingWindow { .. }))),
            ("states", is(|kind| matches!(kind, LayerKind::Linear))),
            ("drafts", a.drafts && b.drafts),
            ("draft of another kind", a.drafts && b.drafts && self.draft.is_some()),
            ("more ranks than heads", heads.is_some_and(|heads| b.tp > heads)),
            ("ranks that do not divide each other", !a.tp.is_multiple_of(b.tp) && !b.tp.is_multiple_of(a.tp)),
            ("context parallelism", a.cp > 1),
            ("context parallelism at the receiver", b.cp > 1),
            ("mixed orders", a.order != b.order && heads.is_some()),
            ("other pages", a.page != b.page),
            ("padded pages", a.lay > 0 || b.lay > 0),
            ("a prefix is there", self.start > 0),
            ("ends inside a page", !self.end.is_multiple_of(a.page.into())),
            ("chunks", self.chunks().len() > 1),
        ];
        all.into_iter().filter_map(|(kind, is)| is.then_some(kind)).collect()
    }
}

/// Lays the pages of a layout in another way.
fn lay(layout: &mut CacheLayout, how: u8) {
    match how {
        0 => {}
        // Padding behind each page.
        1 => {
            let mut regions = Vec::new();
            for buffer in &mut layout.buffers {
                buffer.page_stride = buffer.page_bytes + u64::from(buffer.key.layer % 3);
                buffer.offset = 2;
                buffer.region = regions.len() as u32;
                regions.push(2 + buffer.page_stride * u64::from(buffer.page_count));
            }
            layout.regions = regions;
        }
        // Page 0 of all buffers with as many pages, then page 1 of all.
        _ => {
            let mut regions = Vec::new();
            for count in [64, 4] {
                let stride = layout.buffers.iter().filter(|b| b.page_count == count).map(|b| b.page_bytes).sum::<u64>();
                let mut offset = 0;
                for buffer in layout.buffers.iter_mut().filter(|buffer| buffer.page_count == count) {
                    (buffer.region, buffer.offset, buffer.page_stride) = (regions.len() as u32, offset, stride);
                    offset += buffer.page_bytes;
                }
                regions.push(stride * count as u64);
            }
            layout.regions = regions;
        }
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// So many different pages: neighbours, falling, or anywhere.
    pub(crate) fn pages(&mut self, of: u32, count: usize) -> Vec<PageId> {
        let of = of as usize;
        assert!(count <= of, "{count} pages of {of}");
        let start = self.next() as usize % (of - count + 1);
        let mut pages: Vec<i32> = match self.next() % 4 {
            0 => (start..start + count).map(|page| page as i32).collect(),
            1 => (start..start + count).rev().map(|page| page as i32).collect(),
            _ => {
                let mut all: Vec<i32> = (0..of as i32).collect();
                for last in (1..all.len()).rev() {
                    all.swap(last, self.next() as usize % (last + 1));
                }
                all
            }
        };
        pages.truncate(count);
        pages.into_iter().map(PageId).collect()
    }
}
