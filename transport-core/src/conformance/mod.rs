//! The conformance suite: the contract as trials that every implementation of [`Transport`](crate::Transport) runs.
//!
//! Each clause C1 to C20 has at least one trial named after it. The suite needs no runtime, assumes no speed, and waits for
//! nothing without a deadline, so a broken transport fails instead of hanging. A backend writes a [`Harness`] and one file:
//!
//! ```
//! # // The same ten lines are the test of every backend.
//! use transport_core::conformance::{CountingAllocator, MemHarness};
//!
//! #[global_allocator]
//! static COUNTING: CountingAllocator = CountingAllocator;
//!
//! transport_core::conformance_tests!(MemHarness::new());
//! ```
//!
//! The macro makes each trial a test of its own name. [`run_all`] is the same without the macro. A trial that does not apply
//! says so on standard error, with its reason.

// What fails here fails a test: a panic with its place is what is wanted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod counting;
mod field;
mod harness;
mod macros;
mod mem;
mod random;
mod suite;
mod trial;
mod trials;
mod wait;

pub use self::{
    counting::CountingAllocator,
    harness::{Harness, Profile, Sizes},
    mem::{MemHarness, Wrapped, WrappedNode},
    trial::{Report, Trial, Verdict, assert_complete, run, run_all, trials},
    wait::block_on,
};
