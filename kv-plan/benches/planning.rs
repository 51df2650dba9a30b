//! How long planning takes, beside the obvious way: a loop that writes out every slice. docs/benchmarks.md has what came of it.
//!
//! ```text
//! cargo bench -p kv-plan
//! ```
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark that cannot go on stops; criterion's macros have no docs"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kv_plan::{BufferKey, CacheLayout, Dtype, ModelShape, PageId, Pairing, Plan, PlannedSlice, Side, pair, routes};

const DEEPSEEK: &str = include_str!("../../tests/data/models/deepseek-v3.json");
const LLAMA: &str = include_str!("../../tests/data/models/llama-3-70b.json");
/// 128 Ki tokens in pages of 64.
const PAGES: i32 = 2_048;

fn side(model: &str, spec: &str, page: u32) -> Vec<CacheLayout> {
    let model = ModelShape::from_config_json(model).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, page, Dtype::Bf16).unwrap()
}

fn pairing(model: &str, prefill: &str, decode: &str, page: u32) -> Pairing {
    pair(&side(model, prefill, page)[0], &side(model, decode, page)[0]).unwrap()
}

fn contiguous(start: i32) -> Vec<PageId> {
    (start..start + PAGES).map(PageId).collect()
}

/// No two of them are neighbours.
fn scattered(stride: i32) -> Vec<PageId> {
    (0..PAGES).map(|place| PageId((place * stride) % 65_521)).collect()
}

fn write_out(plan: &Plan, pairing: &Pairing, slices: &mut Vec<PlannedSlice>) {
    slices.clear();
    slices.reserve(plan.slice_count() as usize);
    plan.slices(pairing).for_each(|slice| slices.push(slice));
}

/// What every slice is made of in the obvious way.
struct Slice {
    key: BufferKey,
    src: u64,
    dst: u64,
    len: u64,
}

/// Every slice of whole pages, written out: those of neighbouring pages joined.
fn by_hand(pairing: &Pairing, page_tokens: u64, src: &[PageId], dst: &[PageId], slices: &mut Vec<Slice>) {
    slices.clear();
    for table in pairing.tables() {
        let page = table.len * page_tokens;
        for (src, dst) in src.iter().zip(dst) {
            let (from, to) = (table.src_base + src.0 as u64 * page, table.dst_base + dst.0 as u64 * page);
            match slices.last_mut() {
                Some(last) if last.key == table.key && last.src + last.len == from && last.dst + last.len == to => {
                    last.len += page;
                }
                _ => slices.push(Slice { key: table.key, src: from, dst: to, len: page }),
            }
        }
    }
}

/// The pieces of every token, written out.
fn heads_by_hand(pairing: &Pairing, page_tokens: u64, src: &[PageId], dst: &[PageId], slices: &mut Vec<Slice>) {
    slices.clear();
    for table in pairing.tables() {
        for (src, dst) in src.iter().zip(dst) {
            for token in 0..page_tokens {
                let unit = |page: &PageId, stride: u64| (page.0 as u64 * page_tokens + token) * stride;
                slices.push(Slice {
                    key: table.key,
                    src: table.src_base + unit(src, table.src_stride),
                    dst: table.dst_base + unit(dst, table.dst_stride),
                    len: table.len,
                });
            }
        }
    }
}

/// A request of 2,048 pages over 61 tables of latents.
fn latents(criterion: &mut Criterion) {
    let pairing = pairing(DEEPSEEK, "pp=1", "pp=1", 64);
    let mut group = criterion.benchmark_group("mla, 61 tables, 2,048 pages");
    for (name, src, dst) in
        [("contiguous", contiguous(5), contiguous(100)), ("scattered", scattered(7), scattered(1_021))]
    {
        let (mut plan, mut slices) = (Plan::default(), Vec::new());
        group.bench_function(BenchmarkId::new("plan", name), |bencher| {
            bencher.iter(|| pairing.plan(black_box(&src), black_box(&dst), &mut plan).unwrap());
        });
        group.bench_function(BenchmarkId::new("plan and write out", name), |bencher| {
            let mut slices = Vec::new();
            bencher.iter(|| {
                pairing.plan(black_box(&src), black_box(&dst), &mut plan).unwrap();
                write_out(&plan, &pairing, &mut slices);
            });
        });
        group.bench_function(BenchmarkId::new("by hand", name), |bencher| {
            bencher.iter(|| by_hand(&pairing, 64, black_box(&src), black_box(&dst), &mut slices));
        });
        group.bench_function(BenchmarkId::new("tally", name), |bencher| {
            bencher.iter(|| pairing.tally(None, black_box(&dst)).unwrap());
        });
    }
    group.finish();
}

/// Llama-3-70B from 4 to 8 tensor ranks: half a token's heads, so a piece of each token, in pages of 16.
fn head_slices(criterion: &mut Criterion) {
    let pairing = pairing(LLAMA, "tp=4", "tp=8", 16);
    let (src, dst) = (scattered(7), scattered(1_021));
    let mut group = criterion.benchmark_group("gqa, tp 4 to 8, 2,048 pages of 16 tokens");
    let (mut plan, mut planned, mut slices) = (Plan::default(), Vec::new(), Vec::new());
    pairing.plan(&src, &dst, &mut plan).unwrap();
    group.sample_size(20);
    group.throughput(Throughput::Elements(plan.slice_count()));
    group.bench_function("plan and write out", |bencher| {
        bencher.iter(|| {
            pairing.plan(black_box(&src), black_box(&dst), &mut plan).unwrap();
            write_out(&plan, &pairing, &mut planned);
        });
    });
    group.bench_function("by hand", |bencher| {
        bencher.iter(|| heads_by_hand(&pairing, 16, black_box(&src), black_box(&dst), &mut slices));
    });
    // Without the memory that they are written into.
    group.bench_function("go through the slices", |bencher| {
        bencher.iter(|| {
            let sum =
                plan.slices(&pairing).fold(0u64, |sum, slice| sum ^ slice.src_offset ^ slice.dst_offset ^ slice.len);
            black_box(sum)
        });
    });
    group.bench_function("plan", |bencher| {
        bencher.iter(|| pairing.plan(black_box(&src), black_box(&dst), &mut plan).unwrap());
    });
    group.finish();
}

/// What happens when ranks meet.
fn meeting(criterion: &mut Criterion) {
    let (prefill, decode) = (side(LLAMA, "pp=4,tp=4", 16), side(LLAMA, "tp=8", 16));
    criterion.bench_function("pair two ranks (40 tables)", |bencher| {
        bencher.iter(|| pair(black_box(&prefill[0]), black_box(&decode[0])).unwrap());
    });
    criterion.bench_function("routes of 16 to 8 ranks", |bencher| {
        bencher.iter(|| routes(black_box(&prefill), black_box(&decode)).unwrap());
    });
}

criterion_group!(benches, latents, head_slices, meeting);
criterion_main!(benches);
