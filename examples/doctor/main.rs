//! Whether this machine can move data by RDMA: what there is, what kvferry would use of it, what is wrong, and what to change.
//!
//! ```text
//! cargo run --example doctor --features rdma
//! cargo run --example doctor --features rdma -- --loopback       really writes over each chosen device
//! cargo run --example doctor -- --simulated --loopback           what a report looks like, without any RDMA
//! ```
//!
//! Exit status: 0 when RDMA can be used, and when there is none here and none was asked for; 1 when something is broken (also: a device that
//! was named, or `--loopback`, and it does not work); 2 for wrong arguments.

mod args;
mod findings;
mod gids;
mod human;
mod json;
mod loopback;
mod report;
mod source;
mod system;

use std::process::ExitCode;

use clap::Parser;

use crate::{args::Args, report::Report};

fn main() -> ExitCode {
    let args = Args::parse();
    let report = Report::make(&args);
    if args.json {
        println!("{}", json::document(&report));
    } else {
        human::print(&report);
    }
    ExitCode::from(report.verdict().exit_status())
}
