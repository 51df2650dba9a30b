//! One run of one lane, by wall clock and by the processor time of both processes.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use crate::{
    Result,
    lane::Lane,
    peer::Peer,
    workload::{Measure, Workload},
};

/// What one run yielded.
#[derive(Debug)]
pub(crate) struct Run {
    /// Wall-clock seconds of all batches.
    pub(crate) seconds: f64,
    /// Processor seconds of this process, in user and kernel mode.
    pub(crate) sender_cpu: f64,
    /// Processor seconds of the other process.
    pub(crate) receiver_cpu: f64,
    /// Microseconds of each batch, where latency is measured.
    pub(crate) laps: Vec<f64>,
}

/// Runs a lane once.
pub(crate) fn run(lane: &mut dyn Lane, workload: &Workload, peer: &mut Peer) -> Result<Run> {
    let receiver_before = peer.cpu_seconds()?;
    let sender_before = cpu_seconds();
    let mut laps = Vec::new();
    let started = Instant::now();
    match workload.measure {
        Measure::Throughput => (0..workload.repeats).try_for_each(|_| lane.batch())?,
        Measure::Latency => {
            laps.reserve_exact(workload.repeats);
            for _ in 0..workload.repeats {
                let lap = Instant::now();
                lane.batch()?;
                laps.push(lap.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let sender_cpu = cpu_seconds() - sender_before;
    let receiver_cpu = peer.cpu_seconds()? - receiver_before;
    Ok(Run { seconds, sender_cpu, receiver_cpu, laps })
}

/// Processor seconds of this process since its start, all threads, in user and kernel mode: the sum that `getrusage`
/// gives, but to the nanosecond.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
