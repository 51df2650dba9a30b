//! C8: no slice outside its regions, on either side, by any arithmetic.

use super::prelude::*;
use crate::{PeerId, Side::Destination, Side::Source};

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(8, "c08_out_of_bounds_is_refused_with_its_numbers", out_of_bounds_is_refused_with_its_numbers),
    Trial::new(8, "c08_overflow_does_not_pass_the_check", overflow_does_not_pass_the_check),
    Trial::new(8, "c08_groups_are_checked_to_their_last_unit", groups_are_checked_to_their_last_unit),
    Trial::new(8, "c08_names_that_are_not_there_are_refused", names_that_are_not_there_are_refused),
    Trial::new(8, "c08_only_writable_regions_are_granted", only_writable_regions_are_granted),
    Trial::new(8, "c08_the_receiver_checks_the_length_itself", the_receiver_checks_the_length_itself),
    Trial::new(8, "c08_the_receiver_checks_what_it_granted", the_receiver_checks_what_it_granted),
    Trial::new(8, "c08_a_grant_is_for_one_peer", a_grant_is_for_one_peer),
];

fn out_of_bounds_is_refused_with_its_numbers(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let source = suite.field(&pair.a, 5000, Access::LOCAL);
    let mut target = suite.target(&pair, 3000);
    let good = slice(&source, 0, &target, 0, 1);
    target.expect(&source, &[good]);
    for (src, dst, len, side) in [
        (4001, 0, 1000, Source),
        (5000, 0, 1, Source),
        (5001, 0, 0, Source),
        (0, 2001, 1000, Destination),
        (0, 2999, 2, Destination),
        (0, 3000, 1, Destination),
        (0, 3001, 0, Destination),
        (0, 1 << 40, 16, Destination),
    ] {
        for index in [0, 1, 5] {
            let mut batch = vec![good; index];
            batch.push(slice(&source, src, &target, dst, len));
            batch.push(good);
            let error = pair.a.submit((&batch).into()).unwrap_err();
            let (region, offset, region_len) = match side {
                Source => (source.region, src, 5000),
                Destination => (target.region, dst, 3000),
            };
            let cause = SliceError::OutOfBounds { side, region, offset, len, region_len };
            assert_eq!(error, SubmitError::Slice { index: index as u64, cause });
        }
    }
    // What ends at the end is inside.
    let edge = [slice(&source, 4000, &target, 2000, 1000), slice(&source, 5000, &target, 3000, 0), good];
    target.expect(&source, &edge);
    suite.write(&pair.a, (&edge).into());
    target.check("after refusals and a batch at the edge");
    Passed
}

fn overflow_does_not_pass_the_check(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    for (src, dst, len) in [
        (u64::MAX - 10, 0, 100),
        (u64::MAX, 0, 1),
        (0, u64::MAX - 10, 100),
        (0, u64::MAX, 1),
        (1, 0, u64::MAX),
        (0, 1, u64::MAX),
        (0, u64::MAX - 4095, 4096),
        (1 << 63, 1 << 63, 1 << 63),
        (0, 0, u64::from(u32::MAX) + 1),
    ] {
        let error = pair.a.submit((&[slice(&source, src, &target, dst, len)]).into()).unwrap_err();
        let matched = matches!(error, SubmitError::Slice { index: 0, cause: SliceError::OutOfBounds { .. } });
        assert!(matched, "{src} {dst} {len}: {error}");
    }
    target.check("after refusals");
    Passed
}

