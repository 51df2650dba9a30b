//! Plans: what moves for one request, as runs of tokens or pages times tables.

mod slices;
mod span;
mod tally;
#[cfg(test)]
mod tests;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use self::{
    slices::is_contiguous,
    span::{Segment, Span},
};
pub use self::{
    slices::{PlannedSlice, Slices},
    tally::Tally,
};
use crate::{Pages, Pairing, PlanError, Section, pages::Seen, pair::Form};

/// `count` neighbouring units on both sides, from unit `src` of row `src_row` here and unit `dst` of row `dst_row` there on. What
/// units and rows are says the [`Form`] of the group's section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct Run {
    /// Row on the sender: 0, or a page.
    pub src_row: u64,
    /// First unit on the sender.
    pub src: u64,
    /// Row on the receiver: 0, or a page.
    pub dst_row: u64,
    /// First unit on the receiver.
    pub dst: u64,
    /// How many units.
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

/// What moves for one request between two ranks. Made once and used for many requests: planning into it again allocates only
/// when a request has more runs than any before.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    runs: Vec<Run>,
    groups: Vec<PlanGroup>,
    bytes: u64,
    slices: u64,
    seen: Seen,
}

impl Plan {
    /// An empty plan with room for so many runs: a request of one pool never has more than pages on both sides together.
    pub fn with_capacity(runs: usize) -> Self {
        Self { runs: Vec::with_capacity(runs), groups: Vec::with_capacity(4), ..Self::default() }
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

    /// Slices that they move in, when neighbouring units are merged.
    pub fn slice_count(&self) -> u64 {
        self.slices
    }

    /// Whether nothing moves.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The slices, merged and written out, by group, then table, then in the order of the page lists.
    pub fn slices<'a>(&'a self, pairing: &'a Pairing) -> Slices<'a> {
        Slices::new(self, pairing)
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.groups.clear();
        (self.bytes, self.slices) = (0, 0);
    }
}

impl Pairing {
    /// Plans a request: the tokens in the pages of the sender go to the same tokens' pages of the receiver, in all pools that both
    /// give lists for. Units that are neighbours on both sides become one run.
    ///
    /// Empty lists are legal and move nothing. What moves is exactly the tokens that were asked for.
    ///
    /// # Errors
    /// [`PlanError`]: lists that are not of the same tokens, pages that do not exist on either side, or one twice on the receiving
    /// side. The plan is empty then.
    pub fn plan<'a>(
        &self,
        src: impl Into<Pages<'a>>,
        dst: impl Into<Pages<'a>>,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        self.plan_layers(None, src, dst, plan)
    }

    /// As [`Pairing::plan`], for the tables of some layers; all with `None`.
    ///
    /// Layers are counted in the whole main model, whatever stage holds them; the draft model's count on after its last one, so
    /// that draft layer 0 of a model of 61 layers is 61.
    ///
    /// # Errors
    /// As [`Pairing::plan`].
    pub fn plan_layers<'a>(
        &self,
        layers: Option<Range<u32>>,
        src: impl Into<Pages<'a>>,
        dst: impl Into<Pages<'a>>,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        plan.clear();
        let planned = self.plan_pools(layers.as_ref(), &src.into(), &dst.into(), plan);
        if planned.is_err() {
            plan.clear();
        }
        planned
    }

    fn plan_pools(
        &self,
        layers: Option<&Range<u32>>,
        src: &Pages<'_>,
        dst: &Pages<'_>,
        plan: &mut Plan,
    ) -> Result<(), PlanError> {
        span::check_lists(self, src, dst)?;
        for pair in self.pool_pairs() {
            let Some(span) = Span::of(self, pair, src, dst)? else { continue };
            plan.seen.check(span.dst_pages(), self.decode_rank())?;
            for section in self.sections().get(pair.sections.clone()).unwrap_or_default() {
                let start = plan.runs.len();
                let units = self.runs(section, &span, &mut plan.runs);
                let tables = self.tables_of(section, layers);
                if plan.runs.len() == start || tables.is_empty() {
                    plan.runs.truncate(start);
                    continue;
                }
                let group = PlanGroup { runs: start..plan.runs.len(), tables };
                self.count(&group, units, plan)?;
                plan.groups.push(group);
            }
        }
        Ok(())
    }

    /// Adds the bytes and slices of a group whose runs have so many units.
    fn count(&self, group: &PlanGroup, units: u64, plan: &mut Plan) -> Result<(), PlanError> {
        let mut sums = (0u64, 0u64);
        for table in self.tables().get(group.tables.clone()).unwrap_or_default() {
            let slices = if is_contiguous(table) { group.runs.len() as u64 } else { units };
            sums = (sums.0.checked_add(table.len).ok_or(PlanError::Overflow)?, sums.1.saturating_add(slices));
        }
        let bytes = sums.0.checked_mul(units).and_then(|bytes| bytes.checked_add(plan.bytes));
        plan.bytes = bytes.ok_or(PlanError::Overflow)?;
        plan.slices = plan.slices.saturating_add(sums.1);
        Ok(())
    }

    /// The runs of a section; answers their units.
    fn runs(&self, section: &Section, span: &Span<'_>, runs: &mut Vec<Run>) -> u64 {
        match section.form {
            Form::Tokens => tokens(span, runs),
            Form::Pages => merged(span, runs, |segment| segment.page(span)),
            Form::Rows => single(span, runs, |_| true),
            Form::Parts => single(span, runs, |segment| segment.page(span).is_none()),
        }
    }
}

/// Runs of tokens across pages.
fn tokens(span: &Span<'_>, runs: &mut Vec<Run>) -> u64 {
    let mut units = 0;
    let alike = span.token_runs(|run| {
        units += run.count;
        runs.push(run);
    });
    if alike { units } else { merged(span, runs, |segment| Some(segment.tokens(span))) }
}

/// Runs without rows, neighbours merged.
fn merged(span: &Span<'_>, runs: &mut Vec<Run>, run: impl Fn(&Segment) -> Option<Run>) -> u64 {
    let mut current = Run::zeroed();
    let mut units = 0;
    span.for_each(|segment| {
        let Some(next) = run(&segment) else { return };
        units += next.count;
        if current.src + current.count == next.src && current.dst + current.count == next.dst {
            current.count += next.count;
        } else {
            if current.count > 0 {
                runs.push(current);
            }
            current = next;
        }
    });
    if current.count > 0 {
        runs.push(current);
    }
    units
}

/// A run for each segment, by rows.
fn single(span: &Span<'_>, runs: &mut Vec<Run>, wanted: impl Fn(&Segment) -> bool) -> u64 {
    let mut units = 0;
    span.for_each(|segment| {
        if wanted(&segment) {
            units += segment.count;
            runs.push(segment.row());
        }
    });
    units
}
