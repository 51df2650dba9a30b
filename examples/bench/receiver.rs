//! The receiving process: opens the other end of every lane, then answers questions until its input ends.

use std::io::{self, BufRead, Write};

use crate::{
    Result,
    lane::{TcpServer, TransportSink},
    measure,
    messages::{Command, Reply},
    placement::Placement,
    transport::{Endpoint, Identity, Kind, Side},
    workload::Workload,
};

/// Runs until the sending process closes the pipe, or dies.
pub(crate) fn run(workload: &Workload, kinds: &[Kind]) -> Result<()> {
    // Before the first read: a sender that died even before this is noticed there.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut receiver = Receiver { workload, kinds, placement: Placement::new(workload), tcp: None, sinks: Vec::new() };
    let mut stdout = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let reply = serde_json::from_str(&line?).map_err(Into::into).and_then(|command| receiver.answer(command));
        let mut line = serde_json::to_vec(&reply.unwrap_or_else(|error| Reply::Failed(error.to_string())))?;
        line.push(b'\n');
        stdout.write_all(&line)?;
    }
    Ok(())
}

struct Receiver<'a> {
    workload: &'a Workload,
    kinds: &'a [Kind],
    placement: Placement,
    tcp: Option<TcpServer>,
    sinks: Vec<TransportSink>,
}

impl Receiver<'_> {
    fn answer(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::Open { identities } => self.open(&identities),
            Command::Accept => {
                let grants = self.sinks.iter_mut().map(TransportSink::accept).collect::<Result<_>>()?;
                Ok(Reply::Accepted { grants })
            }
            Command::CpuSeconds => Ok(Reply::CpuSeconds(measure::cpu_seconds())),
            Command::Arrivals { lane, count } => {
                let arrivals = match self.sink(&lane) {
                    Some(sink) => sink.arrivals(),
                    None => self.tcp()?.arrivals(),
                };
                arrivals.take(count).map(Reply::Arrivals)
            }
            Command::Verify { lane } => {
                match self.sink(&lane) {
                    Some(sink) => sink.verify(self.workload, &self.placement)?,
                    None => self.tcp()?.verify(self.workload, &self.placement)?,
                }
                Ok(Reply::Verified)
            }
        }
    }

    fn sink(&self, lane: &str) -> Option<&TransportSink> {
        self.sinks.iter().find(|sink| sink.name() == lane)
    }

    fn tcp(&self) -> Result<&TcpServer> {
        self.tcp.as_ref().ok_or_else(|| "nothing is open".into())
    }

    fn open(&mut self, identities: &[Vec<u8>]) -> Result<Reply> {
        let mut invitations = Vec::new();
        for (kind, sender) in self.kinds.iter().zip(identities) {
            let endpoint = Endpoint::open(*kind, Side::Receiver, Identity::new(), sender)?;
            invitations.push(endpoint.invitation());
            self.sinks.push(TransportSink::new(self.workload, *kind, endpoint)?);
        }
        let tcp = self.tcp.insert(TcpServer::start(self.workload)?);
        Ok(Reply::Opened { tcp: tcp.address(), invitations })
    }
}
