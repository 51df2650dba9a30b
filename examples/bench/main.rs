//! How fast does a transport move scattered blocks, and what does it cost?
//!
//! Two processes over loopback: this one sends, and a copy of it receives. In each round, one after the other, the same
//! blocks go over each transport, over a plain TCP socket, and through memcpy, so that ratios hold although the machine
//! does not keep one pace. docs/benchmarks.md says what each pattern is and how to read the results.
//!
//! ```text
//! cargo run --release --example bench -- --pattern mla --transport quic,quic-defaults
//! ```

mod args;
mod arrivals;
mod lane;
mod measure;
mod messages;
mod peer;
mod placement;
mod receiver;
mod report;
mod sender;
mod stats;
mod tables;
mod transport;
mod workload;

use std::{
    fs::File,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::Parser;

use self::{
    args::{Args, Command},
    report::{json, plot, table},
    workload::Measure,
};

/// The allocator is a choice of the program, never of a library. glibc gives the top of the heap back to the kernel after
/// each large datagram and takes page faults for the next one; this allocator keeps it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Nothing helps when the terminal is gone.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let done = match &args.command {
        None => send(&args),
        Some(Command::Receive { pattern, transports, small }) => match pattern.0.as_slice() {
            [workload] => receiver::run(&if *small { workload.small() } else { *workload }, transports),
            _ => Err("a receiver serves one pattern".into()),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn send(args: &Args) -> Result<()> {
    let (workloads, transports) = (args.workloads(), args.transports());
    if args.plot.is_some() && workloads.iter().all(|workload| workload.measure == Measure::Latency) {
        return Err("--plot draws throughput, and only latency is measured".into());
    }
    // Before the minute that it takes to have something to draw.
    let open = |path: &PathBuf| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
    let plot = args.plot.as_ref().map(open).transpose()?;
    let mut lines = Vec::new();
    for workload in &workloads {
        eprintln!("{}: {}", workload.name, workload.describe());
        lines.extend(sender::measure(workload, &transports, args)?);
    }
    let text = if args.json { format!("{}\n", json::document(&lines)) } else { table::render(&lines) };
    io::stdout().lock().write_all(text.as_bytes())?;
    if let Some(mut file) = plot {
        file.write_all(plot::svg(&lines)?.as_bytes())?;
    }
    Ok(())
}

/// Waits for a future. The transports bring their own threads; nothing runs on this one but the future itself.
fn block_on<F: Future>(future: F) -> Result<F::Output> {
    Ok(tokio::runtime::Builder::new_current_thread().build()?.block_on(future))
}
