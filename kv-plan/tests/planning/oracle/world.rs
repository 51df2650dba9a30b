//! The caches of a small cluster, byte by byte, and the copies that plans make between them.

use std::{collections::BTreeSet, ops::Range};

use kv_plan::{
    Attention, Buffer, CacheLayout, Dtype, LayerKind, ModelShape, Order, PageId, Pairing, Part, Plan, PlannedSlice,
    Role, Run, Side, Table, coverage, pair,
};

/// How one side is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) stages: Vec<u32>,
    pub(crate) draft: u32,
    pub(crate) page_count: u32,
    /// All buffers of a rank in one region, each at a multiple of this.
    pub(crate) packed: Option<u64>,
    /// Decides the order of the buffers in the list of each rank, which means nothing.
    pub(crate) shuffle: u64,
}

/// In which parts a request is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parts {
    Whole,
    /// The layers before this one, then the rest.
    Layers(u32),
    /// So many pages, then the rest.
    Pages(usize),
}

/// A cluster and one request.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) attention: Attention,
    pub(crate) dtype: Dtype,
    pub(crate) order: Order,
    pub(crate) page_tokens: u32,
    pub(crate) layers: u32,
    pub(crate) tp: u32,
    pub(crate) prefill: Setup,
    pub(crate) decode: Setup,
    pub(crate) src_pages: Vec<i32>,
    pub(crate) dst_pages: Vec<i32>,
    pub(crate) parts: Parts,
}

/// A run of pages of one table, from one rank to another, both counted in the lists of their sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Copy {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) table: Table,
    pub(crate) run: Run,
}

/// What a byte is; `OTHER` where it is none of the request's.
type Label = u64;
const OTHER: Label = u64::MAX;

impl World {
    pub(crate) fn layouts(&self, setup: &Setup) -> Vec<CacheLayout> {
        let layers = vec![LayerKind::Full; self.layers as usize];
        let model = ModelShape::by_hand("drawn", self.attention, layers).unwrap();
        let mut side = Side::default();
        side.pp = setup.stages.len() as u32;
        side.tp = self.tp;
        side.layers = Some(setup.stages.clone());
        side.draft = setup.draft;
        side.order = self.order;
        side.pages = setup.page_count;
        let mut layouts = side.layouts(&model, self.page_tokens, self.dtype).unwrap();
        for layout in &mut layouts {
            shuffle(&mut layout.buffers, setup.shuffle);
            if let Some(align) = setup.packed {
                *layout = layout.clone().packed(align).unwrap();
            }
        }
        layouts
    }

    /// All copies of all plans of all pairs.
    pub(crate) fn copies(&self) -> Vec<Copy> {
        let (prefill, decode) = (self.layouts(&self.prefill), self.layouts(&self.decode));
        let mut copies = Vec::new();
        let mut plan = Plan::default();
        for (from, sender) in prefill.iter().enumerate() {
            for (to, receiver) in decode.iter().enumerate() {
                let pairing = pair(sender, receiver).unwrap();
                self.plans(&pairing, &mut plan, |plan| copies.extend(compact(plan, &pairing, from, to)));
            }
        }
        copies
    }

    /// Makes the plans of one pair, one for each part of the request.
    fn plans(&self, pairing: &Pairing, plan: &mut Plan, mut then: impl FnMut(&Plan)) {
        let (src, dst) = (PageId::list(&self.src_pages), PageId::list(&self.dst_pages));
        match self.parts {
            Parts::Whole => {
                pairing.plan(src, dst, plan).unwrap();
                then(plan);
            }
            Parts::Layers(cut) => {
                for layers in [0..cut, cut..u32::MAX] {
                    pairing.plan_layers(Some(layers), src, dst, plan).unwrap();
                    then(plan);
                }
            }
            Parts::Pages(cut) => {
                for pages in [0..cut, cut..src.len()] {
                    pairing.plan(&src[pages.clone()], &dst[pages], plan).unwrap();
                    then(plan);
                }
            }
        }
    }

