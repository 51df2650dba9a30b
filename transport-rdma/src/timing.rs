//! The timers of queue pairs, from the bound on peer loss.

use std::time::Duration;

/// The timers that a queue pair is set up with.
///
/// A queue pair gives up when a packet was sent `retry_count + 1` times without an answer, after a time that the
/// InfiniBand specification puts between one and four times `4.096 µs * 2^timeout` each. The whole of it stays below
/// half the bound on peer loss; the other half is for building the queue pair anew, which shows whether the peer is there.
///
/// ```
/// use std::time::Duration;
/// use transport_rdma::QueuePairTimers;
///
/// let timers = QueuePairTimers::within(Duration::from_secs(5));
/// assert_eq!((timers.timeout, timers.retry_count), (14, 6));
/// assert!(timers.longest() <= Duration::from_millis(2500));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairTimers {
    /// The code of the time until an unacknowledged packet is sent again.
    pub timeout: u8,
    /// How often it is sent again. Never 7, which Soft-RoCE takes for ever.
    pub retry_count: u8,
    /// How often "receiver not ready" is borne. It does not happen between two sides that keep to their credits.
    pub rnr_retry: u8,
    /// The code of the wait after "receiver not ready": 12 is 0.64 ms.
    pub min_rnr_timer: u8,
}

/// How much longer than its nominal time a device may take to notice.
const SLOWEST: u32 = 4;
/// Codes below it are under a millisecond, where a busy host is taken for a dead one.
const SHORTEST: u8 = 8;
const LONGEST: u8 = 21;

impl QueuePairTimers {
    /// The timers for a bound on peer loss. Bounds below 17 ms are not kept: the shortest timers are those for 17 ms.
    pub fn within(loss_bound: Duration) -> Self {
        let fits = |timeout, retries: u8| interval(timeout) * SLOWEST * (u32::from(retries) + 1) <= loss_bound / 2;
        let at = |timeout, retry_count| Self { timeout, retry_count, rnr_retry: 6, min_rnr_timer: 12 };
        // Many retries bear more loss than a long wait for each.
        (SHORTEST..=LONGEST)
            .rev()
            .find(|timeout| fits(*timeout, 6))
            .map(|timeout| at(timeout, 6))
            .or_else(|| (1..6).rev().find(|retries| fits(SHORTEST, *retries)).map(|retries| at(SHORTEST, retries)))
            .unwrap_or_else(|| at(SHORTEST, 1))
    }

    /// The longest time until a queue pair whose peer is gone has failed.
    pub fn longest(&self) -> Duration {
        interval(self.timeout) * SLOWEST * (u32::from(self.retry_count) + 1)
    }
}

/// What a code means, in time.
fn interval(timeout: u8) -> Duration {
    Duration::from_nanos(4096 << timeout)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_timers_stay_within_half_the_bound(millis in 20u64..600_000) {
            let bound = Duration::from_millis(millis);
            let timers = QueuePairTimers::within(bound);
            prop_assert!(timers.longest() <= bound / 2, "{timers:?}");
            prop_assert!((1..=6).contains(&timers.retry_count));
            prop_assert!((1..=31).contains(&timers.timeout), "0 is for ever");
            // And they use it: the next longer timers would not fit.
            if timers.timeout < LONGEST && timers.retry_count == 6 {
                prop_assert!(timers.longest() * 2 > bound / 2);
            }
        }
    }
}
