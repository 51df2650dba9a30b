//! Carries the plans of all pairs of ranks out on labelled memory, and looks at what came of it.

use std::collections::BTreeMap;

use kv_plan::{
    CacheLayout, Form, HeadGroup, Heads, Pairing, Part, Plan, Pool, PoolKind, Rank, Run, Table, Tally, coverage, pair,
    routes,
};
use proptest::{prop_assert, prop_assert_eq, test_runner::TestCaseError};

use crate::{
    cache::RankCache,
    draw::{Case, Random},
    faults::Fault,
};

/// Checks one case whole.
pub(crate) fn check(case: &Case) -> Result<(), TestCaseError> {
    check_with(case, &mut None)
}

/// As [`check`], with a fault in the first plan that moves something; it is taken out when it was planted.
pub(crate) fn check_with(case: &Case, fault: &mut Option<Fault>) -> Result<(), TestCaseError> {
    let (prefill, decode) = match (case.layouts(&case.prefill), case.layouts(&case.decode)) {
        (Ok(prefill), Ok(decode)) => (prefill, decode),
        (Err(error), _) | (_, Err(error)) => {
            prop_assert_eq!(error.kind(), "split", "{}", error);
            return Ok(());
        }
    };
    let routes = match routes(&prefill, &decode) {
        Ok(routes) => routes,
        Err(error) => {
            // The only thing that does not fit in what is drawn: states under context parallelism.
            prop_assert_eq!(error.kind(), "split", "{}", error);
            prop_assert!(case.prefill.cp > 1 || case.decode.cp > 1, "{}", error);
            return Ok(());
        }
    };
    let mut random = Random(case.seed);
    let mut senders: Vec<RankCache<'_>> =
        prefill.iter().map(|layout| RankCache::new(layout, 0, case.end, case.more, &mut random)).collect();
    let mut receivers: Vec<RankCache<'_>> =
        decode.iter().map(|layout| RankCache::new(layout, case.start, case.end, 0, &mut random)).collect();
    senders.iter_mut().for_each(RankCache::fill);
    let siblings: Vec<CacheLayout> = prefill[0].siblings();
    for receiver in &mut receivers {
        let covered = coverage(&siblings.iter().collect::<Vec<_>>(), receiver.layout).map_err(|error| fail(&error))?;
        let mut written: Vec<Vec<u8>> = receiver.memory.iter().map(|region| vec![0; region.len()]).collect();
        let mut left_alone = Vec::new();
        for sender in &senders {
            let pairing = pair(sender.layout, receiver.layout).map_err(|error| fail(&error))?;
            let known = routes.between(sender.layout.rank(), receiver.layout.rank());
            prop_assert_eq!(known.is_some(), !pairing.tables().is_empty());
            prop_assert_eq!(covered.senders.contains(&sender.layout.rank()), !pairing.tables().is_empty());
            left_alone = pairing.left_alone().to_vec();
            push(case, &pairing, sender, receiver, &mut written, fault)?;
        }
        let moved = |pool: Pool| match pool.kind {
            PoolKind::State => 0..1,
            PoolKind::Window => {
                let window = u64::from(receiver.layout.window(pool.part).unwrap());
                case.start.max(case.end.saturating_sub(window))..case.end
            }
            _ => case.start..case.end,
        };
        let expected = receiver.expected(|label| {
            moved(label.buffer.pool()).contains(&label.token) && !left_alone.contains(&label.buffer.key)
        });
        prop_assert!(receiver.memory == expected, "{} holds something else", receiver.layout.rank());
        prop_assert!(
            written.iter().flatten().all(|count| *count <= 1),
            "{} has bytes that were written twice",
            receiver.layout.rank()
        );
        let all = receiver.layout.buffers.len();
        let draft = receiver.layout.buffers.iter().filter(|buffer| buffer.key.part == Part::Draft).count();
        prop_assert_eq!(left_alone.len(), if case.prefill.drafts { 0 } else { draft });
        prop_assert_eq!(covered.written, all - left_alone.len());
    }
    shares(&prefill, &decode)
}

/// Sends one sender's part of the request in chunks, and checks what both sides count.
fn push(
    case: &Case,
    pairing: &Pairing,
    sender: &RankCache<'_>,
    receiver: &mut RankCache<'_>,
    written: &mut [Vec<u8>],
    fault: &mut Option<Fault>,
) -> Result<(), TestCaseError> {
    let mut plan = Plan::default();
    let whole =
        receiver.with(true, |dst| pairing.tally(None, dst.tokens(case.start..case.end))).map_err(|e| fail(&e))?;
    let mut sum = Tally::default();
    let layers = sender.layout.model.layer_count();
    let chunks = case.chunks();
    for (number, tokens) in chunks.iter().enumerate() {
        // States go with the last chunk. Now and then a chunk goes in two parts by layers.
        let last = number + 1 == chunks.len();
        let cut = (case.seed >> (number % 60)) as u32 % (layers + 1);
        for layers in [Some(0..cut), Some(cut..u32::MAX)] {
            let planned = sender.with(last, |src| {
                receiver.with(last, |dst| {
                    let dst = dst.tokens(tokens.clone()).of_request(case.end);
                    pairing.plan_layers(layers.clone(), src.clone(), dst.clone(), &mut plan)?;
                    pairing.tally(layers.clone(), dst)
                })
            });
            let tally = planned.map_err(|error| fail(&error))?;
            prop_assert_eq!(tally.bytes, plan.bytes());
            sum.add(tally);
            carry_out(pairing, &plan, sender, receiver, written, fault)?;
        }
    }
    prop_assert_eq!(sum, whole, "the parts make another sum than the whole");
    Ok(())
}

