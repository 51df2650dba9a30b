//! The trials, one file a clause.

mod c01;

use super::trial::Trial;

pub(super) const ALL: &[&[Trial]] = &[c01::TRIALS];

/// What nearly every trial uses.
mod prelude {
    pub(super) use super::super::{
        suite::{Pair, Side, Suite, is_over, slice},
        trial::{
            Trial, Verdict,
            Verdict::{Passed, Skipped},
        },
    };
    pub(super) use crate::{
        Access, Batch, BatchOptions, Event, Group, Memory, RegionGrant, RegionId, Run, Shutdown, SliceError, State,
        SubmitError, TablePair, Transfer, TransferError, Transport, Waited, WriteSlice,
    };
}
