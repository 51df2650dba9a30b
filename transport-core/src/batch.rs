//! What a batch writes where.
//!
//! Two forms say the same thing. A list of [`WriteSlice`]s is the general one. [`Group`]s are what a KV plan really is:
//! the same runs of pages for each of many tables (61 layers of one page list), not written out 61 times.

use bytemuck::{Pod, Zeroable};

use crate::{
    error::{Side, SliceError, SubmitError},
    id::RegionId,
};

/// One piece of memory to write to a peer: `len` bytes, all offsets in bytes from the start of a region.
///
/// A length of zero is legal: the regions and offsets are checked (an offset may equal the region's length) and nothing
/// moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct WriteSlice {
    /// The local region that is read.
    pub src: RegionId,
    /// Where in it reading begins.
    pub src_offset: u64,
    /// The peer's region that is written.
    pub dst: RegionId,
    /// Where in it writing begins.
    pub dst_offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// `count` neighbouring units on both sides, starting at unit `src` of row `src_row` here and unit `dst` of row `dst_row` there.
///
/// Units are pages or tokens, as a rule. Rows are for what is laid out in two steps: tokens in pages where a page is not
/// simply its tokens one after the other. Where there are none, they are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct Run {
    /// Row on the sending side.
    pub src_row: u64,
    /// First unit on the sending side.
    pub src: u64,
    /// Row on the receiving side.
    pub dst_row: u64,
    /// First unit on the receiving side.
    pub dst: u64,
    /// How many units.
    pub count: u64,
}

impl Run {
    /// Units without rows.
    pub const fn new(src: u64, dst: u64, count: u64) -> Self {
        Self { src_row: 0, src, dst_row: 0, dst, count }
    }
}

/// A pair of tables (one layer's buffer on either side) and how units are laid out in them.
///
/// A run of `n` units from unit `s` of row `p` to unit `d` of row `q` writes, for each `i` below `n`, `len` bytes from
/// `src_base + p * src_row_stride + (s + i) * src_stride` to `dst_base + q * dst_row_stride + (d + i) * dst_stride`. Where
/// both strides equal `len`, that is one slice of `n * len` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct TablePair {
    /// The local region that is read.
    pub src: RegionId,
    /// Offset in bytes of unit 0 of row 0 in it.
    pub src_base: u64,
    /// Bytes from one row to the next in it.
    pub src_row_stride: u64,
    /// Bytes from one unit to the next in it.
    pub src_stride: u64,
    /// The peer's region that is written.
    pub dst: RegionId,
    /// Offset in bytes of unit 0 of row 0 in it.
    pub dst_base: u64,
    /// Bytes from one row to the next in it.
    pub dst_row_stride: u64,
    /// Bytes from one unit to the next in it.
    pub dst_stride: u64,
    /// Bytes that move for each unit.
    pub len: u64,
}

impl TablePair {
    /// A pair of tables that moves nothing yet: bases, strides and length are 0. For `TablePair { len: 64, ..TablePair::between(src, dst) }`.
    pub const fn between(src: RegionId, dst: RegionId) -> Self {
        Self {
            src,
            src_base: 0,
            src_row_stride: 0,
            src_stride: 0,
            dst,
            dst_base: 0,
            dst_row_stride: 0,
            dst_stride: 0,
            len: 0,
        }
    }
}

/// The product of runs and tables: each run is written for each table.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Runs of units.
    pub runs: &'a [Run],
    /// Pairs of tables.
    pub tables: &'a [TablePair],
}

/// The slices of one batch, in either form.
///
/// ```
/// use transport_core::{Batch, Group, RegionId, Run, TablePair};
///
/// let region = RegionId { index: 0, generation: 1 };
/// let table =
///     TablePair { src_stride: 100, dst_base: 5_000, dst_stride: 100, len: 100, ..TablePair::between(region, region) };
/// let group = Group { runs: &[Run::new(5, 7, 3)], tables: &[table] };
/// assert_eq!(Batch::from(&group).total_bytes()?, 300);
/// # Ok::<(), transport_core::SubmitError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Batch<'a> {
    /// Slices, written out.
    Slices(&'a [WriteSlice]),
    /// Products of runs and tables.
    Groups(&'a [Group<'a>]),
}

impl<'a> From<&'a [WriteSlice]> for Batch<'a> {
    fn from(slices: &'a [WriteSlice]) -> Self {
        Self::Slices(slices)
    }
}

impl<'a, const N: usize> From<&'a [WriteSlice; N]> for Batch<'a> {
    fn from(slices: &'a [WriteSlice; N]) -> Self {
        Self::Slices(slices)
    }
}

