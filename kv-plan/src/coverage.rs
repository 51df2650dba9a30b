//! Whether the senders of one receiver tile it: everything is written, and nothing twice.

use std::collections::HashMap;

use crate::{BufferKey, CacheLayout, Mismatch, Part, pair, pair::uncovered};

/// What the senders of a receiver write, and what they leave alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// Buffers of the receiver that are written, each by exactly one sender.
    pub written: usize,
    /// Buffers that are left alone, because the sending side does not have that part (a draft model that only decode runs).
    pub left_alone: Vec<BufferKey>,
}

/// Checks that the prefill ranks write every buffer of a decode rank exactly once.
///
/// # Errors
/// [`Mismatch::UncoveredLayer`] or [`Mismatch::DuplicateLayer`] with the layer and role; any other [`Mismatch`] that
/// [`pair`] finds.
pub fn coverage(prefill: &[&CacheLayout], decode: &CacheLayout) -> Result<Coverage, Mismatch> {
    let mut writers = HashMap::with_capacity(decode.buffers.len());
    for source in prefill {
        let pairing = pair(source, decode)?;
        for table in pairing.tables() {
            if let Some(first) = writers.insert(table.key, source.rank()) {
                let (key, decode_rank, second) = (table.key, decode.rank(), source.rank());
                return Err(Mismatch::DuplicateLayer { key, decode_rank, first, second });
            }
        }
    }
    let has_draft = prefill.iter().any(|source| source.shard.draft_layers > 0);
    let mut unwritten: Vec<BufferKey> =
        decode.buffers.iter().map(|buffer| buffer.key).filter(|key| !writers.contains_key(key)).collect();
    unwritten.sort_unstable();
    let open = unwritten.iter().find(|key| key.part != Part::Draft || has_draft);
    if let (Some(key), Some(source)) = (open, prefill.first()) {
        return Err(uncovered(source, decode, *key, decode.rank()));
    }
    Ok(Coverage { written: writers.len(), left_alone: unwritten })
}
