//! C7: registered memory outlives every transfer that uses it.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(7, "c07_a_region_in_use_outlives_its_deregistration", a_region_in_use_outlives_its_deregistration),
    Trial::new(7, "c07_deregistering_gives_the_memory_back", deregistering_gives_the_memory_back),
    Trial::new(7, "c07_a_deregistered_target_is_quiet", a_deregistered_target_is_quiet),
    Trial::new(7, "c07_dropping_everything_in_flight_harms_nothing", dropping_everything_in_flight_harms_nothing),
    Trial::new(7, "c07_a_failed_registration_gives_the_memory_back", a_failed_registration_gives_the_memory_back),
];

fn a_region_in_use_outlives_its_deregistration(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, mut target) = suite.fields(&pair, 64 << 10);
    let batch = [slice(&source, 0, &target, 0, source.len())];
    target.expect(&source, &batch);
    suite.hold(&pair);
    let transfer = suite.held(&pair, (&batch).into());
    let wakes = Arc::<WakeCount>::default();
    let waker = Waker::from(Arc::clone(&wakes));
    {
        let mut deregistration = pin!(pair.a.transport.deregister(source.region));
        assert!(deregistration.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "it is in use");
    }
    // The name is closed although the future was dropped, and the memory is held although the name is closed.
    let error = pair.a.submit((&batch).into()).unwrap_err();
    assert!(matches!(error, SubmitError::Slice { index: 0, cause: SliceError::Source(_) }), "{error}");
    assert!(!is_over(&transfer));
    assert!(source.memory.holders() > 1, "the transfer holds the memory");
    suite.release(&pair, 1);
    suite.delivered(&transfer);
    target.check("after the delivery");
    suite.see("the release of the memory", || source.memory.holders() == 1);
    Passed
}

fn deregistering_gives_the_memory_back(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let (source, target) = suite.fields(&pair, 4096);
    let batch = [slice(&source, 0, &target, 0, 4096)];
    suite.hold(&pair);
    let transfer = suite.held(&pair, (&batch).into());
    let Field { memory, region, .. } = source;
    drop(memory);
    let (suite, pair, transfer) = (&*suite, &pair, &transfer);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let memory = suite.wait("deregistering", pair.a.transport.deregister(region)).expect("it is registered");
            (memory, is_over(transfer))
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished(), "a transfer uses the region");
        suite.release(pair, 1);
        let (memory, was_over) = waiting.join().expect("deregistering does not panic");
        assert!(was_over, "the last transfer is over before the memory comes back");
        assert_eq!(memory.len(), 4096);
        assert!(memory.try_into_owner().is_ok(), "nobody else holds the memory");
    });
    Passed
}

fn a_deregistered_target_is_quiet(suite: &mut Suite) -> Verdict {
    for _ in 0..4 {
        let pair = suite.pair();
        let (source, target) = suite.fields(&pair, suite.profile.sizes.bulk as usize);
        let batch: Vec<WriteSlice> =
            (0..source.len() / 65_536).map(|i| slice(&source, i * 65_536, &target, i * 65_536, 65_536)).collect();
        let transfer = suite.submit(&pair.a, (&batch).into(), &BatchOptions::new());
        thread::sleep(Duration::from_micros(suite.random.below(3000)));
        suite.wait("deregistering", pair.b.transport.deregister(target.region)).expect("it is registered");
        let at_the_end = target.bytes();
        thread::sleep(Duration::from_millis(10));
        assert!(target.bytes() == at_the_end, "bytes landed after the deregistration");
        if suite.outcome(&transfer).is_ok() {
            assert!(target.bytes() == source.expected, "delivered means delivered");
        }
    }
    Passed
}

fn dropping_everything_in_flight_harms_nothing(suite: &mut Suite) -> Verdict {
    for round in 0..6 {
        let pair = suite.pair();
        let len = suite.profile.sizes.bulk as usize / 2;
        let (source, target) = suite.fields(&pair, len + 8192);
        let batch = [slice(&source, 4096, &target, 4096, len as u64)];
        suite.hold(&pair);
        let mut transfers = vec![suite.held(&pair, (&batch).into()), suite.held(&pair, Batch::Slices(&[]))];
        transfers.extend(pair.a.submit((&batch).into()));
        thread::sleep(Duration::from_micros(suite.random.below(1000)));
        if round % 2 == 0 {
            drop(transfers);
        } else {
            transfers.into_iter().for_each(std::mem::forget);
        }
        suite.abandon(pair, round % 3 == 0);
        let (read, sent) = suite.reclaim("the release of the source", source);
        assert!(read == sent, "nothing writes a source");
        let (found, before) = suite.reclaim("the release of the target", target);
        let wrong = (0..found.len()).find(|&at| {
            let inside = (4096..4096 + len).contains(&at);
            found[at] != before[at] && !(inside && found[at] == sent[at])
        });
        assert_eq!(wrong, None, "a byte is neither what was there nor what was sent");
    }
    Passed
}

fn a_failed_registration_gives_the_memory_back(suite: &mut Suite) -> Verdict {
    let Some(max) = suite.profile.max_regions else {
        return Skipped("the harness states no limit on regions".into());
    };
    let node = suite.start();
    let regions: Vec<RegionId> = (0..max)
        .map(|_| node.transport.register(Memory::host(64).expect("memory"), Access::LOCAL).expect("there is room"))
        .collect();
    let failure = node.transport.register(Memory::host(128).expect("memory"), Access::LOCAL).unwrap_err();
    assert_eq!(failure.cause, RegisterError::TooMany { max });
    assert!(failure.memory.try_into_owner().is_ok(), "the transport has kept nothing");
    suite.wait("deregistering", node.transport.deregister(regions[0])).expect("it is registered");
    node.transport.register(Memory::host(64).expect("memory"), Access::LOCAL).expect("there is room again");
    Passed
}
