//! The page lists of a request, and what is checked of them.

use std::ops::Range;

use crate::{BufferKey, PageId, PlanError, Pool, PoolKind, Rank, error::End};

/// The pages of one pool that hold a request's tokens on one rank, in the order of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageList<'a> {
    /// The pool.
    pub pool: Pool,
    /// The pages. On a context-parallel rank only its own.
    pub pages: &'a [PageId],
    /// The request's token that the first page of the list begins with; a multiple of the pool's page size. Where the list is a
    /// context-parallel rank's: from where on the request's pages are dealt out.
    pub first_token: u64,
}

impl<'a> PageList<'a> {
    /// A pool's pages from the request's first token on.
    pub const fn new(pool: Pool, pages: &'a [PageId]) -> Self {
        Self { pool, pages, first_token: 0 }
    }

    /// The same from another token on.
    #[must_use]
    pub const fn starting_at(self, first_token: u64) -> Self {
        Self { first_token, ..self }
    }
}

/// The pages of a request on one rank, and which of its tokens move.
///
/// One list stands for all pools of pages, as where all go by one block table; models with states, or with pools of their own for
/// sliding windows or a draft, give a list for each pool:
///
/// ```
/// use kv_plan::{PageId, PageList, Pages, Pool};
///
/// let (pages, slot) = ([5, 6, 7], [3]);
/// let same = Pages::from(PageId::list(&pages)).tokens(0..100);
/// let lists = [PageList::new(Pool::FULL, PageId::list(&pages)), PageList::new(Pool::STATE, PageId::list(&slot))];
/// let by_pool = Pages::from(&lists[..]);
/// # let _ = (same, by_pool);
/// ```
#[derive(Clone, Debug)]
pub struct Pages<'a> {
    lists: Lists<'a>,
    pub(crate) tokens: Option<Range<u64>>,
    pub(crate) request_tokens: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Lists<'a> {
    /// One list for all pools of pages.
    One(&'a [PageId]),
    ByPool(&'a [PageList<'a>]),
}

impl<'a> From<&'a [PageId]> for Pages<'a> {
    fn from(pages: &'a [PageId]) -> Self {
        Self { lists: Lists::One(pages), tokens: None, request_tokens: None }
    }
}

impl<'a> From<&'a Vec<PageId>> for Pages<'a> {
    fn from(pages: &'a Vec<PageId>) -> Self {
        Self::from(pages.as_slice())
    }
}

impl<'a, const N: usize> From<&'a [PageId; N]> for Pages<'a> {
    fn from(pages: &'a [PageId; N]) -> Self {
        Self::from(pages.as_slice())
    }
}

impl<'a> From<&'a [PageList<'a>]> for Pages<'a> {
    fn from(lists: &'a [PageList<'a>]) -> Self {
        Self { lists: Lists::ByPool(lists), tokens: None, request_tokens: None }
    }
}

impl<'a> Pages<'a> {
    /// Moves these tokens only, counted from the request's first one: a chunk, or what comes after a prefix that the receiver
    /// holds, or a request that ends inside a page. Without it all tokens of the pages move.
    ///
    /// It is enough to say so for one of the two sides. The lists may go on beyond the pages of these tokens.
    #[must_use]
    pub fn tokens(self, tokens: Range<u64>) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    /// How many tokens the whole request has, where that is more than what moves now: of sliding-window attention only the
    /// request's last tokens are needed. Without it the request ends where what moves ends.
    #[must_use]
    pub fn of_request(self, tokens: u64) -> Self {
        Self { request_tokens: Some(tokens), ..self }
    }

    /// The same, with the tokens that the other side's pages name where these name none.
    #[must_use]
    pub fn agreed_with(mut self, other: &Self) -> Self {
        self.tokens = self.tokens.or_else(|| other.tokens.clone());
        self.request_tokens = self.request_tokens.or(other.request_tokens);
        self
    }

    /// Whether no page is listed.
    pub fn is_empty(&self) -> bool {
        match self.lists {
            Lists::One(pages) => pages.is_empty(),
            Lists::ByPool(lists) => lists.iter().all(|list| list.pages.is_empty()),
        }
    }

    /// The list of a pool, if there is one.
    pub fn list(&self, pool: Pool) -> Option<PageList<'a>> {
        match self.lists {
            Lists::One(pages) => (pool.kind != PoolKind::State).then_some(PageList::new(pool, pages)),
            Lists::ByPool(lists) => lists.iter().find(|list| list.pool == pool).copied(),
        }
    }

    /// A pool that is listed twice.
    pub(crate) fn twice(&self) -> Option<Pool> {
        let Lists::ByPool(lists) = self.lists else { return None };
        let before = |place: usize, pool| lists.iter().take(place).any(|list| list.pool == pool);
        lists.iter().enumerate().find_map(|(place, list)| before(place, list.pool).then_some(list.pool))
    }
}

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

    pub(crate) fn end(&self) -> (End, Rank) {
        (self.end, self.rank)
    }

    /// Checks all pages of a list.
    pub(crate) fn check_all(&self, pages: &[PageId]) -> Result<(), PlanError> {
        // At once, which costs less than a branch for each. A negative number is a large one without its sign.
        let count = self.page_count.min(1 << 31);
        if pages.iter().fold(true, |fit, page| fit & (page.0.cast_unsigned() < count)) {
            return Ok(());
        }
        pages.iter().enumerate().try_for_each(|(place, page)| self.check(*page, place).map(drop))
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
