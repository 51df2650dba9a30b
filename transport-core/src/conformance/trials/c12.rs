//! C12: empty batches and empty slices.

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(12, "c12_an_empty_batch_delivers_its_notification", an_empty_batch_delivers_its_notification),
    Trial::new(12, "c12_empty_slices_move_nothing", empty_slices_move_nothing),
    Trial::new(12, "c12_empty_slices_are_checked", empty_slices_are_checked),
    Trial::new(12, "c12_an_empty_region_can_be_registered", an_empty_region_can_be_registered),
];

fn an_empty_batch_delivers_its_notification(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let none = Group { runs: &[], tables: &[] };
    for batch in [Batch::Slices(&[]), Batch::Groups(&[]), Batch::Groups(&[none, none])] {
        let quiet = suite.submit(&pair.a, batch, &BatchOptions::new());
        assert_eq!(suite.delivered(&quiet).bytes, 0);
        let told = suite.submit(&pair.a, batch, &BatchOptions::new().with_notification(b"empty"));
        assert_eq!(suite.notification(&pair.b), "empty");
        assert_eq!(suite.delivered(&told).bytes, 0);
        let status = told.status();
        assert_eq!((status.state, status.bytes_done, status.bytes_total), (State::Delivered, 0, 0));
    }
    suite.no_event(&pair.b);
    Passed
}

fn empty_slices_move_nothing(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 4096);
    let empty =
        [slice(&source, 0, &target, 0, 0), slice(&source, 4096, &target, 4096, 0), slice(&source, 9, &target, 7, 0)];
    let told = suite.submit(&pair.a, (&empty).into(), &BatchOptions::new().with_notification(b"empty"));
    assert_eq!(suite.notification(&pair.b), "empty");
    assert_eq!(suite.delivered(&told).bytes, 0);
    target.check("after empty slices");
    // Among others they change nothing, and neither do empty runs and tables.
    let mixed =
        [empty[0], slice(&source, 100, &target, 200, 300), empty[1], slice(&source, 0, &target, 1000, 1), empty[2]];
    target.expect(&source, &mixed);
    suite.write(&pair.a, (&mixed).into());
    target.check("after empty slices among others");
    let table = |len| TablePair {
        src_stride: 64,

        dst_base: 2048,
        dst_stride: 64,
        len,
        ..TablePair::between(source.region, target.region)
    };
    let runs = [Run::new(3, 1, 0), Run::new(2, 5, 2)];
    let tables = [table(0), table(64)];
    let group = Group { runs: &runs, tables: &tables };
    target.expect_group(&source, &group);
    suite.write(&pair.a, (&group).into());
    target.check("after empty runs and tables");
    Passed
}

fn empty_slices_are_checked(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    let nowhere = RegionId { index: 1 << 20, generation: 1 };
    let good = slice(&source, 0, &target, 0, 0);
    for bad in [
        WriteSlice { src_offset: 4097, ..good },
        WriteSlice { dst_offset: 4097, ..good },
        WriteSlice { src: nowhere, ..good },
        WriteSlice { dst: nowhere, ..good },
    ] {
        let error = pair.a.submit((&[good, bad]).into()).unwrap_err();
        assert!(matches!(error, SubmitError::Slice { index: 1, .. }), "{error}");
    }
    Passed
}

fn an_empty_region_can_be_registered(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let node = &pair.b.transport;
    let region = match node.register(Memory::host(0).expect("no memory is needed"), Access::REMOTE_WRITE) {
        Ok(region) => region,
        // A NIC may refuse to register nothing; the memory comes back then.
        Err(failure) => {
            assert!(matches!(failure.cause, RegisterError::Refused { len: 0, .. }), "{failure}");
            assert!(failure.memory.is_empty());
            return Passed;
        }
    };
    pair.grant(region);
    let source = suite.field(&pair.a, 64, Access::LOCAL);
    let empty = WriteSlice { src: source.region, src_offset: 0, dst: region, dst_offset: 0, len: 0 };
    suite.write(&pair.a, (&[empty]).into());
    let error = pair.a.submit((&[WriteSlice { len: 1, ..empty }]).into()).unwrap_err();
    assert!(matches!(error, SubmitError::Slice { index: 0, .. }), "{error}");
    Passed
}
