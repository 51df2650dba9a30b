//! One rank in a process of its own: an engine, a cache, and the orders of the program.

use std::{
    io::{BufRead, Write},
    sync::mpsc,
    time::{Duration, Instant},
};

use kvferry::{
    ConnectError, Engine, EngineConfig, Incoming, Origin, Peer, Push, Role,
    kv_plan::{Buffer, CacheLayout, Rank},
    transport_core::{Memory, Shutdown},
    transport_quic::{Authentication, Identity, QuicConfig, TrustedKeys},
};

use crate::{
    args::Carrier,
    pattern,
    protocol::{Order, Report},
    rdma,
    workload::{End, Refused, RequestPages, Workload},
};

const DEPLOYMENT: &str = "prefill";

/// How often a rank that sends says how far it is.
const PROGRESS: Duration = Duration::from_millis(100);

/// Runs the rank until the program has no more orders.
pub(crate) fn main() {
    let orders = read_orders();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return say(&Report::Failed { message: format!("the runtime did not start: {error}") }),
    };
    if let Err(report) = runtime.block_on(serve(&orders)) {
        say(&report);
    }
}

/// Reads orders on a thread of its own, which ends the process when there are no more: the program is gone.
fn read_orders() -> mpsc::Receiver<Order> {
    let (sender, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let order = line
                .map_err(|error| error.to_string())
                .and_then(|line| serde_json::from_str(&line).map_err(|error| error.to_string()));
            match order {
                Ok(order) => drop(sender.send(order)),
                Err(message) => {
                    say(&Report::Failed { message });
                    break;
                }
            }
        }
        std::process::exit(3);
    });
    orders
}

fn say(report: &Report) {
    let Ok(line) = serde_json::to_string(report) else { return };
    let mut out = std::io::stdout().lock();
    // Nobody listens any more: the reading thread ends the process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn failed(error: impl std::fmt::Display) -> Report {
    Report::Failed { message: error.to_string() }
}

fn next(orders: &mpsc::Receiver<Order>) -> Result<Order, Report> {
    orders.recv().map_err(failed)
}

async fn serve(orders: &mpsc::Receiver<Order>) -> Result<(), Report> {
    let Order::Start { workload, end, rank, carrier } = next(orders)? else { return Err(failed("Start was expected")) };
    let layouts = workload.layouts(end).map_err(Report::Refused)?;
    let layout = layouts
        .into_iter()
        .find(|layout| layout.rank() == rank)
        .ok_or_else(|| failed(format!("the side has no rank {rank}")))?;
    let memories = layout
        .region_lens()
        .iter()
        .map(|len| usize::try_from(*len).map_err(failed).and_then(|len| Memory::host(len).map_err(failed)))
        .collect::<Result<Vec<_>, Report>>()?;
    let identity = Identity::generate();
    say(&Report::Identity { key: identity.public_key().to_string() });

    let Order::Listen { trusted } = next(orders)? else { return Err(failed("Listen was expected")) };
    let keys = TrustedKeys::new();
    for key in &trusted {
        keys.insert(key.parse().map_err(failed)?);
    }
    let role = match end {
        End::Prefill => Role::Prefill,
        End::Decode => Role::Decode,
    };
    let builder = Engine::builder(role, Authentication::raw_keys(identity, keys))
        .config(config())
        .cache(layout.clone(), memories.clone());
    let engine = rdma::add(builder, carrier, end).build().map_err(failed)?;
    say(&Report::Listening { address: engine.local_addr() });

    let rank = RankState { workload, end, carrier, layout, memories, engine, peers: Vec::new() };
    let result = rank.orders(orders).await;
    match result {
        Ok(engine) => {
            engine.shutdown(Shutdown::Drain).await;
            Ok(())
        }
        Err(report) => Err(report),
    }
}

/// Many processes on few cores take their time.
fn config() -> EngineConfig {
    let patience = Duration::from_secs(30);
    EngineConfig::default()
        .with_deployment(DEPLOYMENT)
        .with_handshake_timeout(patience)
        .with_transport_timeout(patience)
        .with_quic(QuicConfig::default().with_connect_timeout(patience))
}

struct RankState {
    workload: Workload,
    end: End,
    carrier: Carrier,
    layout: CacheLayout,
    memories: Vec<Memory>,
    engine: Engine,
    peers: Vec<Peer>,
}

impl RankState {
    async fn orders(mut self, orders: &mpsc::Receiver<Order>) -> Result<Engine, Report> {
        let (mut requests, mut expected) = (Vec::new(), Vec::new());
        loop {
            match next(orders)? {
                Order::Connect { peers } => {
                    for (address, key) in peers {
                        let key = key.parse().map_err(failed)?;
                        let peer = self.engine.connect(address, Some(key)).await;
                        self.peers.push(peer.map_err(|error| refusal(&error))?);
                    }
                    let carriers = self.peers.iter().map(|peer| self.carrier(peer)).collect::<Result<_, _>>()?;
                    say(&Report::Connected { carriers });
                }
                Order::Prepare { requests: next } => {
                    requests = next;
                    expected = self.prepare(&requests).await?;
                    say(&Report::Done);
                }
                Order::Move => {
                    let moved = match self.end {
                        End::Prefill => self.push(&requests).await?,
                        End::Decode => receive(std::mem::take(&mut expected)).await?,
                    };
                    say(&moved);
                }
                Order::Verify => {
                    self.verify(&requests)?;
                    say(&Report::Done);
                }
                Order::Finish => {
                    if self.end == End::Decode {
                        pattern::verify_untouched(&self.layout, &self.memories).map_err(failed)?;
                    }
                    say(&Report::Done);
                    return Ok(self.engine);
                }
                order => return Err(failed(format!("{order:?} was not expected"))),
            }
        }
    }

