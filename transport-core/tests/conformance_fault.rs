//! The contract, on the fault injector: with an empty plan all of it, on any transport.

use std::sync::Arc;

use transport_core::{
    conformance::{CountingAllocator, MemHarness, Wrapped},
    fault::{FaultPlan, FaultTransport},
};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

transport_core::conformance_tests!(Wrapped::new(MemHarness::new(), |transport| {
    Arc::new(FaultTransport::new(transport, FaultPlan::new(0)).unwrap_or_else(|error| panic!("no thread: {error}")))
}));
