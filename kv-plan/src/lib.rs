//! Plans which bytes of a KV cache move where between the ranks of a prefill side and those of a decode side. Pure computation:
//! no I/O, no async, no unsafe code.
//!
//! # The idea
//!
//! Each rank describes what it holds in a [`CacheLayout`]: a list of buffers, each with a key (part, layer, role), sizes and a
//! place. Two ranks that meet exchange their layouts, and [`pair()`] finds, once, which buffers of the one go into which buffers of the
//! other, and which heads of them: by key, never by place in a list. [`coverage()`] checks that the senders of a receiver write all of it, and nothing twice. A
//! request is then a list of pages on either side, and its [`Plan`] is a product: a few runs of pages, times the tables of the pairing.
//!
//! ```text
//!  prefill, 4 stages                                      decode, 1 stage
//!  pp0  layers  0..15 ─┐                                  ┌──────────────────────────┐
//!  pp1  layers 15..30 ─┼─ pair: tables by key ──────────► │ layers 0..61             │
//!  pp2  layers 30..45 ─┤                                  │ coverage: each layer     │
//!  pp3  layers 45..61 ─┘                                  │ from exactly one stage   │
//!                                                         └──────────────────────────┘
//!  a request, pages  [5, 6, 7, 12, 13, 20] → [100, 101, 102, 103, 104, 200]
//!  runs              (5 → 100, 3 pages) (12 → 103, 2 pages) (20 → 200, 1 page)
//!  for each table    src offset = page · 73,728    dst offset = page · 73,728    len = pages · 73,728
//! ```
//!
//! # A worked example
//!
//! DeepSeek-V3 keeps one latent of 512 + 64 elements a token and layer: 1,152 bytes in bf16. A page of 64 tokens is 73,728 bytes. The
//! last of four prefill stages has the layers 45 to 60. Pages 5, 6 and 7 are neighbours, and so are the pages 100, 101 and 102 that
//! they go to: one slice of 3 · 73,728 = 221,184 bytes from 5 · 73,728 = 368,640 to 100 · 73,728 = 7,372,800, in each of 16 tables.
//!
//! ```
//! use kv_plan::{Dtype, ModelShape, PageId, Plan, Side, coverage, pair};
//!
//! let model = ModelShape::from_config_json(
//!     r#"{"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}"#,
//! )?;
//! let prefill = "pp=4".parse::<Side>()?.layouts(&model, 64, Dtype::Bf16)?;
//! let decode = "pp=1".parse::<Side>()?.layouts(&model, 64, Dtype::Bf16)?;
//!
//! coverage(&prefill.iter().collect::<Vec<_>>(), &decode[0])?;
//! let pairing = pair(&prefill[3], &decode[0])?;
//! assert_eq!(pairing.tables().len(), 16);
//!
//! let mut plan = Plan::default();
//! let (src, dst) = ([5, 6, 7, 12, 13, 20], [100, 101, 102, 103, 104, 200]);
//! pairing.plan(PageId::list(&src), PageId::list(&dst), &mut plan)?;
//! let first = plan.slices(&pairing).next().expect("there are three for each table");
//! assert_eq!((first.src_offset, first.dst_offset, first.len), (368_640, 7_372_800, 221_184));
//! assert_eq!(plan.slice_count(), 3 * 16);
//!
//! // What does not fit is found when two ranks meet.
//! let short = "pp=1,layers=60".parse::<Side>()?.layouts(&model, 64, Dtype::Bf16)?;
//! let error = pair(&prefill[3], &short[0]).unwrap_err();
//! assert_eq!(error.kind(), "missing_layer");
//! assert!(error.to_string().contains("layer 60"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When two ranks meet
//!
//! A rank knows its own layout and, once it has met one rank of the other side, that one's. Both check the same two layouts and come
//! to the same verdict in the same words, which speak of "prefill" and "decode" and name both ranks, both values and what to change.
//! [`CacheLayout::siblings`] derives what the other ranks of a side hold, so that the first two ranks that meet can already say
//! whether the receiver will be complete, and who has to commit before it is:
//!
//! ```
//! # use kv_plan::{Dtype, ModelShape, Side, coverage, pair};
//! # let model = ModelShape::from_config_json(
//! #     r#"{"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}"#,
//! # )?;
//! # let prefill = "pp=4".parse::<Side>()?.layouts(&model, 64, Dtype::Bf16)?.remove(2);
//! # let decode = "pp=2".parse::<Side>()?.layouts(&model, 64, Dtype::Bf16)?.remove(1);
//! // What came from the peer is validated, and then:
//! let pairing = pair(&prefill, &decode)?;
//! let siblings = prefill.siblings();
//! let covered = coverage(&siblings.iter().collect::<Vec<_>>(), &decode)?;
//! let senders: Vec<String> = covered.senders.iter().map(ToString::to_string).collect();
//! assert_eq!(senders, ["pp2.tp0", "pp3.tp0"]);
//! // The rank pp2.tp0 has the layers 30 to 44, all of which go to this receiver.
//! assert_eq!(pairing.tables().len(), 15);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When the two sides are split differently
//!
//! What moves between two ranks is what both hold: the layers that both stages have, and of each the heads that both tensor ranks
//! have. In a page of token-major order the heads of a token lie beside each other, so that other heads than all of them are a
//! piece of every token; in head-major order they are one piece of a page. Llama-3-70B has 8 heads of 128 elements: 256 bytes a head
//! and token. From 4 ranks (2 heads each, 512 bytes a token) to 8 ranks (1 head each):
//!
//! ```text
//!  prefill tp0           page 3 (2 tokens)                decode tp1           page 9 (2 tokens)
//!  heads 0 1   │ t0: h0 h1 │ t1: h0 h1 │                  head 1     │ t0: h1 │ t1: h1 │
//!  byte        3072  3328  3584  3840                     byte       4608     4864
//!                    └────────────────────── 256 bytes ────────────► ┘        │
//!                                └────────── 256 bytes ───────────────────────┘
//! ```
//!
//! ```
//! # use kv_plan::{Dtype, ModelShape, PageId, Plan, Side, pair};
//! let model = ModelShape::from_config_json(
//!     r#"{"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}"#,
//! )?;
//! let prefill = "tp=4".parse::<Side>()?.layouts(&model, 2, Dtype::Bf16)?;
//! let decode = "tp=8".parse::<Side>()?.layouts(&model, 2, Dtype::Bf16)?;
//! let pairing = pair(&prefill[0], &decode[1])?;
//! let mut plan = Plan::default();
//! pairing.plan(PageId::list(&[3]), PageId::list(&[9]), &mut plan)?;
//! let offsets: Vec<_> = plan.slices(&pairing).take(2).map(|s| (s.src_offset, s.dst_offset, s.len)).collect();
//! assert_eq!(offsets, [(3_328, 4_608, 256), (3_840, 4_864, 256)]);
//! // Nothing of the third rank's heads is for the second receiver.
//! assert!(pair(&prefill[2], &decode[1])?.tables().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where several senders hold the same bytes, latents or heads of which there are fewer than ranks, each receiver gets them from one, and
//! the work is shared out by layers, so that no sender has more than its share and one buffer.
//!
//! # For each request
//!
//! A request has one list of pages for each [`Pool`]: all tokens, sliding windows (of which only the last tokens move), states (a
//! slot), and the same of a draft model; or [one list](Pages) for all pools of pages. [`Pairing::plan`] turns the lists of the two sides
//! into runs, [`Pairing::plan_layers`] does so for some layers, for a push that goes out while prefill still computes, and
//! [`Pages::tokens`] for some tokens. [`Pairing::tally`] tells the receiver what to expect of a sender. A [`Plan`] is used again and
//! again and then allocates nothing. It stays a product: [`Plan::groups`] gives runs and tables, [`Run`] has the plain layout that
//! transports take, and [`Plan::slices`] writes the slices out for whoever wants to see them.
//!
//! # Units
//!
//! Offsets, strides and lengths are bytes. Runs count tokens or pages, as their [`Form`] says. Sizes of buffers are `page_count` pages
//! of `page_bytes` bytes; a page is `page_tokens` tokens of `token_bytes` bytes. Layers are numbered in the whole model, heads too.
//!
//! # Errors
//!
//! [`ConfigError`]: a model's configuration gives no shape. [`LayoutError`]: a layout contradicts itself. [`Mismatch`]: two ranks, or
//! their sides, do not fit. [`PlanError`]: the page lists of a request are wrong. The last three have a `kind`, a stable
//! word for programs. Nothing panics and no sum wraps, whatever a peer sends.
//!
//! # What is covered
//!
//! Models: multi-head latent attention, multi-head and grouped-query attention with key and value heads of any size, sliding windows,
//! sparse-attention index keys, gated delta nets and other linear attention with convolution and recurrent states, and drafts of
//! the same or another kind. Splits: any pipeline and tensor split on either side that the heads allow, context parallelism (pages dealt
//! round), data-parallel groups. Layouts: token-major and head-major pages, also mixed, pages of any sizes, padded and interleaved pages.
//!
//! Refused by name: element types that differ (nothing is converted), heads that do not divide by the tensor ranks, and states
//! under context parallelism. Ranks hold the heads that [`Heads::of_rank`] says and draft layers are on the last stage.
#![forbid(unsafe_code)]

mod buffer;
mod coverage;
mod error;
mod explain;
mod heads;
mod key;
mod layout;
mod model;
mod pages;
mod pair;
mod plan;
mod rank;
mod routes;
mod shard;
mod siblings;
mod side;
mod validate;

pub use self::{
    buffer::Buffer,
    coverage::{Coverage, coverage},
    error::{End, LayoutError, Mismatch, PlanError},
    explain::{Compared, Explanation, Line, explain},
    heads::{HeadGroup, Heads},
    key::{BufferKey, Dtype, Order, PageId, ParseNameError, Part, Pool, PoolKind, Role},
    layout::CacheLayout,
    model::{Attention, ConfigError, LayerKind, LinearState, ModelShape},
    pages::{PageList, Pages},
    pair::{Form, Pairing, Section, Table, pair},
    plan::{Plan, PlanGroup, PlannedSlice, Run, Slices, Tally},
    rank::{ParseRankError, Rank},
    routes::{Routes, routes},
    shard::Shard,
    side::Side,
};
