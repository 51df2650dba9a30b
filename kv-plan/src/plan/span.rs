//! Which tokens of a request move in a pool, and where they are on either side.

use std::ops::Range;

use bytemuck::Zeroable;

use super::Run;
use crate::{
    PageId, PageList, Pages, Pairing, PlanError, Pool, PoolKind,
    error::End,
    pages::Limit,
    pair::{PoolPair, Turn},
};

/// Tokens that move, and the pages that hold them.
#[derive(Clone, Debug)]
pub(super) struct Span<'a> {
    src: Side<'a>,
    dst: Side<'a>,
    tokens: Range<u64>,
}

/// The pages of one side.
#[derive(Clone, Debug)]
struct Side<'a> {
    pages: &'a [PageId],
    limit: Limit,
    grid: Grid,
}

/// Which of a request's tokens a list holds.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    page_tokens: u64,
    /// The request's page that the list begins with, or from which on pages are dealt out.
    first_page: u64,
    turn: Turn,
}

/// Neighbouring tokens in one page on either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    src_page: u64,
    src: u64,
    dst_page: u64,
    dst: u64,
    pub(super) count: u64,
}

impl Segment {
    /// In tokens of all pages.
    pub(super) fn tokens(&self, span: &Span<'_>) -> Run {
        Run {
            src: self.src_page * span.src.grid.page_tokens + self.src,
            dst: self.dst_page * span.dst.grid.page_tokens + self.dst,
            count: self.count,
            ..Run::zeroed()
        }
    }

    /// In tokens of one page.
    pub(super) fn row(&self) -> Run {
        Run { src_row: self.src_page, src: self.src, dst_row: self.dst_page, dst: self.dst, count: self.count }
    }

    /// As a page, if it is a whole one. Both sides have pages of the same size then.
    pub(super) fn page(&self, span: &Span<'_>) -> Option<Run> {
        let whole = self.count == span.src.grid.page_tokens;
        whole.then(|| Run { src: self.src_page, dst: self.dst_page, count: 1, ..Run::zeroed() })
    }
}

impl Grid {
    pub(super) fn new(page_tokens: u32, list: &PageList<'_>, turn: Turn) -> Result<Self, PlanError> {
        let page_tokens = u64::from(page_tokens.max(1));
        if !list.first_token.is_multiple_of(page_tokens) {
            let first = list.first_token;
            let problem = format!(
                "a list of the pool {} begins with token {first}, which is not at the start of a page of {page_tokens}",
                list.pool
            );
            return Err(PlanError::Tokens { problem });
        }
        Ok(Self { page_tokens, first_page: list.first_token / page_tokens, turn })
    }

    /// The first page from `page` on that is this rank's.
    fn next_own(&self, page: u64) -> u64 {
        let (rank, of) = (u64::from(self.turn.rank), u64::from(self.turn.of.max(1)));
        if of == 1 {
            return page;
        }
        page.saturating_add((rank + of - page % of) % of)
    }

    /// The place in the list of a page that is this rank's.
    fn place(&self, page: u64) -> u64 {
        match u64::from(self.turn.of.max(1)) {
            1 => page - self.first_page,
            of => (page - self.next_own(self.first_page)) / of,
        }
    }

    /// How many pages of the list hold tokens before `stop`.
    fn needed(&self, stop: u64) -> u64 {
        let end = stop.div_ceil(self.page_tokens);
        let first = self.next_own(self.first_page);
        if end <= first { 0 } else { (end - first).div_ceil(u64::from(self.turn.of.max(1))) }
    }

    fn first_token(&self) -> u64 {
        self.first_page * self.page_tokens
    }

    /// The token after the last one of a list of so many pages.
    fn stop(&self, pages: usize) -> Option<u64> {
        self.first_page.checked_add(pages as u64)?.checked_mul(self.page_tokens)
    }

    /// The next token from `token` on that is in a page of this rank's, the page, and the page's end.
    fn next_token(&self, token: u64) -> Option<(u64, u64, u64)> {
        let page = token / self.page_tokens;
        let own = self.next_own(page);
        let start = own.checked_mul(self.page_tokens)?;
        Some((token.max(start), own, start.checked_add(self.page_tokens)?))
    }
}

