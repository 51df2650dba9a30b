//! What goes wrong on demand.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{lock, random::Random};

/// How a NIC is stuck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stall {
    /// It works.
    #[default]
    None,
    /// It takes work requests and neither carries nor answers anything, but flushes a queue pair that fails.
    Work,
    /// It does not flush either.
    WorkAndFlush,
}

/// The faults of one host.
#[derive(Debug, Default)]
pub(super) struct Faults {
    killed: AtomicBool,
    stall: AtomicU8,
    refuse_post: AtomicU64,
    lost_acks: AtomicU64,
    /// Nanoseconds.
    pace: AtomicU64,
    /// Whether `loss` is worth its lock.
    lossy: AtomicBool,
    loss: Mutex<Option<Loss>>,
    late: AtomicBool,
    delay: Mutex<Option<Delay>>,
}

#[derive(Debug)]
struct Loss {
    percent: u8,
    random: Random,
}

#[derive(Debug)]
struct Delay {
    max: Duration,
    random: Random,
}

impl Faults {
    pub(super) fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
    }

    /// Whether the NIC neither carries nor answers.
    pub(super) fn silent(&self) -> bool {
        self.killed.load(Ordering::SeqCst) || self.stall.load(Ordering::SeqCst) != 0
    }

    pub(super) fn flushes(&self) -> bool {
        self.stall.load(Ordering::SeqCst) < 2
    }

    pub(super) fn stall(&self, stall: Stall) {
        let value = match stall {
            Stall::None => 0,
            Stall::Work => 1,
            Stall::WorkAndFlush => 2,
        };
        self.stall.store(value, Ordering::SeqCst);
    }

    pub(super) fn refuse_post_after(&self, count: u64) {
        self.refuse_post.store(count, Ordering::SeqCst);
    }

    /// Whether this work request is the one to refuse.
    pub(super) fn refuses_post(&self) -> bool {
        take_one(&self.refuse_post) == Some(1)
    }

    pub(super) fn lose_acks(&self, count: u64) {
        self.lost_acks.store(count, Ordering::SeqCst);
    }

    pub(super) fn loses_ack(&self) -> bool {
        take_one(&self.lost_acks).is_some() || self.loses_packet()
    }

    pub(super) fn set_loss(&self, percent: u8, seed: u64) {
        let mut loss = lock(&self.loss);
        *loss = (percent > 0).then(|| Loss { percent, random: Random::new(seed) });
        self.lossy.store(loss.is_some(), Ordering::SeqCst);
    }

    pub(super) fn loses_packet(&self) -> bool {
        self.lossy.load(Ordering::Relaxed)
            && lock(&self.loss).as_mut().is_some_and(|loss| loss.random.below(100) < u64::from(loss.percent))
    }

    pub(super) fn set_pace(&self, pace: Duration) {
        self.pace.store(pace.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    pub(super) fn pace(&self) -> Duration {
        Duration::from_nanos(self.pace.load(Ordering::Relaxed))
    }

    pub(super) fn set_delay(&self, max: Duration, seed: u64) {
        let mut delay = lock(&self.delay);
        *delay = (!max.is_zero()).then(|| Delay { max, random: Random::new(seed) });
        self.late.store(delay.is_some(), Ordering::SeqCst);
    }

    /// How long the next completion is held back.
    pub(super) fn delay(&self) -> Option<Duration> {
        if !self.late.load(Ordering::Relaxed) {
            return None;
        }
        lock(&self.delay).as_mut().map(|delay| {
            let max = delay.max.as_nanos().try_into().unwrap_or(u64::MAX);
            Duration::from_nanos(delay.random.below(max))
        })
    }
}

/// Takes one from a count of things to do; answers what it was. `u64::MAX` is without end.
pub(super) fn take_one(count: &AtomicU64) -> Option<u64> {
    if count.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let less = |count: u64| if count == u64::MAX { Some(count) } else { count.checked_sub(1) };
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).ok()
}
