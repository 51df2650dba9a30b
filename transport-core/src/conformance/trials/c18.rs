//! C18: many threads.

use std::{collections::HashSet, thread};

use super::prelude::*;

pub(super) const TRIALS: &[Trial] = &[
    Trial::new(18, "c18_many_threads_submit_many_batches", many_threads_submit_many_batches),
    Trial::new(18, "c18_many_threads_register_write_and_deregister", many_threads_register_write_and_deregister),
];

const THREADS: u64 = 8;

fn many_threads_submit_many_batches(suite: &mut Suite) -> Verdict {
    const AREA: u64 = 8 << 10;
    let pair = suite.pair();
    let third = suite.start();
    let other = suite.connect(&pair.a.node, &third);
    let batches = suite.profile.sizes.rounds as u64 / 2;
    let len = (THREADS * batches * AREA) as usize;
    let source = suite.field(&pair.a, len, Access::LOCAL);
    let mut targets = [suite.target(&pair, len), suite.target(&other, len)];
    let batch = |area: u64, target: &Field| {
        let at = area * AREA;
        [slice(&source, at, target, at, 5000), slice(&source, at + 5000, target, at + 5001, 3000)]
    };
    for area in 0..THREADS * batches {
        let target = &mut targets[(area % 2) as usize];
        let slices = batch(area, target);
        target.expect(&source, &slices);
    }
    let (suite, sides, targets, batch) = (&*suite, [&pair, &other], &targets, &batch);
    thread::scope(|scope| {
        for (number, pair) in sides.into_iter().enumerate() {
            scope.spawn(move || {
                let wanted: HashSet<u64> = (0..THREADS * batches).filter(|area| area % 2 == number as u64).collect();
                let mut seen = HashSet::new();
                while seen.len() < wanted.len() {
                    let payload = suite.notification(&pair.b);
                    let area = u64::from_le_bytes(payload[..].try_into().expect("eight bytes"));
                    assert!(wanted.contains(&area) && seen.insert(area), "{area} came once and here");
                }
            });
        }
        for worker in 0..THREADS {
            scope.spawn(move || {
                let mut transfers = Vec::new();
                for area in worker * batches..(worker + 1) * batches {
                    let number = (area % 2) as usize;
                    let payload = area.to_le_bytes();
                    let options = BatchOptions::new().with_notification(&payload).with_label(area);
                    let slices = batch(area, &targets[number]);
                    transfers.push((area, suite.submit(&sides[number].a, (&slices).into(), &options)));
                }
                for (area, transfer) in transfers {
                    assert_eq!(suite.delivered(&transfer).bytes, 8000);
                    assert_eq!(transfer.status().label, area, "an outcome is that of its own batch");
                }
            });
        }
    });
    targets.iter().for_each(|target| target.check("after all threads"));
    suite.no_event(&pair.b);
    Passed
}

fn many_threads_register_write_and_deregister(suite: &mut Suite) -> Verdict {
    let pair = suite.pair();
    let rounds = suite.profile.sizes.rounds / 5;
    let seeds: Vec<Vec<u8>> = (0..THREADS).map(|_| suite.random.bytes(10_000)).collect();
    let (suite, pair) = (&*suite, &pair);
    thread::scope(|scope| {
        for bytes in seeds {
            scope.spawn(move || {
                for _ in 0..rounds {
                    let source = Field::new(&*pair.a.transport, bytes.clone(), Access::LOCAL);
                    let mut target = Field::new(&*pair.b.transport, vec![0x55; 10_100], Access::REMOTE_WRITE);
                    pair.grant(target.region);
                    let batch = [slice(&source, 0, &target, 50, 10_000)];
                    target.expect(&source, &batch);
                    suite.write(&pair.a, (&batch).into());
                    target.check("a region of one thread's own");
                    for (side, field) in [(&pair.a, &source), (&pair.b, &target)] {
                        suite.wait("deregistering", side.transport.deregister(field.region)).expect("it is registered");
                    }
                }
            });
        }
    });
    Passed
}
