//! The contract, on the in-memory transport.

use transport_core::conformance::{CountingAllocator, MemHarness};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

transport_core::conformance_tests!(MemHarness::new());
