//! The rank processes: started, ordered about, and never left behind.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use kvferry::kv_plan::{CacheLayout, Rank};

use crate::{
    args::Carrier,
    protocol::{Order, Report},
    rank,
    workload::{End, Refused, Workload},
};

/// No step takes longer on a machine that works.
const STEP: Duration = Duration::from_secs(120);

/// How the run ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The two sides do not fit.
    Refused(Refused),
    /// Anything else.
    Failed(String),
    /// The user interrupted it.
    Interrupted,
}

/// One rank process.
#[derive(Debug)]
pub(crate) struct RankProcess {
    pub(crate) end: End,
    pub(crate) rank: Rank,
    input: ChildStdin,
    pub(crate) key: String,
}

/// All rank processes. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) ranks: Vec<RankProcess>,
    children: Arc<Mutex<Vec<Child>>>,
    reports: mpsc::Receiver<(usize, Option<Report>)>,
    interrupted: Arc<AtomicBool>,
}

impl Cluster {
    /// Starts a process for each rank and lets all of them trust each other.
    pub(crate) fn start(
        workload: &Workload,
        carrier: Carrier,
        sides: [(End, &[CacheLayout]); 2],
    ) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::Failed(error.to_string()))?;
        let (sender, reports) = mpsc::channel();
        let mut cluster = Self {
            ranks: Vec::new(),
            children: Arc::default(),
            reports,
            interrupted: Arc::new(AtomicBool::new(false)),
        };
        cluster.end_on_interrupt()?;
        for (end, layouts) in sides {
            for layout in layouts {
                let index = cluster.ranks.len();
                let (input, output) = cluster.spawn(&program)?;
                let sender = sender.clone();
                std::thread::spawn(move || {
                    for line in BufReader::new(output).lines() {
                        let Ok(report) = line.map_err(drop).and_then(|line| serde_json::from_str(&line).map_err(drop))
                        else {
                            break;
                        };
                        let _ = sender.send((index, Some(report)));
                    }
                    let _ = sender.send((index, None));
                });
                let rank = layout.rank();
                cluster.ranks.push(RankProcess { end, rank, input, key: String::new() });
                cluster.order(index, &Order::Start { workload: workload.clone(), end, rank, carrier })?;
            }
        }
        Ok(cluster)
    }

    fn spawn(&self, program: &std::path::Path) -> Result<(ChildStdin, std::process::ChildStdout), Failure> {
        // Under the lock, so that an interrupt finds every child.
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        if self.interrupted.load(Ordering::SeqCst) {
            return Err(Failure::Interrupted);
        }
        let child = Command::new(program)
            .arg("--rank-process")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::Failed(format!("a rank process did not start: {error}")))?;
        children.push(child);
        let child = children.last_mut();
        child
            .and_then(|child| Some((child.stdin.take()?, child.stdout.take()?)))
            .ok_or_else(|| Failure::Failed("a rank process has no pipes".into()))
    }

    fn end_on_interrupt(&self) -> Result<(), Failure> {
        let (interrupted, children) = (Arc::clone(&self.interrupted), Arc::clone(&self.children));
        ctrlc::set_handler(move || {
            interrupted.store(true, Ordering::SeqCst);
            end(&children);
        })
        .map_err(|error| Failure::Failed(format!("the interrupt handler was not set: {error}")))
    }

    /// Gives an order to one rank.
    pub(crate) fn order(&mut self, index: usize, order: &Order) -> Result<(), Failure> {
        let interrupted = self.interrupted.load(Ordering::SeqCst);
        let Some(process) = self.ranks.get_mut(index) else { return Ok(()) };
        let line = serde_json::to_string(order).map_err(|error| Failure::Failed(error.to_string()))?;
        // A rank that has ended has said why, or its end of output will be noticed.
        match writeln!(process.input, "{line}").and_then(|()| process.input.flush()) {
            Err(_) if interrupted => Err(Failure::Interrupted),
            _ => Ok(()),
        }
    }

    /// Gives an order to all ranks of a side, or of both.
    pub(crate) fn order_all(&mut self, end: Option<End>, order: &Order) -> Result<Vec<usize>, Failure> {
        let ranks = self.of(end);
        for index in &ranks {
            self.order(*index, order)?;
        }
        Ok(ranks)
    }

    /// The ranks of a side, or of both.
    pub(crate) fn of(&self, end: Option<End>) -> Vec<usize> {
        (0..self.ranks.len())
            .filter(|index| end.is_none() || self.ranks.get(*index).map(|rank| rank.end) == end)
            .collect()
    }

    /// Waits until each of these ranks has reported once; progress is passed on and does not count.
    pub(crate) fn collect(
        &mut self,
        ranks: &[usize],
        mut progress: impl FnMut(usize, u64),
    ) -> Result<Vec<(usize, Report)>, Failure> {
        let deadline = Instant::now() + STEP;
        let mut reports: Vec<(usize, Report)> = Vec::new();
        while reports.len() < ranks.len() {
            if self.interrupted.load(Ordering::SeqCst) {
                return Err(Failure::Interrupted);
            }
            let wait = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
            let (index, report) = match self.reports.recv_timeout(wait) {
                Ok(report) => report,
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => continue,
                Err(_) => return Err(Failure::Failed(format!("no answer from a rank within {STEP:?}"))),
            };
            let name = self.ranks.get(index).map_or_else(String::new, |process| rank::name(process.end, process.rank));
            match report {
                Some(Report::Progress { bytes }) => progress(index, bytes),
                Some(Report::Refused(refused)) => return Err(Failure::Refused(refused)),
                Some(Report::Failed { message }) => return Err(Failure::Failed(format!("{name}: {message}"))),
                Some(report) if ranks.contains(&index) => {
                    if let Report::Moved { bytes, .. } = &report {
                        progress(index, *bytes);
                    }
                    reports.push((index, report));
                }
                Some(report) => return Err(Failure::Failed(format!("{name} said {report:?} unasked"))),
                // Its last order was to finish.
                None if reports.iter().any(|(reported, _)| *reported == index) => {}
                None if self.interrupted.load(Ordering::SeqCst) => return Err(Failure::Interrupted),
                None => return Err(Failure::Failed(format!("{name} ended before its work was done"))),
            }
        }
        Ok(reports)
    }

    /// Waits until all ranks have ended by themselves.
    pub(crate) fn join(self) -> Result<(), Failure> {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        for child in children.iter_mut() {
            let deadline = Instant::now() + Duration::from_secs(10);
            while child.try_wait().map_err(|error| Failure::Failed(error.to_string()))?.is_none() {
                if Instant::now() > deadline {
                    return Err(Failure::Failed("a rank process did not end".into()));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        end(&self.children);
    }
}

/// Ends all children and waits until they are gone.
fn end(children: &Mutex<Vec<Child>>) {
    let mut children = children.lock().unwrap_or_else(PoisonError::into_inner);
    for child in children.iter_mut() {
        let _ = child.kill();
        let _ = child.wait();
    }
}
