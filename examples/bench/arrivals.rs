//! When small writes reached the receiving program.
//!
//! Both processes read the same clock, so the receiver's times can be set against the sender's.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// How long an arrival may come after the sender has been told that it was delivered.
const PATIENCE: Duration = Duration::from_secs(5);

/// The times of arrival since they were last taken, in nanoseconds of [`now`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals(Arc<Mutex<Vec<u64>>>);

impl Arrivals {
    /// Something has arrived just now.
    pub(crate) fn note(&self) {
        let now = now();
        self.lock().push(now);
    }

    /// Takes all of them, once there are `count`.
    pub(crate) fn take(&self, count: usize) -> Result<Vec<u64>> {
        let started = Instant::now();
        while self.lock().len() < count {
            if started.elapsed() > PATIENCE {
                return Err(format!("only {} of {count} writes have arrived", self.lock().len()).into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(std::mem::take(&mut *self.lock()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nanoseconds of a clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock starts at zero when the machine does, and 64 bits last for centuries.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
