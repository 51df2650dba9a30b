//! A fault injector: any transport, with the faults of a plan.
//!
//! [`FaultTransport`] is a wrapper that is itself a transport, so everything that is built on a transport can be tried on
//! one that is slow, late, stuck, or loses its peer in the middle of a batch. A [`FaultPlan`] says what happens to which
//! batch; the same plan with the same seed does the same again. Whatever the plan, the contract holds: that is what makes
//! the faults worth testing against. With an empty plan the wrapper only forwards.
//!
//! ```
//! use std::time::Duration;
//! use transport_core::fault::{Fault, FaultPlan};
//!
//! // The third batch is lost with its peer after ten slices; one in eight of the others is late.
//! let plan = FaultPlan::new(42)
//!     .at(2, Fault::LosePeer { after_slices: 10 })
//!     .sometimes(8, Fault::Delay(Duration::from_millis(5)));
//! assert!(!plan.is_empty());
//! ```

mod carry;
mod peer;
mod plan;
mod shared;
mod tasks;
mod transport;

pub use self::{
    plan::{Fault, FaultPlan},
    transport::FaultTransport,
};
