//! How a layout contradicts itself.

use crate::{BufferKey, Heads, Pool, PoolKind, Rank};

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
    /// A model's name that would spoil the messages in which it is printed.
    #[error("the model's name {name:?} has control characters")]
    Name {
        /// The name.
        name: String,
    },
    /// A rank that holds nothing of the main model.
    #[error("{rank} has no buffers of the main model")]
    NoBuffers {
        /// The rank.
        rank: Rank,
    },
    /// The rank is not one of its side.
    #[error("{rank} is not one of {stages} stages with {tp} tensor ranks{} each", axes(*cp, *dp))]
    Rank {
        /// The rank.
        rank: Rank,
        /// Stages of the side.
        stages: u32,
        /// Tensor ranks of each stage.
        tp: u32,
        /// Context-parallel ranks.
        cp: u32,
        /// Data-parallel groups.
        dp: u32,
    },
    /// The model's sizes are not possible.
    #[error("the model is not possible: {problem}")]
    Model {
        /// What is wrong.
        problem: String,
    },
    /// The draft model has other layers than the side.
    #[error("the draft model has {model} layers, but the side {side}")]
    DraftLayers {
        /// Layers of the draft model.
        model: u32,
        /// Draft layers of the side.
        side: u32,
    },
    /// A layer of the own stage without one of its buffers.
    #[error(
        "{key} is missing at {rank}: it has {tables} {} tables where its stage has {expected} layers that need one, and the model {model_layers} layers; register every buffer of the own stage's layers", key.role
    )]
    NoBuffer {
        /// What is missing.
        key: BufferKey,
        /// The rank.
        rank: Rank,
        /// Tables of that part and role that it has.
        tables: usize,
        /// Tables that it should have.
        expected: usize,
        /// Layers of the model (or of the draft model).
        model_layers: u32,
    },
    /// A buffer that the model's layer does not have, or in another pool.
    #[error("{key} in the pool {pool} is not one of the model's: that layer has {roles} in the pool {expected}")]
    WrongRole {
        /// The buffer.
        key: BufferKey,
        /// The pool that it is in.
        pool: PoolKind,
        /// What the layer has.
        roles: String,
        /// Its pool.
        expected: PoolKind,
    },
    /// Pages of another size than the pool's.
    #[error(
        "{key} has {page_tokens} tokens a page, but the pages of the pool {pool} have {expected}; all buffers of a pool go by one page list"
    )]
    PageTokens {
        /// The buffer.
        key: BufferKey,
        /// Its pool.
        pool: Pool,
        /// Tokens of its pages.
        page_tokens: u32,
        /// Tokens of the pool's pages.
        expected: u32,
    },
    /// Pages closer together than they are long.
    #[error("{key}: pages of {page_bytes} bytes every {page_stride} bytes overlap")]
    PageStride {
        /// The buffer.
        key: BufferKey,
        /// Bytes of a page.
        page_bytes: u64,
        /// Bytes from one page to the next.
        page_stride: u64,
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
    #[error("{key}: {heads} in {token_bytes} bytes a token is not possible")]
    Heads {
        /// The buffer.
        key: BufferKey,
        /// Its heads.
        heads: Heads,
        /// Bytes of a token.
        token_bytes: u64,
    },
    /// Other heads than those of the tensor rank, or heads that do not divide by the tensor ranks.
    #[error(
        "{key}: {rank} is one of tp={tp} and has {heads}, where {expected} are expected; each rank holds as many neighbouring heads, or each head is on as many neighbouring ranks"
    )]
    HeadsOfRank {
        /// The buffer.
        key: BufferKey,
        /// Its heads.
        heads: Heads,
        /// Those that the rank has by the split.
        expected: Heads,
        /// The rank.
        rank: Rank,
        /// Tensor ranks of each stage.
        tp: u32,
    },
    /// Keys or values without heads.
    #[error("{key}: keys and values have heads, and this buffer does not say which")]
    NoHeads {
        /// The buffer.
        key: BufferKey,
    },
    /// A buffer whose end does not fit 64 bits.
    #[error("{key} ends beyond 2^64 bytes")]
    Overflow {
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

impl LayoutError {
    /// The kind of the error, a stable word for programs: `duplicate_layer` where two claim the same layer, `missing_layer` where a
    /// buffer of the own stage is missing, `split` for heads that are not the rank's, else `config`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::DuplicateBuffer { .. } | Self::NotOwned { .. } => "duplicate_layer",
            Self::HeadsOfRank { .. } => "split",
            Self::NoBuffer { .. } => "missing_layer",
            _ => "config",
        }
    }
}

/// The axes that a side has beside stages and tensor ranks, in words.
fn axes(cp: u32, dp: u32) -> String {
    let names = [(cp, "context-parallel ranks"), (dp, "data-parallel groups")];
    names.iter().filter(|(count, _)| *count > 1).map(|(count, name)| format!(", {count} {name}")).collect()
}
