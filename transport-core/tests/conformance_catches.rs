//! The conformance suite fails what is broken: transports with one defect each, and the trials that find it.

#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use transport_core::{
    Access, Batch, BatchOptions, Capabilities, ConnectError, ControlChannel, Event, GrantError, Memory, PeerId,
    RegionError, RegionGrant, RegionId, RegisterFailure, Shutdown, SubmitError, Transfer, Transport, WriteSlice,
    conformance::{MemHarness, Verdict, Wrapped, run},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// Every slice is written one byte longer where there is room.
    OneByteMore,
    /// The last slice of a batch is left out.
    OneSliceLess,
    /// The notification goes out first.
    NotifiesFirst,
    /// The notification goes out twice.
    NotifiesTwice,
    /// What a commit comes after is ignored.
    IgnoresDependencies,
    /// Disconnecting does nothing.
    StaysConnected,
    /// Shutting down does nothing.
    StaysOpen,
    /// Whoever waits for room waits for ever.
    LosesWakeups,
    /// Deregistering waits for nobody and leaves the name open.
    StaysRegistered,
    /// A batch is cut off at a thousand slices.
    Truncates,
}

#[derive(Debug)]
struct Broken {
    inner: Arc<dyn Transport>,
    defect: Defect,
    refused: AtomicUsize,
}

impl Broken {
    fn write(&self, peer: PeerId, slices: &[WriteSlice], options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        let mut slices = slices.to_vec();
        match self.defect {
            Defect::OneByteMore => slices.iter_mut().for_each(|slice| slice.len += u64::from(slice.len > 0)),
            Defect::OneSliceLess => drop(slices.pop()),
            Defect::Truncates => slices.truncate(1000),
            Defect::NotifiesFirst if options.notification.is_some() => {
                let first = self.inner.batch_write(peer, Batch::Slices(&[]), options)?;
                let _ = first.wait_timeout(Duration::from_millis(5));
                let without = BatchOptions::new();
                std::thread::sleep(Duration::from_millis(2));
                return self.inner.batch_write(peer, (&slices).into(), &without);
            }
            Defect::NotifiesTwice if options.notification.is_some() => {
                drop(self.inner.batch_write(peer, (&slices).into(), options)?);
            }
            _ => {}
        }
        let mut options = *options;
        if self.defect == Defect::IgnoresDependencies {
            options.after = &[];
        }
        match self.inner.batch_write(peer, (&slices).into(), &options) {
            Err(SubmitError::Slice { .. }) if self.defect == Defect::OneByteMore => {
                slices.iter_mut().for_each(|slice| slice.len -= u64::from(slice.len > 0));
                self.inner.batch_write(peer, (&slices).into(), &options)
            }
            other => other,
        }
    }
}

#[async_trait]
impl Transport for Broken {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, memory: Memory, access: Access) -> Result<RegionId, RegisterFailure> {
        self.inner.register(memory, access)
    }

    async fn deregister(&self, region: RegionId) -> Result<Memory, RegionError> {
        if self.defect == Defect::StaysRegistered {
            return Ok(Memory::host(64).expect("memory"));
        }
        self.inner.deregister(region).await
    }

    fn grant(&self, peer: PeerId, region: RegionId) -> Result<RegionGrant, GrantError> {
        self.inner.grant(peer, region)
    }

    fn import(&self, peer: PeerId, grant: &RegionGrant) -> Result<(), GrantError> {
        self.inner.import(peer, grant)
    }

    async fn connect(&self, channel: Arc<dyn ControlChannel>) -> Result<PeerId, ConnectError> {
        self.inner.connect(channel).await
    }

    fn batch_write(&self, peer: PeerId, batch: Batch<'_>, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        let written = match batch {
            Batch::Slices(slices) => self.write(peer, slices, options),
            other => self.inner.batch_write(peer, other, options),
        };
        self.refused.fetch_add(usize::from(written.is_err()), Ordering::Relaxed);
        written
    }

    async fn room(&self, peer: PeerId) -> Result<(), SubmitError> {
        if self.defect == Defect::LosesWakeups {
            std::future::pending::<()>().await;
        }
        self.inner.room(peer).await
    }

    fn poll_event(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.inner.poll_event(context)
    }

    async fn disconnect(&self, peer: PeerId) {
        if self.defect != Defect::StaysConnected {
            self.inner.disconnect(peer).await;
        }
    }

    async fn shutdown(&self, how: Shutdown) {
        if self.defect != Defect::StaysOpen {
            self.inner.shutdown(how).await;
        }
    }
}

fn passes(defect: Defect, trial: &str) -> bool {
    let wrapped =
        Wrapped::new(MemHarness::new(), move |inner| Arc::new(Broken { inner, defect, refused: AtomicUsize::new(0) }));
    let harness = wrapped.with_profile(|profile| profile.patience = Duration::from_secs(1));
    let verdict = catch_unwind(AssertUnwindSafe(|| run(trial, harness)));
    verdict.is_ok_and(|verdict| verdict == Verdict::Passed)
}

#[test]
fn each_defect_is_found_by_the_trial_of_its_clause() {
    for (defect, trial) in [
        (Defect::OneByteMore, "c04_every_size_is_exact_between_canaries"),
        (Defect::OneSliceLess, "c04_scattered_pages_are_exact"),
        (Defect::NotifiesFirst, "c05_the_bytes_are_there_before_the_notification"),
        (Defect::NotifiesTwice, "c05_every_notification_arrives_once"),
        (Defect::IgnoresDependencies, "c05_a_commit_waits_for_a_slow_batch_to_another_peer"),
        (Defect::IgnoresDependencies, "c05_a_batch_that_failed_fails_the_commit"),
        (Defect::StaysConnected, "c14_disconnecting_ends_what_was_in_flight"),
        (Defect::StaysConnected, "c14_after_disconnecting_no_byte_lands"),
        (Defect::StaysOpen, "c15_aborting_leaves_nothing_in_flight"),
        (Defect::StaysOpen, "c15_after_the_end_everything_answers_closed"),
        (Defect::LosesWakeups, "c10_room_wakes_everyone_who_waits"),
        (Defect::StaysRegistered, "c09_a_deregistered_target_is_stale"),
        (Defect::StaysRegistered, "c07_a_region_in_use_outlives_its_deregistration"),
        (Defect::Truncates, "c13_a_batch_of_very_many_slices_arrives"),
    ] {
        assert!(passes(Defect::None, trial), "{trial} passes what is sound");
        assert!(!passes(defect, trial), "{trial} finds the defect {defect:?}");
    }
}
