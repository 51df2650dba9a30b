//! Layouts as a hostile peer would send them: refused or paired, never a panic, and in time and memory bounded by their own length.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use kv_plan::{
    Buffer, BufferKey, CacheLayout, Dtype, HeadGroup, Heads, ModelShape, Order, PageId, Part, Plan, Pool, Rank, Role,
    Shard, coverage, pair, routes,
};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::common::{heads, latents, side};

/// Numbers that break arithmetic, and small ones that pass checks.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..=9,
        1 => Just(u64::MAX),
        1 => u64::MAX - 9..=u64::MAX,
        1 => (1u64 << 63) - 3..=(1 << 63) + 3,
        1 => (u64::from(u32::MAX) - 3)..=(1 << 32) + 3,
        1 => Just(1_000_000_000),
        1 => (0u32..64).prop_map(|bit| 1u64 << bit),
        1 => any::<u64>(),
    ]
}

fn number32() -> impl Strategy<Value = u32> {
    number().prop_map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

fn key() -> impl Strategy<Value = BufferKey> {
    let part = prop_oneof![3 => Just(Part::Main), 1 => Just(Part::Draft)];
    let roles = [Role::Key, Role::Value, Role::Latent, Role::Index, Role::Conv, Role::Recurrent];
    let layer = prop_oneof![4 => 0u32..4, 1 => number32()];
    (part, layer, prop::sample::select(roles.to_vec())).prop_map(|(part, layer, role)| BufferKey { part, layer, role })
}

fn buffer() -> impl Strategy<Value = Buffer> {
    let heads = (number32(), number32(), number32()).prop_map(|(first, count, total)| Heads { first, count, total });
    (key(), number32(), number(), number(), number(), number32(), prop::option::of(heads)).prop_map(
        |(key, region, offset, token_bytes, page_bytes, page_count, heads)| {
            let mut buffer = Buffer::new(key, region, offset, 1, token_bytes, page_count);
            buffer.page_bytes = page_bytes;
            buffer.groups.extend(heads.map(|heads| HeadGroup { heads, head_bytes: token_bytes }));
            buffer
        },
    )
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::TokenMajor), Just(Order::HeadMajor)]
}

/// Anything that can be decoded.
fn anything() -> impl Strategy<Value = CacheLayout> {
    let rank = (number32(), number32()).prop_map(|(pp, tp)| Rank::new(pp, tp));
    let model = prop_oneof![Just(latents(3, 4)), Just(heads(3, 2, 1, 2))];
    (model, rank, vec(number32(), 0..5), number32(), number32(), number32(), (number32(), number32()), order())
        .prop_flat_map(|(model, rank, stages, tp, drafts, page, (cp, dp), order)| {
            let shard = Shard::new(rank, stages, tp).with_draft_layers(drafts).with_cp(cp).with_dp(dp);
            let layout = CacheLayout::new(&model, shard, page, Dtype::Fp8).with_order(order);
            (Just(layout), vec(buffer(), 0..6), vec(number(), 0..6))
        })
        .prop_map(|(mut layout, buffers, regions)| {
            (layout.buffers, layout.regions) = (buffers, regions);
            layout
        })
}

/// One field of a good layout set to something.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    Cp(u32),
    Page(u32),
    Order(Order),
    Rank(Rank),
    Stage(Index, u32),
    Tp(u32),
    Drafts(u32),
    Region(Index, u64),
    Buffer(Index, Buffer),
    /// A size that stays in step with the others, so that it passes the checks.
    Scale(u64),
    Offset(Index, u64),
    Pages(Index, u32),
    Heads(Index, Heads),
    Key(Index, BufferKey),
    Remove(Index),
    Shift(u32),
}

fn change() -> impl Strategy<Value = Change> {
    let rank = (0u32..3, 0u32..3).prop_map(|(pp, tp)| Rank::new(pp, tp));
    let heads = (0u32..5, 0u32..5, 0u32..5).prop_map(|(first, count, total)| Heads { first, count, total });
    prop_oneof![
        Just(Change::Nothing),
        number32().prop_map(Change::Cp),
        number32().prop_map(Change::Page),
        order().prop_map(Change::Order),
        rank.prop_map(Change::Rank),
        (any::<Index>(), number32()).prop_map(|(at, to)| Change::Stage(at, to)),
        number32().prop_map(Change::Tp),
        number32().prop_map(Change::Drafts),
        (any::<Index>(), number()).prop_map(|(at, to)| Change::Region(at, to)),
        (any::<Index>(), buffer()).prop_map(|(at, to)| Change::Buffer(at, to)),
        number().prop_map(Change::Scale),
        (any::<Index>(), number()).prop_map(|(at, to)| Change::Offset(at, to)),
        (any::<Index>(), number32()).prop_map(|(at, to)| Change::Pages(at, to)),
        (any::<Index>(), heads).prop_map(|(at, to)| Change::Heads(at, to)),
        (any::<Index>(), key()).prop_map(|(at, to)| Change::Key(at, to)),
        any::<Index>().prop_map(Change::Remove),
        (0u32..3).prop_map(Change::Shift),
    ]
}