impl Side<'_> {
    fn check(&self, pool: Pool, tokens: &Range<u64>, exact: bool) -> Result<(), PlanError> {
        let needed = self.grid.needed(tokens.end);
        let (pages, given) = (self.pages.len(), self.pages.len() as u64);
        let first_token = self.grid.first_token();
        if tokens.start >= first_token && (given == needed || (given > needed && !exact)) {
            return Ok(());
        }
        let (end, rank) = self.limit.end();
        Err(PlanError::PagesOfTokens {
            end,
            rank,
            pool,
            pages,
            page_tokens: u32::try_from(self.grid.page_tokens).unwrap_or(u32::MAX),
            first_token,
            start: tokens.start,
            stop: tokens.end,
            needed,
        })
    }

    /// Checks the pages that hold tokens before `stop`.
    fn check_pages(&self, stop: u64) -> Result<(), PlanError> {
        let needed = usize::try_from(self.grid.needed(stop)).unwrap_or(usize::MAX);
        self.limit.check_all(self.pages.get(..needed).unwrap_or(self.pages))
    }

    /// The page that a page of the request is on this side. The list was checked: it is long enough, and its pages are there.
    fn page(&self, page: u64) -> u64 {
        let place = usize::try_from(self.grid.place(page)).unwrap_or(usize::MAX);
        self.pages.get(place).copied().map_or(0, number)
    }
}

/// Whether each side lists each pool once.
pub(super) fn check_lists(pairing: &Pairing, src: &Pages<'_>, dst: &Pages<'_>) -> Result<(), PlanError> {
    for (end, rank, pages) in [(End::Prefill, pairing.prefill_rank(), src), (End::Decode, pairing.decode_rank(), dst)] {
        if let Some(pool) = pages.twice() {
            return Err(PlanError::ListedTwice { end, rank, pool });
        }
    }
    Ok(())
}

/// Which tokens both sides say, and of how many.
pub(super) struct Asked {
    pub(super) tokens: Option<Range<u64>>,
    request_tokens: Option<u64>,
}

impl Asked {
    pub(super) fn new(src: Option<&Pages<'_>>, dst: &Pages<'_>) -> Result<Self, PlanError> {
        let one = |what: &str, src: Option<String>, dst: Option<String>| match (src, dst) {
            (Some(src), Some(dst)) if src != dst => {
                let problem = format!("prefill says {what} {src} and decode says {dst}");
                Err(PlanError::Tokens { problem })
            }
            _ => Ok(()),
        };
        let range = |pages: &Pages<'_>| pages.tokens.as_ref().map(|tokens| format!("{}..{}", tokens.start, tokens.end));
        let count = |pages: &Pages<'_>| pages.request_tokens.map(|tokens| tokens.to_string());
        // Texts are made only where both say something, which is not the common case.
        if let Some(src) = src
            && (src.tokens != dst.tokens || src.request_tokens != dst.request_tokens)
        {
            one("that the tokens move", range(src), range(dst))?;
            one("that the request has tokens", count(src), count(dst))?;
        }
        let tokens = dst.tokens.clone().or_else(|| src.and_then(|src| src.tokens.clone()));
        let request_tokens = dst.request_tokens.or_else(|| src.and_then(|src| src.request_tokens));
        if let Some(Range { start, end }) = tokens
            && start > end
        {
            return Err(PlanError::Tokens { problem: format!("tokens {start}..{end} end before they begin") });
        }
        Ok(Self { tokens, request_tokens })
    }

    /// Leaves of a pool of sliding-window attention the window alone.
    pub(super) fn windowed(&self, pair: &PoolPair, tokens: Range<u64>) -> Result<Range<u64>, PlanError> {
        let Some(window) = pair.window else { return Ok(tokens) };
        let of = self.request_tokens.unwrap_or(tokens.end);
        if of < tokens.end {
            let problem = format!("tokens {}..{} of a request of {of} tokens", tokens.start, tokens.end);
            return Err(PlanError::Tokens { problem });
        }
        let start = tokens.start.max(of.saturating_sub(window.into()));
        Ok(start.min(tokens.end)..tokens.end)
    }
}

