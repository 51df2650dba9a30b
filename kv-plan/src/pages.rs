//! Checks of page lists.

use crate::{PageId, PlanError, Rank};

/// Scratch for finding pages that are listed twice: one bit a page, kept for later lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    bits: Vec<u64>,
}

impl Seen {
    /// Checks that every page is there and none is listed twice.
    pub(crate) fn check_destination(&mut self, pages: &[PageId], page_count: u32, rank: Rank) -> Result<(), PlanError> {
        self.bits.clear();
        self.bits.resize((page_count as usize).div_ceil(64), 0);
        for (place, page) in pages.iter().enumerate() {
            let number = in_range(*page, place, page_count, rank)?;
            let bit = 1u64 << (number % 64);
            let Some(word) = self.bits.get_mut(number as usize / 64) else { continue };
            if *word & bit != 0 {
                return Err(PlanError::DuplicatePage { page: *page, place, rank });
            }
            *word |= bit;
        }
        Ok(())
    }
}

/// The number of a page that the rank has.
pub(crate) fn in_range(page: PageId, place: usize, page_count: u32, rank: Rank) -> Result<u32, PlanError> {
    match u32::try_from(page.0) {
        Ok(number) if number < page_count => Ok(number),
        _ => Err(PlanError::PageRange { page, place, rank, page_count }),
    }
}
