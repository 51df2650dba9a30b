//! What is measured: shapes of blocks, and how often they are moved.

/// A shape of blocks that is moved over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// The pattern's name.
    pub(crate) name: &'static str,
    /// Tables (the layers of a cache), each a region of its own.
    pub(crate) tables: usize,
    /// Blocks (pages) in each table.
    pub(crate) pages: usize,
    /// Bytes of a block.
    pub(crate) page_bytes: usize,
    /// How a batch names its blocks.
    pub(crate) form: Form,
    /// How often all blocks are moved in one run.
    pub(crate) repeats: usize,
    /// What a run yields.
    pub(crate) measure: Measure,
    /// Whether a batch carries a notification.
    pub(crate) notified: bool,
}

/// The two forms of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each block is a slice.
    Slices,
    /// One list of pages times a list of tables.
    Group,
}

/// What a run yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Bytes a second: the batches of a run are timed together.
    Throughput,
    /// Each batch is timed alone.
    Latency,
}

/// Every pattern. The repeats make a run last some tenths of a second: long against the clock and the scheduler, short
/// enough that the machine is the same for a transport and for the baselines that run right after it.
pub(crate) const ALL: [Workload; 8] = [
    cache("mla", 61, 64, 73_728, 2),
    cache("gqa", 160, 64, 32_768, 2),
    blocks("4k", 4_096, 4 << 10, 32),
    blocks("64k", 1_024, 64 << 10, 8),
    blocks("1m", 256, 1 << 20, 2),
    writes("latency-64", 64, 4_000),
    writes("latency-4096", 4_096, 4_000),
    Workload { notified: false, ..writes("write-4096", 4_096, 4_000) },
];

/// The names that stand for several patterns.
const FAMILIES: [&str; 1] = ["latency"];

/// The patterns of this name: one, or those of a family (`latency`).
pub(crate) fn named(name: &str) -> Result<Vec<Workload>, String> {
    let family = FAMILIES.contains(&name);
    let found: Vec<_> = ALL
        .into_iter()
        .filter(|workload| workload.name == name || (family && workload.name.split('-').next() == Some(name)))
        .collect();
    if found.is_empty() {
        let known: Vec<_> = ALL.iter().map(|workload| workload.name).chain(FAMILIES).collect();
        return Err(format!("there is no pattern \"{name}\"; there are {}", known.join(", ")));
    }
    Ok(found)
}

impl Workload {
    /// The workload in words.
    pub(crate) fn describe(&self) -> String {
        let Self { tables, pages, page_bytes, repeats, .. } = self;
        match self.measure {
            Measure::Throughput => format!("{tables} × {pages} blocks of {page_bytes} bytes, {repeats} times a run"),
            Measure::Latency => {
                let with = if self.notified { "with" } else { "without" };
                format!("writes of {page_bytes} bytes {with} a notification, {repeats} a run")
            }
        }
    }

    /// The same shape for a device that moves some 25 MB/s, such as Soft-RoCE in an emulated machine.
    pub(crate) fn small(self) -> Self {
        match self.measure {
            Measure::Throughput => {
                // 4 KiB blocks stay in batches of 1,024; else a batch is 8 MiB or a page of each table.
                let most = (8 << 20) / self.page_bytes / self.tables;
                Self { pages: self.pages.min(most.clamp(1, 1_024)), repeats: 2, ..self }
            }
            Measure::Latency => Self { repeats: 200, ..self },
        }
    }

    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.tables * self.pages * self.page_bytes
    }

    /// Bytes that a run moves.
    pub(crate) fn bytes_per_run(&self) -> usize {
        self.bytes() * self.repeats
    }

    /// Bytes of one table.
    pub(crate) fn table_bytes(&self) -> usize {
        self.pages * self.page_bytes
    }
}

const fn cache(name: &'static str, tables: usize, pages: usize, page_bytes: usize, repeats: usize) -> Workload {
    Workload {
        name,
        tables,
        pages,
        page_bytes,
        form: Form::Group,
        repeats,
        measure: Measure::Throughput,
        notified: false,
    }
}

const fn blocks(name: &'static str, pages: usize, page_bytes: usize, repeats: usize) -> Workload {
    Workload {
        name,
        tables: 1,
        pages,
        page_bytes,
        form: Form::Slices,
        repeats,
        measure: Measure::Throughput,
        notified: false,
    }
}

const fn writes(name: &'static str, page_bytes: usize, repeats: usize) -> Workload {
    Workload {
        name,
        tables: 1,
        pages: 1,
        page_bytes,
        form: Form::Slices,
        repeats,
        measure: Measure::Latency,
        notified: true,
    }
}
