//! The conformance suite on simulated NICs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use support::SimHarness;
use transport_core::conformance::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

transport_core::conformance_tests!(SimHarness::new());