    /// Whether the slices, written out, are the same copies.
    pub(crate) fn written_out(&self, copies: &[Copy]) -> Result<(), String> {
        let (prefill, decode) = (self.layouts(&self.prefill), self.layouts(&self.decode));
        let mut copies = copies.iter();
        let mut plan = Plan::default();
        for (from, sender) in prefill.iter().enumerate() {
            for (to, receiver) in decode.iter().enumerate() {
                let pairing = pair(sender, receiver).unwrap();
                let mut wrong = None;
                self.plans(&pairing, &mut plan, |plan| {
                    let slices: Vec<PlannedSlice> = plan.slices(&pairing).collect();
                    let bytes: u64 = slices.iter().map(|slice| slice.len).sum();
                    if (bytes, slices.len() as u64) != (plan.bytes(), plan.slice_count()) {
                        wrong = Some(format!("{} bytes in {} slices", plan.bytes(), plan.slice_count()));
                    }
                    for slice in slices {
                        let Some(Copy { table, run, .. }) = copies.next() else { break };
                        let src = sender.buffer(slice.key).unwrap().offset + slice.src_offset;
                        let dst = receiver.buffer(slice.key).unwrap().offset + slice.dst_offset;
                        let copy =
                            (table.src_base + run.src * table.src_stride, table.dst_base + run.dst * table.dst_stride);
                        if (src, dst, slice.len) != (copy.0, copy.1, run.count * table.len) {
                            wrong = Some(format!("{slice:?} is not {table:?} times {run:?}"));
                        }
                    }
                });
                if let Some(wrong) = wrong {
                    return Err(format!("{from} to {to}: {wrong}"));
                }
            }
        }
        copies.next().map_or(Ok(()), |copy| Err(format!("{copy:?} is no slice")))
    }

    /// Whether coverage says the same as the pairs: who sends, how much is written, what is left alone.
    pub(crate) fn covered(&self) -> Result<(), String> {
        let (prefill, decode) = (self.layouts(&self.prefill), self.layouts(&self.decode));
        for receiver in &decode {
            let sources: Vec<&CacheLayout> = prefill.iter().collect();
            let covered = coverage(&sources, receiver).map_err(|error| error.to_string())?;
            let pairings = prefill.iter().map(|sender| pair(sender, receiver).unwrap());
            let senders: Vec<_> = pairings.filter(|p| !p.tables().is_empty()).map(|p| p.prefill_rank()).collect();
            let drafts = receiver.buffers.iter().filter(|buffer| buffer.key.part == Part::Draft).count();
            let left_alone = if self.prefill.draft == 0 { drafts } else { 0 };
            let written = receiver.buffers.len() - left_alone;
            if (covered.senders, covered.written, covered.left_alone.len()) != (senders, written, left_alone) {
                return Err(format!("{}: {written} written, {left_alone} left alone", receiver.rank()));
            }
        }
        Ok(())
    }

