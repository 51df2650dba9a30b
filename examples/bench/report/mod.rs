//! Results: one line for each pattern and lane.

pub(crate) mod json;
pub(crate) mod plot;
pub(crate) mod table;

use crate::{
    measure::Run,
    stats::{Summary, percentile},
    workload::{Measure, Workload},
};

/// What a lane reached in a pattern.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) pattern: &'static str,
    pub(crate) transport: &'static str,
    pub(crate) runs: usize,
    pub(crate) figures: Figures,
}

/// The figures, by what was measured.
#[derive(Debug)]
pub(crate) enum Figures {
    Throughput(Throughput),
    Latency(Latency),
}

/// Of bulk transfers. A ratio is taken within each round, and then the median of the rounds.
#[derive(Debug)]
pub(crate) struct Throughput {
    /// 10^9 bytes a second.
    pub(crate) gb_per_s: Summary,
    /// Speed over that of TCP: higher is faster.
    pub(crate) vs_tcp: Summary,
    /// Speed over that of memcpy.
    pub(crate) vs_memcpy: Summary,
    /// Speed over that of perftest, where that was measured.
    pub(crate) vs_perftest: Option<Summary>,
    /// Processor seconds of both processes for 2^30 bytes.
    pub(crate) cpu_s_per_gib: Summary,
    /// The sender's part of them.
    pub(crate) sender_cpu_s_per_gib: Summary,
}

/// Of single small writes.
#[derive(Debug)]
pub(crate) struct Latency {
    /// Microseconds from submission until delivery is known at the sender, that half of the writes do not exceed.
    pub(crate) p50_us: Summary,
    /// Microseconds that 99 of 100 do not exceed.
    pub(crate) p99_us: Summary,
    /// Microseconds from submission until the receiving program has the notification, for half of the writes.
    pub(crate) notified_p50_us: Summary,
    /// And for 99 of 100.
    pub(crate) notified_p99_us: Summary,
    /// The median time over that of TCP: lower is faster.
    pub(crate) p50_vs_tcp: Summary,
    /// The same for the 99th percentile.
    pub(crate) p99_vs_tcp: Summary,
    /// The median time over that of perftest, where that was measured.
    pub(crate) p50_vs_perftest: Option<Summary>,
    /// The same for plain verbs.
    pub(crate) p50_vs_verbs: Option<Summary>,
}

impl Line {
    /// From the runs of each lane, which are in the order of the rounds.
    pub(crate) fn summarize(workload: &Workload, lanes: &[(&'static str, Vec<Run>)]) -> Vec<Self> {
        let line = |(lane, runs): &(&'static str, Vec<Run>)| Self {
            pattern: workload.name,
            transport: lane,
            runs: runs.len(),
            figures: match workload.measure {
                Measure::Throughput => Figures::Throughput(Throughput::new(workload, runs, lanes)),
                Measure::Latency => Figures::Latency(Latency::new(runs, lanes)),
            },
        };
        lanes.iter().map(line).collect()
    }
}

impl Throughput {
    fn new(workload: &Workload, runs: &[Run], lanes: &[(&'static str, Vec<Run>)]) -> Self {
        let bytes = workload.bytes_per_run() as f64;
        let gib = bytes / f64::from(1 << 30);
        // Faster means fewer seconds, so the baseline's are above.
        let versus = |baseline| ratios(lanes, baseline, |run| 1.0 / run.seconds, runs);
        Self {
            gb_per_s: Summary::of(runs.iter().map(|run| bytes / run.seconds / 1e9)),
            vs_tcp: versus("tcp"),
            vs_memcpy: versus("memcpy"),
            vs_perftest: has(lanes, "perftest").then(|| versus("perftest")),
            cpu_s_per_gib: Summary::of(runs.iter().map(|run| (run.sender_cpu + run.receiver_cpu) / gib)),
            sender_cpu_s_per_gib: Summary::of(runs.iter().map(|run| run.sender_cpu / gib)),
        }
    }
}

impl Latency {
    fn new(runs: &[Run], lanes: &[(&'static str, Vec<Run>)]) -> Self {
        let p50 = |run: &Run| percentile(&run.laps, 50.0);
        let p99 = |run: &Run| percentile(&run.laps, 99.0);
        Self {
            p50_us: Summary::of(runs.iter().map(p50)),
            p99_us: Summary::of(runs.iter().map(p99)),
            notified_p50_us: Summary::of(runs.iter().map(|run| percentile(&run.notified, 50.0))),
            notified_p99_us: Summary::of(runs.iter().map(|run| percentile(&run.notified, 99.0))),
            p50_vs_tcp: ratios(lanes, "tcp", p50, runs),
            p99_vs_tcp: ratios(lanes, "tcp", p99, runs),
            p50_vs_perftest: has(lanes, "perftest").then(|| ratios(lanes, "perftest", p50, runs)),
            p50_vs_verbs: has(lanes, "verbs").then(|| ratios(lanes, "verbs", p50, runs)),
        }
    }
}

fn has(lanes: &[(&'static str, Vec<Run>)], name: &str) -> bool {
    lanes.iter().any(|(lane, _)| *lane == name)
}

/// A figure of each run over that of the baseline's run in the same round.
fn ratios(lanes: &[(&'static str, Vec<Run>)], baseline: &str, figure: impl Fn(&Run) -> f64, runs: &[Run]) -> Summary {
    let baseline = lanes.iter().find(|(lane, _)| *lane == baseline).map_or(&[][..], |(_, runs)| runs);
    Summary::of(runs.iter().zip(baseline).map(|(run, baseline)| figure(run) / figure(baseline)))
}
