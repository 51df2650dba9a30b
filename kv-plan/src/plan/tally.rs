//! What a receiver expects of a sender, in a few numbers.

use std::ops::Range;

use super::span;
use crate::{Pages, Pairing, PlanError, pair::Form};

/// What moves between two ranks for a request, or for a part of it: its bytes, and a number that stands for which tokens of which
/// tables they are.
///
/// Tallies of parts add up to that of the whole: a part that is missing, sent twice, or sent to other pages makes another sum. Each
/// table and each page has a pseudo-random 64-bit weight, and the place in a page too; a piece weighs the product of them,
/// modulo 2^64. It is a check against mistakes, not against a peer that means harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes; saturates.
    pub bytes: u64,
    /// The sum of the weights.
    pub weight: u64,
}

impl Tally {
    /// Adds another part's.
    pub fn add(&mut self, part: Self) {
        self.bytes = self.bytes.saturating_add(part.bytes);
        self.weight = self.weight.wrapping_add(part.weight);
    }
}

impl Pairing {
    /// What the sender has to write into these pages of the receiver, in some layers (all with `None`, else counted as for
    /// [`Pairing::plan_layers`]): the receiver knows it without the sender's pages.
    ///
    /// # Errors
    /// [`PlanError`]: pages that the receiver does not have, or that are not those of the tokens.
    pub fn tally<'a>(&self, layers: Option<Range<u32>>, dst: impl Into<Pages<'a>>) -> Result<Tally, PlanError> {
        let dst = dst.into();
        let mut sum = Tally::default();
        for pair in self.pool_pairs() {
            let mut tables = (0u64, 0u64);
            for section in self.sections().get(pair.sections.clone()).unwrap_or_default() {
                // What moves by whole pages moves by parts else, and is counted there.
                if section.form == Form::Pages {
                    continue;
                }
                for table in self.tables().get(self.tables_of(section, layers.as_ref())).unwrap_or_default() {
                    let head = table.heads.map_or(0, |heads| u64::from(heads.first));
                    let key = table.key;
                    let name = [key.part as u64, u64::from(key.layer), key.role as u64, head, table.len]
                        .iter()
                        .fold(0x7461_626c_6573_0000, |hash, number| mix(hash ^ number));
                    tables = (tables.0.saturating_add(table.len), tables.1.wrapping_add(name));
                }
            }
            let mut pages = (0u64, 0u64);
            // Whole pages are most: their place in a page is computed once.
            let mut last = (0..0, 0);
            span::received(self, pair, &dst, |page, tokens| {
                pages.0 += tokens.end - tokens.start;
                if last.0 != tokens {
                    last = (tokens.clone(), mix(tokens.end).wrapping_sub(mix(tokens.start)));
                }
                pages.1 = pages.1.wrapping_add(mix(page ^ 0x7061_6765_7300_0000).wrapping_mul(last.1));
            })?;
            sum.add(Tally { bytes: tables.0.saturating_mul(pages.0), weight: tables.1.wrapping_mul(pages.1) });
        }
        Ok(sum)
    }
}

/// SplitMix64's mixing: each output bit depends on each input bit.
fn mix(key: u64) -> u64 {
    let mut mixed = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