fn apply(layout: &mut CacheLayout, change: &Change) {
    let buffers = layout.buffers.len();
    if buffers == 0 {
        return;
    }
    match change {
        Change::Nothing => {}
        Change::Cp(ranks) => layout.shard.cp = *ranks,
        Change::Page(tokens) => layout.page_tokens = *tokens,
        Change::Order(order) => layout.order = *order,
        Change::Rank(rank) => layout.shard.rank = *rank,
        Change::Stage(at, to) => {
            let at = at.index(layout.shard.stages.len());
            layout.shard.stages[at] = *to;
        }
        Change::Tp(tp) => layout.shard.tp = *tp,
        Change::Drafts(layers) => layout.shard.draft_layers = *layers,
        Change::Region(at, to) => {
            let at = at.index(layout.regions.len());
            layout.regions[at] = *to;
        }
        Change::Buffer(at, to) => layout.buffers[at.index(buffers)] = to.clone(),
        Change::Scale(token_bytes) => {
            layout.regions = vec![u64::MAX; layout.regions.len()];
            for buffer in &mut layout.buffers {
                buffer.page_count = 1;
                (buffer.token_bytes, buffer.page_bytes) =
                    (*token_bytes, token_bytes.saturating_mul(layout.page_tokens.into()));
                buffer.page_stride = buffer.page_bytes;
                for group in &mut buffer.groups {
                    group.head_bytes = token_bytes / u64::from(group.heads.count.max(1));
                }
            }
        }
        Change::Offset(at, to) => layout.buffers[at.index(buffers)].offset = *to,
        Change::Pages(at, to) => layout.buffers[at.index(buffers)].page_count = *to,
        Change::Heads(at, to) => {
            layout.buffers[at.index(buffers)].groups = vec![HeadGroup { heads: *to, head_bytes: 1 }]
        }
        Change::Key(at, to) => layout.buffers[at.index(buffers)].key = *to,
        Change::Remove(at) => drop(layout.buffers.remove(at.index(buffers))),
        Change::Shift(layers) => {
            layout.buffers.iter_mut().for_each(|b| b.key.layer = b.key.layer.saturating_add(*layers))
        }
    }
}

/// A good layout with a few changes: many of these pass the checks and are odd all the same.
fn nearly_good() -> impl Strategy<Value = CacheLayout> {
    let model = prop_oneof![Just(latents(4, 4)), Just(heads(4, 4, 1, 2))];
    let spec = prop::sample::select(vec!["pp=1", "pp=2,draft=1", "tp=2", "pp=2,tp=2", "layers=1+2+1,draft=2"]);
    let layout = (model, spec, any::<Index>()).prop_map(|(model, spec, rank): (ModelShape, _, _)| {
        let mut layouts = side(&model, &format!("{spec},pages=8"), 4);
        layouts.swap_remove(rank.index(layouts.len()))
    });
    (layout, vec(change(), 0..3)).prop_map(|(mut layout, changes)| {
        changes.iter().for_each(|change| apply(&mut layout, change));
        layout
    })
}

