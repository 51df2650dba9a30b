//! A check that finds nothing wrong with wrong plans would be worth nothing: plans with a planted fault have to be caught.

use kv_plan::{Run, Table};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};

use crate::{draw, transfer::check_with};

/// What is wrong with a plan. Each touches the first run of a table only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A run is missing.
    Dropped,
    /// A run is there twice.
    Twice,
    /// The receiver's units are one off.
    DestinationOff,
    /// The sender's units are one off.
    SourceOff,
    /// One byte too many moves.
    TooLong,
    /// One byte too few moves.
    TooShort,
    /// The sender's head, or latent, begins a byte too late.
    OtherHead,
}

const FAULTS: [Fault; 7] = [
    Fault::Dropped,
    Fault::Twice,
    Fault::DestinationOff,
    Fault::SourceOff,
    Fault::TooLong,
    Fault::TooShort,
    Fault::OtherHead,
];

impl Fault {
    /// The same table and run with the fault, as often as it is carried out.
    pub(crate) fn plant(self, table: Table, run: Run) -> Vec<(Table, Run)> {
        let (mut table, mut run) = (table, run);
        match self {
            Self::Dropped => return Vec::new(),
            Self::Twice => return vec![(table, run); 2],
            Self::DestinationOff => run.dst += 1,
            Self::SourceOff => run.src += 1,
            Self::TooLong => table.len += 1,
            Self::TooShort => table.len -= 1,
            Self::OtherHead => table.src_base += 1,
        }
        vec![(table, run)]
    }
}

#[test]
fn every_planted_fault_is_caught() {
    let mut runner = TestRunner::deterministic();
    let mut planted = [0; FAULTS.len()];
    for _ in 0..600 {
        let case = draw::case().new_tree(&mut runner).unwrap().current();
        for (fault, planted) in FAULTS.into_iter().zip(&mut planted) {
            let mut waiting = Some(fault);
            let result = check_with(&case, &mut waiting);
            // Some cases move nothing, or are refused.
            if waiting.is_none() {
                *planted += 1;
                assert!(result.is_err(), "{fault:?} was not noticed in {case:?}");
            }
        }
    }
    assert!(planted.iter().all(|planted| *planted > 100), "{planted:?}");
}
