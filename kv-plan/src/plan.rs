//! Plans: what moves for one request, as runs of pages times tables.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::{BufferKey, PageId, Pairing, PlanError, pages::Seen};

/// `count` neighbouring pages on both sides: `src`, `src + 1`, … become `dst`, `dst + 1`, ….
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct Run {
    /// First page on the sender.
    pub src: u64,
    /// First page on the receiver.
    pub dst: u64,
    /// How many pages.
    pub count: u64,
}

/// Runs that all go for the same tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanGroup {
    /// The runs, as a range of the plan's.
    pub runs: Range<usize>,
    /// The tables, as a range of the pairing's.
    pub tables: Range<usize>,
}

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

/// What moves for one request between two ranks. Made once and used for many requests: planning into it again allocates only
/// when a request has more runs than any before.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    runs: Vec<Run>,
    groups: Vec<PlanGroup>,
    bytes: u64,
    seen: Seen,
}

impl Plan {
    /// An empty plan with room for so many runs: a request never has more than pages.
    pub fn with_capacity(runs: usize) -> Self {
        Self { runs: Vec::with_capacity(runs), groups: Vec::with_capacity(1), ..Self::default() }
    }

    /// The groups. Each moves all of its runs for all of its tables.
    pub fn groups(&self) -> &[PlanGroup] {
        &self.groups
    }

    /// The runs of a group.
    pub fn runs(&self, group: &PlanGroup) -> &[Run] {
        self.runs.get(group.runs.clone()).unwrap_or_default()
    }

    /// Bytes that move.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Slices that they move in, when neighbouring pages are merged.
    pub fn slice_count(&self) -> u64 {
        self.groups.iter().map(|group| group.runs.len() as u64 * group.tables.len() as u64).sum()
    }

    /// Whether nothing moves.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The slices, merged and written out, by table and then in the order of the page lists.
    pub fn slices<'a>(&'a self, pairing: &'a Pairing) -> impl Iterator<Item = PlannedSlice> + 'a {
        self.groups.iter().flat_map(move |group| {
            let tables = pairing.tables().get(group.tables.clone()).unwrap_or_default();
            tables.iter().flat_map(move |table| {
                // None of this overflows for the pairing that the plan was made with: its buffers lie inside their regions.
                self.runs(group).iter().map(move |run| PlannedSlice {
                    key: table.key,
                    src_offset: run.src.saturating_mul(table.src_stride),
                    dst_offset: run.dst.saturating_mul(table.dst_stride),
                    len: run.count.saturating_mul(table.len),
                })
            })
        })
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.groups.clear();
        self.bytes = 0;
    }
}

impl Pairing {
    /// Plans a request: page `src_pages[i]` of the sender becomes page `dst_pages[i]` of the receiver, for all tables of the
    /// pairing. Neighbours that step by one on both sides become one run.
    ///
    /// Empty lists are legal and move nothing.
    ///
    /// # Errors
    /// [`PlanError`]: lists of different lengths, pages that do not exist on either side, or one twice on the receiving side. The
    /// plan is empty then.
    pub fn plan(&self, src_pages: &[PageId], dst_pages: &[PageId], plan: &mut Plan) -> Result<(), PlanError> {
        self.plan_layers(None, src_pages, dst_pages, plan)
    }

    /// As [`Pairing::plan`], for the tables of some layers, which are counted as [`Pairing::tables_of`] does; all with `None`.
    ///
    /// # Errors
    /// As [`Pairing::plan`].
    pub fn plan_layers(
        &self,
        layers: Option<Range<u32>>,
        src_pages: &[PageId],
        dst_pages: &[PageId],
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        plan.clear();
        if src_pages.len() != dst_pages.len() {
            return Err(PlanError::PageCount { prefill: src_pages.len(), decode: dst_pages.len() });
        }
        let checked = self.runs(src_pages, dst_pages, &mut plan.runs);
        if let Err(error) = checked.and_then(|()| plan.seen.check(dst_pages, self.decode_rank())) {
            plan.clear();
            return Err(error);
        }
        let tables = layers.map_or_else(|| 0..self.tables().len(), |layers| self.tables_of(layers));
        let page_bytes = if tables.len() == self.tables().len() {
            self.page_bytes()
        } else {
            // Part of a sum that was checked when the two ranks were paired.
            self.tables().get(tables.clone()).unwrap_or_default().iter().map(|table| table.len).sum()
        };
        match page_bytes.checked_mul(src_pages.len() as u64) {
            Some(bytes) => plan.bytes = bytes,
            None => {
                plan.clear();
                return Err(PlanError::Overflow);
            }
        }
        if !plan.runs.is_empty() && !tables.is_empty() {
            plan.groups.push(PlanGroup { runs: 0..plan.runs.len(), tables });
        }
        Ok(())
    }

    fn runs(&self, src_pages: &[PageId], dst_pages: &[PageId], runs: &mut Vec<Run>) -> Result<(), PlanError> {
        let mut current: Option<Run> = None;
        for (place, (src, dst)) in src_pages.iter().zip(dst_pages).enumerate() {
            let src = u64::from(self.src_limit().check(*src, place)?);
            let dst = u64::from(self.dst_limit().check(*dst, place)?);
            match &mut current {
                Some(run) if run.src + run.count == src && run.dst + run.count == dst => run.count += 1,
                _ => runs.extend(current.replace(Run { src, dst, count: 1 })),
            }
        }
        runs.extend(current);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
