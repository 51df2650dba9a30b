//! What the user may say.

use std::path::PathBuf;

use crate::rdma;
use clap::{Parser, ValueEnum};
use kvferry::kv_plan::Side;
use serde::{Deserialize, Serialize};

/// Moves the KV cache of several requests from prefill ranks to decode ranks, one OS process for each rank, over
/// RDMA or QUIC, and checks every byte.
#[derive(Debug, Parser)]
#[command(name = "pd_loopback")]
pub(crate) struct Args {
    /// A model's config.json; DeepSeek-V3's shape without it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The prefill side, as key=value pairs: pp, tp, cp, dp, layers, draft, order, page, window_page, draft_page, dtype, pages,
    /// slots.
    #[arg(long, value_name = "SPEC", default_value = "pp=4")]
    pub(crate) prefill: String,
    /// The decode side, in the same form.
    #[arg(long, value_name = "SPEC", default_value = "pp=1")]
    pub(crate) decode: String,
    /// Tokens of a page.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub(crate) page: u32,
    /// Tokens of each request; 2048, or 128 on Soft-RoCE, which moves some 25 MB/s in an emulated machine.
    #[arg(long)]
    pub(crate) tokens: Option<u32>,
    /// How many requests; 8, or 2 on Soft-RoCE.
    #[arg(long)]
    pub(crate) requests: Option<u32>,
    /// What carries the pages. With rdma it is an error when two ranks that talk do not use it.
    #[arg(long, value_enum, default_value_t = Carrier::Auto)]
    pub(crate) transport: Carrier,
    /// Decides the pages and their contents.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON document at the end instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Run as one rank; started by the program itself.
    #[arg(long, hide = true)]
    pub(crate) rank_process: bool,
}

/// What carries the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Carrier {
    /// RDMA where it is there, else QUIC.
    Auto,
    /// QUIC only.
    Quic,
    /// RDMA, or nothing. The devices are chosen, or named by KVFERRY_RDMA_DEVICES: that of prefill, and that of decode.
    Rdma,
}

impl Args {
    /// Tokens of a request, and how many requests.
    pub(crate) fn size(&self) -> (u32, u32) {
        let slow = self.transport != Carrier::Quic && rdma::is_emulated();
        let (tokens, requests) = if slow { (128, 2) } else { (2048, 8) };
        (self.tokens.unwrap_or(tokens), self.requests.unwrap_or(requests))
    }

    /// The two sides.
    pub(crate) fn sides(&self) -> Result<(Side, Side), String> {
        let side = |flag: &str, text: &str| text.parse::<Side>().map_err(|error| format!("{flag}: {error}"));
        Ok((side("--prefill", &self.prefill)?, side("--decode", &self.decode)?))
    }
}
