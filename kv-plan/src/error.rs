//! Errors: of a layout by itself, of two layouts that do not fit, and of the page lists of a request.
//!
//! A mismatch speaks of "prefill" and "decode", never of "ours" and "theirs": both sides find it, and both print the same.

use crate::{BufferKey, Dtype, Heads, Order, PageId, Rank};

/// How a layout contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// More of something than a layout may have.
    #[error("{given} {what}, more than the limit of {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        given: u64,
        /// The limit.
        max: u64,
    },
    /// A size that must not be zero.
    #[error("{what} must not be zero")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// The rank is not one of its side.
    #[error("{rank} is not one of {stages} stages with {tp} tensor ranks each")]
    Rank {
        /// The rank.
        rank: Rank,
        /// Stages of the side.
        stages: u32,
        /// Tensor ranks of each stage.
        tp: u32,
    },
    /// Two buffers claim the same data.
    #[error("{rank} has two buffers for {key}; each part, layer and role has one")]
    DuplicateBuffer {
        /// What both claim.
        key: BufferKey,
        /// The rank.
        rank: Rank,
    },
    /// A buffer of a layer that belongs to another stage.
    #[error(
        "{rank} has a buffer for {key}, but its stage has the layers {first} to {end} (exclusive); register only layers of the own stage"
    )]
    NotOwned {
        /// The buffer.
        key: BufferKey,
        /// The rank.
        rank: Rank,
        /// First layer of its stage.
        first: u32,
        /// The layer after its last one.
        end: u32,
    },
    /// A page size that does not follow from the sizes of page and token.
    #[error("{key}: a page of {page_bytes} bytes is not {page_tokens} tokens of {token_bytes} bytes")]
    PageBytes {
        /// The buffer.
        key: BufferKey,
        /// Bytes of a page.
        page_bytes: u64,
        /// Tokens of a page.
        page_tokens: u32,
        /// Bytes of a token.
        token_bytes: u64,
    },
    /// Heads that are not heads of the model, or do not divide the bytes of a token.
    #[error("{key}: heads {} to {} (exclusive) of {} in {token_bytes} bytes a token is not possible", heads.first, u64::from(heads.first) + u64::from(heads.count), heads.total)]
    Heads {
        /// The buffer.
        key: BufferKey,
        /// Its heads.
        heads: Heads,
        /// Bytes of a token.
        token_bytes: u64,
    },
    /// Keys or values without heads.
    #[error("{key}: keys and values have heads, and this buffer does not say which")]
    NoHeads {
        /// The buffer.
        key: BufferKey,
    },
    /// A region that does not exist.
    #[error("{key} lies in region {region}, but there are {regions}")]
    NoRegion {
        /// The buffer.
        key: BufferKey,
        /// Index of the region.
        region: u32,
        /// Number of regions.
        regions: usize,
    },
    /// A buffer that reaches beyond its region.
    #[error(
        "{key}: {page_count} pages of {page_bytes} bytes at offset {offset} do not lie inside a region of {region_len} bytes"
    )]
    OutsideRegion {
        /// The buffer.
        key: BufferKey,
        /// Where it begins.
        offset: u64,
        /// Its pages.
        page_count: u32,
        /// Bytes of a page.
        page_bytes: u64,
        /// Bytes of the region.
        region_len: u64,
    },
    /// Two buffers in the same bytes.
    #[error("{first} and {second} overlap in region {region}")]
    Overlap {
        /// One.
        first: BufferKey,
        /// The other.
        second: BufferKey,
        /// Their region.
        region: u32,
    },
}

