//! C9: a stale name is refused by its generation.

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(9, "c09_a_deregistered_source_is_stale", a_deregistered_source_is_stale),
    Trial::new(9, "c09_a_deregistered_target_is_stale", a_deregistered_target_is_stale),
    Trial::new(9, "c09_a_successor_is_not_its_predecessor", a_successor_is_not_its_predecessor),
    Trial::new(9, "c09_a_restarted_peer_is_another", a_restarted_peer_is_another),
    Trial::new(9, "c09_a_new_connection_begins_without_grants", a_new_connection_begins_without_grants),
];

fn a_deregistered_source_is_stale(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 64);
    let batch = [slice(&source, 0, &target, 0, 64)];
    suite.wait("deregistering", pair.a.transport.deregister(source.region)).expect("it is registered");
    let stale = |asked| match pair.a.submit((&batch).into()) {
        Err(SubmitError::Slice {
            index: 0,
            cause: SliceError::Source(RegionError::Stale { asked: found, current }),
        }) => {
            assert_eq!(found, asked);
            current
        }
        other => panic!("a stale source is refused, not {other:?}"),
    };
    stale(source.region);
    let successor = suite.field(&pair.a, 64, Access::LOCAL);
    assert_ne!(successor.region, source.region, "no name is used twice");
    if successor.region.index == source.region.index {
        assert_eq!(stale(source.region), Some(successor.region), "the error names the successor");
    }
    let again = suite.wait("deregistering twice", pair.a.transport.deregister(source.region));
    assert!(matches!(again, Err(RegionError::Stale { .. })));
    target.check("after refusals");
    Passed
}

/// Submits until the sender knows that its target is gone; what the receiver says until then is the same.
fn until_stale(suite: &Suite, pair: &Pair, batch: &[WriteSlice], asked: RegionId) {
    suite.see("the news of the deregistration", || match pair.a.submit(batch.into()) {
        Err(SubmitError::Slice { index: 0, cause }) => {
            assert_eq!(cause, SliceError::StaleDestination { asked });
            true
        }
        Ok(transfer) => {
            match suite.outcome(&transfer) {
                Err(TransferError::Refused { cause, .. }) => {
                    assert_eq!(cause, SliceError::StaleDestination { asked });
                }
                Err(_) if !suite.profile.explains_refusals => {}
                other => panic!("a stale target is refused, not {other:?}"),
            }
            false
        }
        Err(other) => panic!("a stale target is refused, not {other:?}"),
    });
}

fn a_deregistered_target_is_stale(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 64);
    suite.wait("deregistering", pair.b.transport.deregister(target.region)).expect("it is registered");
    until_stale(suite, &pair, &[slice(&source, 0, &target, 0, 64)], target.region);
    target.check("after refusals");
    Passed
}

fn a_successor_is_not_its_predecessor(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, old) = suite.fields(&pair, 64);
    suite.wait("deregistering", pair.b.transport.deregister(old.region)).expect("it is registered");
    let mut new = suite.target(&pair, 64);
    assert_ne!(new.region, old.region, "no name is used twice");
    until_stale(suite, &pair, &[slice(&source, 0, &old, 0, 64)], old.region);
    new.check("the successor, after writes to its predecessor");
    if suite.profile.explains_refusals {
        // A sender that pretends not to have heard of it: the receiver knows its generations.
        let grant =
            RegionGrant { region: old.region, ..pair.b.transport.grant(pair.b.peer, new.region).expect("granted") };
        pair.a.transport.import(pair.a.peer, &grant).expect("a forged grant is imported");
        if let Ok(transfer) = pair.a.submit((&[slice(&source, 0, &old, 0, 64)]).into()) {
            let outcome = suite.outcome(&transfer);
            let cause = SliceError::StaleDestination { asked: old.region };
            assert_eq!(outcome, Err(TransferError::Refused { index: 0, cause }));
        }
        pair.grant(new.region);
    }
    let batch = [slice(&source, 0, &new, 0, 64)];
    new.expect(&source, &batch);
    suite.write(&pair.a, (&batch).into());
    new.check("the successor, after a write of its own");
    old.check("the predecessor");
    Passed
}

fn a_restarted_peer_is_another(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, old) = suite.fields(&pair, 4096);
    if !suite.kill(&pair.b.node) {
        return Skipped(CANNOT_KILL.into());
    }
    suite.peer_lost(&pair.a);
    let restarted = suite.start();
    let again = suite.connect(&pair.a.node, &restarted);
    let mut new = suite.target(&again, 4096);
    assert_ne!(new.region, old.region, "generations begin at a random number");
    let stale = [slice(&source, 0, &old, 0, 64)];
    // By the old name of the peer, and by its new one.
    assert!(matches!(pair.a.submit((&stale).into()), Err(SubmitError::NotConnected { .. })));
    match again.a.submit((&stale).into()) {
        Err(SubmitError::Slice { index: 0, cause }) => {
            let asked = old.region;
            assert!(
                matches!(cause, SliceError::StaleDestination { .. } | SliceError::NotGranted { .. }),
                "{asked}: {cause}"
            );
        }
        other => panic!("a region of the former process is refused, not {other:?}"),
    }
    new.check("the new process, after a write to the old one");
    let batch = [slice(&source, 0, &new, 0, 64)];
    new.expect(&source, &batch);
    suite.write(&again.a, (&batch).into());
    new.check("the new process");
    Passed
}

fn a_new_connection_begins_without_grants(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 64);
    let batch = [slice(&source, 0, &target, 0, 64)];
    suite.wait("disconnecting", pair.a.transport.disconnect(pair.a.peer));
    let again = suite.connect(&pair.a.node, &pair.b.node);
    assert_ne!(again.a.peer, pair.a.peer, "a connection's name is not used twice");
    assert!(matches!(pair.a.submit((&batch).into()), Err(SubmitError::NotConnected { .. })));
    match again.a.submit((&batch).into()) {
        Err(SubmitError::Slice { index: 0, cause: SliceError::NotGranted { .. } }) => {}
        other => panic!("a grant of the former connection is refused, not {other:?}"),
    }
    target.check("after refusals");
    again.grant(target.region);
    target.expect(&source, &batch);
    suite.write(&again.a, (&batch).into());
    target.check("after a new grant");
    Passed
}
