use proptest::prelude::*;

use super::*;

const SRC: RegionId = RegionId { index: 1, generation: 10 };
const DST: RegionId = RegionId { index: 2, generation: 20 };

fn slice(src_offset: u64, dst_offset: u64, len: u64) -> WriteSlice {
    WriteSlice { src: SRC, src_offset, dst: DST, dst_offset, len }
}

fn table(base: u64, src_stride: u64, dst_stride: u64, len: u64) -> TablePair {
    TablePair { src_base: base, src_stride, dst_base: base, dst_stride, len, ..TablePair::between(SRC, DST) }
}

fn check(batch: Batch<'_>, src_len: u64, dst_len: u64) -> Result<(), SubmitError> {
    batch.check(|_| Ok(src_len), |_| Ok(dst_len))
}

#[test]
fn the_last_byte_is_checked_not_the_first() {
    assert!(check((&[slice(0, 50, 50)]).into(), 100, 100).is_ok());
    assert_eq!(
        check((&[slice(0, 0, 1), slice(0, 51, 50)]).into(), 100, 100).unwrap_err().to_string(),
        "slice 1: 50 bytes at offset 51 do not lie inside the destination region 2 (generation 0x00000014) of 100 bytes"
    );
}

#[test]
fn overflow_does_not_pass_the_check() {
    for bad in [slice(u64::MAX - 10, 0, 100), slice(0, u64::MAX, 1), slice(0, 0, u64::MAX)] {
        assert!(matches!(check((&[bad]).into(), 1 << 20, 1 << 20), Err(SubmitError::Slice { index: 0, .. })));
    }
    let runs = [Run::new(0, 0, 1), Run::new(u64::MAX / 2, 0, 3)];
    let group = Group { runs: &runs, tables: &[table(0, 4, 4, 4)] };
    assert!(matches!(check((&group).into(), 1 << 20, 1 << 20), Err(SubmitError::Slice { index: 1, .. })));
}

#[test]
fn a_range_that_ends_at_the_end_is_inside_and_an_empty_one_too() {
    assert!(check((&[slice(1 << 30, 0, 0)]).into(), 1 << 30, 1).is_ok());
    assert!(check((&[slice((1 << 30) - 65_536, 0, 65_536)]).into(), 1 << 30, 65_536).is_ok());
    assert!(check((&[slice((1 << 30) - 65_536, 0, 65_537)]).into(), 1 << 30, 1 << 20).is_err());
}

#[test]
fn the_index_of_a_group_counts_by_table_and_run() {
    let runs = [Run::new(0, 0, 1), Run::new(3, 3, 2)];
    let tables = [table(0, 10, 10, 10), table(1, 10, 10, 10)];
    let batch = Group { runs: &runs, tables: &tables };
    assert!(check((&batch).into(), 51, 51).is_ok());
    assert!(matches!(check((&batch).into(), 50, 51), Err(SubmitError::Slice { index: 3, .. })));
}

#[test]
fn sums_that_do_not_fit_are_refused() {
    let slices = [slice(0, 0, u64::MAX), slice(0, 0, 1)];
    assert!(matches!(Batch::from(&slices).total_bytes(), Err(SubmitError::TooLarge)));
    let runs = [Run::new(0, 0, 1 << 40)];
    let group = Group { runs: &runs, tables: &[table(0, 1 << 30, 1 << 30, 1 << 30)] };
    assert!(matches!(Batch::from(&group).total_bytes(), Err(SubmitError::TooLarge)));
}

proptest! {
    /// Expanding groups by the cursor gives the same bytes as the definition of a run, one unit at a time.
    #[test]
    fn groups_expand_as_their_definition_says(
        runs in prop::collection::vec((0u64..4, 0u64..50, 0u64..4, 0u64..50, 0u64..6), 0..5),
        tables in prop::collection::vec((0u64..9, 0u64..99, 1u64..5, 0u64..99, 1u64..5, 1u64..5), 0..4),
        groups in 1usize..3,
    ) {
        let runs: Vec<Run> = runs
            .into_iter()
            .map(|(src_row, src, dst_row, dst, count)| Run { src_row, src, dst_row, dst, count })
            .collect();
        let tables: Vec<TablePair> = tables
            .into_iter()
            .map(|(b, src_row_stride, s, dst_row_stride, d, l)| TablePair {
                src_row_stride,
                dst_row_stride,
                ..table(b, s, d, l)
            })
            .collect();
        let group = Group { runs: &runs, tables: &tables };
        let groups = vec![group; groups];
        let batch = Batch::from(groups.as_slice());
        let mut expected = Vec::new();
        for group in &groups {
            for table in group.tables {
                for run in group.runs {
                    for unit in 0..run.count {
                        for byte in 0..table.len {
                            expected.push((
                                table.src_base + run.src_row * table.src_row_stride + (run.src + unit) * table.src_stride + byte,
                                table.dst_base + run.dst_row * table.dst_row_stride + (run.dst + unit) * table.dst_stride + byte,
                            ));
                        }
                    }
                }
            }
        }
        let mut owned = OwnedBatch::default();
        owned.copy_from((&[slice(9, 9, 9)]).into());
        owned.copy_from(batch);
        let written: Vec<_> = owned
            .iter()
            .flat_map(|slice| (0..slice.len).map(move |byte| (slice.src_offset + byte, slice.dst_offset + byte)))
            .collect();
        prop_assert_eq!(batch.total_bytes().unwrap(), expected.len() as u64);
        prop_assert_eq!(written, expected);
    }
}
