//! Which block lies where on either side, and what is in it.
//!
//! Nothing of this is sent from one process to the other: both compute it from the pattern. So a block that arrives in
//! the wrong place, or twice, or from the wrong place, is found.

use crate::{Result, workload::Workload};

/// Where the pages of a table lie on either side: page `i` is block `src[i]` at the sender and block `dst[i]` at the
/// receiver. As in a cache, it is the same for all tables.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) src: Vec<usize>,
    pub(crate) dst: Vec<usize>,
}

/// One block on its way: offsets are in bytes, within the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) table: usize,
    pub(crate) src_offset: usize,
    pub(crate) dst_offset: usize,
    pub(crate) len: usize,
}

impl Placement {
    /// Two shuffles with different seeds, the same in every run and in both processes.
    pub(crate) fn new(workload: &Workload) -> Self {
        Self { src: shuffled(workload.pages, 0x5eed_0001), dst: shuffled(workload.pages, 0x5eed_0002) }
    }

    /// All blocks, table by table.
    pub(crate) fn blocks(&self, workload: &Workload) -> Vec<Block> {
        let len = workload.page_bytes;
        (0..workload.tables)
            .flat_map(|table| {
                let pages = self.src.iter().zip(&self.dst);
                pages.map(move |(src, dst)| Block { table, src_offset: src * len, dst_offset: dst * len, len })
            })
            .collect()
    }
}

/// Computes the blocks of the sending side and hands each to `put` with its table and offset.
pub(crate) fn fill(
    workload: &Workload,
    placement: &Placement,
    mut put: impl FnMut(usize, usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut page_bytes = vec![0; workload.page_bytes];
    for table in 0..workload.tables {
        for (page, block) in placement.src.iter().enumerate() {
            write_content(table, page, &mut page_bytes);
            put(table, block * workload.page_bytes, &page_bytes)?;
        }
    }
    Ok(())
}

/// Takes each block of the receiving side with `take` and compares every byte.
pub(crate) fn verify(
    workload: &Workload,
    placement: &Placement,
    mut take: impl FnMut(usize, usize, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut expected = vec![0; workload.page_bytes];
    let mut found = vec![0; workload.page_bytes];
    for table in 0..workload.tables {
        for (page, block) in placement.dst.iter().enumerate() {
            write_content(table, page, &mut expected);
            take(table, block * workload.page_bytes, &mut found)?;
            if let Some(byte) = expected.iter().zip(&found).position(|(expected, found)| expected != found) {
                return Err(format!("table {table}, page {page}: byte {byte} is wrong").into());
            }
        }
    }
    Ok(())
}

/// What is in a page: a function of table, page and byte.
fn write_content(table: usize, page: usize, into: &mut [u8]) {
    let start = mix((table as u64) << 32 | page as u64);
    for (word, chunk) in into.chunks_mut(8).enumerate() {
        let bytes = mix(start ^ word as u64).to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

/// The numbers below `count`, shuffled (Fisher and Yates).
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut numbers: Vec<_> = (0..count).collect();
    for last in (1..count).rev() {
        // The remainder is at most `last`, so it fits.
        let other = mix(seed ^ (last as u64) << 32) % (last as u64 + 1);
        numbers.swap(last, other as usize);
    }
    numbers
}

/// The finalizer of SplitMix64: every bit of the number changes about half of the bits of the result.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
