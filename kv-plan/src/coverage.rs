//! Whether the senders of one receiver tile it: everything is written, and nothing twice.

use std::collections::HashMap;

use crate::{
    BufferKey, CacheLayout, Mismatch, Pairing, Part, Rank,
    error::End,
    pair::{check_layout, pair_valid, receivers, uncovered},
};

/// What the senders of a receiver write, and what they leave alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// Buffers of the receiver that are written, each by exactly one sender.
    pub written: usize,
    /// Buffers that are left alone, because the sending side does not have that part (a draft model that only decode runs).
    pub left_alone: Vec<BufferKey>,
    /// The ranks that send something: those that must commit before a request is complete.
    pub senders: Vec<Rank>,
}

/// Checks that the prefill ranks write every buffer of a decode rank exactly once.
///
/// Where bytes are the same on several tensor ranks (latents), each receiver has one of them as its sender; the others are not
/// a second claim.
///
/// # Errors
/// [`Mismatch::UncoveredLayer`] or [`Mismatch::DuplicateLayer`] with the layer and role; any other [`Mismatch`] that
/// [`pair`](crate::pair()) finds.
pub fn coverage(prefill: &[&CacheLayout], decode: &CacheLayout) -> Result<Coverage, Mismatch> {
    for source in prefill {
        check_layout(source, End::Prefill)?;
    }
    check_layout(decode, End::Decode)?;
    cover(prefill, decode).map(|(coverage, _)| coverage)
}

/// As [`coverage`], for layouts that were validated; with the pairings that move something.
pub(crate) fn cover(prefill: &[&CacheLayout], decode: &CacheLayout) -> Result<(Coverage, Vec<Pairing>), Mismatch> {
    let mut pairings = Vec::new();
    let mut writers = HashMap::with_capacity(decode.buffers.len());
    let receivers = receivers(decode);
    for source in prefill {
        let pairing = pair_valid(source, decode, &receivers)?;
        for table in pairing.tables() {
            if let Some(first) = writers.insert(table.key, source.rank()) {
                let (key, decode_rank, second) = (table.key, decode.rank(), source.rank());
                return Err(Mismatch::DuplicateLayer { key, decode_rank, first, second });
            }
        }
        if !pairing.tables().is_empty() {
            pairings.push(pairing);
        }
    }
    let has_draft = prefill.iter().any(|source| source.shard.draft_layers > 0);
    let mut left_alone: Vec<BufferKey> =
        decode.buffers.iter().map(|buffer| buffer.key).filter(|key| !writers.contains_key(key)).collect();
    left_alone.sort_unstable();
    if let Some(key) = left_alone.iter().find(|key| key.part != Part::Draft || has_draft) {
        return Err(uncovered(prefill.first().copied(), decode, *key, decode.rank()));
    }
    let senders = pairings.iter().map(Pairing::prefill_rank).collect();
    Ok((Coverage { written: writers.len(), left_alone, senders }, pairings))
}

#[cfg(test)]
mod tests;
