//! perftest between the same two devices: what the verbs can do here, measured by the tool that everybody knows.
//!
//! Throughput is `ib_write_bw` with as many queue pairs, as deep queues and as long chains as kvferry uses. For latency
//! perftest has no write whose completion is waited for by an event, so it is `ib_read_lat -e`: one operation of the same size on the peer's memory, without the
//! peer's program, and its completion by an event.

use std::{
    net::IpAddr,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use transport_rdma::choice::Choice;

use super::Lane;
use crate::{
    Result,
    measure::Run,
    peer::Peer,
    workload::{Measure, Workload},
};

/// Queue pairs, work requests in a send queue and in a chain: the defaults of kvferry.
const QUEUE_PAIRS: usize = 2;
const DEPTH: &str = "128";
const CHAIN: &str = "32";
/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// A pair of perftest processes, started anew for each run.
pub(crate) struct PerftestLane {
    here: Choice,
    there: Choice,
}

impl PerftestLane {
    pub(crate) fn new(here: Choice, there: Choice) -> Self {
        Self { here, there }
    }

    fn measure(&self, workload: &Workload) -> Result<Run> {
        let size = workload.page_bytes.to_string();
        let writes = workload.tables * workload.pages * workload.repeats;
        let (tool, arguments) = match workload.measure {
            Measure::Throughput => {
                let each = (writes / QUEUE_PAIRS).max(5).to_string();
                let queue_pairs = QUEUE_PAIRS.to_string();
                // A chain must fit the number of writes.
                let chain = if writes >= 1_000 { ["-l", CHAIN].as_slice() } else { &[] };
                let mut arguments = vec!["-s".to_owned(), size, "-n".into(), each, "-q".into(), queue_pairs];
                arguments.extend(["-t", DEPTH].iter().chain(chain).map(|argument| (*argument).to_owned()));
                ("ib_write_bw", arguments)
            }
            Measure::Latency => {
                ("ib_read_lat", vec!["-s".into(), size, "-n".into(), workload.repeats.to_string(), "-e".into()])
            }
        };
        let output = self.run(tool, &arguments)?;
        let figures = figures(&output).ok_or_else(|| format!("{tool} printed no figures: {output}"))?;
        let column = |number: usize| {
            figures.get(number).copied().ok_or_else(|| format!("{tool} printed too few figures: {output}"))
        };
        Ok(match workload.measure {
            // #bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps], where an MB is 2^20 bytes.
            Measure::Throughput => {
                let seconds = workload.bytes_per_run() as f64 / (column(3)? * f64::from(1 << 20));
                Run { seconds, sender_cpu: f64::NAN, receiver_cpu: f64::NAN, laps: Vec::new(), notified: Vec::new() }
            }
            // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%
            Measure::Latency => {
                // Typical is the median. As many laps as it takes to have the 99th percentile at its place.
                let (typical, worst) = (column(4)?, column(7)?);
                let laps = (0..100).map(|lap| if lap < 98 { typical } else { worst }).collect();
                Run { seconds: f64::NAN, sender_cpu: f64::NAN, receiver_cpu: f64::NAN, laps, notified: Vec::new() }
            }
        })
    }

    /// Runs server and client, and gives what the client prints.
    fn run(&self, tool: &str, arguments: &[String]) -> Result<String> {
        let command = |choice: &Choice| {
            let mut command = Command::new(tool);
            command.args(["-d", &choice.device, "-i", &choice.port.to_string()]).args(arguments);
            if let Some(gid) = &choice.gid {
                command.args(["-x", &gid.index.to_string()]);
            }
            command.stdin(Stdio::null());
            command
        };
        let missing = |error| format!("{tool} cannot be started ({error}); install perftest");
        let server = command(&self.there).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(missing)?;
        let _server = Server(server);
        let address =
            address(&self.there).ok_or("the receiver's GID is no IPv4 address, which perftest connects to")?;
        // The server says nothing when it listens; a client that comes too early fails.
        let mut waited = Duration::ZERO;
        loop {
            thread::sleep(Duration::from_millis(500));
            waited += Duration::from_millis(500);
            let client = command(&self.here).arg(address.to_string()).output().map_err(missing)?;
            let output = String::from_utf8_lossy(&client.stdout).into_owned();
            if client.status.success() {
                return Ok(output);
            }
            if waited >= PATIENCE {
                let errors = String::from_utf8_lossy(&client.stderr).into_owned();
                return Err(format!("{tool} failed: {output}{errors}").into());
            }
        }
    }
}

impl Lane for PerftestLane {
    fn name(&self) -> &'static str {
        "perftest"
    }

    fn batch(&mut self) -> Result<()> {
        Err("perftest runs as a whole".into())
    }

    fn run_alone(&mut self, workload: &Workload) -> Option<Result<Run>> {
        Some(self.measure(workload))
    }

    fn verify(&self, _: &Workload, _: &mut Peer) -> Result<()> {
        // It moves bytes of its own.
        Ok(())
    }
}

/// Ends the server with the run, whatever became of the client.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended by itself as a rule.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The address of a rail: its GID, where that is a mapped IPv4 address.
fn address(choice: &Choice) -> Option<IpAddr> {
    choice.gid.as_ref()?.gid.to_ipv4_mapped().map(IpAddr::V4)
}

/// The numbers of the line that holds the result: the last that begins with one.
fn figures(output: &str) -> Option<Vec<f64>> {
    output
        .lines()
        .rev()
        .map(|line| line.split_whitespace().map_while(|word| word.parse().ok()).collect::<Vec<f64>>())
        .find(|numbers| numbers.len() >= 5)
}
