use std::{sync::Mutex, time::Duration};

use crate::error::SubmitError;

/// What happens to a batch.
///
/// `after_slices` counts slices as the transport sees them: those of groups merged where they are contiguous on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Its first byte goes out late.
    Delay(Duration),
    /// Its first byte goes out after so many batches to the same peer, that were submitted before or after it, have ended, but no later than
    /// after `at_most`.
    Reorder {
        /// How many others overtake it.
        batches: u64,
        /// How long it is held back at most.
        at_most: Duration,
    },
    /// It stops after some slices, and fails as stalled after a while.
    Stall {
        /// How many slices are written.
        after_slices: u64,
        /// How long it is stuck.
        timeout: Duration,
    },
    /// The local device fails after some slices.
    Fail {
        /// How many slices are written.
        after_slices: u64,
    },
    /// The peer is lost after some slices, and with it everything that is in flight to it.
    LosePeer {
        /// How many slices are written.
        after_slices: u64,
    },
    /// Submitting it is refused, and nothing starts.
    Refuse(SubmitError),
    /// It arrives as ever, and its outcome is known late.
    CompleteLate(Duration),
}

/// Which batches meet which fault.
///
/// Batches are counted from 0 in the order in which they are submitted, over all peers of the transport.
#[derive(Debug)]
pub struct FaultPlan {
    at: Vec<(u64, Fault)>,
    sometimes: Vec<(u64, Fault)>,
    progress: Mutex<Progress>,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    batches: u64,
    random: u64,
}

impl FaultPlan {
    /// A plan without faults. `seed` decides which batches meet the faults of [`FaultPlan::sometimes`].
    pub fn new(seed: u64) -> Self {
        Self { at: Vec::new(), sometimes: Vec::new(), progress: Mutex::new(Progress { batches: 0, random: seed }) }
    }

    /// Has the batch of this number meet a fault.
    #[must_use]
    pub fn at(mut self, batch: u64, fault: Fault) -> Self {
        self.at.push((batch, fault));
        self
    }

    /// Has one batch in `one_in` meet a fault, those that the seed decides. Zero is never.
    #[must_use]
    pub fn sometimes(mut self, one_in: u64, fault: Fault) -> Self {
        self.sometimes.push((one_in, fault));
        self
    }

    /// Whether no batch meets a fault.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty() && self.sometimes.is_empty()
    }

    /// The fault of the next batch.
    pub(super) fn next(&self) -> Option<Fault> {
        let mut progress = self.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let number = progress.batches;
        progress.batches += 1;
        let mut fault = self.at.iter().find(|(at, _)| *at == number).map(|(_, fault)| fault.clone());
        // Drawn for every batch, so that what is drawn for one does not depend on the others' faults.
        for (one_in, candidate) in &self.sometimes {
            let drawn = progress.draw();
            if *one_in > 0 && drawn.is_multiple_of(*one_in) {
                fault.get_or_insert_with(|| candidate.clone());
            }
        }
        fault
    }
}

impl Progress {
    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_meets_the_same_batches() {
        let plan = |seed| {
            FaultPlan::new(seed).at(3, Fault::Fail { after_slices: 0 }).sometimes(4, Fault::Delay(Duration::ZERO))
        };
        let faults = |plan: FaultPlan| (0..200).map(|_| plan.next()).collect::<Vec<_>>();
        let (first, again, other) = (faults(plan(1)), faults(plan(1)), faults(plan(2)));
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert_eq!(first[3], Some(Fault::Fail { after_slices: 0 }));
        let met = first.iter().flatten().count();
        assert!((30..70).contains(&met), "{met} of 200 is about one in four");
    }

    #[test]
    fn an_empty_plan_is_empty() {
        assert!(FaultPlan::new(1).is_empty());
        assert_eq!(FaultPlan::new(1).next(), None);
        assert!(!FaultPlan::new(1).sometimes(0, Fault::Delay(Duration::ZERO)).is_empty());
    }
}