    /// Makes the copies and looks at every byte of every receiver.
    pub(crate) fn check(&self, copies: &[Copy]) -> Result<(), String> {
        let (prefill, decode) = (self.layouts(&self.prefill), self.layouts(&self.decode));
        let sources: Vec<_> = prefill.iter().map(|layout| self.label(layout, &self.prefill, &self.src_pages)).collect();
        for (to, receiver) in decode.iter().enumerate() {
            let mut cache: Vec<Vec<(Label, u32)>> =
                receiver.regions.iter().map(|len| vec![(OTHER, 0); *len as usize]).collect();
            for copy in copies.iter().filter(|copy| copy.to == to) {
                let Copy { table, run, .. } = copy;
                let src = span(table.src_base, run.src, table.src_stride, run.count, table.len);
                let dst = span(table.dst_base, run.dst, table.dst_stride, run.count, table.len);
                let source = sources[copy.from].get(table.src_region as usize).and_then(|region| region.get(src));
                let target = cache.get_mut(table.dst_region as usize).and_then(|region| region.get_mut(dst));
                let (Some(source), Some(target)) = (source, target) else {
                    return Err(format!("{copy:?} reaches out of a region"));
                };
                for (byte, label) in target.iter_mut().zip(source) {
                    *byte = (*label, byte.1 + 1);
                }
            }
            let wanted = self.label(receiver, &self.decode, &self.dst_pages);
            for (region, (got, wanted)) in cache.iter().zip(&wanted).enumerate() {
                for (offset, (got, wanted)) in got.iter().zip(wanted).enumerate() {
                    let wanted = if is_draft(*wanted) && self.prefill.draft == 0 { OTHER } else { *wanted };
                    if *got != (wanted, u32::from(wanted != OTHER)) {
                        let rank = receiver.rank();
                        return Err(format!("{rank} region {region} byte {offset}: {got:x?} instead of {wanted:x}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// The labels of a rank's memory when it holds the request in these pages. By the facts about caches alone: which layers a
    /// stage has, which heads a tensor rank has, and how a page is laid out. Of the layout it takes only where buffers begin.
    fn label(&self, layout: &CacheLayout, setup: &Setup, pages: &[i32]) -> Vec<Vec<Label>> {
        let mut memory: Vec<Vec<Label>> = layout.regions.iter().map(|len| vec![OTHER; *len as usize]).collect();
        let rank = layout.rank();
        let stage = rank.pp as usize;
        let first: u32 = setup.stages[..stage].iter().sum();
        let main = (Part::Main, first..first + setup.stages[stage]);
        let draft = (Part::Draft, 0..if stage + 1 == setup.stages.len() { setup.draft } else { 0 });
        for (part, layers) in [main, draft] {
            for layer in layers {
                for (role, dim, heads) in self.roles(rank.tp) {
                    let place = layout.buffers.iter().find(|buffer| {
                        let key = buffer.key;
                        (key.part, key.layer, key.role) == (part, layer, role)
                    });
                    self.fill(&mut memory, place.unwrap(), pages, dim, heads, label(part, role, layer));
                }
            }
        }
        memory
    }

    /// Role, bytes of a head, and heads on a tensor rank; a latent counts as one head.
    fn roles(&self, tp_rank: u32) -> Vec<(Role, u64, Range<u64>)> {
        let bytes = match self.dtype {
            Dtype::Fp8 => 1,
            Dtype::F32 => 4,
            _ => 2,
        };
        match self.attention {
            Attention::Heads { kv_heads, key_dim, value_dim } => {
                let (total, ranks, rank) = (u64::from(kv_heads), u64::from(self.tp), u64::from(tp_rank));
                // More ranks than heads: `ranks / total` neighbours have the same one.
                let heads = if total >= ranks {
                    rank * (total / ranks)..(rank + 1) * (total / ranks)
                } else {
                    rank / (ranks / total)..rank / (ranks / total) + 1
                };
                let key = (Role::Key, u64::from(key_dim) * bytes, heads.clone());
                vec![key, (Role::Value, u64::from(value_dim) * bytes, heads)]
            }
            Attention::Latent { dim } => vec![(Role::Latent, u64::from(dim) * bytes, 0..1)],
            _ => Vec::new(),
        }
    }

    fn fill(&self, memory: &mut [Vec<Label>], at: &Buffer, pages: &[i32], dim: u64, heads: Range<u64>, label: Label) {
        let tokens = u64::from(self.page_tokens);
        let count = heads.end - heads.start;
        for (place, page) in pages.iter().enumerate() {
            let page_start = at.offset + *page as u64 * tokens * count * dim;
            for slot in 0..tokens {
                let token = place as u64 * tokens + slot;
                for head in heads.clone() {
                    let row = match self.order {
                        Order::TokenMajor => slot * count + head - heads.start,
                        _ => (head - heads.start) * tokens + slot,
                    };
                    for byte in 0..dim {
                        memory[at.region as usize][(page_start + row * dim + byte) as usize] =
                            label | token << 24 | head << 16 | byte;
                    }
                }
            }
        }
    }
}

fn label(part: Part, role: Role, layer: u32) -> Label {
    let role = BTreeSet::from([Role::Key, Role::Value, Role::Latent]).iter().position(|known| *known == role).unwrap();
    u64::from(part == Part::Draft) << 62 | (role as u64) << 56 | u64::from(layer) << 48
}

fn is_draft(label: Label) -> bool {
    label != OTHER && label >> 62 == 1
}

fn span(base: u64, page: u64, stride: u64, count: u64, len: u64) -> Range<usize> {
    let start = base + page * stride;
    start as usize..(start + count * len) as usize
}

fn compact(plan: &Plan, pairing: &Pairing, from: usize, to: usize) -> Vec<Copy> {
    let mut copies = Vec::new();
    for group in plan.groups() {
        for table in &pairing.tables()[group.tables.clone()] {
            copies.extend(plan.runs(group).iter().map(|run| Copy { from, to, table: *table, run: *run }));
        }
    }
    copies
}

fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut state = seed | 1;
    for end in (1..list.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        list.swap(end, (state >> 33) as usize % (end + 1));
    }
}
