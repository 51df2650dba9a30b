//! The contract, on the fault injector with faults that harm no batch: late, overtaken and late to complete. Whatever the
//! plan, the contract holds.

use std::{sync::Arc, time::Duration};

use transport_core::{
    conformance::{CountingAllocator, MemHarness, Wrapped},
    fault::{Fault, FaultPlan, FaultTransport},
};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

fn harness() -> Wrapped<MemHarness> {
    let wrapped = Wrapped::new(MemHarness::new(), |transport| {
        let plan = FaultPlan::new(7)
            .sometimes(9, Fault::Delay(Duration::from_micros(300)))
            .sometimes(9, Fault::Reorder { batches: 2, at_most: Duration::from_millis(1) })
            .sometimes(9, Fault::CompleteLate(Duration::from_micros(300)));
        Arc::new(FaultTransport::new(transport, plan).unwrap_or_else(|error| panic!("no thread: {error}")))
    });
    wrapped.with_profile(|profile| {
        profile.max_in_flight = FaultTransport::<Arc<dyn transport_core::Transport>>::MAX_IN_FLIGHT
    })
}

transport_core::conformance_tests!(harness());
