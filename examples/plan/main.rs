//! Will these two sides work together, and what moves where? Asks the planner alone: nothing is connected, nothing is sent.
//!
//! ```text
//! cargo run --release --example plan -- --config tests/data/models/deepseek-v3.json --page 64 --prefill pp=4 --decode pp=1
//! cargo run --release --example plan -- --config tests/data/models/deepseek-v3.json --page 64 --prefill pp=4 --decode pp=1 \
//!     --from pp3.tp0 --src-pages 5,6,7,12,13,20 --dst-pages 100,101,102,103,104,200
//! ```
//!
//! Exit status: 0 when the two sides fit, 2 when they (or the page lists) do not, 1 for bad arguments and unreadable files.

mod args;
mod cluster;
mod human;
mod json;
mod svg;

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use clap::Parser;

use crate::{args::Args, cluster::Cluster};

/// Why there is no plan.
pub(crate) enum Failure {
    /// The arguments or the files are at fault.
    Usage(String),
    /// The two sides, or the page lists, do not fit.
    Unfit {
        /// A stable word.
        kind: &'static str,
        /// What is wrong, and what to change.
        message: String,
    },
    /// Standard output cannot be written.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<kv_plan::Mismatch> for Failure {
    fn from(error: kv_plan::Mismatch) -> Self {
        Self::Unfit { kind: error.kind(), message: error.to_string() }
    }
}

impl From<kv_plan::PlanError> for Failure {
    fn from(error: kv_plan::PlanError) -> Self {
        Self::Unfit { kind: error.kind(), message: error.to_string() }
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Nothing is left to be done when this cannot be printed.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Output(error)) => {
            eprintln!("error: standard output: {error}");
            ExitCode::from(1)
        }
        Err(Failure::Usage(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(1)
        }
        Err(Failure::Unfit { kind, message }) => {
            eprintln!("error: {message}");
            if args.json
                && let Err(error) = json::error(&mut io::stdout(), kind, &message)
            {
                eprintln!("error: standard output: {error}");
            }
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let request = args.pages()?;
    let cluster = Cluster::read(args)?;
    let transfers = cluster.transfers(args, request.as_ref())?;
    if let Some(path) = &args.svg {
        let drawing = svg::draw(&cluster, &transfers);
        std::fs::write(path, drawing).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        json::print(&mut out, &transfers, cluster.bytes(args, &transfers))?;
    } else {
        human::print(&mut out, &cluster, &transfers, cluster.bytes(args, &transfers))?;
    }
    out.flush()?;
    Ok(())
}