fn groups_are_checked_to_their_last_unit(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let source = suite.field(&pair.a, 10_000, Access::LOCAL);
    let mut target = suite.target(&pair, 8000);
    let table = |base, src_stride, dst_stride, len| TablePair {
        src_base: base,
        src_stride,

        dst_base: base,
        dst_stride,
        len,
        ..TablePair::between(source.region, target.region)
    };
    let run = |src, dst, count| Run::new(src, dst, count);
    let fine = (run(0, 0, 2), table(0, 1000, 1000, 1000));
    for (bad, index) in [
        ((run(7, 7, 2), table(0, 1000, 1000, 1000)), 3),
        ((run(0, 4, 5), table(0, 1000, 1000, 1000)), 3),
        ((run(0, 0, 1), table(7500, 10, 10, 501)), 3),
        ((run(0, 0, 1 << 40), table(0, 1000, 1000, 1000)), 3),
        ((run(0, 0, 3), table(0, 1 << 63, 1000, 1)), 3),
        ((run(0, 0, 3), table(0, 1000, 1 << 63, 1)), 3),
        ((run(u64::MAX, 0, 1), table(0, 1000, 1000, 1)), 3),
        ((run(0, u64::MAX, 1), table(0, 1000, 1000, 1)), 3),
        ((run(0, 0, 1), table(u64::MAX, 1000, 1000, 1)), 3),
    ] {
        // Index 3: two runs of the first table, one good run of the second, then the bad one.
        let first = Group { runs: &[fine.0, fine.0], tables: &[fine.1] };
        let second = Group { runs: &[run(0, 0, 0), bad.0], tables: &[bad.1] };
        let zero_is_fine = bad.1.src_base <= 8000;
        let error = pair.a.submit(Batch::Groups(&[first, second])).unwrap_err();
        match error {
            SubmitError::Slice { index: found, cause: SliceError::OutOfBounds { .. } } => {
                assert_eq!(found, if zero_is_fine { index } else { 2 }, "{bad:?}");
            }
            SubmitError::TooLarge => {}
            other => panic!("{bad:?}: {other}"),
        }
    }
    let group = Group { runs: &[run(0, 6, 2)], tables: &[table(0, 1000, 1000, 1000)] };
    target.expect_group(&source, &group);
    suite.write(&pair.a, (&group).into());
    target.check("after refusals and a group at the edge");
    Passed
}

fn names_that_are_not_there_are_refused(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 64);
    let private = suite.field(&pair.b, 64, Access::REMOTE_WRITE);
    let unknown = RegionId { index: 1 << 20, generation: 5 };
    let good = slice(&source, 0, &target, 0, 64);
    let refusal = |slice: WriteSlice| match pair.a.submit((&[good, slice]).into()) {
        Err(SubmitError::Slice { index: 1, cause }) => cause,
        other => panic!("a slice is refused, not {other:?}"),
    };
    assert_eq!(refusal(slice(&source, 0, &private, 0, 1)), SliceError::NotGranted { asked: private.region });
    assert_eq!(refusal(WriteSlice { dst: unknown, ..good }), SliceError::NotGranted { asked: unknown });
    let cause = SliceError::Source(RegionError::Unknown { asked: unknown });
    assert_eq!(refusal(WriteSlice { src: unknown, ..good }), cause);
    let nobody = PeerId { index: 1 << 20, generation: 5 };
    let error = pair.a.transport.batch_write(nobody, (&[good]).into(), &BatchOptions::new()).unwrap_err();
    assert!(matches!(error, SubmitError::NotConnected { peer, .. } if peer == nobody), "{error}");
    private.check("after refusals");
    target.check("after refusals");
    Passed
}

fn only_writable_regions_are_granted(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (_, private) = pair.b.register(64, Access::LOCAL);
    let (_, gone) = pair.b.register(64, Access::REMOTE_WRITE);
    suite.wait("deregistering", pair.b.transport.deregister(gone)).expect("it is registered");
    let grant = |peer, region| pair.b.transport.grant(peer, region).unwrap_err();
    assert_eq!(grant(pair.b.peer, private), GrantError::NotWritable { region: private });
    assert!(matches!(grant(pair.b.peer, gone), GrantError::Region(RegionError::Stale { .. })));
    let unknown = RegionId { index: 1 << 20, generation: 5 };
    assert_eq!(grant(pair.b.peer, unknown), GrantError::Region(RegionError::Unknown { asked: unknown }));
    let (_, open) = pair.b.register(64, Access::REMOTE_WRITE);
    let nobody = PeerId { index: 1 << 20, generation: 5 };
    assert!(matches!(grant(nobody, open), GrantError::NotConnected { .. }));
    let sound = pair.b.transport.grant(pair.b.peer, open).expect("it is granted");
    assert_eq!((sound.region, sound.len), (open, 64));
    assert_eq!(RegionGrant::decode(&sound.encode()), Ok(sound.clone()));
    assert!(matches!(pair.a.transport.import(nobody, &sound), Err(GrantError::NotConnected { .. })));
    Passed
}