impl<'a> Span<'a> {
    /// What of a pool moves; `None` where neither side lists it.
    pub(super) fn of(
        pairing: &Pairing,
        pair: &PoolPair,
        src: &Pages<'a>,
        dst: &Pages<'a>,
    ) -> Result<Option<Self>, PlanError> {
        let pool = pair.pool;
        let (from, to) = match (src.list(pool), dst.list(pool)) {
            (None, None) => return Ok(None),
            (Some(src), Some(dst)) => (src, dst),
            (None, Some(_)) => {
                return Err(PlanError::NoList { end: End::Prefill, rank: pairing.prefill_rank(), pool });
            }
            (Some(_), None) => return Err(PlanError::NoList { end: End::Decode, rank: pairing.decode_rank(), pool }),
        };
        let (src_turn, dst_turn) = pairing.turns();
        let side = |list: PageList<'a>, page_tokens, limit: &Limit, turn| {
            let grid = Grid::new(page_tokens, &list, turn)?;
            Ok(Side { pages: list.pages, limit: *limit, grid })
        };
        let (from, to) = (
            side(from, pair.src_page_tokens, &pair.src_limit, src_turn)?,
            side(to, pair.dst_page_tokens, &pair.dst_limit, dst_turn)?,
        );
        let asked = Asked::new(Some(src), dst)?;
        // Slots are not tokens.
        let tokens = match asked.tokens.clone().filter(|_| pool.kind != PoolKind::State) {
            Some(tokens) if tokens.is_empty() => tokens,
            Some(tokens) => {
                from.check(pool, &tokens, false)?;
                to.check(pool, &tokens, false)?;
                tokens
            }
            None => all_tokens(pool, &from, &to)?,
        };
        from.check_pages(tokens.end)?;
        to.limit.check_all(to.pages)?;
        let tokens = asked.windowed(pair, tokens)?;
        Ok(Some(Self { src: from, dst: to, tokens }))
    }

    pub(super) fn dst_pages(&self) -> &'a [PageId] {
        self.dst.pages
    }

    /// Goes through the tokens, in pieces that are in one page on either side.
    pub(super) fn for_each(&self, mut each: impl FnMut(Segment)) {
        let (src, dst) = (&self.src, &self.dst);
        if self.are_pages_alike() {
            return self.for_each_page(each);
        }
        let mut token = self.tokens.start;
        while token < self.tokens.end {
            let Some((from, src_page, src_end)) = src.grid.next_token(token) else { break };
            let Some((to, dst_page, dst_end)) = dst.grid.next_token(token) else { break };
            if from != to {
                // One of the two has it not: on to what both may have.
                token = from.max(to);
                continue;
            }
            token = from;
            let end = src_end.min(dst_end).min(self.tokens.end);
            if token >= end {
                break;
            }
            each(Segment {
                src_page: src.page(src_page),
                src: token % src.grid.page_tokens,
                dst_page: dst.page(dst_page),
                dst: token % dst.grid.page_tokens,
                count: end - token,
            });
            token = end;
        }
    }

    /// Whether page after page goes to page after page.
    fn are_pages_alike(&self) -> bool {
        let (src, dst) = (&self.src.grid, &self.dst.grid);
        src.page_tokens == dst.page_tokens && src.turn.of == 1 && dst.turn.of == 1
    }

    /// The same without a division for each page, which is what most requests are.
    fn for_each_page(&self, mut each: impl FnMut(Segment)) {
        let page_tokens = self.src.grid.page_tokens;
        let (pairs, mut token) = (self.pairs(), self.tokens.start);
        for (src, dst) in pairs.src.iter().zip(pairs.dst) {
            let in_page = token - token / page_tokens * page_tokens;
            let count = (page_tokens - in_page).min(self.tokens.end - token);
            each(Segment { src_page: number(*src), src: in_page, dst_page: number(*dst), dst: in_page, count });
            token += count;
        }
    }

    /// The pages of both sides that hold the tokens, where page after page goes to page after page.
    fn pairs(&self) -> Pairs<'a> {
        let (page_tokens, Range { start, end }) = (self.src.grid.page_tokens, self.tokens.clone());
        if start >= end {
            return Pairs { src: &[], dst: &[] };
        }
        let pages = |side: &Side<'a>| {
            let place = |page: u64| usize::try_from(page - side.grid.first_page).unwrap_or(usize::MAX);
            let own = place(start / page_tokens)..place(end.div_ceil(page_tokens));
            side.pages.get(own).unwrap_or_default()
        };
        Pairs { src: pages(&self.src), dst: pages(&self.dst) }
    }

    /// Runs of tokens of all pages, where neighbours are merged: for tables whose pages are nothing but their tokens.
    pub(super) fn token_runs(&self, mut each: impl FnMut(Run)) -> bool {
        if !self.are_pages_alike() {
            return false;
        }
        let (page_tokens, Range { start, end }) = (self.src.grid.page_tokens, self.tokens.clone());
        let first = start / page_tokens;
        self.pairs().stretches(|place, count, src, dst| {
            // The tokens of these pages, as far as they move.
            let from = ((first + place) * page_tokens).max(start);
            let stop = ((first + place + count) * page_tokens).min(end);
            let in_page = from - (first + place) * page_tokens;
            let unit = |page: u64| page * page_tokens + in_page;
            each(Run { src: unit(src), dst: unit(dst), count: stop - from, ..Run::zeroed() });
        });
        true
    }
}

