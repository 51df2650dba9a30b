//! Registered memory beside what ought to be in it.

use crate::{Access, Group, Memory, RegionId, Transport, WriteSlice};

/// Registered memory, and the bytes that a correct transport leaves in it. Everything that no slice names is a canary.
pub(super) struct Field {
    pub(super) memory: Memory,
    pub(super) region: RegionId,
    pub(super) expected: Vec<u8>,
}

impl Field {
    pub(super) fn new(transport: &dyn Transport, bytes: Vec<u8>, access: Access) -> Self {
        let memory = Memory::host(bytes.len()).expect("the kernel gives memory");
        memory.write_at(0, &bytes).expect("the bytes fit");
        let region = transport.register(memory.clone(), access).expect("memory is registered");
        Self { memory, region, expected: bytes }
    }

    pub(super) fn len(&self) -> u64 {
        self.expected.len() as u64
    }

    /// What is in the memory now.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.expected.len()];
        self.memory.read_at(0, &mut bytes).expect("the whole memory is read");
        bytes
    }

    /// Expects what `slices` write from `source`.
    pub(super) fn expect(&mut self, source: &Self, slices: &[WriteSlice]) {
        for slice in slices {
            let from = slice.src_offset as usize..(slice.src_offset + slice.len) as usize;
            let to = slice.dst_offset as usize..(slice.dst_offset + slice.len) as usize;
            self.expected[to].copy_from_slice(&source.expected[from]);
        }
    }

    /// Expects what a group writes from `source`, one unit at a time as its definition says.
    pub(super) fn expect_group(&mut self, source: &Self, group: &Group<'_>) {
        for table in group.tables {
            for run in group.runs {
                for unit in 0..run.count {
                    let slice = WriteSlice {
                        src: table.src,
                        src_offset: table.src_base
                            + run.src_row * table.src_row_stride
                            + (run.src + unit) * table.src_stride,
                        dst: table.dst,
                        dst_offset: table.dst_base
                            + run.dst_row * table.dst_row_stride
                            + (run.dst + unit) * table.dst_stride,
                        len: table.len,
                    };
                    self.expect(source, &[slice]);
                }
            }
        }
    }

    /// Asserts that the memory holds what it ought to, and nothing else was touched (C4).
    pub(super) fn check(&self, when: &str) {
        let mut piece = vec![0; self.expected.len().min(1 << 20)];
        for (number, expected) in self.expected.chunks(1 << 20).enumerate() {
            let start = (number as u64) << 20;
            let piece = &mut piece[..expected.len()];
            self.memory.read_at(start, piece).expect("the whole memory is read");
            if piece != expected {
                let first = piece.iter().zip(expected).position(|(found, wanted)| found != wanted);
                let wrong = piece.iter().zip(expected).filter(|(found, wanted)| found != wanted).count();
                let first = start + first.unwrap_or_default() as u64;
                panic!("{when}: byte {first} of {} is wrong, and {wrong} bytes in its MiB", self.region);
            }
        }
    }

    /// Overwrites the memory without expecting it: what was read after this is seen.
    pub(super) fn poison(&self) {
        self.memory.fill(0, self.len(), 0xdd).expect("the whole memory is filled");
    }
}