impl<'a> From<&'a Vec<WriteSlice>> for Batch<'a> {
    fn from(slices: &'a Vec<WriteSlice>) -> Self {
        Self::Slices(slices)
    }
}

impl<'a> From<&'a [Group<'a>]> for Batch<'a> {
    fn from(groups: &'a [Group<'a>]) -> Self {
        Self::Groups(groups)
    }
}

impl<'a> From<&'a Group<'a>> for Batch<'a> {
    fn from(group: &'a Group<'a>) -> Self {
        Self::Groups(std::slice::from_ref(group))
    }
}

impl Batch<'_> {
    /// How many bytes the batch moves.
    ///
    /// # Errors
    /// [`SubmitError::TooLarge`] when the sum does not fit 64 bits.
    pub fn total_bytes(&self) -> Result<u64, SubmitError> {
        let total = match self {
            Self::Slices(slices) => slices.iter().try_fold(0u64, |sum, slice| sum.checked_add(slice.len)),
            Self::Groups(groups) => groups.iter().try_fold(0u64, |sum, group| {
                let units = group.runs.iter().try_fold(0u64, |units, run| units.checked_add(run.count))?;
                let bytes = group.tables.iter().try_fold(0u64, |bytes, table| bytes.checked_add(table.len))?;
                sum.checked_add(units.checked_mul(bytes)?)
            }),
        };
        total.ok_or(SubmitError::TooLarge)
    }

    /// Checks every slice: `local` gives the length of a local region, `remote` of a region that the peer granted.
    ///
    /// The index in an error counts slices in the order of [`SliceIter`]'s unmerged expansion: for a list its own
    /// order; for groups by group, then table, then run.
    pub(crate) fn check(
        &self,
        mut local: impl FnMut(RegionId) -> Result<u64, SliceError>,
        mut remote: impl FnMut(RegionId) -> Result<u64, SliceError>,
    ) -> Result<(), SubmitError> {
        let mut first = 0;
        match self {
            Self::Slices(slices) => {
                for (index, slice) in slices.iter().enumerate() {
                    check_side(Side::Source, slice.src, slice.src_offset, slice.len, &mut local)
                        .and_then(|()| {
                            check_side(Side::Destination, slice.dst, slice.dst_offset, slice.len, &mut remote)
                        })
                        .map_err(|cause| SubmitError::Slice { index: index as u64, cause })?;
                }
            }
            Self::Groups(groups) => {
                for group in *groups {
                    for table in group.tables {
                        for (index, run) in (first..).zip(group.runs) {
                            let (src, dst) = (table.src_extent(run), table.dst_extent(run));
                            check_extent(Side::Source, table.src, src, &mut local)
                                .and_then(|()| check_extent(Side::Destination, table.dst, dst, &mut remote))
                                .map_err(|cause| SubmitError::Slice { index, cause })?;
                        }
                        first += group.runs.len() as u64;
                    }
                }
            }
        }
        Ok(())
    }
}

impl TablePair {
    fn src_extent(&self, run: &Run) -> Extent {
        extent(start(self.src_base, self.src_row_stride, run.src_row)?, self.src_stride, self.len, run.src, run.count)
    }

    fn dst_extent(&self, run: &Run) -> Extent {
        extent(start(self.dst_base, self.dst_row_stride, run.dst_row)?, self.dst_stride, self.len, run.dst, run.count)
    }

    /// Whether neighbouring units are neighbouring bytes on both sides.
    fn is_contiguous(&self) -> bool {
        self.src_stride == self.len && self.dst_stride == self.len
    }
}

/// Offset and length of what a run covers in a table, in bytes; `None` where it does not fit 64 bits.
type Extent = Option<(u64, u64)>;

/// Where a row starts.
fn start(base: u64, stride: u64, row: u64) -> Option<u64> {
    base.checked_add(row.checked_mul(stride)?)
}

fn extent(base: u64, stride: u64, len: u64, first: u64, count: u64) -> Extent {
    let start = base.checked_add(first.checked_mul(stride)?)?;
    let Some(last) = count.checked_sub(1) else { return Some((start, 0)) };
    Some((start, last.checked_mul(stride)?.checked_add(len)?))
}

fn check_extent(
    side: Side,
    region: RegionId,
    extent: Extent,
    region_len: &mut impl FnMut(RegionId) -> Result<u64, SliceError>,
) -> Result<(), SliceError> {
    match extent {
        Some((offset, len)) => check_side(side, region, offset, len, region_len),
        None => check_side(side, region, u64::MAX, u64::MAX, region_len),
    }
}

fn check_side(
    side: Side,
    region: RegionId,
    offset: u64,
    len: u64,
    region_len: &mut impl FnMut(RegionId) -> Result<u64, SliceError>,
) -> Result<(), SliceError> {
    let region_len = region_len(region)?;
    check_range(side, region, offset, len, region_len)
}

