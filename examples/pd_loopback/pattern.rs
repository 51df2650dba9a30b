//! What every byte of the cache must be, computed on each side by itself from (part, role, layer, token, byte).

use kvferry::{
    kv_plan::{Buffer, CacheLayout, PageId},
    transport_core::Memory,
};

/// Bytes that are made or checked at a time.
const BLOCK: usize = 64 << 10;

/// The bytes of one token in one buffer, as eight-byte words.
struct Token {
    key: u64,
}

impl Token {
    fn new(seed: u64, buffer: &Buffer, token: u64) -> Self {
        // The key in words, "layer 3 (latent)", names part, layer and role.
        let name = buffer.key.to_string().bytes().fold(seed, |name, byte| mix(name ^ u64::from(byte)));
        Self { key: mix(name.wrapping_add(token)) }
    }

    /// The byte at a place in the token, where all heads of the model are counted.
    fn byte(&self, place: u64) -> u8 {
        self.word(place / 8).to_le_bytes()[(place % 8) as usize]
    }

    fn word(&self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Writes the token's bytes from `start` on.
    fn fill(&self, start: u64, out: &mut [u8]) {
        if !start.is_multiple_of(8) {
            for (place, byte) in (start..).zip(out) {
                *byte = self.byte(place);
            }
            return;
        }
        for (index, chunk) in (start / 8..).zip(out.chunks_mut(8)) {
            chunk.copy_from_slice(&self.word(index).to_le_bytes()[..chunk.len()]);
        }
    }
}

/// SplitMix64's mixing.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Where the bytes of a buffer's token begin among those of the whole model's token.
fn first_byte(buffer: &Buffer) -> u64 {
    buffer.heads.map_or(0, |heads| buffer.token_bytes / u64::from(heads.count) * u64::from(heads.first))
}

/// The bytes of the page that holds a request's `place`-th page of tokens.
fn page_bytes(seed: u64, layout: &CacheLayout, buffer: &Buffer, place: usize, out: &mut Vec<u8>) {
    out.resize(buffer.page_bytes as usize, 0);
    let first = first_byte(buffer);
    let tokens = (place as u64 * u64::from(layout.page_tokens))..;
    for (token, bytes) in tokens.zip(out.chunks_mut(buffer.token_bytes as usize)) {
        Token::new(seed, buffer, token).fill(first, bytes);
    }
}

fn offset(buffer: &Buffer, page: PageId) -> u64 {
    buffer.offset + u64::from(page.0.unsigned_abs()) * buffer.page_bytes
}

/// Writes what a request's pages must hold into all buffers of a rank.
pub(crate) fn fill(seed: u64, layout: &CacheLayout, memories: &[Memory], pages: &[PageId]) -> Result<(), String> {
    let mut bytes = Vec::new();
    for buffer in &layout.buffers {
        let memory = &memories[buffer.region as usize];
        for (place, page) in pages.iter().enumerate() {
            page_bytes(seed, layout, buffer, place, &mut bytes);
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
    pages: &[PageId],
    written: impl Fn(&Buffer) -> bool,
) -> Result<(), String> {
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    for buffer in layout.buffers.iter().filter(|buffer| written(buffer)) {
        let memory = &memories[buffer.region as usize];
        for (place, page) in pages.iter().enumerate() {
            page_bytes(seed, layout, buffer, place, &mut expected);
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
