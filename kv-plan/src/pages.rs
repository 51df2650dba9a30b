//! Checks of page lists.

use crate::{BufferKey, PageId, PlanError, Rank, error::End};

/// How many pages a rank has for a list: as many as its smallest buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    end: End,
    rank: Rank,
    page_count: u32,
    key: Option<BufferKey>,
}

impl Limit {
    /// The limit of some buffers, given as page count and key.
    pub(crate) fn of(buffers: impl Iterator<Item = (u32, BufferKey)>, end: End, rank: Rank) -> Self {
        let smallest = buffers.min();
        Self { end, rank, page_count: smallest.map_or(0, |(count, _)| count), key: smallest.map(|(_, key)| key) }
    }

    /// The number of a page, if the rank has it. `place` is its place in the list, for the error.
    pub(crate) fn check(&self, page: PageId, place: usize) -> Result<u32, PlanError> {
        match u32::try_from(page.0) {
            Ok(number) if number < self.page_count => Ok(number),
            _ => {
                let Self { end, rank, page_count, key } = *self;
                Err(PlanError::PageRange { page, place, end, rank, page_count, key })
            }
        }
    }

    pub(crate) fn check_all(&self, pages: &[PageId]) -> Result<(), PlanError> {
        pages.iter().enumerate().try_for_each(|(place, page)| self.check(*page, place).map(drop))
    }
}

/// Scratch for finding pages that are listed twice, kept for later lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// One bit a page, all zero between two lists.
    bits: Vec<u64>,
    /// The list in order, where its numbers are too large for bits.
    sorted: Vec<PageId>,
}

impl Seen {
    /// Pages below this number are marked as bits, 1 MiB of them at most; what a layout claims does not decide our memory.
    const MAX_BITS: usize = 1 << 23;

    /// Checks that no page is listed twice on the receiving side. None of them is negative.
    pub(crate) fn check(&mut self, pages: &[PageId], rank: Rank) -> Result<(), PlanError> {
        // Lists that only rise are common, and have nothing twice.
        let rises = pages.windows(2).all(|pair| pair.first() < pair.last());
        let twice = if rises { None } else { self.first_twice(pages) };
        match twice.and_then(|place| Some((place, *pages.get(place)?))) {
            Some((place, page)) => Err(PlanError::DuplicatePage { page, place, rank }),
            None => Ok(()),
        }
    }

    /// The place of the first page that was listed before.
    fn first_twice(&mut self, pages: &[PageId]) -> Option<usize> {
        let number = |page: &PageId| usize::try_from(page.0).unwrap_or(usize::MAX);
        let most = pages.iter().map(number).max()?;
        if most >= Self::MAX_BITS {
            return self.first_twice_by_order(pages);
        }
        if self.bits.len() <= most / 64 {
            self.bits.resize(most / 64 + 1, 0);
        }
        let mut twice = None;
        for (place, page) in pages.iter().enumerate() {
            let number = number(page);
            let bit = 1u64 << (number % 64);
            let Some(word) = self.bits.get_mut(number / 64) else { continue };
            if *word & bit != 0 {
                twice = Some(place);
                break;
            }
            *word |= bit;
        }
        for page in pages {
            if let Some(word) = self.bits.get_mut(number(page) / 64) {
                *word = 0;
            }
        }
        twice
    }

    fn first_twice_by_order(&mut self, pages: &[PageId]) -> Option<usize> {
        self.sorted.clear();
        self.sorted.extend_from_slice(pages);
        self.sorted.sort_unstable();
        let twice = self.sorted.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first())?;
        pages.iter().enumerate().filter(|(_, page)| *page == twice).nth(1).map(|(place, _)| place)
    }
}

#[cfg(test)]
mod tests;
