//! The conformance suite on real devices; see `support/real.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

#[path = "support/real.rs"]
mod real;

use transport_core::conformance::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

transport_core::conformance_tests!(real::RealHarness::default());
