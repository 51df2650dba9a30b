//! How the same heads lie in two buffers: the tables that move them.

use super::{Form, InBuffer, Piece, Table};
use crate::{Buffer, Heads, Order, Pool, Role};

/// Adds the tables that move some heads.
pub(super) fn push(
    tables: &mut Vec<(Pool, Form, Table)>,
    (src_order, src): (Order, &Buffer),
    (dst_order, dst): (Order, &Buffer),
    piece: Piece,
) {
    let (from, to) = (End::new(src_order, src, piece.src), End::new(dst_order, dst, piece.dst));
    let count = piece.heads.map_or(1, |heads| heads.count);
    let heads = |first: u32, count: u32| piece.heads.map(|heads| Heads { first: heads.first + first, count, ..heads });
    let table = |heads, from: Place, to: Place, len| Table {
        key: src.key,
        heads,
        group: piece.group,
        src_region: src.region,
        src_base: src.offset.saturating_add(from.base),
        src_row_stride: from.row_stride,
        src_stride: from.stride,
        dst_region: dst.region,
        dst_base: dst.offset.saturating_add(to.base),
        dst_row_stride: to.row_stride,
        dst_stride: to.stride,
        len,
        src_start: src.offset,
        dst_start: dst.offset,
    };
    let mut add = |form, table| tables.push((src.pool(), form, table));
    // None of these products overflows: all are inside a page, whose length was checked.
    let all = u64::from(count) * piece.head_bytes;
    let same_pages = src.page_tokens == dst.page_tokens;
    if from.by_token && to.by_token {
        if src.is_dense() && dst.is_dense() {
            return add(
                Form::Tokens,
                table(heads(0, count), from.tokens(piece.head_bytes), to.tokens(piece.head_bytes), all),
            );
        }
        let parts = table(heads(0, count), from.rows(0, piece.head_bytes), to.rows(0, piece.head_bytes), all);
        // A page is one stretch where nothing else is in it.
        let is_whole = all == src.token_bytes && all == dst.token_bytes;
        if same_pages && is_whole {
            add(Form::Pages, table(heads(0, count), from.page(0), to.page(0), src.page_bytes));
            return add(Form::Parts, parts);
        }
        return add(Form::Rows, parts);
    }
    let by_pages = same_pages && !from.by_token && !to.by_token;
    if by_pages {
        let head_page = piece.head_bytes * u64::from(src.page_tokens);
        let len = head_page * u64::from(count);
        add(Form::Pages, table(heads(0, count), from.page(head_page), to.page(head_page), len));
    }
    for head in 0..count {
        let (from, to) = (from.rows(head, piece.head_bytes), to.rows(head, piece.head_bytes));
        add(if by_pages { Form::Parts } else { Form::Rows }, table(heads(head, 1), from, to, piece.head_bytes));
    }
}

/// Some heads in one buffer.
#[derive(Clone, Copy)]
struct End<'a> {
    buffer: &'a Buffer,
    place: InBuffer,
    /// Whether all heads of a token are beside each other, and the tokens follow each other.
    by_token: bool,
}

/// Base and strides of a table on one side.
struct Place {
    base: u64,
    row_stride: u64,
    stride: u64,
}

impl<'a> End<'a> {
    fn new(order: Order, buffer: &'a Buffer, place: InBuffer) -> Self {
        let by_head = order == Order::HeadMajor && matches!(buffer.key.role, Role::Key | Role::Value);
        let heads = buffer.heads().map_or(1, |heads| heads.count);
        // With one head, or one token, both orders are the same.
        let by_token = !by_head || heads == 1 || buffer.page_tokens == 1;
        Self { buffer, place, by_token }
    }

    /// Offset of the first of the heads in a token.
    fn in_token(&self, head: u32, head_bytes: u64) -> u64 {
        self.place.group_offset + u64::from(self.place.before + head) * head_bytes
    }

    /// Units are tokens of all pages.
    fn tokens(&self, head_bytes: u64) -> Place {
        Place { base: self.in_token(0, head_bytes), row_stride: 0, stride: self.buffer.token_bytes }
    }

    /// Rows are pages, units the tokens in them.
    fn rows(&self, head: u32, head_bytes: u64) -> Place {
        let row_stride = self.buffer.page_stride;
        if self.by_token {
            return Place { base: self.in_token(head, head_bytes), row_stride, stride: self.buffer.token_bytes };
        }
        let head_page = head_bytes * u64::from(self.buffer.page_tokens);
        Place { base: u64::from(self.place.before + head) * head_page, row_stride, stride: head_bytes }
    }

    /// Units are pages.
    fn page(&self, head_page: u64) -> Place {
        Place { base: u64::from(self.place.before) * head_page, row_stride: 0, stride: self.buffer.page_stride }
    }
}
