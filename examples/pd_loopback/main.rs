//! The main job, whole: the KV cache of several requests goes from prefill ranks to decode ranks, one OS process for each rank,
//! planned from what the peers say about themselves, and every byte is checked against what it must be.
//!
//! ```text
//! cargo run --release --example pd_loopback
//! cargo run --release --example pd_loopback -- --prefill pp=4 --decode pp=2 --tokens 4096 --requests 4
//! ```
//!
//! Exit status: 0 when all is verified, 2 when the two sides do not fit (with the reason), 1 for everything else, 130 when
//! interrupted.

mod args;
mod cluster;
mod pattern;
mod protocol;
mod rank;
mod rdma;
mod report;
mod workload;

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use kvferry::kv_plan::CacheLayout;

use crate::{
    args::Args,
    cluster::{Cluster, Failure},
    protocol::{Order, Report},
    report::{Carried, Progress, RankLine, Summary},
    workload::{End, Refused, Workload},
};

const DEEPSEEK_V3: &str = include_str!("../../tests/data/models/deepseek-v3.json");

/// A binary's choice: the default allocator of glibc gives the memory of each 64 KiB datagram back to the kernel, which costs
/// page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            // Status 2 means that two sides do not fit.
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    if args.rank_process {
        rank::main();
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(summary) => {
            if args.json {
                println!("{}", summary.json());
            } else {
                summary.print();
            }
            ExitCode::SUCCESS
        }
        Err(Failure::Refused(Refused { kind, message })) => {
            eprintln!("error ({kind}): {message}");
            if args.json {
                println!("{}", serde_json::json!({ "error": { "kind": kind, "message": message } }));
            }
            ExitCode::from(2)
        }
        Err(Failure::Failed(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(1)
        }
        Err(Failure::Interrupted) => {
            eprintln!("interrupted; all rank processes are ended");
            ExitCode::from(130)
        }
    }
}

fn run(args: &Args) -> Result<Summary, Failure> {
    args.sides().map_err(Failure::Failed)?;
    let (tokens, requests) = args.size();
    if args.page == 0 || tokens == 0 || requests == 0 {
        return Err(Failure::Failed("--page, --tokens and --requests must not be zero".into()));
    }
    let model = match &args.config {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::Failed(format!("{} cannot be read: {error}", path.display())))?,
        None => DEEPSEEK_V3.to_owned(),
    };
    let workload = Workload {
        model,
        prefill: args.prefill.clone(),
        decode: args.decode.clone(),
        page: args.page,
        tokens,
        requests,
        seed: args.seed,
    };
    let prefill = workload.layouts(End::Prefill).map_err(Failure::Refused)?;
    let decode = workload.layouts(End::Decode).map_err(Failure::Refused)?;
    say_memory(&prefill, &decode, args.json)?;

    let mut cluster = Cluster::start(&workload, args.transport, [(End::Decode, &decode), (End::Prefill, &prefill)])?;
    let carriers = connect(&mut cluster)?;
    let mut summary = waves(&mut cluster, &workload, &decode, args.json)?;
    summary.carriers = carriers;
    let all = cluster.order_all(None, &Order::Finish)?;
    cluster.collect(&all, |_, _| {})?;
    cluster.join()?;
    Ok(summary)
}

/// Says how much memory the caches of all ranks take, before they take it.
fn say_memory(prefill: &[CacheLayout], decode: &[CacheLayout], quiet: bool) -> Result<(), Failure> {
    let lens = || prefill.iter().chain(decode).flat_map(CacheLayout::region_lens);
    let total = lens().try_fold(0u64, |sum, len| sum.checked_add(*len));
    let total = total.ok_or_else(|| Failure::Failed("the caches do not fit 64 bits".into()))?;
    let available = available_memory();
    if !quiet {
        println!(
            "{} prefill and {} decode ranks; their caches take {:.2} GiB of memory in all",
            prefill.len(),
            decode.len(),
            total as f64 / (1u64 << 30) as f64
        );
    }
    match available {
        Some(available) if total > available => Err(Failure::Failed(format!(
            "the caches take {total} bytes, but only {available} are available; lower --tokens, or pages in the specifications"
        ))),
        _ => Ok(()),
    }
}