/// Everything that is called with a peer's layout.
fn use_all(a: &CacheLayout, b: &CacheLayout, pages: &[i32]) -> Result<(), TestCaseError> {
    let valid = a.validate().is_ok() && b.validate().is_ok();
    let paired = pair(a, b);
    prop_assert!(valid || paired.is_err());
    if let Err(error) = &paired {
        prop_assert!(error.to_string().len() < 2_000);
        prop_assert!(!error.kind().is_empty());
    }
    let _ = (a.check_pages(PageId::list(pages)), a.page_count(Pool::FULL), a.shard.stage_of(u32::MAX));
    let _ = (coverage(&[a, b], a), coverage(&[b], a), a.clone().packed(u64::MAX), a.clone().packed(0));
    if let Ok(pairing) = &paired {
        let mut plan = Plan::default();
        let pages = PageId::list(pages);
        for layers in [None, Some(0..2), Some(1..u32::MAX), Some(Range { start: u32::MAX, end: 0 })] {
            if pairing.plan_layers(layers, pages, pages, &mut plan).is_ok() {
                // What is planned lies inside of both buffers, and so inside of both regions.
                for slice in plan.slices(pairing) {
                    let (src, dst) = (a.buffer(slice.key).unwrap(), b.buffer(slice.key).unwrap());
                    let end = |offset: u64| offset.checked_add(slice.len);
                    prop_assert!(
                        end(slice.src_offset) <= src.total_bytes() && end(slice.dst_offset) <= dst.total_bytes()
                    );
                    prop_assert!(end(slice.src_offset).is_some() && end(slice.dst_offset).is_some());
                }
            }
        }
    }
    if a.validate().is_ok() {
        let siblings = a.siblings();
        let refs: Vec<_> = siblings.iter().collect();
        let _ = (coverage(&refs, b), coverage(&refs, a), routes(&siblings[..1], std::slice::from_ref(b)));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_is_refused_or_paired(a in anything(), b in nearly_good(), pages in vec(-2i32..12, 0..4)) {
        use_all(&a, &b, &pages)?;
        use_all(&a, &a, &pages)?;
    }

    #[test]
    fn what_passes_the_checks_is_paired_without_panics(a in nearly_good(), b in nearly_good(), pages in vec(-2i32..12, 0..4)) {
        use_all(&a, &b, &pages)?;
        use_all(&a, &a, &pages)?;
    }
}

/// The time of the slowest of all calls that a peer's layout is put through.
fn timed(layout: &CacheLayout, own: &CacheLayout) -> Duration {
    let started = Instant::now();
    let checked = layout.validate();
    let siblings = if checked.is_ok() { layout.siblings() } else { Vec::new() };
    let buffers: usize = siblings.iter().map(|sibling| sibling.buffers.len()).sum();
    let most = CacheLayout::MAX_SIDE_BUFFERS + CacheLayout::MAX_BUFFERS as u64;
    assert!(buffers as u64 <= most, "{buffers} buffers");
    let refs: Vec<_> = siblings.iter().collect();
    let _ = (coverage(&refs, own), coverage(&[own], layout), pair(layout, own), pair(own, layout));
    started.elapsed()
}

/// A side of the given stages and tensor ranks with buffers of all roles for each layer of the first stage.
fn wide(stages: Vec<u32>, tp: u32, roles: &[Role]) -> CacheLayout {
    let first = stages[0];
    let mut layout = CacheLayout::new(&latents(4_096, 1), Shard::new(Rank::new(0, 0), stages, tp), 1, Dtype::Fp8);
    for layer in 0..first {
        for role in roles {
            let region = layout.add_region(1);
            let mut buffer = Buffer::new(BufferKey::main(*role, layer), region, 0, 1, 1, 1);
            if !matches!(role, Role::Latent | Role::Index) {
                buffer = buffer.with_heads(Heads::WHOLE);
            }
            layout.add_buffer(buffer);
        }
    }
    layout
}

#[test]
fn a_layout_with_as_many_ranks_and_layers_as_it_may_claim_takes_bounded_time() {
    let own = side(&latents(4_096, 1), "pp=1", 1).remove(0);
    let all = [Role::Key, Role::Value, Role::Latent, Role::Index, Role::Conv, Role::Recurrent];
    let tail = |first: u32, count: usize| {
        let mut stages = vec![1; count];
        stages[0] = first;
        stages
    };
    for (name, layout) in [
        ("many ranks, all roles", wide(tail(4_096 - 511, 512), 8, &all)),
        ("many ranks, one role", wide(tail(4_096 - 511, 512), 8, &all[2..3])),
        ("many layers, all roles", wide(vec![4_096], 10, &all)),
        ("one layer, all tensor ranks", wide(vec![1], 4_096, &all)),
        ("more than it may", wide(vec![4_096], 4_096, &all)),
    ] {
        // Tens of milliseconds in release, and most of a second without optimisation.
        let took = timed(&layout, &own);
        assert!(took < Duration::from_secs(10), "{name}: {took:?}");
    }
}

#[test]
fn claims_of_billions_cost_nothing() {
    let own = side(&latents(3, 4), "pp=1", 4).remove(0);
    let claims: [fn(&mut CacheLayout); 5] = [
        |layout| layout.shard.tp = u32::MAX,
        |layout| layout.shard.draft_layers = u32::MAX,
        |layout| layout.shard.stages[0] = u32::MAX,
        |layout| layout.shard.cp = u32::MAX,
        |layout| layout.buffers[0].page_count = u32::MAX,
    ];
    for claim in claims {
        let mut layout = own.clone();
        claim(&mut layout);
        let started = Instant::now();
        assert!(layout.validate().is_err() && pair(&layout, &own).is_err());
        assert!(started.elapsed() < Duration::from_secs(1));
    }
    // As many pages as 32 bits hold are possible, and duplicates among them are found without a bit for each.
    let mut layout = side(&latents(1, 1), "pages=4294967295", 1).remove(0);
    layout.dtype = own.dtype;
    let pages = [i32::MAX, 0, i32::MAX];
    let error = layout.check_pages(PageId::list(&pages)).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("place 2")), ("duplicate_page", true), "{error}");
}
