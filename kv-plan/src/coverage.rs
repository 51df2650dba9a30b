//! Whether the senders of one receiver tile it: everything is written, and nothing twice.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::{
    Buffer, BufferKey, CacheLayout, Heads, Mismatch, Pairing, Part, Rank,
    error::End,
    pair::{Form, check_layout, pair_valid, receivers, uncovered},
};

/// What the senders of a receiver write, and what they leave alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// Buffers of the receiver that are written, each byte by exactly one sender.
    pub written: usize,
    /// Buffers that are left alone, because the sending side does not have that part (a draft model that only decode runs).
    pub left_alone: Vec<BufferKey>,
    /// The ranks that send something: those that must commit before a request is complete.
    pub senders: Vec<Rank>,
}

/// Checks that the prefill ranks, all of one data-parallel group, write every buffer of a decode rank exactly once.
///
/// Where bytes are the same on several tensor ranks (latents, replicated heads), each receiver has one of them as its sender;
/// the others are not a second claim. Context-parallel ranks have other tokens each: each of them has to write every buffer.
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

/// A stretch of the heads of one group of a buffer, as one sender writes it; all of a token where it is not divided.
struct Claim {
    /// The tokens that it is for: those of one context-parallel rank.
    cp: u32,
    group: usize,
    heads: Heads,
    sender: Rank,
}

/// As [`coverage`], for layouts that were validated; with the pairings that move something.
pub(crate) fn cover(prefill: &[&CacheLayout], decode: &CacheLayout) -> Result<(Coverage, Vec<Pairing>), Mismatch> {
    let mut pairings = Vec::new();
    let mut claims: HashMap<BufferKey, Vec<Claim>> = HashMap::with_capacity(decode.buffers.len());
    let receivers = receivers(decode);
    for source in prefill {
        let pairing = pair_valid(source, decode, &receivers)?;
        let sender = source.rank();
        let tables = pairing.sections().iter().filter(|section| section.form != Form::Pages);
        for table in tables.flat_map(|section| pairing.tables().get(section.tables.clone()).unwrap_or_default()) {
            let heads = table.heads.unwrap_or(Heads::WHOLE);
            let claim = Claim { cp: sender.cp, group: table.group, heads, sender };
            claims.entry(table.key).or_default().push(claim);
        }
        if !pairing.tables().is_empty() {
            pairings.push(pairing);
        }
    }
    let has_draft = prefill.iter().any(|source| source.shard.draft_layers > 0);
    let any = prefill.first().copied();
    // Each context-parallel rank writes tokens of its own.
    let cp = any.map_or(1, |source| source.shard.cp);
    let (mut written, mut left_alone) = (0, Vec::new());
    for buffer in receivers {
        match claims.get_mut(&buffer.key) {
            None if buffer.key.part == Part::Draft && !has_draft => left_alone.push(buffer.key),
            None => return Err(uncovered(any, decode, buffer.key, decode.rank())),
            Some(claims) => {
                tile(any, decode, buffer, claims, cp)?;
                written += 1;
            }
        }
    }
    let senders = pairings.iter().map(Pairing::prefill_rank).collect();
    Ok((Coverage { written, left_alone, senders }, pairings))
}

/// Checks that claims cover a buffer without a gap and without an overlap, for the tokens of each context-parallel rank.
fn tile(
    prefill: Option<&CacheLayout>,
    decode: &CacheLayout,
    buffer: &Buffer,
    claims: &mut [Claim],
    cp: u32,
) -> Result<(), Mismatch> {
    let (key, decode_rank) = (buffer.key, decode.rank());
    claims.sort_unstable_by_key(|claim| (claim.cp, claim.group, claim.heads.first, claim.sender));
    let mut claims = claims.iter().peekable();
    for cp in 0..cp {
        let whole = buffer.groups.is_empty().then_some(Heads::WHOLE);
        let groups = whole.into_iter().chain(buffer.groups.iter().map(|group| group.heads));
        for (group, heads) in groups.enumerate() {
            let (mut next, mut last) = (heads.first, None);
            while let Some(claim) = claims.next_if(|claim| (claim.cp, claim.group) == (cp, group)) {
                if claim.heads.first < next {
                    let (first, second) = (last.unwrap_or(claim.sender), claim.sender);
                    return Err(Mismatch::DuplicateLayer { key, decode_rank, first, second });
                }
                if claim.heads.first > next {
                    break;
                }
                (next, last) = (claim.heads.end(), Some(claim.sender));
            }
            if next == heads.end() {
                continue;
            }
            let lacking = Heads { first: next, count: heads.end().saturating_sub(next), ..heads };
            return Err(match buffer.groups.is_empty() || next == heads.first {
                true => uncovered(prefill, decode, key, decode_rank),
                false => Mismatch::UncoveredHeads { key, heads: lacking, decode_rank },
            });
        }
    }
    Ok(())
}