/// Why two ranks, or two sides, do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// They serve different models.
    #[error(
        "the models differ: prefill {prefill_rank} has {prefill} with {prefill_layers} layers (fingerprint {prefill_fingerprint:016x}), decode {decode_rank} has {decode} with {decode_layers} layers (fingerprint {decode_fingerprint:016x}); start both sides with the same model"
    )]
    Model {
        /// The prefill rank.
        prefill_rank: Rank,
        /// Its model.
        prefill: String,
        /// The model's layers.
        prefill_layers: u32,
        /// The model's fingerprint.
        prefill_fingerprint: u64,
        /// The decode rank.
        decode_rank: Rank,
        /// Its model.
        decode: String,
        /// The model's layers.
        decode_layers: u32,
        /// The model's fingerprint.
        decode_fingerprint: u64,
    },
    /// Their caches have elements of different types.
    #[error(
        "the element types differ: prefill {prefill_rank} has {prefill} ({prefill_token} bytes a token in {key}), decode {decode_rank} has {decode} ({decode_token} bytes); kvferry does not convert, so set the same KV-cache dtype on both sides"
    )]
    Dtype {
        /// The prefill rank.
        prefill_rank: Rank,
        /// Its type.
        prefill: Dtype,
        /// Bytes of a token there.
        prefill_token: u64,
        /// The decode rank.
        decode_rank: Rank,
        /// Its type.
        decode: Dtype,
        /// Bytes of a token there.
        decode_token: u64,
        /// A buffer that shows it.
        key: BufferKey,
    },
    /// Prefill has a layer that decode has no table for.
    #[error(
        "{key} of prefill {prefill_rank} is missing at decode {decode_rank}: the receiver has {decode_tables} {} tables and the model {model_layers} layers (prefill has {prefill_layers} on all stages, decode {decode_layers}); the model and the pipeline settings (pp, layers) of both sides have to agree", key.role
    )]
    MissingLayer {
        /// What is missing.
        key: BufferKey,
        /// The rank that has it.
        prefill_rank: Rank,
        /// The rank that does not.
        decode_rank: Rank,
        /// Tables of that part and role at the decode rank.
        decode_tables: usize,
        /// Layers of the model (or of the draft model).
        model_layers: u32,
        /// Layers on all prefill stages.
        prefill_layers: u32,
        /// Layers on all decode stages.
        decode_layers: u32,
    },
    /// Decode has a layer that no prefill rank has.
    #[error(
        "{key} of decode {decode_rank} is never written: no prefill rank has it (prefill has {prefill_layers} layers on all stages, decode {decode_layers}, the model {model_layers}); the model and the pipeline settings (pp, layers) of both sides have to agree"
    )]
    UncoveredLayer {
        /// What is never written.
        key: BufferKey,
        /// The rank that has it.
        decode_rank: Rank,
        /// Layers on all prefill stages.
        prefill_layers: u32,
        /// Layers on all decode stages.
        decode_layers: u32,
        /// Layers of the model.
        model_layers: u32,
    },
    /// Two prefill ranks claim the same data.
    #[error(
        "{key} of decode {decode_rank} is claimed by prefill {first} and by prefill {second}; each layer belongs to one stage"
    )]
    DuplicateLayer {
        /// What both claim.
        key: BufferKey,
        /// The receiving rank.
        decode_rank: Rank,
        /// One sender.
        first: Rank,
        /// The other.
        second: Rank,
    },
    /// Heads or their sizes differ.
    #[error(
        "{key}: prefill {prefill_rank} has {prefill_heads} of {prefill_total} heads in {prefill_token} bytes a token, decode {decode_rank} has {decode_heads} of {decode_total} heads in {decode_token} bytes; heads, head sizes and tensor ranks have to agree"
    )]
    HeadGeometry {
        /// The buffer.
        key: BufferKey,
        /// The prefill rank.
        prefill_rank: Rank,
        /// Its heads.
        prefill_heads: u32,
        /// Heads of the model there.
        prefill_total: u32,
        /// Bytes of a token there.
        prefill_token: u64,
        /// The decode rank.
        decode_rank: Rank,
        /// Its heads.
        decode_heads: u32,
        /// Heads of the model there.
        decode_total: u32,
        /// Bytes of a token there.
        decode_token: u64,
    },
    /// Tokens and heads follow each other differently.
    #[error(
        "the order of heads and tokens differs: prefill {prefill_rank} has {prefill}, decode {decode_rank} has {decode}; this is not supported yet, so set the same order on both sides"
    )]
    Order {
        /// The prefill rank.
        prefill_rank: Rank,
        /// Its order.
        prefill: Order,
        /// The decode rank.
        decode_rank: Rank,
        /// Its order.
        decode: Order,
    },
    /// Heads that do not divide by the tensor ranks.
    #[error(
        "{heads} key-value heads do not divide by tp={tp}; choose a tp that divides the heads, or is a multiple of them"
    )]
    IndivisibleHeads {
        /// Heads of the model.
        heads: u32,
        /// Tensor ranks of a stage.
        tp: u32,
    },
    /// Different tensor splits.
    #[error(
        "the tensor splits differ: prefill has tp={prefill}, decode has tp={decode}; {}",
        if prefill.is_multiple_of(*decode) || decode.is_multiple_of(*prefill) { "this is not supported yet, so set the same tp on both sides" }
        else { "neither divides the other, so set the same tp on both sides" }
    )]
    TensorSplit {
        /// Tensor ranks of a prefill stage.
        prefill: u32,
        /// Tensor ranks of a decode stage.
        decode: u32,
    },
    /// Different page sizes.
    #[error(
        "the page sizes differ: prefill {prefill_rank} has {prefill} tokens a page, decode {decode_rank} has {decode}; this is not supported yet, so set the same page size on both sides"
    )]
    PageSize {
        /// The prefill rank.
        prefill_rank: Rank,
        /// Its tokens a page.
        prefill: u32,
        /// The decode rank.
        decode_rank: Rank,
        /// Its tokens a page.
        decode: u32,
    },
    /// Something of the model that cannot be planned yet.
    #[error("{model} cannot be planned yet: {what}")]
    Uncovered {
        /// The model.
        model: String,
        /// What of it.
        what: String,
    },
    /// A side that contradicts itself.
    #[error("{side}: {problem}")]
    Side {
        /// Which side, or its specification.
        side: String,
        /// What is wrong.
        problem: String,
    },
}