    /// What carries the pages to a peer, and why nothing better does.
    fn carrier(&self, peer: &Peer) -> Result<(String, String), Report> {
        let reasons: Vec<String> =
            peer.passed_over().iter().map(|over| format!("{}: {}", over.transport, over.reason)).collect();
        let reasons = reasons.join("; ");
        if self.carrier == Carrier::Rdma && peer.transport() != "rdma" {
            let (rank, transport) = (peer.layout().rank(), peer.transport());
            return Err(failed(format!("{rank} is reached by {transport} and not by rdma: {reasons}")));
        }
        Ok((peer.transport().to_owned(), reasons))
    }

    fn pages(&self, end: End, layout: &CacheLayout, request: u64) -> Result<RequestPages, Report> {
        self.workload.pages(end, layout, request).map_err(Report::Refused)
    }

    /// Those of some requests that this rank's data-parallel group has to do with.
    fn own<'a>(&self, requests: &'a [u64]) -> impl Iterator<Item = &'a u64> + use<'a, '_> {
        requests.iter().filter(|request| Workload::group(&self.layout, **request) == self.layout.rank().dp)
    }

    /// Fills the pages of requests, or expects them.
    async fn prepare(&self, requests: &[u64]) -> Result<Vec<Incoming>, Report> {
        let mut expected = Vec::new();
        for request in self.own(requests) {
            let pages = self.pages(self.end, &self.layout, *request)?;
            match self.end {
                End::Prefill => {
                    let seed = self.workload.contents(*request);
                    pattern::fill(seed, &self.layout, &self.memories, &pages).map_err(failed)?;
                }
                End::Decode => {
                    // The last sender may still be in its handshake on this side.
                    let origin = Origin::from(DEPLOYMENT).group(self.workload.prefill_group(*request));
                    let missing = self.engine.wait_for_senders(origin, Duration::from_secs(30)).await;
                    missing.map_err(|ranks| failed(format!("not connected in time: {ranks:?}")))?;
                    let incoming = pages.with(|pages| self.engine.expect(*request, origin, pages));
                    expected.push(incoming.map_err(failed)?);
                }
            }
        }
        Ok(expected)
    }

    /// Pushes requests to every decode rank and waits until they are there.
    async fn push(&self, requests: &[u64]) -> Result<Report, Report> {
        let started = Instant::now();
        let mut pushes: Vec<Push> = Vec::new();
        for request in self.own(requests) {
            let src = self.pages(End::Prefill, &self.layout, *request)?;
            let wants = |peer: &&Peer| {
                let (layout, pairing) = (peer.layout(), peer.pairing());
                layout.rank().dp == Workload::group(layout, *request) && !pairing.tables().is_empty()
            };
            for peer in self.peers.iter().filter(wants) {
                let dst = self.pages(End::Decode, peer.layout(), *request)?;
                let push = src.with(|src| dst.with(|dst| peer.push(*request, src, dst)));
                pushes.push(push.map_err(failed)?);
            }
        }
        let (mut bytes, mut slices) = (0, 0);
        for index in 0..pushes.len() {
            loop {
                let (_, later) = pushes.split_at_mut(index);
                let Some(push) = later.first_mut() else { break };
                match tokio::time::timeout(PROGRESS, push).await {
                    Ok(pushed) => {
                        let pushed = pushed.map_err(failed)?;
                        bytes += pushed.bytes;
                        slices += pushed.slices;
                        break;
                    }
                    Err(_) => say(&Report::Progress { bytes: pushes.iter().map(|push| push.progress().0).sum() }),
                }
            }
        }
        Ok(Report::Moved {
            requests: self.own(requests).count() as u64,
            bytes,
            slices,
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    /// Checks every byte of the requests in all buffers that a sender has.
    fn verify(&self, requests: &[u64]) -> Result<(), Report> {
        let peers = self.engine.peers();
        let left_alone: Vec<_> = peers.first().map(|peer| peer.pairing().left_alone().to_vec()).unwrap_or_default();
        let tokens = u64::from(self.workload.tokens);
        let written = |buffer: &Buffer| !left_alone.contains(&buffer.key);
        for request in self.own(requests) {
            let pages = self.pages(End::Decode, &self.layout, *request)?;
            let seed = self.workload.contents(*request);
            pattern::verify(seed, &self.layout, &self.memories, &pages, tokens, written)
                .map_err(|error| failed(format!("request {request}: {error}")))?;
        }
        Ok(())
    }
}

/// Waits until requests are complete.
async fn receive(expected: Vec<Incoming>) -> Result<Report, Report> {
    let started = Instant::now();
    let (requests, mut bytes) = (expected.len() as u64, 0);
    for incoming in expected {
        bytes += incoming.await.map_err(failed)?.bytes;
    }
    Ok(Report::Moved { requests, bytes, slices: 0, seconds: started.elapsed().as_secs_f64() })
}

fn refusal(error: &ConnectError) -> Report {
    match error.mismatch_kind() {
        Some(kind) => Report::Refused(Refused { kind: kind.to_owned(), message: error.to_string() }),
        None => failed(error),
    }
}

/// Names a rank for people.
pub(crate) fn name(end: End, rank: Rank) -> String {
    match end {
        End::Prefill => format!("prefill {rank}"),
        End::Decode => format!("decode {rank}"),
    }
}
