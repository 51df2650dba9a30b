//! Why two ranks, or two sides, do not fit.

use crate::{BufferKey, Dtype, Heads, LayoutError, Rank, error::End};

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
        "the element types differ: prefill {prefill_rank} has {prefill} (pages of {prefill_page_bytes} bytes), decode {decode_rank} has {decode} (pages of {decode_page_bytes} bytes); nothing converts between them, so set the same KV-cache dtype on both sides"
    )]
    Dtype {
        /// The prefill rank.
        prefill_rank: Rank,
        /// Its type.
        prefill: Dtype,
        /// Bytes of a page of its first buffer.
        prefill_page_bytes: u64,
        /// The decode rank.
        decode_rank: Rank,
        /// Its type.
        decode: Dtype,
        /// Bytes of a page of its first buffer.
        decode_page_bytes: u64,
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
    /// Decode has heads of a layer that none of the prefill ranks sends, though some send others.
    #[error(
        "{key} of decode {decode_rank}: {heads} are never written, because none of the prefill ranks sends them; all tensor and context-parallel ranks of the prefill side have to take part"
    )]
    UncoveredHeads {
        /// The buffer.
        key: BufferKey,
        /// What is never written.
        heads: Heads,
        /// The rank that has it.
        decode_rank: Rank,
    },
    /// Two prefill ranks claim the same data.
    #[error(
        "{key} of decode {decode_rank} is claimed by prefill {first} and by prefill {second}; each layer belongs to one stage, so give each stage only its own layers and list each rank once"
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
        "{key}: prefill {prefill_rank} has {prefill_heads} in {prefill_token_bytes} bytes a token and {prefill_page_tokens} tokens a page, decode {decode_rank} has {decode_heads} in {decode_token_bytes} bytes a token and {decode_page_tokens} tokens a page; heads and head sizes have to agree"
    )]
    HeadGeometry {
        /// The buffer.
        key: BufferKey,
        /// The prefill rank.
        prefill_rank: Rank,
        /// Its heads.
        prefill_heads: Heads,
        /// Bytes of a token there.
        prefill_token_bytes: u64,
        /// Tokens of a page there.
        prefill_page_tokens: u32,
        /// The decode rank.
        decode_rank: Rank,
        /// Its heads.
        decode_heads: Heads,
        /// Bytes of a token there.
        decode_token_bytes: u64,
        /// Tokens of a page there.
        decode_page_tokens: u32,
    },
    /// Bytes that are not divided by heads (a latent) have different sizes.
    #[error(
        "{key}: a token has {prefill} bytes at prefill {prefill_rank} and {decode} bytes at decode {decode_rank}; nothing converts between them, so set the same form of the cache (dtype, packing) on both sides"
    )]
    TokenBytes {
        /// The buffer.
        key: BufferKey,
        /// The prefill rank.
        prefill_rank: Rank,
        /// Bytes of a token there.
        prefill: u64,
        /// The decode rank.
        decode_rank: Rank,
        /// Bytes of a token there.
        decode: u64,
    },
    /// Heads that do not divide by the tensor ranks.
    #[error(
        "{side}: {heads} key-value heads do not divide by tp={tp}; choose a tp that divides the heads, or is a multiple of them"
    )]
    IndivisibleHeads {
        /// The side's specification.
        side: String,
        /// Heads of the model.
        heads: u32,
        /// Tensor ranks of a stage.
        tp: u32,
    },
    /// Both sides have the same number of layers, and the model another.
    #[error(
        "prefill {prefill_rank} and decode {decode_rank} have {side_layers} layers on all stages of their sides, but the model has {model_layers}; give all of the model's layers to the stages of both sides"
    )]
    ModelLayers {
        /// The prefill rank.
        prefill_rank: Rank,
        /// The decode rank.
        decode_rank: Rank,
        /// Layers on all stages of either side.
        side_layers: u32,
        /// Layers of the model.
        model_layers: u32,
    },
    /// A layout that contradicts itself.
    #[error("the layout of {end} {rank} is not valid: {cause}")]
    Layout {
        /// Whose layout.
        end: End,
        /// The rank.
        rank: Rank,
        /// What is wrong with it.
        cause: LayoutError,
    },
    /// States of linear attention on a side with context parallelism.
    #[error(
        "{end} {rank} is one of cp={cp}, and {model} has layers of linear attention, whose states are not split by position; use cp=1 on both sides"
    )]
    StatesWithContext {
        /// Which side.
        end: End,
        /// A rank of it.
        rank: Rank,
        /// Its context-parallel ranks.
        cp: u32,
        /// The model.
        model: String,
    },
    /// Sizes that are not possible together.
    #[error("a page of all that prefill {prefill_rank} sends to decode {decode_rank} has more than 2^64 bytes")]
    Overflow {
        /// The prefill rank.
        prefill_rank: Rank,
        /// The decode rank.
        decode_rank: Rank,
    },
    /// Something of the model that cannot be planned yet.
    #[error("{model} cannot be planned yet: {what}")]
    Unsupported {
        /// The model.
        model: String,
        /// What of it, and which layers.
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
            Self::UncoveredLayer { .. } | Self::UncoveredHeads { .. } => "uncovered_layer",
            Self::DuplicateLayer { .. } => "duplicate_layer",
            Self::HeadGeometry { .. } | Self::TokenBytes { .. } => "head_geometry",
            Self::IndivisibleHeads { .. } | Self::StatesWithContext { .. } => "split",
            // What a sender lacks is never written.
            Self::Layout { end: End::Prefill, cause: LayoutError::NoBuffer { .. }, .. } => "uncovered_layer",
            Self::Layout { cause, .. } => cause.kind(),
            Self::ModelLayers { .. } | Self::Overflow { .. } | Self::Unsupported { .. } | Self::Side { .. } => "config",
        }
    }
}