/// Copies what a plan says, by the definition of runs and tables, and checks that its slices say the same.
fn carry_out(
    pairing: &Pairing,
    plan: &Plan,
    sender: &RankCache<'_>,
    receiver: &mut RankCache<'_>,
    written: &mut [Vec<u8>],
    fault: &mut Option<Fault>,
) -> Result<(), TestCaseError> {
    let mut copies: Vec<Copy> = Vec::new();
    for group in plan.groups() {
        for table in &pairing.tables()[group.tables.clone()] {
            plan.runs(group).iter().for_each(|run| copies_of(table, run, &mut copies));
        }
    }
    prop_assert_eq!(copies.len() as u64, plan.bytes());
    let slices: Vec<_> = plan.slices(pairing).collect();
    prop_assert_eq!(slices.len() as u64, plan.slice_count());
    let stepped = {
        let mut iterator = plan.slices(pairing);
        std::iter::from_fn(move || iterator.next()).collect::<Vec<_>>()
    };
    prop_assert_eq!(&stepped, &slices);
    let of_slices = slices.iter().flat_map(|slice| {
        let (src, dst) = (sender.layout.buffer(slice.key).unwrap(), receiver.layout.buffer(slice.key).unwrap());
        let (from, to) = (src.offset + slice.src_offset, dst.offset + slice.dst_offset);
        (0..slice.len).map(move |byte| (src.region as usize, from + byte, dst.region as usize, to + byte))
    });
    prop_assert!(of_slices.eq(copies.iter().copied()), "the slices say something else than runs and tables");
    if let Some(group) = plan.groups().first()
        && let Some(fault) = fault.take()
    {
        let (table, run) = (pairing.tables()[group.tables.start], plan.runs(group)[0]);
        let mut right = Vec::new();
        copies_of(&table, &run, &mut right);
        copies.drain(..right.len());
        fault.plant(table, run).iter().for_each(|(table, run)| copies_of(table, run, &mut copies));
    }
    for (src_region, src, dst_region, dst) in copies {
        let byte = sender.memory[src_region].get(src as usize).copied();
        let place = receiver.memory[dst_region].get_mut(dst as usize);
        let (Some(byte), Some(place)) = (byte, place) else { return Err(fail(&"a byte outside its region")) };
        *place = byte;
        written[dst_region][dst as usize] += 1;
    }
    Ok(())
}

/// A byte's region and offset at the sender, and at the receiver.
type Copy = (usize, u64, usize, u64);

/// What a table and a run move, by their definition.
fn copies_of(table: &Table, run: &Run, copies: &mut Vec<Copy>) {
    for unit in 0..run.count {
        let src = table.src_base + run.src_row * table.src_row_stride + (run.src + unit) * table.src_stride;
        let dst = table.dst_base + run.dst_row * table.dst_row_stride + (run.dst + unit) * table.dst_stride;
        let (from, to) = (table.src_region as usize, table.dst_region as usize);
        copies.extend((0..table.len).map(|byte| (from, src + byte, to, dst + byte)));
    }
}

/// What a sender sends of one head of a stage: by stage, pool, heads of the model, head, and sender.
type Loads = BTreeMap<(u32, Pool, u32, u32), BTreeMap<Rank, u64>>;

/// Of those who hold the same bytes none sends more than its share and one buffer.
fn shares(prefill: &[CacheLayout], decode: &[CacheLayout]) -> Result<(), TestCaseError> {
    let (mut loads, mut largest) = (Loads::new(), BTreeMap::<_, u64>::new());
    for sender in prefill.iter().filter(|layout| layout.rank().cp == 0) {
        let rank = sender.rank();
        for buffer in &sender.buffers {
            let whole = [HeadGroup { heads: Heads::WHOLE, head_bytes: buffer.token_bytes }];
            let groups = if buffer.groups.is_empty() { &whole[..] } else { &buffer.groups };
            for HeadGroup { heads, head_bytes } in groups {
                for head in heads.first..heads.end() {
                    let kind = (rank.pp, buffer.pool(), heads.total, head);
                    loads.entry(kind).or_default().entry(rank).or_default();
                    let largest = largest.entry(kind).or_default();
                    *largest = (*largest).max(*head_bytes);
                }
            }
        }
        for receiver in decode.iter().filter(|layout| layout.rank().cp == 0) {
            let pairing = pair(sender, receiver).map_err(|error| fail(&error))?;
            for section in pairing.sections().iter().filter(|section| section.form != Form::Pages) {
                for table in &pairing.tables()[section.tables.clone()] {
                    let heads = table.heads.unwrap_or(Heads::WHOLE);
                    for head in heads.first..heads.end() {
                        let kind = (rank.pp, section.pool, heads.total, head);
                        *loads.get_mut(&kind).unwrap().get_mut(&rank).unwrap() += table.len / u64::from(heads.count);
                    }
                }
            }
        }
    }
    for (kind, loads) in loads {
        let mean = loads.values().sum::<u64>().div_ceil(loads.len() as u64);
        let most = mean + largest[&kind];
        prop_assert!(loads.values().all(|load| *load <= most), "loads {:?} of {:?}", loads, kind);
    }
    Ok(())
}

fn fail(error: &dyn std::fmt::Display) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}
