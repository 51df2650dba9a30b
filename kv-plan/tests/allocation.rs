//! Planning allocates nothing once a plan was used for a request of the same size.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use kv_plan::{Attention, CacheLayout, Dtype, LayerKind, ModelShape, PageId, Plan, Side, pair};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more, and nothing to count.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` by one of the other functions, with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`, and the caller's promise about `size` is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while something runs.
fn allocations(run: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

/// The ranks of a side of a model with latents.
fn side(spec: &str, layers: usize) -> Vec<CacheLayout> {
    let model = ModelShape::by_hand("latents", Attention::Latent { dim: 576 }, vec![LayerKind::Full; layers]).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, 64, Dtype::Bf16).unwrap()
}

/// Pages in an order without neighbours.
fn scattered(count: i32, stride: i32, modulus: i32) -> Vec<PageId> {
    (0..count).map(|place| PageId((place * stride) % modulus)).collect()
}

#[test]
fn planning_again_allocates_nothing() {
    let (prefill, decode) = (side("pp=4", 61), side("pp=1", 61));
    let pairing = pair(&prefill[3], &decode[0]).unwrap();
    let (src, dst) = (scattered(2048, 7, 65_521), scattered(2048, 1021, 65_521));
    let mut plan = Plan::default();
    let mut total = 0;
    assert!(allocations(|| pairing.plan(&src, &dst, &mut plan).unwrap()) > 0, "the counter counts");
    let again = allocations(|| {
        for part in 0..64 {
            let pages = part * 32..(part + 1) * 32;
            pairing.plan(&src[pages.clone()], &dst[pages], &mut plan).unwrap();
            pairing.plan_layers(Some(45..46), &src, &dst, &mut plan).unwrap();
            pairing.plan(&src, &dst, &mut plan).unwrap();
            pairing.plan(&src, &src[..7], &mut plan).unwrap_err();
            pairing.plan(&src[..2], &[PageId(5), PageId(5)], &mut plan).unwrap_err();
            pairing.plan(&src, &dst, &mut plan).unwrap();
            total += plan.slices(&pairing).map(|slice| slice.len).sum::<u64>();
        }
    });
    assert_eq!(again, 0);
    assert_eq!(total, 64 * plan.bytes());
}

#[test]
fn a_plan_with_capacity_allocates_only_its_scratch() {
    let layouts = side("pp=1", 2);
    let pairing = pair(&layouts[0], &layouts[0]).unwrap();
    let mut plan = Plan::with_capacity(2048);
    // Rising lists need no scratch.
    let pages: Vec<PageId> = (0..2048).map(|page| PageId(page * 2)).collect();
    assert_eq!(allocations(|| pairing.plan(&pages, &pages, &mut plan).unwrap()), 0);
    assert_eq!(plan.slice_count(), 2 * 2048);
}
