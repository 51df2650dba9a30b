//! The receiving process, as the sending process sees it.
//!
//! It is this program again, with a hidden subcommand. It must never outlive us: it ends when its standard input does,
//! it is told to by the kernel when we die of anything, and it is killed when this handle is dropped.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio},
};

use crate::{
    Result,
    messages::{Command, Reply},
    transport::Kind,
    workload::Workload,
};

/// A running receiver.
pub(crate) struct Peer {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a receiver. Only from the main thread: the kernel's signal is tied to the thread that starts it.
    pub(crate) fn start(workload: &Workload, kinds: &[Kind], small: bool) -> Result<Self> {
        let mut process = Process::new(std::env::current_exe()?)
            .args(["receive", workload.name])
            .args(kinds.iter().map(Kind::name))
            .args(small.then_some("--small"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("the receiving process has no pipes".into());
        };
        Ok(Self { process, stdin, stdout: BufReader::new(stdout) })
    }

    /// Sends a command; [`Peer::reply`] takes the answer.
    pub(crate) fn command(&mut self, command: &Command) -> Result<()> {
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        Ok(self.stdin.write_all(&line)?)
    }

    /// The answer to the oldest unanswered command.
    pub(crate) fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Err("the receiving process has ended".into());
        }
        match serde_json::from_str(&line)? {
            Reply::Failed(reason) => Err(format!("the receiving process: {reason}").into()),
            reply => Ok(reply),
        }
    }

    /// Processor seconds that it has used.
    pub(crate) fn cpu_seconds(&mut self) -> Result<f64> {
        self.command(&Command::CpuSeconds)?;
        match self.reply()? {
            Reply::CpuSeconds(seconds) => Ok(seconds),
            other => Err(unexpected(&other)),
        }
    }

    /// When the last `count` writes by a lane reached it.
    pub(crate) fn arrivals(&mut self, lane: &str, count: usize) -> Result<Vec<u64>> {
        self.command(&Command::Arrivals { lane: lane.into(), count })?;
        match self.reply()? {
            Reply::Arrivals(times) => Ok(times),
            other => Err(unexpected(&other)),
        }
    }

    /// Has it compare all bytes that came by a lane.
    pub(crate) fn verify(&mut self, lane: &str) -> Result<()> {
        self.command(&Command::Verify { lane: lane.into() })?;
        match self.reply()? {
            Reply::Verified => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// The error for an answer that does not fit the question.
pub(crate) fn unexpected(reply: &Reply) -> Box<dyn std::error::Error + Send + Sync> {
    format!("the receiving process gave an answer that does not fit: {reply:?}").into()
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has nothing to save. Both fail only when it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
