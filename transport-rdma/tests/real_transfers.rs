//! What goes well, on real devices: lengths, ranges, queues of all sizes, and each way of waiting, byte by byte. See `support/real.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

#[path = "support/ends.rs"]
mod ends;
#[path = "support/real.rs"]
mod real;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use transport_core::{Access, BatchOptions, Transfer, WriteSlice};
use transport_rdma::Completions;

use self::{
    ends::{Field, Pair, Random, alone, config_of, outcome, scattered, slice, whole},
    real::Net,
};

/// The lengths around the borders of packets, of notifications and of work requests, and one of many work requests.
const LENGTHS: [u64; 9] = [1, 1023, 1024, 1025, 4096, 65_536, 65_537, 1 << 20, 16 << 20];

/// Writes of all lengths, in a random order, each with a gap of a byte before the next: what spills over is seen.
fn all_lengths(pair: &Pair, seed: u64) -> (Field, Field, Vec<WriteSlice>) {
    let total: u64 = LENGTHS.iter().map(|len| len + 1).sum();
    let (source, mut target) = pair.fields(total as usize);
    let mut slices = Vec::new();
    let (mut from, mut to) = (0, total);
    for len in LENGTHS {
        to -= len + 1;
        slices.push(slice(&source, from, &target, to, len));
        from += len + 1;
    }
    let order = Random(seed).permutation(slices.len() as u64);
    let slices: Vec<_> = order.iter().map(|place| slices[*place as usize]).collect();
    target.expect(&source, &slices);
    (source, target, slices)
}

#[test]
fn writes_of_all_lengths_arrive_both_ways_at_once() {
    let _alone = alone();
    let net = Net::default();
    // Both directions of one connection, over several lanes.
    let pair = Pair::with(&net, |config| config.with_queue_pairs(4).with_max_work_request(300_000));
    let (_source, target, there) = all_lengths(&pair, 1);
    let pair = pair.reversed();
    let (_source, other, back) = all_lengths(&pair, 2);
    let mut transfers = Vec::new();
    for (there, back) in there.chunks(1).zip(back.chunks(1)) {
        transfers.push(pair.b.submit(there, &BatchOptions::new()));
        transfers.push(pair.a.submit(back, &BatchOptions::new()));
    }
    for transfer in &transfers {
        outcome(transfer).unwrap();
    }
    target.check("there");
    other.check("back");
    pair.end();
}

#[test]
fn a_batch_of_128_regions_arrives_exactly() {
    let _alone = alone();
    let net = Net::default();
    let pair = Pair::with(&net, |config| config.with_max_regions(256));
    let sources: Vec<Field> = (0..128).map(|seed| Field::new(&pair.a, 5000, seed, Access::LOCAL)).collect();
    let mut targets: Vec<Field> =
        (0..128).map(|seed| Field::new(&pair.b, 5000, 1000 + seed, Access::REMOTE_WRITE)).collect();
    let mut batch = Vec::new();
    for (place, from) in Random(3).permutation(128).into_iter().enumerate() {
        let (source, target) = (&sources[from as usize], &mut targets[place]);
        pair.grant(target.region);
        let slices = [slice(source, 1, target, 100, 3001), slice(source, 4000, target, 3200, 999)];
        target.expect(source, &slices);
        batch.extend(slices);
    }
    pair.a.write(&batch);
    for target in &targets {
        target.check("one of 128 regions");
    }
    pair.end();
}

/// 64 queue pairs of 128 work requests would post twice what the completion queue holds.
#[test]
fn many_deep_queues_do_not_overrun_their_completion_queue() {
    let _alone = alone();
    let net = Net::default();
    let config =
        |number| config_of(number).with_queue_pairs(32).with_queue_depth(128).with_completion_queue_depth(4096);
    let hub = Arc::new(net.node(config(0)));
    let pairs = [(); 2].map(|()| Pair::of(&net, &hub, &Arc::new(net.node(config(1)))));
    let mut fields: Vec<_> = pairs.iter().map(|pair| pair.fields(1 << 20)).collect();
    let began = Instant::now();
    let mut transfers: Vec<Transfer> = Vec::new();
    for (pair, (source, target)) in pairs.iter().zip(&mut fields) {
        let slices = scattered(source, target, 128);
        target.expect(source, &slices);
        let options = BatchOptions::new().with_notification(b"all of it");
        transfers.extend(slices.chunks(slices.len() / 4).map(|batch| pair.a.submit(batch, &options)));
    }
    for transfer in &transfers {
        outcome(transfer).unwrap();
    }
    println!("16384 writes over 64 queue pairs in {:?}", began.elapsed());
    for (pair, (_, target)) in pairs.iter().zip(&fields) {
        target.check("over many queue pairs");
        assert_eq!(pair.b.notifications(Duration::from_millis(100)).len(), 4);
    }
    assert_eq!(hub.verbs.created(), 64, "no queue pair failed");
    pairs.iter().for_each(Pair::end);
}

#[test]
fn queues_of_one_work_request_deliver_everything() {
    let _alone = alone();
    let net = Net::default();
    let pair = Pair::with(&net, |config| config.with_queue_depth(1).with_events_per_peer(1).with_queue_pairs(2));
    let (source, mut target) = pair.fields(256 << 10);
    let slices = scattered(&source, &target, 512);
    target.expect(&source, &slices);
    let batches: Vec<_> = slices.chunks(64).collect();
    let transfers: Vec<Transfer> =
        batches.iter().map(|batch| pair.a.submit(batch, &BatchOptions::new().with_notification(b"n"))).collect();
    // The receiver takes them as they come: there is room for one at a time.
    assert_eq!(pair.b.notifications(Duration::from_millis(1000)).len(), batches.len());
    for transfer in &transfers {
        outcome(transfer).unwrap();
    }
    target.check("through queues of one");
    pair.end();
}

#[test]
fn each_way_of_waiting_delivers_the_same() {
    let _alone = alone();
    let spin = Duration::from_micros(20);
    for completions in [Completions::Event, Completions::Hybrid { spin }, Completions::Busy] {
        let net = Net::default();
        let pair = Pair::with(&net, |config| config.with_completions(completions));
        let began = Instant::now();
        let (source, mut target) = pair.fields(256 << 10);
        let slices = scattered(&source, &target, 4 << 10);
        target.expect(&source, &slices);
        for batch in slices.chunks(8) {
            // The thread sleeps in between, where it does.
            thread::sleep(Duration::from_millis(5));
            let transfer = pair.a.submit(batch, &BatchOptions::new().with_notification(b"n"));
            outcome(&transfer).unwrap();
            assert_eq!(pair.b.notifications(Duration::from_millis(20)).len(), 1);
        }
        let batch = whole(&source, &target);
        target.expect(&source, &batch);
        pair.a.write(&batch);
        target.check("each way of waiting");
        println!("{completions:?}: {:?}", began.elapsed());
        pair.end();
    }
}
