//! What the user may say.

use std::path::PathBuf;

use clap::Parser;
use kvferry::kv_plan::Side;

/// Moves the KV cache of several requests from prefill ranks to decode ranks, one OS process for each rank, over QUIC on
/// loopback, and checks every byte.
#[derive(Debug, Parser)]
#[command(name = "pd_loopback")]
pub(crate) struct Args {
    /// A model's config.json; DeepSeek-V3's shape without it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The prefill side, as key=value pairs: pp, tp, layers, draft, order, page, dtype, pages.
    #[arg(long, value_name = "SPEC", default_value = "pp=4")]
    pub(crate) prefill: String,
    /// The decode side, in the same form.
    #[arg(long, value_name = "SPEC", default_value = "pp=1")]
    pub(crate) decode: String,
    /// Tokens of a page.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub(crate) page: u32,
    /// Tokens of each request.
    #[arg(long, default_value_t = 2048)]
    pub(crate) tokens: u32,
    /// How many requests.
    #[arg(long, default_value_t = 8)]
    pub(crate) requests: u32,
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

impl Args {
    /// The two sides.
    pub(crate) fn sides(&self) -> Result<(Side, Side), String> {
        let side = |flag: &str, text: &str| text.parse::<Side>().map_err(|error| format!("{flag}: {error}"));
        Ok((side("--prefill", &self.prefill)?, side("--decode", &self.decode)?))
    }
}
