//! Every plan against a simple model of caches, byte by byte: each byte of a cache is a label that says what it is, all pairs of
//! ranks are planned and copied, and then every byte of every receiver is looked at.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;

use kv_plan::{
    Attention, Buffer, BufferKey, CacheLayout, Dtype, LayerKind, ModelShape, Order, PageId, Pairing, Part, Plan, Run,
    Side, pair, routes,
};
use proptest::prelude::*;

/// What a byte of a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    /// Nobody has written it.
    Untouched,
    /// A byte of a request's token: of which buffer, which token, which head of the whole model, which byte of the head.
    Token { key: BufferKey, token: u64, head: u32, byte: u64 },
    /// A byte of a page that belongs to no request, at a sender: it must not be seen at a receiver.
    Foreign,
}

/// The cache of one rank: the bytes of each region.
type Cache = Vec<Vec<Byte>>;

/// What each byte of a page is, where the page holds the tokens from `first` on.
fn page(layout: &CacheLayout, buffer: &Buffer, first: u64) -> Vec<Byte> {
    let (tokens, key) = (u64::from(layout.page_tokens), buffer.key);
    let (head, heads) = buffer.heads.map_or((0, 1), |heads| (heads.first, u64::from(heads.count)));
    let dim = buffer.token_bytes / heads;
    let mut bytes = Vec::new();
    let mut push = |token: u64, number: u64| {
        let head = head + number as u32;
        bytes.extend((0..dim).map(|byte| Byte::Token { key, token: first + token, head, byte }));
    };
    match layout.order {
        Order::TokenMajor => (0..tokens).for_each(|token| (0..heads).for_each(|head| push(token, head))),
        Order::HeadMajor => (0..heads).for_each(|head| (0..tokens).for_each(|token| push(token, head))),
        _ => unreachable!("another order"),
    }
    bytes
}

/// A cache whose pages hold a request, and something else elsewhere.
fn filled(layout: &CacheLayout, pages: &[PageId], elsewhere: Byte) -> Cache {
    let mut cache: Cache = layout.regions.iter().map(|len| vec![elsewhere; *len as usize]).collect();
    for buffer in &layout.buffers {
        for (place, id) in pages.iter().enumerate() {
            let start = (buffer.offset + id.0 as u64 * buffer.page_bytes) as usize;
            let bytes = page(layout, buffer, place as u64 * u64::from(layout.page_tokens));
            cache[buffer.region as usize][start..start + bytes.len()].copy_from_slice(&bytes);
        }
    }
    cache
}

/// What is written at one receiver.
struct Receiver {
    cache: Cache,
    /// How often each byte was written, by region and offset.
    writes: HashMap<(u32, u64), u32>,
}

/// Carries a plan out, unit by unit as the tables say. `spoil` may change each run before.
fn apply(plan: &Plan, pairing: &Pairing, from: &Cache, to: &mut Receiver, spoil: impl Fn(Run) -> Run) {
    for group in plan.groups() {
        for table in &pairing.tables()[group.tables.clone()] {
            for run in plan.runs(group).iter().copied().map(&spoil) {
                for unit in 0..run.count {
                    let src = table.src_base + (run.src + unit) * table.src_stride;
                    let dst = table.dst_base + (run.dst + unit) * table.dst_stride;
                    for byte in 0..table.len {
                        // A spoiled plan may leave the caches; that shows in the counts.
                        let what = from[table.src_region as usize].get((src + byte) as usize).copied();
                        if let Some(place) = to.cache[table.dst_region as usize].get_mut((dst + byte) as usize) {
                            *place = what.unwrap_or(Byte::Foreign);
                        }
                        *to.writes.entry((table.dst_region, dst + byte)).or_default() += 1;
                    }
                }
            }
        }
    }
}

/// A cluster and a request.
#[derive(Clone, Debug)]
struct Case {
    model: ModelShape,
    prefill: Side,
    decode: Side,
    page_tokens: u32,
    src: Vec<PageId>,
    dst: Vec<PageId>,
    packed: bool,
    reversed: bool,
}

