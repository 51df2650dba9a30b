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
#[derive(Debug)]
pub(crate) struct CompletionCredits {
    free: AtomicU32,
    /// Somebody found no room since this was last asked.
    starved: AtomicBool,
}

impl CompletionCredits {
    pub(crate) fn new(depth: u32) -> Arc<Self> {
        Arc::new(Self { free: AtomicU32::new(depth), starved: false.into() })
    }

    /// Takes up to `wanted` places; answers how many.
    pub(crate) fn take(&self, wanted: u32) -> u32 {
        let mut taken = 0;
        let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            taken = wanted.min(free);
            Some(free - taken)
        });
        if taken < wanted {
            self.starved.store(true, Ordering::Release);
        }
        taken
    }

    /// Takes all of `wanted` places or none.
    pub(crate) fn take_all(&self, wanted: u32) -> bool {
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