/// What became of a slice that only the receiver's own check can refuse.
fn refused(suite: &mut Suite, pair: &Pair, bad: WriteSlice) -> Option<SliceError> {
    let transfer = suite.submit(&pair.a, (&[bad]).into(), &BatchOptions::new().with_notification(b"never"));
    match suite.outcome(&transfer) {
        Err(TransferError::Refused { index: 0, cause }) => Some(cause),
        Err(_) if !suite.profile.explains_refusals => None,
        other => panic!("the receiver refuses, not {other:?}"),
    }
}

fn the_receiver_checks_the_length_itself(suite: &mut Suite) -> Verdict {
    for (offset, len) in [(4000, 97), (4096, 1), (1 << 20, 4096), (0, 4097), (u64::MAX - 8192, 4096)] {
        // A connection each: a NIC ends it with the refusal.
        let pair = suite.pair();
        let (source, target) = suite.fields(&pair, 4096);
        let long = suite.field(&pair.a, 8192, Access::LOCAL);
        if !forge(&pair, &target, target.region, u64::MAX) {
            continue;
        }
        let cause = refused(suite, &pair, slice(&long, 0, &target, offset, len));
        if let Some(cause) = cause {
            let (side, region) = (Destination, target.region);
            assert_eq!(cause, SliceError::OutOfBounds { side, region, offset, len, region_len: 4096 });
        }
        target.check("after a refusal by the receiver");
        assert_eq!(source.len(), 4096);
    }
    Passed
}

fn the_receiver_checks_what_it_granted(suite: &mut Suite) -> Verdict {
    for access in [Access::LOCAL, Access::REMOTE_WRITE] {
        let pair = suite.pair();
        let (source, target) = suite.fields(&pair, 4096);
        let private = suite.field(&pair.b, 4096, access);
        if !forge(&pair, &target, private.region, 4096) {
            continue;
        }
        if suite.profile.explains_refusals {
            let cause = refused(suite, &pair, slice(&source, 0, &private, 0, 64));
            assert_eq!(cause, Some(SliceError::NotGranted { asked: private.region }));
            target.check("after a refusal by the receiver");
        } else {
            // With the keys of another region the bytes may land there, where they are allowed.
            let bad = [slice(&source, 0, &private, 0, 64)];
            let _ = suite.outcome(&suite.submit(&pair.a, (&bad).into(), &BatchOptions::new()));
        }
        private.check("memory that was not granted");
        // A region that never was.
        let nowhere = RegionId { index: 1 << 20, generation: 1 };
        if forge(&pair, &target, nowhere, 4096) && suite.profile.explains_refusals {
            let bad = WriteSlice { dst: nowhere, ..slice(&source, 0, &target, 0, 64) };
            assert_eq!(refused(suite, &pair, bad), Some(SliceError::NotGranted { asked: nowhere }));
        }
        private.check("memory that was not granted");
    }
    Passed
}

fn a_grant_is_for_one_peer(suite: &mut Suite) -> Verdict {
    if !suite.profile.explains_refusals {
        return Skipped("the receiver's NIC checks keys and not peers".into());
    }
    let pair = suite.pair();
    let target = suite.target(&pair, 4096);
    let third = suite.start();
    let other = suite.connect(&third, &pair.b.node);
    let source = suite.field(&other.a, 4096, Access::LOCAL);
    let stolen = pair.b.transport.grant(pair.b.peer, target.region).expect("it is granted");
    other.a.transport.import(other.a.peer, &stolen).expect("a forged grant is imported");
    let cause = refused(suite, &other, slice(&source, 0, &target, 0, 64));
    assert_eq!(cause, Some(SliceError::NotGranted { asked: target.region }));
    target.check("after a refusal by the receiver");
    Passed
}
