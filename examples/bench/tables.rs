//! The memory that the baselines use.
//!
//! A socket call wants references to the bytes, which registered memory never gives out, so the baselines have memory
//! of their own. It is of the same kind, or they would be measured with smaller pages: anonymous, and on huge pages
//! where the kernel gives them.

use std::io;

use memmap2::MmapMut;

use crate::{
    Result,
    placement::{self, Placement},
    workload::Workload,
};

/// The length from which on transports ask for huge pages.
const HUGE_FROM: usize = 2 << 20;

/// The tables of a workload, on one side.
#[derive(Debug)]
pub(crate) struct Tables(Vec<MmapMut>);

impl Tables {
    /// Zeroed tables.
    pub(crate) fn new(workload: &Workload) -> io::Result<Self> {
        let table = |_| {
            let table = MmapMut::map_anon(workload.table_bytes())?;
            #[cfg(target_os = "linux")]
            if table.len() >= HUGE_FROM {
                // A kernel without huge pages refuses the advice, which costs speed only, and for transports too.
                let _ = table.advise(memmap2::Advice::HugePage);
            }
            Ok(table)
        };
        (0..workload.tables).map(table).collect::<io::Result<_>>().map(Self)
    }

    /// Tables with the contents of the sending side.
    pub(crate) fn filled(workload: &Workload, placement: &Placement) -> Result<Self> {
        let mut tables = Self::new(workload)?;
        placement::fill(workload, placement, |table, offset, bytes| {
            tables.block_mut(table, offset, bytes.len())?.copy_from_slice(bytes);
            Ok(())
        })?;
        Ok(tables)
    }

    /// Compares every byte with the contents that the receiving side must have.
    pub(crate) fn verify(&self, workload: &Workload, placement: &Placement) -> Result<()> {
        placement::verify(workload, placement, |table, offset, into| {
            into.copy_from_slice(self.block(table, offset, into.len())?);
            Ok(())
        })
    }

    /// The bytes of a block.
    pub(crate) fn block(&self, table: usize, offset: usize, len: usize) -> io::Result<&[u8]> {
        let end = offset.checked_add(len);
        self.0.get(table).zip(end).and_then(|(table, end)| table.get(offset..end)).ok_or_else(outside)
    }

    /// The bytes of a block, to be written.
    pub(crate) fn block_mut(&mut self, table: usize, offset: usize, len: usize) -> io::Result<&mut [u8]> {
        let end = offset.checked_add(len);
        self.0.get_mut(table).zip(end).and_then(|(table, end)| table.get_mut(offset..end)).ok_or_else(outside)
    }
}

fn outside() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a block lies outside its table")
}
