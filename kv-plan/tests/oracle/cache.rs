//! What a rank's memory holds: a label for each byte. Nothing here knows how plans are made.

use kv_plan::{Buffer, CacheLayout, HeadGroup, Heads, Order, PageId, PageList, Pages, Pool, PoolKind, Role};

use crate::draw::Random;

/// Which byte of the whole model's cache of a request it is.
#[derive(Clone, Copy)]
pub(crate) struct Label<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) token: u64,
    pub(crate) group: u64,
    pub(crate) head: u64,
    pub(crate) byte: u64,
}

impl Label<'_> {
    /// A number that stands for it; never 0, which is a byte that nobody wrote.
    fn number(&self) -> u64 {
        let key = self.buffer.key;
        let parts = [key.part as u64, key.role as u64, key.layer.into(), self.token, self.group, self.head, self.byte];
        parts.iter().fold(17, |number: u64, part| {
            let mixed = (number ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 29)
        }) | 1
    }
}

/// A rank, its memory, and its pages of the request.
pub(crate) struct RankCache<'a> {
    pub(crate) layout: &'a CacheLayout,
    /// By region.
    pub(crate) memory: Vec<Vec<u64>>,
    pub(crate) lists: Vec<(Pool, u64, Vec<PageId>)>,
}

impl<'a> RankCache<'a> {
    /// A rank with pages for the tokens of a request: of each pool as many as hold them, at random places. `more` more than needed.
    pub(crate) fn new(layout: &'a CacheLayout, first: u64, tokens: u64, more: u64, random: &mut Random) -> Self {
        let memory = layout.region_lens().iter().map(|len| vec![0; *len as usize]).collect();
        let lists = layout.pools().into_iter().map(|pool| {
            let page_tokens = u64::from(layout.page_tokens_of(pool).unwrap());
            let is_state = pool.kind == PoolKind::State;
            // A list begins at the start of a page.
            let first_page = if is_state { 0 } else { first / page_tokens };
            let pages = if is_state { 0..1 } else { first_page..tokens.div_ceil(page_tokens) + more };
            let own = pages.filter(|page| is_state || page % u64::from(layout.shard.cp) == u64::from(layout.rank().cp));
            let list = random.pages(layout.page_count(pool), own.count());
            (pool, first_page * page_tokens, list)
        });
        Self { layout, memory, lists: lists.collect() }
    }

    /// As the planner takes them; the slots of states only where they are wanted.
    pub(crate) fn with<T>(&self, states: bool, run: impl FnOnce(Pages<'_>) -> T) -> T {
        let wanted = self.lists.iter().filter(|(pool, ..)| states || pool.kind != PoolKind::State);
        let lists: Vec<PageList<'_>> =
            wanted.map(|(pool, first, pages)| PageList::new(*pool, pages).starting_at(*first)).collect();
        run(Pages::from(lists.as_slice()))
    }

    /// Goes through every byte of the request's pages: where it is, and what it is.
    pub(crate) fn each_byte(&self, mut each: impl FnMut(usize, usize, Label<'_>)) {
        for buffer in &self.layout.buffers {
            let (_, first, pages) = self.lists.iter().find(|(pool, ..)| *pool == buffer.pool()).unwrap();
            for (place, page) in pages.iter().enumerate() {
                for token in 0..u64::from(buffer.page_tokens) {
                    self.each_byte_of_token(buffer, *page, token, |at, group, head, byte| {
                        let token = self.global(buffer, *first, place) + token;
                        each(buffer.region as usize, at, Label { buffer, token, group, head, byte });
                    });
                }
            }
        }
    }

    /// The request's token that the page at some place of the list begins with.
    fn global(&self, buffer: &Buffer, first: u64, place: usize) -> u64 {
        let page_tokens = u64::from(buffer.page_tokens);
        if buffer.pool == PoolKind::State {
            return place as u64;
        }
        let (cp, rank) = (u64::from(self.layout.shard.cp), u64::from(self.layout.rank().cp));
        let mut own = (first / page_tokens..).filter(|page| page % cp == rank);
        own.nth(place).unwrap() * page_tokens
    }

    fn each_byte_of_token(
        &self,
        buffer: &Buffer,
        page: PageId,
        token: u64,
        mut each: impl FnMut(usize, u64, u64, u64),
    ) {
        let start = buffer.offset + page.0 as u64 * buffer.page_stride;
        let whole = [HeadGroup { heads: Heads::WHOLE, head_bytes: buffer.token_bytes }];
        let groups = if buffer.groups.is_empty() { &whole[..] } else { &buffer.groups };
        let by_head = self.layout.order == Order::HeadMajor && matches!(buffer.key.role, Role::Key | Role::Value);
        let mut before = 0;
        for (group, HeadGroup { heads, head_bytes }) in groups.iter().enumerate() {
            for head in 0..u64::from(heads.count) {
                for byte in 0..*head_bytes {
                    let at = if by_head {
                        // [head][token][dim]
                        (head * u64::from(buffer.page_tokens) + token) * head_bytes + byte
                    } else {
                        // [token][group][head][dim]
                        token * buffer.token_bytes + before + head * head_bytes + byte
                    };
                    each((start + at) as usize, group as u64, u64::from(heads.first) + head, byte);
                }
            }
            before += u64::from(heads.count) * head_bytes;
        }
    }

    /// Puts every label in its place, and something else everywhere else.
    pub(crate) fn fill(&mut self) {
        let mut bytes = Vec::new();
        self.each_byte(|region, at, label| bytes.push((region, at, label.number())));
        for (region, at, number) in bytes {
            let place = &mut self.memory[region][at];
            assert_eq!(*place, 0, "two bytes of the model in one place");
            *place = number;
        }
        // What belongs to others must not move either; labels are odd.
        self.memory.iter_mut().flatten().filter(|place| **place == 0).for_each(|place| *place = 2);
    }

    /// What the memory must be after the transfer: the bytes that are wanted, and zero elsewhere.
    pub(crate) fn expected(&self, wanted: impl Fn(&Label<'_>) -> bool) -> Vec<Vec<u64>> {
        let mut memory: Vec<Vec<u64>> = self.memory.iter().map(|region| vec![0; region.len()]).collect();
        self.each_byte(|region, at, label| {
            if wanted(&label) {
                memory[region][at] = label.number();
            }
        });
        memory
    }
}