/// Checks one range against the length of its region; cannot be passed by overflow (contract clause C8).
///
/// # Errors
/// [`SliceError::OutOfBounds`] with all the numbers.
pub fn check_range(side: Side, region: RegionId, offset: u64, len: u64, region_len: u64) -> Result<(), SliceError> {
    match offset.checked_add(len) {
        Some(end) if end <= region_len => Ok(()),
        _ => Err(SliceError::OutOfBounds { side, region, offset, len, region_len }),
    }
}

/// A batch that a transfer owns while it is in flight. Its buffers are used again by later transfers.
#[derive(Debug, Default)]
pub struct OwnedBatch {
    slices: Vec<WriteSlice>,
    runs: Vec<Run>,
    tables: Vec<TablePair>,
    groups: Vec<OwnedGroup>,
}

#[derive(Debug)]
struct OwnedGroup {
    runs: std::ops::Range<usize>,
    tables: std::ops::Range<usize>,
}

/// Buffers longer than this many entries are not kept for later transfers, so that one huge batch does not hold its
/// memory for ever.
const KEPT_ENTRIES: usize = 1 << 16;

impl OwnedBatch {
    pub(crate) fn copy_from(&mut self, batch: Batch<'_>) {
        self.clear();
        match batch {
            Batch::Slices(slices) => self.slices.extend_from_slice(slices),
            Batch::Groups(groups) => {
                for group in groups {
                    let (run, table) = (self.runs.len(), self.tables.len());
                    self.runs.extend_from_slice(group.runs);
                    self.tables.extend_from_slice(group.tables);
                    self.groups.push(OwnedGroup { runs: run..self.runs.len(), tables: table..self.tables.len() });
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        clear(&mut self.slices);
        clear(&mut self.runs);
        clear(&mut self.tables);
        clear(&mut self.groups);
    }

    /// The slice at `cursor`, merged over the units of a run where both sides are contiguous, and the cursor moved on;
    /// `None` at the end. Groups yield no empty slices. A cursor instead of an iterator, so that a transport can keep its place beside the batch.
    pub fn next(&self, cursor: &mut Cursor) -> Option<WriteSlice> {
        if let Some(slice) = self.slices.get(cursor.slice) {
            cursor.slice += 1;
            return Some(*slice);
        }
        loop {
            let group = self.groups.get(cursor.group)?;
            let table = self.tables.get(group.tables.clone()).and_then(|tables| tables.get(cursor.table));
            let Some(table) = table else {
                *cursor = Cursor { slice: cursor.slice, group: cursor.group + 1, ..Cursor::default() };
                continue;
            };
            let Some(run) = self.runs.get(group.runs.clone()).and_then(|runs| runs.get(cursor.run)) else {
                cursor.table += 1;
                cursor.run = 0;
                continue;
            };
            if cursor.unit >= run.count || table.len == 0 {
                cursor.run += 1;
                cursor.unit = 0;
                continue;
            }
            // None of this arithmetic overflows: the batch was checked as a whole when it was submitted.
            let units = if table.is_contiguous() { run.count } else { 1 };
            let slice = WriteSlice {
                src: table.src,
                src_offset: table.src_base
                    + run.src_row * table.src_row_stride
                    + (run.src + cursor.unit) * table.src_stride,
                dst: table.dst,
                dst_offset: table.dst_base
                    + run.dst_row * table.dst_row_stride
                    + (run.dst + cursor.unit) * table.dst_stride,
                len: units * table.len,
            };
            cursor.unit += units;
            return Some(slice);
        }
    }

    /// The slices one after the other, merged as [`OwnedBatch::next`] says.
    pub fn iter(&self) -> SliceIter<'_> {
        SliceIter { batch: self, cursor: Cursor::default() }
    }
}

impl<'a> IntoIterator for &'a OwnedBatch {
    type Item = WriteSlice;
    type IntoIter = SliceIter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn clear<T>(buffer: &mut Vec<T>) {
    if buffer.capacity() > KEPT_ENTRIES {
        *buffer = Vec::new();
    } else {
        buffer.clear();
    }
}

/// A place in an [`OwnedBatch`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    slice: usize,
    group: usize,
    table: usize,
    run: usize,
    unit: u64,
}

/// Iterates over the slices of an [`OwnedBatch`].
#[derive(Clone, Debug)]
pub struct SliceIter<'a> {
    batch: &'a OwnedBatch,
    cursor: Cursor,
}

impl Iterator for SliceIter<'_> {
    type Item = WriteSlice;

    fn next(&mut self) -> Option<WriteSlice> {
        self.batch.next(&mut self.cursor)
    }
}

#[cfg(test)]
mod tests;