/// Bytes of memory that new programs can take, as Linux says.
fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Hands out the identities and addresses, and lets every prefill rank meet every decode rank. Answers what carries the pages
/// between which ranks.
fn connect(cluster: &mut Cluster) -> Result<Vec<Carried>, Failure> {
    let unexpected = |report: &Report| Failure::Failed(format!("a rank said {report:?} out of turn"));
    let all = cluster.of(None);
    for (index, report) in cluster.collect(&all, |_, _| {})? {
        let Report::Identity { key } = report else { return Err(unexpected(&report)) };
        if let Some(process) = cluster.ranks.get_mut(index) {
            process.key = key;
        }
    }
    let trusted: Vec<String> = cluster.ranks.iter().map(|process| process.key.clone()).collect();
    cluster.order_all(None, &Order::Listen { trusted })?;
    let mut peers = Vec::new();
    for (index, report) in cluster.collect(&all, |_, _| {})? {
        let Report::Listening { address } = report else { return Err(unexpected(&report)) };
        let process = cluster.ranks.get(index).filter(|process| process.end == End::Decode);
        peers.extend(process.map(|process| (address, process.key.clone())));
    }
    let ranks = cluster.order_all(Some(End::Prefill), &Order::Connect { peers })?;
    let mut carried = Vec::new();
    for (index, report) in cluster.collect(&ranks, |_, _| {})? {
        let Report::Connected { carriers } = report else { return Err(unexpected(&report)) };
        let name = |process: &cluster::RankProcess| rank::name(process.end, process.rank);
        let from = cluster.ranks.get(index).map(name).unwrap_or_default();
        let decode = cluster.ranks.iter().filter(|process| process.end == End::Decode);
        carried.extend(decode.zip(carriers).map(|(to, (transport, reason))| Carried {
            from: from.clone(),
            to: name(to),
            transport,
            reason,
        }));
    }
    Ok(carried)
}

/// Moves the requests, a few at a time: their pages are used again by the next ones.
fn waves(cluster: &mut Cluster, workload: &Workload, decode: &[CacheLayout], quiet: bool) -> Result<Summary, Failure> {
    let of_request: u64 = decode.iter().map(|layout| pattern::request_bytes(layout, workload.tokens.into())).sum();
    let mut progress = Progress::new(of_request * u64::from(workload.requests), quiet);
    let mut lines: Vec<RankLine> = cluster
        .ranks
        .iter()
        .map(|process| RankLine {
            name: rank::name(process.end, process.rank),
            verified: (process.end == End::Decode).then_some(false),
            ..RankLine::default()
        })
        .collect();
    let (mut seconds, mut bytes) = (0.0, 0);
    for requests in workload.waves() {
        progress.stage("filling");
        for end in [End::Prefill, End::Decode] {
            let ranks = cluster.order_all(Some(end), &Order::Prepare { requests: requests.clone() })?;
            cluster.collect(&ranks, |_, _| {})?;
        }
        progress.stage("moving");
        let started = Instant::now();
        let all = cluster.order_all(None, &Order::Move)?;
        let senders = cluster.of(Some(End::Prefill));
        let reports = cluster.collect(&all, |rank, bytes| {
            if senders.contains(&rank) {
                progress.moved(rank, bytes);
            }
        })?;
        seconds += started.elapsed().as_secs_f64();
        progress.end_of_wave();
        for (index, report) in reports {
            let (Report::Moved { requests, bytes: moved, slices, seconds }, Some(line)) =
                (report, lines.get_mut(index))
            else {
                return Err(Failure::Failed("a rank did not say what it moved".into()));
            };
            line.requests += requests;
            line.bytes += moved;
            line.slices += slices;
            line.seconds += seconds;
            if line.verified.is_some() {
                bytes += moved;
            }
        }
        progress.stage("verifying");
        let ranks = cluster.order_all(Some(End::Decode), &Order::Verify)?;
        for (index, _) in cluster.collect(&ranks, |_, _| {})? {
            if let Some(line) = lines.get_mut(index) {
                line.verified = Some(true);
            }
        }
    }
    progress.finish();
    Ok(Summary { requests: workload.requests, bytes, seconds, carriers: Vec::new(), ranks: lines })
}
