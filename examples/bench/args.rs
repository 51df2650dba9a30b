//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::{
    transport::Kind,
    workload::{self, Workload},
};

/// Measures how fast a transport moves scattered blocks from one process to another over loopback, in turn with a plain
/// TCP socket and with memcpy.
#[derive(Debug, Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Measure this pattern only (mla, gqa, 4k, 64k, 1m, latency, write-4096); may be given more than once
    #[arg(long = "pattern", value_name = "NAME", value_parser = Patterns::named)]
    patterns: Vec<Patterns>,

    /// The transports to measure (quic, quic-defaults; with the feature rdma also rdma, beside perftest), separated by commas
    #[arg(long = "transport", value_name = "NAME", value_delimiter = ',', default_value = "quic")]
    transports: Vec<Kind>,

    /// How often each lane runs, after one run to warm up
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Move less, for a device that moves some 25 MB/s such as Soft-RoCE in an emulated machine
    #[arg(long)]
    pub(crate) small: bool,

    /// Print one JSON document instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw the throughput into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// The receiving process, which the sending process starts
    #[command(hide = true)]
    Receive {
        #[arg(value_parser = Patterns::named)]
        pattern: Patterns,
        transports: Vec<Kind>,
        #[arg(long)]
        small: bool,
    },
}

/// What one name on the command line stands for.
#[derive(Clone, Debug)]
pub(crate) struct Patterns(pub(crate) Vec<Workload>);

impl Patterns {
    fn named(name: &str) -> Result<Self, String> {
        workload::named(name).map(Self)
    }
}

impl Args {
    /// The patterns to measure, each once, in the order of the table.
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        let asked = |workload: &Workload| self.patterns.iter().any(|patterns| patterns.0.contains(workload));
        let wanted = workload::ALL.into_iter().filter(|workload| self.patterns.is_empty() || asked(workload));
        wanted.map(|workload| if self.small { workload.small() } else { workload }).collect()
    }

    /// The transports to measure, each once.
    pub(crate) fn transports(&self) -> Vec<Kind> {
        let asked = |kind: &Kind| self.transports.contains(kind);
        Kind::ALL.iter().copied().filter(asked).collect()
    }
}
