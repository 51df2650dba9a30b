//! An opened device, as the transport uses it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use crate::{
    choice::Choice,
    config::RdmaConfig,
    verbs::{CompletionQueue, Device, DeviceAttributes, ProtectionDomain, Verbs, VerbsError},
};

/// One rail: a device with its port and GID, a protection domain and the completion queue of all its queue pairs.
#[derive(Debug)]
pub(crate) struct Rail {
    pub(crate) name: Arc<str>,
    pub(crate) choice: Choice,
    pub(crate) attributes: DeviceAttributes,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) domain: Arc<dyn ProtectionDomain>,
    pub(crate) completions: Arc<dyn CompletionQueue>,
    pub(crate) credits: Arc<CompletionCredits>,
    /// The device is gone, or its completion queue failed: it is of no use until the transport is opened again.
    lost: AtomicBool,
}

impl Rail {
    pub(crate) fn open(verbs: &dyn Verbs, choice: Choice, config: &RdmaConfig) -> Result<Self, VerbsError> {
        let device = verbs.open(&choice.device)?;
        let attributes = device.attributes()?;
        let domain = device.allocate_domain()?;
        let depth = config.completion_queue_depth.clamp(1, attributes.max_cqe.max(1));
        let completions = device.create_completion_queue(depth)?;
        let credits = CompletionCredits::new(depth);
        let lost = AtomicBool::new(false);
        Ok(Self { name: choice.device.as_str().into(), choice, attributes, device, domain, completions, credits, lost })
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Notes that it is lost; answers whether that is new.
    pub(crate) fn lose(&self) -> bool {
        !self.lost.swap(true, Ordering::AcqRel)
    }
}

/// The room of a completion queue, so that it cannot overrun: every posted work request owns a place until its completion
/// was taken out, or is known not to come.
///
/// Sends come and go, and would take every place as soon as it is free; the receives of a new queue pair need many
/// places at a time. So a queue pair that waits for them keeps sends from taking more, until there are enough.
#[derive(Debug)]
pub(crate) struct CompletionCredits {
    depth: u32,
    free: AtomicU32,
    /// Places that receives own. Used by the transport's thread only.
    receives: AtomicU32,
    /// Places that sends leave free, for receives to come.
    reserved: AtomicU32,
    /// Receives found no room since this was last looked at.
    asked: AtomicBool,
    /// Somebody found no room since this was last asked.
    starved: AtomicBool,
}

/// What becomes of asking for the places of a queue pair's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// They are taken.
    Taken,
    /// There will be room as sends complete; no others begin until then.
    Later,
    /// The completion queue is too small.
    Never,
}

impl CompletionCredits {
    pub(crate) fn new(depth: u32) -> Arc<Self> {
        Arc::new(Self {
            depth,
            free: AtomicU32::new(depth),
            receives: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            asked: false.into(),
            starved: false.into(),
        })
    }

    /// Takes up to `wanted` places; answers how many.
    pub(crate) fn take(&self, wanted: u32) -> u32 {
        let reserved = self.reserved.load(Ordering::Acquire);
        let mut taken = 0;
        let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            taken = wanted.min(free.saturating_sub(reserved));
            Some(free - taken)
        });
        if taken < wanted {
            self.starved.store(true, Ordering::Release);
        }
        taken
    }

    /// Takes one place, also of those that others wait for: for what has to go out so that other places come back.
    pub(crate) fn take_urgent(&self) -> bool {
        self.take_all(1)
    }

    /// Takes all places for the receives of a queue pair, or none.
    pub(crate) fn take_receives(&self, wanted: u32) -> Room {
        // One place at least is for sends.
        if self.receives.load(Ordering::Acquire).saturating_add(wanted) >= self.depth {
            return Room::Never;
        }
        if !self.take_all(wanted) {
            self.asked.store(true, Ordering::Release);
            self.reserved.fetch_max(wanted + 1, Ordering::AcqRel);
            return Room::Later;
        }
        self.receives.fetch_add(wanted, Ordering::AcqRel);
        self.reserved.store(0, Ordering::Release);
        Room::Taken
    }

    pub(crate) fn give_receives(&self, places: u32) {
        self.receives.fetch_sub(places, Ordering::AcqRel);
        self.give(places);
    }

    /// Keeps nothing back any more, if nobody has asked in vain since the last call. Who waits asks again and again.
    pub(crate) fn forget_reserved(&self) {
        if !self.asked.swap(false, Ordering::AcqRel) {
            self.reserved.store(0, Ordering::Release);
        }
    }

    fn take_all(&self, wanted: u32) -> bool {
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(wanted)).is_ok()
    }

    pub(crate) fn give(&self, places: u32) {
        self.free.fetch_add(places, Ordering::AcqRel);
    }

    /// Whether somebody found no room since the last call.
    pub(crate) fn was_starved(&self) -> bool {
        self.starved.load(Ordering::Acquire) && self.starved.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_that_wait_keep_sends_from_taking_more() {
        let credits = CompletionCredits::new(10);
        assert_eq!(credits.take(20), 10);
        assert!(credits.was_starved() && !credits.was_starved());
        assert_eq!(credits.take_receives(4), Room::Later);
        credits.give(3);
        assert_eq!(credits.take(3), 0, "sends wait");
        assert_eq!(credits.take_receives(4), Room::Later);
        assert!(credits.take_urgent(), "what makes others complete does not");
        credits.give(7);
        assert_eq!(credits.take_receives(4), Room::Taken);
        assert_eq!(credits.take(10), 5);
        credits.give_receives(4);
        assert_eq!(credits.take(10), 4);
    }

    #[test]
    fn receives_leave_a_place_for_sends() {
        let credits = CompletionCredits::new(10);
        assert_eq!(credits.take_receives(10), Room::Never);
        assert_eq!(credits.take_receives(5), Room::Taken);
        assert_eq!(credits.take_receives(5), Room::Never);
        assert_eq!(credits.take_receives(u32::MAX), Room::Never);
        assert_eq!(credits.take_receives(4), Room::Taken);
        assert_eq!(credits.take(9), 1);
    }

    #[test]
    fn who_does_not_wait_any_more_holds_up_nobody() {
        let credits = CompletionCredits::new(10);
        assert_eq!(credits.take(8), 8);
        assert_eq!(credits.take_receives(4), Room::Later);
        assert_eq!(credits.take(1), 0);
        credits.forget_reserved();
        assert_eq!(credits.take(1), 0, "it asked just now");
        credits.forget_reserved();
        assert_eq!(credits.take(4), 2);
    }
}
