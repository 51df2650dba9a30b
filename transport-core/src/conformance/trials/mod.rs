//! The trials, one file a clause.

mod c01;
mod c02;
mod c03;
mod c04;
mod c05;
mod c06;
mod c07;
mod c08;
mod c09;
mod c10;
mod c11;
mod c12;
mod c13;
mod c14;
mod c15;
mod c16;
mod c17;
mod c18;
mod c19;
mod c20;

use super::trial::Trial;

pub(super) const ALL: &[&[Trial]] = &[
    c01::TRIALS,
    c02::TRIALS,
    c03::TRIALS,
    c04::TRIALS,
    c05::TRIALS,
    c06::TRIALS,
    c07::TRIALS,
    c08::TRIALS,
    c09::TRIALS,
    c10::TRIALS,
    c11::TRIALS,
    c12::TRIALS,
    c13::TRIALS,
    c14::TRIALS,
    c15::TRIALS,
    c16::TRIALS,
    c17::TRIALS,
    c18::TRIALS,
    c19::TRIALS,
    c20::TRIALS,
];

/// Why a trial that needs a dead peer was skipped.
const CANNOT_KILL: &str = "the harness cannot make a node silent";

/// What nearly every trial uses.
mod prelude {
    pub(super) use super::{
        super::{
            field::Field,
            suite::{Pair, Side, Suite, is_over, slice},
            trial::{
                Trial, Verdict,
                Verdict::{Passed, Skipped},
            },
            wait::WakeCount,
        },
        CANNOT_KILL, forge,
    };
    pub(super) use crate::{
        Access, Batch, BatchOptions, ConnectError, Event, GrantError, Group, Memory, RegionError, RegionGrant,
        RegionId, RegisterError, Run, Shutdown, SliceError, State, SubmitError, TablePair, Transfer, TransferError,
        Transport, Waited, WriteSlice, next_event,
    };
}

/// Makes the sender believe that it may write `len` bytes of `region`: its own check passes then, and only the receiver's
/// stands. The keys are those of `genuine`, the best that a forger has. Answers whether the sender believes it: one that
/// sees from the keys that they are for something else is right as well.
fn forge(pair: &super::suite::Pair, genuine: &super::field::Field, region: crate::RegionId, len: u64) -> bool {
    let granted = pair.b.transport.grant(pair.b.peer, genuine.region).expect("a region is granted");
    let forged = crate::RegionGrant { region, len, ..granted };
    match pair.a.transport.import(pair.a.peer, &forged) {
        Ok(()) => true,
        Err(crate::GrantError::Malformed { reason, .. }) => {
            println!("the sender does not believe a forged grant: {reason}");
            false
        }
        Err(other) => panic!("a forged grant is taken or malformed, not {other}"),
    }
}
