//! What the user sees: a progress bar, and a table or a JSON document at the end.

use std::{collections::HashMap, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

/// What one rank did.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankLine {
    pub(crate) name: String,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) slices: u64,
    pub(crate) seconds: f64,
    /// Only what receives can say that.
    pub(crate) verified: Option<bool>,
}

/// What the whole run did.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
    /// While pages moved: from the order to move to the last commit, over all waves.
    pub(crate) seconds: f64,
    pub(crate) carriers: Vec<Carried>,
    pub(crate) ranks: Vec<RankLine>,
}

/// What carried the pages from one rank to another, and why nothing better did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) transport: String,
    pub(crate) reason: String,
}

impl Summary {
    /// The transports that were used.
    fn transports(&self) -> String {
        let mut names: Vec<&str> = self.carriers.iter().map(|carried| carried.transport.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.join(" and ")
    }

    fn gb_per_s(&self) -> f64 {
        rate(self.bytes, self.seconds)
    }

    /// The document of `--json`.
    pub(crate) fn json(&self) -> String {
        json!({
            "verified": true,
            "requests": self.requests,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "gb_per_s": self.gb_per_s(),
            "transport": self.transports(),
            "passed_over": self.passed_over(),
        })
        .to_string()
    }

    /// Why something better was not used, each reason once.
    fn passed_over(&self) -> Vec<&str> {
        let mut reasons: Vec<&str> = self.carriers.iter().map(|carried| carried.reason.as_str()).collect();
        reasons.retain(|reason| !reason.is_empty());
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    }

    /// The table.
    pub(crate) fn print(&self) {
        println!("{:<18}{:>10}{:>14}{:>12}{:>9}  verified", "rank", "requests", "MB", "slices", "GB/s");
        for rank in &self.ranks {
            let verified = match rank.verified {
                Some(true) => "yes",
                Some(false) => "no",
                None => "-",
            };
            let slices = if rank.slices == 0 { "-".to_owned() } else { rank.slices.to_string() };
            println!(
                "{:<18}{:>10}{:>14.1}{:>12}{:>9.2}  {verified}",
                rank.name,
                rank.requests,
                rank.bytes as f64 / 1e6,
                slices,
                rate(rank.bytes, rank.seconds),
            );
        }
        for carried in self.carriers.iter().filter(|carried| !carried.reason.is_empty()) {
            println!("{} to {} by {}, and not by {}", carried.from, carried.to, carried.transport, carried.reason);
        }
        println!(
            "\n{} requests, {:.1} MB in {:.2} s by {}: {:.2} GB/s, every byte verified",
            self.requests,
            self.bytes as f64 / 1e6,
            self.seconds,
            self.transports(),
            self.gb_per_s()
        );
    }
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds / 1e9 } else { 0.0 }
}

/// The progress bar over all bytes of the run. Hidden where standard error is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Bytes of earlier waves.
    before: u64,
    /// Bytes of this wave by sending rank.
    now: HashMap<usize, u64>,
}

impl Progress {
    pub(crate) fn new(total: u64, hidden: bool) -> Self {
        let bar = if hidden { ProgressBar::hidden() } else { ProgressBar::new(total) };
        let template = "{bar:40} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, before: 0, now: HashMap::new() }
    }

    pub(crate) fn stage(&self, stage: &'static str) {
        self.bar.set_message(stage);
    }

    pub(crate) fn moved(&mut self, rank: usize, bytes: u64) {
        self.now.insert(rank, bytes);
        self.bar.set_position(self.before + self.now.values().sum::<u64>());
    }

    pub(crate) fn end_of_wave(&mut self) {
        self.before += self.now.drain().map(|(_, bytes)| bytes).sum::<u64>();
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