fn stages(layers: u32, pp: u32) -> impl Strategy<Value = Vec<u32>> {
    // Places to cut the layers at.
    proptest::sample::subsequence((1..layers).collect::<Vec<_>>(), pp as usize - 1).prop_map(move |cuts| {
        let ends = cuts.iter().copied().chain([layers]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        starts.zip(ends).map(|(start, end)| end - start).collect()
    })
}

/// Some of the pages, in any order, with some neighbours left together.
fn pages(page_count: u32, count: usize) -> impl Strategy<Value = Vec<PageId>> {
    let all: Vec<PageId> = (0..page_count as i32).map(PageId).collect();
    prop_oneof![
        Just(all[..count].to_vec()),
        proptest::sample::subsequence(all.clone(), count),
        Just(all).prop_shuffle().prop_map(move |pages| pages[..count].to_vec()),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let attention = prop_oneof![
        (1u32..5).prop_map(|dim| (Attention::Latent { dim }, 1)),
        (prop_oneof![Just((1, 1)), Just((4, 2)), Just((2, 2)), Just((2, 4))], 1u32..4, 1u32..4)
            .prop_map(|((kv_heads, tp), key_dim, value_dim)| (Attention::Heads { kv_heads, key_dim, value_dim }, tp)),
    ];
    let numbers = (1u32..7, 1u32..4, 0u32..2, 0u32..2, 4u32..9, 0usize..5, any::<(bool, bool, bool)>());
    (attention, numbers).prop_flat_map(
        |((attention, tp), (layers, page_tokens, draft_src, draft_dst, count, used, flags))| {
            let (head_major, packed, reversed) = flags;
            let pp = 1..=layers;
            let side = move |draft| {
                pp.clone().prop_flat_map(move |pp| stages(layers, pp)).prop_map(move |stages| {
                    let mut side = Side::default();
                    side.pp = stages.len() as u32;
                    (side.tp, side.draft, side.pages, side.layers) = (tp, draft, count, Some(stages));
                    side.order = if head_major { Order::HeadMajor } else { Order::TokenMajor };
                    side
                })
            };
            let model = ModelShape::by_hand("drawn", attention, vec![LayerKind::Full; layers as usize]).unwrap();
            (side(draft_src), side(draft_dst), pages(count, used), pages(count, used)).prop_map(
                move |(prefill, decode, src, dst)| Case {
                    model: model.clone(),
                    prefill,
                    decode,
                    page_tokens,
                    src,
                    dst,
                    packed,
                    reversed,
                },
            )
        },
    )
}

/// The ranks of a side, laid out and listed in one of several ways.
fn ranks(case: &Case, side: &Side) -> Vec<CacheLayout> {
    let layouts = side.layouts(&case.model, case.page_tokens, Dtype::Bf16).unwrap();
    layouts
        .into_iter()
        .map(|mut layout| {
            if case.reversed {
                layout.buffers.reverse();
            }
            if case.packed { layout.packed(16).unwrap() } else { layout }
        })
        .collect()
}

/// Plans and copies everything; tells what is wrong, if anything is. `spoil` may change each plan's result.
fn run(case: &Case, spoil: impl Fn(Run) -> Run) -> Result<(), String> {
    let (prefill, decode) = (ranks(case, &case.prefill), ranks(case, &case.decode));
    let routes = routes(&prefill, &decode).map_err(|error| error.to_string())?;
    let drafts = case.prefill.draft > 0 && case.decode.draft > 0;
    let sources: Vec<Cache> = prefill.iter().map(|layout| filled(layout, &case.src, Byte::Foreign)).collect();
    let mut plan = Plan::default();
    for receiver in &decode {
        let cache = receiver.regions.iter().map(|len| vec![Byte::Untouched; *len as usize]).collect();
        let mut written_to = Receiver { cache, writes: HashMap::new() };
        for (sender, source) in prefill.iter().zip(&sources) {
            let pairing = pair(sender, receiver).map_err(|error| error.to_string())?;
            pairing.plan(&case.src, &case.dst, &mut plan).map_err(|error| error.to_string())?;
            let written: u64 = plan.slices(&pairing).map(|slice| slice.len).sum();
            if written != plan.bytes() {
                return Err(format!("{written} bytes in slices, {} in the plan", plan.bytes()));
            }
            if routes.between(sender.rank(), receiver.rank()).is_some() == pairing.tables().is_empty() {
                return Err(format!("{} to {} is no route", sender.rank(), receiver.rank()));
            }
            apply(&plan, &pairing, source, &mut written_to, &spoil);
        }
        let mut expected = filled(receiver, &case.dst, Byte::Untouched);
        for buffer in receiver.buffers.iter().filter(|buffer| buffer.key.part == Part::Draft && !drafts) {
            let (start, len) = (buffer.offset as usize, buffer.total_bytes().unwrap() as usize);
            expected[buffer.region as usize][start..start + len].fill(Byte::Untouched);
        }
        if written_to.cache != expected {
            return Err(format!("{} has wrong bytes", receiver.rank()));
        }
        if let Some(((region, offset), times)) = written_to.writes.iter().find(|(_, times)| **times != 1) {
            return Err(format!("{}: byte {offset} of region {region} is written {times} times", receiver.rank()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn every_byte_is_right_and_written_once(case in case()) {
        prop_assert_eq!(run(&case, |run| run), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// A plan for one layer after the other is the plan for all of them.
    #[test]
    fn layers_one_by_one_are_the_whole(case in case()) {
        let (prefill, decode) = (ranks(&case, &case.prefill), ranks(&case, &case.decode));
        let all = case.model.layer_count() + 1;
        for (sender, receiver) in prefill.iter().flat_map(|src| decode.iter().map(move |dst| (src, dst))) {
            let pairing = pair(sender, receiver).unwrap();
            let slices = |layers| {
                let mut plan = Plan::default();
                pairing.plan_layers(layers, &case.src, &case.dst, &mut plan).unwrap();
                plan.slices(&pairing).collect::<Vec<_>>()
            };
            let one_by_one: Vec<_> = (0..all).flat_map(|layer| slices(Some(layer..layer + 1))).collect();
            prop_assert_eq!(one_by_one, slices(None));
        }
    }
}

/// The oracle is worth something only if it sees a fault. Each of these is one that a planner could have.
#[test]
fn the_oracle_catches_planted_faults() {
    let model = ModelShape::by_hand(
        "drawn",
        Attention::Heads { kv_heads: 2, key_dim: 2, value_dim: 3 },
        vec![LayerKind::Full; 3],
    )
    .unwrap();
    let side = |spec: &str| spec.parse::<Side>().unwrap();
    let case = Case {
        model,
        prefill: side("pp=2,tp=2,pages=6"),
        decode: side("pp=1,tp=2,pages=6"),
        page_tokens: 2,
        src: PageId::list(&[1, 2, 4]).to_vec(),
        dst: PageId::list(&[3, 4, 0]).to_vec(),
        packed: false,
        reversed: false,
    };
    assert_eq!(run(&case, |run| run), Ok(()));
    let faults: [fn(Run) -> Run; 5] = [
        |run| Run { src: run.src + 1, ..run },
        |run| Run { dst: run.dst + 1, ..run },
        |run| Run { count: run.count + 1, ..run },
        |run| Run { count: run.count - 1, ..run },
        |run| Run { src: run.dst, dst: run.src, ..run },
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        assert!(run(&case, fault).is_err(), "fault {number} is not seen");
    }
}
