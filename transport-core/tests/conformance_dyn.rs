//! The contract, on `Arc<dyn Transport>` as a wrapper around another `Arc<dyn Transport>`.

use std::sync::Arc;

use transport_core::conformance::{CountingAllocator, MemHarness, Wrapped};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

transport_core::conformance_tests!(Wrapped::new(MemHarness::new(), |transport| Arc::new(transport)));