impl Mismatch {
    /// The kind of the mismatch, a stable word for programs: `model`, `dtype`, `missing_layer`, `uncovered_layer`,
    /// `duplicate_layer`, `head_geometry`, `split` or `config`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Model { .. } => "model",
            Self::Dtype { .. } => "dtype",
            Self::MissingLayer { .. } => "missing_layer",
            Self::UncoveredLayer { .. } => "uncovered_layer",
            Self::DuplicateLayer { .. } => "duplicate_layer",
            Self::HeadGeometry { .. } | Self::Order { .. } => "head_geometry",
            Self::IndivisibleHeads { .. } | Self::TensorSplit { .. } => "split",
            Self::PageSize { .. } | Self::Uncovered { .. } | Self::Side { .. } => "config",
        }
    }
}

/// What is wrong with the page lists of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The two lists have different lengths.
    #[error(
        "prefill lists {prefill} pages and decode {decode}; the lists are the same tokens on the two sides and have the same length"
    )]
    PageCount {
        /// Pages of the sender.
        prefill: usize,
        /// Pages of the receiver.
        decode: usize,
    },
    /// A page that the rank does not have.
    #[error("page {page} of {rank} (place {place} in its list) is out of range: its buffers have {page_count} pages{}", if page.0 < 0 { ", and negative numbers mark absent pages" } else { "" })]
    PageRange {
        /// The page.
        page: PageId,
        /// Its place in the list, from 0.
        place: usize,
        /// The rank.
        rank: Rank,
        /// Pages that its buffers have.
        page_count: u32,
    },
    /// A page twice on the receiving side.
    #[error(
        "page {page} is twice in the list of decode {rank} (again at place {place}); two pages of a request would overwrite each other"
    )]
    DuplicatePage {
        /// The page.
        page: PageId,
        /// Its second place in the list, from 0.
        place: usize,
        /// The receiving rank.
        rank: Rank,
    },
    /// The bytes of the plan do not fit 64 bits.
    #[error("the plan moves more than 2^64 bytes")]
    Overflow,
}

impl PlanError {
    /// The kind of the error, a stable word for programs: `page_count`, `page_range`, `duplicate_page` or `config`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::PageCount { .. } => "page_count",
            Self::PageRange { .. } => "page_range",
            Self::DuplicatePage { .. } => "duplicate_page",
            Self::Overflow => "config",
        }
    }
}
