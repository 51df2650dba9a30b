//! One run of one lane, by wall clock and by the processor time of both processes.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use crate::{
    Result, arrivals,
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
    /// Microseconds until each batch was in the hands of the receiving program, where latency is measured.
    pub(crate) notified: Vec<f64>,
}

/// Runs a lane once.
pub(crate) fn run(lane: &mut dyn Lane, workload: &Workload, peer: &mut Peer) -> Result<Run> {
    if let Some(run) = lane.run_alone(workload) {
        return run;
    }
    let receiver_before = peer.cpu_seconds()?;
    let sender_before = cpu_seconds();
    let (mut begun, mut laps, mut notified) = (Vec::new(), Vec::new(), Vec::new());
    let started = Instant::now();
    match workload.measure {
        Measure::Throughput => (0..workload.repeats).try_for_each(|_| lane.batch())?,
        Measure::Latency => {
            begun.reserve_exact(workload.repeats);
            laps.reserve_exact(workload.repeats);
            for _ in 0..workload.repeats {
                let lap = arrivals::now();
                begun.push(lap);
                lane.batch()?;
                laps.push(microseconds(lap, arrivals::now()));
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let sender_cpu = cpu_seconds() - sender_before;
    let receiver_cpu = peer.cpu_seconds()? - receiver_before;
    if workload.measure == Measure::Latency && workload.notified {
        let arrived = peer.arrivals(lane.name(), workload.repeats)?;
        notified.extend(begun.iter().zip(arrived).map(|(begun, arrived)| microseconds(*begun, arrived)));
    }
    Ok(Run { seconds, sender_cpu, receiver_cpu, laps, notified })
}

fn microseconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e3
}

/// Processor seconds of this process since its start, all threads, in user and kernel mode: the sum that `getrusage`
/// gives, but to the nanosecond.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
