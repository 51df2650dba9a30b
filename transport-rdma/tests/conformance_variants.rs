//! The conformance suite under other settings: small queues, several rails, late and lost packets.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::time::Duration;

use support::SimHarness;
use transport_core::conformance::{CountingAllocator, Verdict, trials};
use transport_rdma::{Completions, Rails, sim::SimDeviceConfig};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The clauses that queues, lanes and the order of things have to do with.
const CLAUSES: [u8; 9] = [1, 2, 3, 4, 5, 10, 13, 14, 19];

fn assert_conforms(mut harness: impl FnMut() -> SimHarness) {
    let passed = trials()
        .filter(|trial| CLAUSES.contains(&trial.clause()))
        .filter(|trial| trial.run(harness()) == Verdict::Passed)
        .count();
    assert!(passed > 30, "a suite that ran next to nothing proves nothing: {passed}");
}

fn pieces_of(name: &str, max_mr_size: u64) -> SimDeviceConfig {
    let mut device = SimDeviceConfig::named(name);
    device.attributes.max_mr_size = max_mr_size;
    device
}

#[test]
fn two_rails() {
    assert_conforms(|| {
        SimHarness::new()
            .small()
            .devices(|| vec![SimDeviceConfig::named("nic0"), SimDeviceConfig::named("nic1")])
            .configure(|config| config.with_rails(Rails::Automatic { numa_node: None, max: 2 }))
    });
}

#[test]
fn the_smallest_queues() {
    assert_conforms(|| {
        SimHarness::new()
            .small()
            .configure(|config| config.with_queue_depth(1).with_queue_pairs(1).with_completion_queue_depth(40))
    });
}

#[test]
fn small_shared_queues() {
    assert_conforms(|| {
        SimHarness::new()
            .small()
            .configure(|config| config.with_queue_depth(4).with_queue_pairs(3).with_completion_queue_depth(80))
    });
}

/// With one lane, because the suite counts on the order of notifications that were delivered one after the other.
#[test]
fn late_completions() {
    assert_conforms(|| {
        SimHarness::new()
            .small()
            .configure(|config| config.with_queue_pairs(1))
            .prepare(|host| host.delay_completions(Duration::from_micros(300), 17))
    });
}

#[test]
fn lost_packets() {
    assert_conforms(|| {
        // Enough retries for a loss that is there all the time.
        SimHarness::new().small().prepare(|host| host.lose_packets(1, 19))
    });
}

#[test]
fn sleeping_at_once() {
    assert_conforms(|| SimHarness::new().small().configure(|config| config.with_completions(Completions::Event)));
}

#[test]
fn memory_regions_of_two_pages() {
    assert_conforms(|| SimHarness::new().small().devices(|| vec![pieces_of("sim0", 1 << 19)]));
}
