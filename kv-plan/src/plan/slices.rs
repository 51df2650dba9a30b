//! The slices of a plan, written out.

use super::{Plan, PlanGroup, Run};
use crate::{BufferKey, Pairing, Role, Table};

/// One slice of a plan, written out: `len` bytes, offsets in bytes from the start of the two buffers (not of their regions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PlannedSlice {
    /// What the buffers hold.
    pub key: BufferKey,
    /// Offset in the sender's buffer.
    pub src_offset: u64,
    /// Offset in the receiver's buffer.
    pub dst_offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// Whether neighbouring units are neighbouring bytes on both sides.
pub(super) fn is_contiguous(table: &Table) -> bool {
    table.src_stride == table.len && table.dst_stride == table.len
}

/// The slices of a plan. See [`Plan::slices`].
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    all_runs: &'a [Run],
    all_tables: &'a [Table],
    groups: std::slice::Iter<'a, PlanGroup>,
    /// Those of the current group, and the rest of its tables.
    group_runs: &'a [Run],
    tables: std::slice::Iter<'a, Table>,
    /// The current table, and the rest of its runs.
    table: Option<&'a Table>,
    runs: std::slice::Iter<'a, Run>,
    /// The last slice of the current run, how far the next one is from it, and how many of the run are left.
    last: PlannedSlice,
    steps: (u64, u64),
    left: u64,
    /// Slices that are left in all.
    all_left: u64,
}

impl<'a> Slices<'a> {
    pub(super) fn new(plan: &'a Plan, pairing: &'a Pairing) -> Self {
        let key = BufferKey::main(Role::Key, 0);
        Self {
            all_runs: &plan.runs,
            all_tables: pairing.tables(),
            groups: plan.groups.iter(),
            group_runs: &[],
            tables: [].iter(),
            table: None,
            runs: [].iter(),
            last: PlannedSlice { key, src_offset: 0, dst_offset: 0, len: 0 },
            steps: (0, 0),
            left: 0,
            all_left: plan.slices,
        }
    }

    /// The first slice of the next run, of the next table, of the next group.
    fn advance(&mut self) -> Option<PlannedSlice> {
        loop {
            if let Some(table) = self.table
                && let Some(run) = self.runs.next()
            {
                return Some(self.start(table, run));
            }
            self.next_table()?;
        }
    }

    /// Goes to the next table, of the next group.
    fn next_table(&mut self) -> Option<()> {
        loop {
            self.table = self.tables.next();
            if self.table.is_some() {
                self.runs = self.group_runs.iter();
                return Some(());
            }
            let group = self.groups.next()?;
            self.tables = self.all_tables.get(group.tables.clone()).unwrap_or_default().iter();
            self.group_runs = self.all_runs.get(group.runs.clone()).unwrap_or_default();
        }
    }

    fn start(&mut self, table: &Table, run: &Run) -> PlannedSlice {
        let merged = is_contiguous(table);
        let slice = first_slice(table, run, merged);
        self.left = if merged { 0 } else { run.count.saturating_sub(1) };
        if self.left > 0 {
            (self.last, self.steps) = (slice, (table.src_stride, table.dst_stride));
        }
        slice
    }
}

impl Iterator for Slices<'_> {
    type Item = PlannedSlice;

    fn next(&mut self) -> Option<PlannedSlice> {
        if self.left == 0 {
            let slice = self.advance()?;
            self.all_left = self.all_left.saturating_sub(1);
            return Some(slice);
        }
        self.left -= 1;
        self.all_left = self.all_left.saturating_sub(1);
        self.last.src_offset = self.last.src_offset.wrapping_add(self.steps.0);
        self.last.dst_offset = self.last.dst_offset.wrapping_add(self.steps.1);
        Some(self.last)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.all_left).unwrap_or(usize::MAX);
        (left, Some(left))
    }

    /// Whole tables at a time, which is faster: what `for_each` goes by.
    fn fold<B, F: FnMut(B, PlannedSlice) -> B>(mut self, init: B, mut f: F) -> B {
        let mut sum = init;
        let mut slice = self.last;
        for _ in 0..self.left {
            slice.src_offset = slice.src_offset.wrapping_add(self.steps.0);
            slice.dst_offset = slice.dst_offset.wrapping_add(self.steps.1);
            sum = f(sum, slice);
        }
        loop {
            if let Some(table) = self.table {
                let merged = is_contiguous(table);
                for run in self.runs.by_ref() {
                    let mut slice = first_slice(table, run, merged);
                    let units = if merged { 1 } else { run.count };
                    for _ in 0..units {
                        sum = f(sum, slice);
                        slice.src_offset = slice.src_offset.wrapping_add(table.src_stride);
                        slice.dst_offset = slice.dst_offset.wrapping_add(table.dst_stride);
                    }
                }
            }
            if self.next_table().is_none() {
                return sum;
            }
        }
    }
}

/// The first slice of a run, or all of it where it is one.
fn first_slice(table: &Table, run: &Run, merged: bool) -> PlannedSlice {
    // None of this wraps for the pairing that the plan was made with: its buffers lie inside their regions.
    let offset = |base: u64, row: u64, row_stride: u64, unit: u64, stride: u64| {
        base.wrapping_add(row.wrapping_mul(row_stride)).wrapping_add(unit.wrapping_mul(stride))
    };
    let (src, dst) = (table.src_base - table.src_start, table.dst_base - table.dst_start);
    PlannedSlice {
        key: table.key,
        src_offset: offset(src, run.src_row, table.src_row_stride, run.src, table.src_stride),
        dst_offset: offset(dst, run.dst_row, table.dst_row_stride, run.dst, table.dst_stride),
        len: if merged { run.count.wrapping_mul(table.len) } else { table.len },
    }
}