/// As many pages of the two sides, which go to each other one by one.
struct Pairs<'a> {
    src: &'a [PageId],
    dst: &'a [PageId],
}

impl Pairs<'_> {
    /// Calls with the place, the number and the first pages of neighbours that step by one on both sides.
    fn stretches(&self, mut each: impl FnMut(u64, u64, u64, u64)) {
        let (Some(mut src), Some(mut dst)) = (self.src.first(), self.dst.first()) else { return };
        let mut start = 0;
        let steps = self.src.windows(2).zip(self.dst.windows(2));
        for (place, (from, to)) in (1..).zip(steps) {
            let ([a, next_src], [b, next_dst]) = (from, to) else { return };
            // No page is the last of 32 bits: all are below the number of pages.
            if (next_src.0.wrapping_sub(a.0) != 1) | (next_dst.0.wrapping_sub(b.0) != 1) {
                each(start, place - start, number(*src), number(*dst));
                (start, src, dst) = (place, next_src, next_dst);
            }
        }
        each(start, self.src.len() as u64 - start, number(*src), number(*dst));
    }
}

/// The number of a page that was checked, and so is not negative.
fn number(page: PageId) -> u64 {
    page.0.cast_unsigned().into()
}

/// All tokens of two lists that hold the same.
fn all_tokens(pool: Pool, src: &Side<'_>, dst: &Side<'_>) -> Result<Range<u64>, PlanError> {
    let tokens = |problem: String| Err(PlanError::Tokens { problem });
    if src.grid.turn.of > 1 || dst.grid.turn.of > 1 {
        return tokens("the pages of a context-parallel rank do not tell how many tokens the request has".into());
    }
    let start = src.grid.first_token();
    if start != dst.grid.first_token() {
        let dst = dst.grid.first_token();
        return tokens(format!("prefill's pages begin with token {start}, and decode's with token {dst}"));
    }
    let stop = |side: &Side<'_>| side.grid.stop(side.pages.len()).ok_or(PlanError::Overflow);
    let range = start..stop(src)?.min(stop(dst)?);
    if src.grid.page_tokens == dst.grid.page_tokens && src.pages.len() != dst.pages.len() {
        return Err(PlanError::PageCount { prefill: src.pages.len(), decode: dst.pages.len() });
    }
    src.check(pool, &range, true)?;
    dst.check(pool, &range, true)?;
    Ok(range)
}

/// Where a receiver has the tokens of a pool that one sender has: for what both sides know of a request before it moves.
pub(super) fn received(
    pairing: &Pairing,
    pair: &PoolPair,
    dst: &Pages<'_>,
    mut each: impl FnMut(u64, Range<u64>),
) -> Result<(), PlanError> {
    let Some(list) = dst.list(pair.pool) else { return Ok(()) };
    let (src_turn, dst_turn) = pairing.turns();
    let grid = Grid::new(pair.dst_page_tokens, &list, dst_turn)?;
    let to = Side { pages: list.pages, limit: pair.dst_limit, grid };
    let asked = Asked::new(None, dst)?;
    let tokens = match asked.tokens.clone().filter(|_| pair.pool.kind != PoolKind::State) {
        Some(tokens) if tokens.is_empty() => return Ok(()),
        Some(tokens) => {
            to.check(pair.pool, &tokens, false)?;
            tokens
        }
        None if dst_turn.of > 1 || src_turn.of > 1 => {
            let problem = "the pages do not tell how many tokens a context-parallel rank has".into();
            return Err(PlanError::Tokens { problem });
        }
        None => to.grid.first_token()..to.grid.stop(to.pages.len()).ok_or(PlanError::Overflow)?,
    };
    to.limit.check_all(to.pages)?;
    let tokens = asked.windowed(pair, tokens)?;
    let from = Grid { page_tokens: u64::from(pair.src_page_tokens.max(1)), first_page: 0, turn: src_turn };
    let mut token = tokens.start;
    while token < tokens.end {
        let Some((own, _, src_end)) = from.next_token(token) else { break };
        let Some((there, page, dst_end)) = to.grid.next_token(token) else { break };
        if own != there {
            token = own.max(there);
            continue;
        }
        token = own;
        // A sender without turns has all tokens, whatever its pages.
        let src_end = if src_turn.of == 1 { u64::MAX } else { src_end };
        let end = src_end.min(dst_end).min(tokens.end);
        if token >= end {
            break;
        }
        let start = token % to.grid.page_tokens;
        each(to.page(page), start..start + (end - token));
        token = end;
    }
    Ok(())
}
