//! What every byte of the cache must be, computed on each side by itself from (part, role, layer, token, head,
//! byte).

use std::ops::Range;

use kvferry::{
    kv_plan::{Buffer, CacheLayout, HeadGroup, Heads, Order, PageId, Pool, PoolKind, Role},
    transport_core::Memory,
};

use crate::workload::RequestPages;

/// Bytes that are made or checked at a time.
const BLOCK: usize = 64 << 10;

/// The bytes of one head of one token in one buffer (or of all of a token that is not divided by heads), as eight-byte words.
struct Piece {
    key: u64,
}

impl Piece {
    /// `name` is the buffer's.
    fn new(name: u64, token: u64, group: u64, head: u64) -> Self {
        let place = mix(name.wrapping_add(token)) ^ (group << 56);
        Self { key: mix(place.wrapping_add(head.wrapping_mul(0x9e37_79b9_7f4a_7c15))) }
    }

    fn fill(&self, out: &mut [u8]) {
        for (index, chunk) in (0u64..).zip(out.chunks_mut(8)) {
            let word = mix(self.key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// SplitMix64's mixing.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The tokens of a request that a receiver gets in a pool.
fn moved(layout: &CacheLayout, pool: Pool, tokens: u64) -> Range<u64> {
    match pool.kind {
        PoolKind::State => 0..1,
        PoolKind::Window => tokens.saturating_sub(layout.window(pool.part).map_or(tokens, u64::from))..tokens,
        _ => 0..tokens,
    }
}

/// About how many bytes a rank of the first data-parallel group gets of a request, for a progress bar.
pub(crate) fn request_bytes(layout: &CacheLayout, tokens: u64) -> u64 {
    if layout.rank().dp > 0 {
        return 0;
    }
    let of_buffer = |buffer: &Buffer| {
        let moved = moved(layout, buffer.pool(), tokens);
        (moved.end - moved.start) * buffer.token_bytes / u64::from(layout.shard.cp)
    };
    layout.buffers.iter().map(of_buffer).sum()
}

/// The first token of the page at some place of a rank's list.
fn first_token(layout: &CacheLayout, buffer: &Buffer, place: usize) -> u64 {
    let own = place as u64 * u64::from(layout.shard.cp) + u64::from(layout.rank().cp);
    own * u64::from(buffer.page_tokens)
}

/// The bytes of the page at some place of a request's list; zero for tokens that are not among `tokens`.
fn page_bytes(seed: u64, layout: &CacheLayout, buffer: &Buffer, place: usize, tokens: &Range<u64>, out: &mut Vec<u8>) {
    out.clear();
    out.resize(buffer.page_bytes as usize, 0);
    // The key in words, "layer 3 (latent)", names part, layer and role.
    let name = buffer.key.to_string().bytes().fold(seed, |name, byte| mix(name ^ u64::from(byte)));
    let by_head = layout.order == Order::HeadMajor && matches!(buffer.key.role, Role::Key | Role::Value);
    let whole = [HeadGroup { heads: Heads::WHOLE, head_bytes: buffer.token_bytes }];
    let groups = if buffer.groups.is_empty() { &whole[..] } else { &buffer.groups[..] };
    let first = first_token(layout, buffer, place);
    for token in 0..u64::from(buffer.page_tokens) {
        if !tokens.contains(&(first + token)) {
            continue;
        }
        let mut before = 0;
        for (group, HeadGroup { heads, head_bytes }) in (0u64..).zip(groups) {
            for head in 0..u64::from(heads.count) {
                let at = match by_head {
                    true => (head * u64::from(buffer.page_tokens) + token) * head_bytes,
                    false => token * buffer.token_bytes + before + head * head_bytes,
                };
                let piece = Piece::new(name, first + token, group, u64::from(heads.first) + head);
                piece.fill(&mut out[at as usize..(at + head_bytes) as usize]);
            }
            before += u64::from(heads.count) * head_bytes;
        }
    }
}

fn offset(buffer: &Buffer, page: PageId) -> u64 {
    buffer.offset + u64::from(page.0.unsigned_abs()) * buffer.page_stride
}

/// Writes what a request's pages must hold into all buffers of a rank, and something into the rest of its last page.
pub(crate) fn fill(seed: u64, layout: &CacheLayout, memories: &[Memory], pages: &RequestPages) -> Result<(), String> {
    let mut bytes = Vec::new();
    for buffer in &layout.buffers {
        let memory = &memories[buffer.region as usize];
        for (place, page) in pages.of(buffer.pool()).iter().enumerate() {
            page_bytes(seed, layout, buffer, place, &(0..u64::MAX), &mut bytes);
            memory.write_at(offset(buffer, *page), &bytes).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Checks every byte of a request's pages in all buffers of a rank that were to be written, and sets them to zero again.
pub(crate) fn verify(
    seed: u64,
    layout: &CacheLayout,
    memories: &[Memory],
    pages: &RequestPages,
    tokens: u64,
    written: impl Fn(&Buffer) -> bool,
) -> Result<(), String> {
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    for buffer in layout.buffers.iter().filter(|buffer| written(buffer)) {
        let memory = &memories[buffer.region as usize];
        let tokens = moved(layout, buffer.pool(), tokens);
        for (place, page) in pages.of(buffer.pool()).iter().enumerate() {
            page_bytes(seed, layout, buffer, place, &tokens, &mut expected);
            found.resize(expected.len(), 0);
            memory.read_at(offset(buffer, *page), &mut found).map_err(|error| error.to_string())?;
            if let Some(wrong) =
                (expected != found).then(|| expected.iter().zip(&found).position(|(a, b)| a != b)).flatten()
            {
                return Err(format!(
                    "{} page {page}: byte {wrong} is {:#04x}, not {:#04x}",
                    buffer.key, found[wrong], expected[wrong]
                ));
            }
            memory.fill(offset(buffer, *page), buffer.page_bytes, 0).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Checks that a whole cache is zero: what no request was to write was not touched.
pub(crate) fn verify_untouched(layout: &CacheLayout, memories: &[Memory]) -> Result<(), String> {
    let mut found = vec![0; BLOCK];
    for buffer in &layout.buffers {
        let memory = &memories[buffer.region as usize];
        let (mut at, end) = (buffer.offset, buffer.offset + u64::from(buffer.page_count) * buffer.page_bytes);
        while at < end {
            let part = (end - at).min(BLOCK as u64) as usize;
            memory.read_at(at, &mut found[..part]).map_err(|error| error.to_string())?;
            if let Some(wrong) = found[..part].iter().position(|byte| *byte != 0) {
                let place = at + wrong as u64 - buffer.offset;
                return Err(format!("{}: byte {place} was written, but belongs to no request", buffer.key));
            }
            at += part as u64;
        }
    }
    Ok(())
}
