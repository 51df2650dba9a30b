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

    /// The ranks that a decode rank gets something from: those that must commit before a request is complete. With several
    /// data-parallel groups of the prefill side those of all groups; a request is in one of them.
    pub fn senders(&self, decode: Rank) -> impl Iterator<Item = Rank> {
        self.pairings.iter().filter(move |pairing| pairing.decode_rank() == decode).map(Pairing::prefill_rank)
    }

    /// The ranks that a prefill rank sends something to.
    pub fn receivers(&self, prefill: Rank) -> impl Iterator<Item = Rank> {
        self.pairings.iter().filter(move |pairing| pairing.prefill_rank() == prefill).map(Pairing::decode_rank)
    }

    /// As [`Routes::senders`], for a request of one data-parallel group of the prefill side.
    pub fn senders_of(&self, prefill_dp: u32, decode: Rank) -> impl Iterator<Item = Rank> {
        self.senders(decode).filter(move |rank| rank.dp == prefill_dp)
    }

    /// Bytes that move for one token of a request, over all pairings of its data-parallel groups: the first of either side, as all
    /// are alike.
    pub fn bytes_per_token(&self) -> u64 {
        let of_group =
            self.pairings.iter().filter(|pairing| (pairing.prefill_rank().dp, pairing.decode_rank().dp) == (0, 0));
        // Context-parallel ranks share the tokens out among them.
        let once = of_group.filter(|pairing| (pairing.prefill_rank().cp, pairing.decode_rank().cp) == (0, 0));
        once.fold(0, |sum, pairing| sum.saturating_add(pairing.bytes_per_token()))
    }
}

/// Pairs every prefill rank with every decode rank and checks that every decode rank is covered.
///
/// # Errors
/// [`Mismatch`], the first one found.
pub fn routes(prefill: &[CacheLayout], decode: &[CacheLayout]) -> Result<Routes, Mismatch> {
    prefill.iter().try_for_each(|layout| check_layout(layout, End::Prefill))?;
    decode.iter().try_for_each(|layout| check_layout(layout, End::Decode))?;
    let mut groups: Vec<u32> = prefill.iter().map(|layout| layout.rank().dp).collect();
    groups.sort_unstable();
    groups.dedup();
    if groups.is_empty() {
        // Nobody sends: whatever the receivers have is never written.
        groups.push(0);
    }
    let mut pairings = Vec::new();
    for group in groups {
        let senders: Vec<&CacheLayout> = prefill.iter().filter(|layout| layout.rank().dp == group).collect();
        for receiver in decode {
            let (_, found) = cover(&senders, receiver)?;
            pairings.extend(found);
        }
    }
    pairings.sort_by_key(|pairing| (pairing.prefill_rank(), pairing.decode_rank()));
    Ok(Routes { pairings })
}

#[cfg(test)]
mod tests;
