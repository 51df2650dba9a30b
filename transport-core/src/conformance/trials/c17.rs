//! C17: what a peer sends is never believed. What a program that got it from a peer can do is tried here; hostile packets are
//! each implementation's own to try.

use bytes::Bytes;

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(17, "c17_garbage_is_no_grant", garbage_is_no_grant),
    Trial::new(17, "c17_hostile_grants_do_no_harm", hostile_grants_do_no_harm),
    Trial::new(17, "c17_grants_are_bounded", grants_are_bounded),
    Trial::new(17, "c17_hostile_slices_do_no_harm", hostile_slices_do_no_harm),
    Trial::new(17, "c17_hostile_groups_do_no_harm", hostile_groups_do_no_harm),
];

fn garbage_is_no_grant(suite: &mut Suite) -> Verdict {
    for _ in 0..2000 {
        let len = suite.random.below(1200) as usize;
        let bytes = suite.random.bytes(len);
        match RegionGrant::decode(&bytes) {
            Ok(grant) => assert_eq!(grant.encode(), bytes),
            Err(error) => assert!(matches!(error, GrantError::Malformed { len: named, .. } if named == len)),
        }
    }
    Passed
}

fn hostile_grants_do_no_harm(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 4096);
    let private = suite.field(&pair.b, 4096, Access::LOCAL);
    let genuine = pair.b.transport.grant(pair.b.peer, target.region).expect("it is granted");
    for round in 0..50u32 {
        let region = match round % 3 {
            0 => private.region,
            1 => RegionId { index: suite.random.next() as u32 | 1 << 16, generation: suite.random.next() as u32 },
            _ => RegionId { generation: target.region.generation.wrapping_add(1 + round), ..target.region },
        };
        let len = suite.random.next();
        let keys = match suite.random.below(3) {
            0 => Bytes::from(suite.random.bytes(RegionGrant::MAX_KEYS)),
            1 => Bytes::new(),
            _ => genuine.keys.slice(..suite.random.below(genuine.keys.len() as u64 + 1) as usize),
        };
        match pair.a.transport.import(pair.a.peer, &RegionGrant { region, len, keys }) {
            // With made-up keys a NIC would end the connection; that is tried where the receiver explains itself.
            Ok(()) if suite.profile.explains_refusals => {
                let bad = WriteSlice { dst: region, ..slice(&source, 0, &target, suite.random.below(5000), 64) };
                if let Ok(transfer) = pair.a.submit((&[bad]).into()) {
                    assert!(suite.outcome(&transfer).is_err(), "{region} was not granted");
                }
            }
            Ok(()) => {}
            Err(error) => assert!(matches!(error, GrantError::Malformed { .. }), "{error}"),
        }
    }
    private.check("memory that was not granted");
    target.check("memory that only forged grants named");
    // The connection is as good as before.
    pair.grant(target.region);
    let batch = [slice(&source, 0, &target, 0, 4096)];
    target.expect(&source, &batch);
    suite.write(&pair.a, (&batch).into());
    target.check("after hostile grants");
    Passed
}

fn grants_are_bounded(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let target = suite.target(&pair, 64);
    let genuine = pair.b.transport.grant(pair.b.peer, target.region).expect("it is granted");
    let refused = (0..1u32 << 18).find_map(|index| {
        let region = RegionId { index: index + (1 << 16), generation: 1 };
        pair.a.transport.import(pair.a.peer, &RegionGrant { region, ..genuine.clone() }).err()
    });
    assert!(matches!(refused, Some(GrantError::TooMany { .. })), "grants without end are refused: {refused:?}");
    Passed
}

/// A number that arithmetic trips over, or one that fits.
fn edge(suite: &mut Suite, len: u64) -> u64 {
    let small = suite.random.below(len + 1);
    let edges = [0, 1, len - 1, len, len + 1, u64::MAX, u64::MAX - len, 1 << 63, u64::from(u32::MAX), 1 << 32];
    let place = suite.random.below(edges.len() as u64 * 3) as usize;
    edges.get(place).copied().unwrap_or(small)
}

fn hostile_slices_do_no_harm(suite: &mut Suite) -> Verdict {
    const LEN: u64 = 2000;
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, LEN as usize);
    let mut accepted = 0;
    for _ in 0..suite.profile.sizes.rounds * 10 {
        let (src, dst, len) = (edge(suite, LEN), edge(suite, LEN), edge(suite, LEN));
        let bad = slice(&source, src, &target, dst, len);
        let inside = |offset: u64| u128::from(offset) + u128::from(len) <= u128::from(LEN);
        match pair.a.submit((&[bad]).into()) {
            Ok(transfer) => {
                assert!(inside(src) && inside(dst), "{bad:?} was accepted");
                target.expect(&source, &[bad]);
                suite.delivered(&transfer);
                accepted += 1;
            }
            Err(SubmitError::Slice { index: 0, cause: SliceError::OutOfBounds { .. } }) => {
                assert!(!inside(src) || !inside(dst), "{bad:?} was refused");
            }
            Err(other) => panic!("{bad:?}: {other}"),
        }
    }
    target.check("after hostile slices");
    println!("{accepted} slices were inside");
    Passed
}

fn hostile_groups_do_no_harm(suite: &mut Suite) -> Verdict {
    const LEN: u64 = 2000;
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, LEN as usize);
    let mut accepted = 0;
    for _ in 0..suite.profile.sizes.rounds * 10 {
        let mut number = |bound| if suite.random.below(4) == 0 { edge(suite, LEN) } else { suite.random.below(bound) };
        let run = Run { src_row: number(3), dst_row: number(3), ..Run::new(number(8), number(8), number(8)) };
        let len = number(99);
        let table = TablePair {
            src_base: number(LEN),
            src_row_stride: number(300),
            src_stride: number(200) | 1,

            dst_base: number(LEN),
            dst_row_stride: number(300),
            // Units that do not overlap, so that the bytes are defined.
            dst_stride: len.max(1).saturating_add(number(100)),
            len,
            ..TablePair::between(source.region, target.region)
        };
        let wide = |base: u64, row_stride: u64, row: u64, stride: u64, first: u64| {
            let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
            let first = u128::from(base).checked_add(product(row, row_stride))?.checked_add(product(first, stride))?;
            let Some(last) = run.count.checked_sub(1) else { return Some(first) };
            first.checked_add(u128::from(last).checked_mul(u128::from(stride))?)?.checked_add(u128::from(table.len))
        };
        let inside = [
            wide(table.src_base, table.src_row_stride, run.src_row, table.src_stride, run.src),
            wide(table.dst_base, table.dst_row_stride, run.dst_row, table.dst_stride, run.dst),
        ]
        .into_iter()
        .all(|end| end.is_some_and(|end| end <= u128::from(LEN)));
        let group = Group { runs: &[run], tables: &[table] };
        match pair.a.submit((&group).into()) {
            Ok(transfer) => {
                assert!(inside, "{group:?} was accepted");
                target.expect_group(&source, &group);
                suite.delivered(&transfer);
                accepted += 1;
            }
            Err(SubmitError::TooLarge | SubmitError::Slice { index: 0, cause: SliceError::OutOfBounds { .. } }) => {
                assert!(!inside, "{group:?} was refused");
            }
            Err(other) => panic!("{group:?}: {other}"),
        }
    }
    target.check("after hostile groups");
    println!("{accepted} groups were inside");
    Passed
}
