//! Who sends what to whom in a whole cluster.

use crate::{CacheLayout, Mismatch, Pairing, Rank, coverage::cover, error::End, pair::check_layout};

/// The pairings of a cluster in which something moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    pairings: Vec<Pairing>,
}

impl Routes {
    /// The pairings, ordered by sender and receiver.
    pub fn pairings(&self) -> &[Pairing] {
        &self.pairings
    }

    /// The pairing of two ranks, if anything moves between them.
    pub fn between(&self, prefill: Rank, decode: Rank) -> Option<&Pairing> {
        self.pairings.iter().find(|pairing| (pairing.prefill_rank(), pairing.decode_rank()) == (prefill, decode))
    }

    /// The ranks that a decode rank gets something from: those that must commit before a request is complete.
    pub fn senders(&self, decode: Rank) -> impl Iterator<Item = Rank> {
        self.pairings.iter().filter(move |pairing| pairing.decode_rank() == decode).map(Pairing::prefill_rank)
    }

    /// The ranks that a prefill rank sends something to.
    pub fn receivers(&self, prefill: Rank) -> impl Iterator<Item = Rank> {
        self.pairings.iter().filter(move |pairing| pairing.prefill_rank() == prefill).map(Pairing::decode_rank)
    }

    /// Bytes that move for one token, over all pairings.
    pub fn bytes_per_token(&self) -> u64 {
        self.pairings.iter().fold(0, |sum, pairing| sum.saturating_add(pairing.bytes_per_token()))
    }
}

/// Pairs every prefill rank with every decode rank and checks that every decode rank is covered.
///
/// # Errors
/// [`Mismatch`], the first one found.
pub fn routes(prefill: &[CacheLayout], decode: &[CacheLayout]) -> Result<Routes, Mismatch> {
    prefill.iter().try_for_each(|layout| check_layout(layout, End::Prefill))?;
    decode.iter().try_for_each(|layout| check_layout(layout, End::Decode))?;
    let senders: Vec<&CacheLayout> = prefill.iter().collect();
    let mut pairings = Vec::new();
    for receiver in decode {
        let (_, found) = cover(&senders, receiver)?;
        pairings.extend(found);
    }
    pairings.sort_by_key(|pairing| (pairing.prefill_rank(), pairing.decode_rank()));
    Ok(Routes { pairings })
}

#[cfg(test)]
mod tests;
