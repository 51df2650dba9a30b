//! The output for people.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use comfy_table::{CellAlignment, Table, presets};
use kv_plan::{Attention, BufferKey, CacheLayout, ModelShape, Part, PlannedSlice, Role};

use crate::cluster::{Cluster, Transfer};

/// Slices of one transfer that are printed at most; `--json` prints all.
const SHOWN: usize = 24;

pub(crate) fn print(out: &mut impl Write, cluster: &Cluster, transfers: &[Transfer]) -> io::Result<()> {
    writeln!(out, "{}", model(&cluster.model))?;
    writeln!(out, "prefill: {}", side(&cluster.prefill))?;
    writeln!(out, "decode:  {}", side(&cluster.decode))?;
    writeln!(out)?;
    if transfers.is_empty() {
        writeln!(out, "nothing moves between these ranks")?;
    } else {
        writeln!(out, "{}", overview(transfers))?;
    }
    for transfer in transfers {
        slices(out, transfer)?;
    }
    drafts(out, cluster, transfers)
}

fn model(model: &ModelShape) -> String {
    let layers = model.layer_count();
    match model.attention() {
        Attention::Latent { dim } => {
            format!("model {}: {layers} layers, a latent of {dim} elements a token", model.name())
        }
        Attention::Heads { kv_heads, key_dim, value_dim } => format!(
            "model {}: {layers} layers, {kv_heads} key-value heads of {key_dim} and {value_dim} elements",
            model.name()
        ),
        _ => format!("model {}: {layers} layers", model.name()),
    }
}

fn side(side: &[CacheLayout]) -> String {
    let Some(layout) = side.first() else { return "no ranks".into() };
    let stages: Vec<String> = layout.shard.stages.iter().map(u32::to_string).collect();
    let draft = match layout.shard.draft_layers {
        0 => String::new(),
        layers => format!(", draft {layers}"),
    };
    format!(
        "pp={} (layers {}{draft}), tp={}, pages of {} tokens, {}, {}, {} pages a buffer",
        layout.shard.stages.len(),
        stages.join("+"),
        layout.shard.tp,
        layout.page_tokens,
        layout.dtype,
        layout.order,
        layout.page_count()
    )
}

/// Who sends to whom and how much.
fn overview(transfers: &[Transfer]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let with_slices = transfers.iter().any(|transfer| transfer.slices.is_some());
    let mut header = vec!["from", "to", "layers", "buffers"];
    header.extend(if with_slices { ["slices", "smallest", "bytes"].as_slice() } else { &["bytes a token"] });
    table.set_header(&header);
    for transfer in transfers {
        let keys: Vec<BufferKey> = transfer.pairing.tables().iter().map(|table| table.key).collect();
        let mut row = vec![
            transfer.pairing.prefill_rank().to_string(),
            transfer.pairing.decode_rank().to_string(),
            layers(&keys),
            keys.len().to_string(),
        ];
        if let Some(slices) = &transfer.slices {
            row.push(grouped(slices.len() as u64));
            row.push(grouped(slices.iter().map(|slice| slice.len).min().unwrap_or(0)));
        }
        row.push(grouped(transfer.bytes));
        table.add_row(row);
    }
    if transfers.len() > 1 {
        let mut row = vec![String::new(); header.len()];
        let total = transfers.iter().map(|transfer| transfer.bytes).fold(0, u64::saturating_add);
        if let [first, .., last] = row.as_mut_slice() {
            (*first, *last) = ("together".into(), grouped(total));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The slices of a transfer. Layers whose slices are the same are printed once.
fn slices(out: &mut impl Write, transfer: &Transfer) -> io::Result<()> {
    let Some(slices) = &transfer.slices else { return Ok(()) };
    let mut alike: BTreeMap<(Part, Role, Vec<Place>), Vec<BufferKey>> = BTreeMap::new();
    for of_buffer in slices.chunk_by(|a, b| a.key == b.key) {
        if let [first, ..] = of_buffer {
            let places = of_buffer.iter().map(Place::of).collect();
            alike.entry((first.key.part, first.key.role, places)).or_default().push(first.key);
        }
    }
    for ((_, role, places), keys) in &alike {
        writeln!(
            out,
            "\n{} to {}, {role}, layers {}: offsets in each buffer",
            transfer.pairing.prefill_rank(),
            transfer.pairing.decode_rank(),
            layers(keys)
        )?;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["source", "destination", "length"]);
        for place in places.iter().take(SHOWN) {
            table.add_row([place.src, place.dst, place.len].map(grouped));
        }
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        writeln!(out, "{table}")?;
        if places.len() > SHOWN {
            writeln!(out, "and {} more; --json prints all", places.len() - SHOWN)?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    src: u64,
    dst: u64,
    len: u64,
}

impl Place {
    fn of(slice: &PlannedSlice) -> Self {
        Self { src: slice.src_offset, dst: slice.dst_offset, len: slice.len }
    }
}

/// What only one side has: nothing is wrong with that, but it should not go unsaid.
fn drafts(out: &mut impl Write, cluster: &Cluster, transfers: &[Transfer]) -> io::Result<()> {
    let count = |side: &[CacheLayout]| side.first().map_or(0, |layout| layout.shard.draft_layers);
    let (prefill, decode) = (count(&cluster.prefill), count(&cluster.decode));
    let mut names: Vec<String> = transfers
        .iter()
        .flat_map(|transfer| match (prefill, decode) {
            (0, _) => transfer.pairing.left_alone(),
            (_, 0) => transfer.pairing.unsent(),
            _ => &[],
        })
        .map(ToString::to_string)
        .collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => Ok(()),
        names if prefill == 0 => writeln!(out, "\nonly decode has a draft; left alone: {}", names.join(", ")),
        names => writeln!(out, "\nonly prefill has a draft; not sent: {}", names.join(", ")),
    }
}

/// Layer numbers with neighbours joined: `0-14`, and those of the draft behind them.
fn layers(keys: &[BufferKey]) -> String {
    let of = |part: Part| {
        let mut numbers: Vec<u32> = keys.iter().filter(|key| key.part == part).map(|key| key.layer).collect();
        numbers.dedup();
        let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
        let written = runs.filter_map(|run| match run {
            [one] => Some(one.to_string()),
            [first, .., last] => Some(format!("{first}-{last}")),
            [] => None,
        });
        written.collect::<Vec<_>>().join(", ")
    };
    match (of(Part::Main), of(Part::Draft)) {
        (main, draft) if draft.is_empty() => main,
        (main, draft) if main.is_empty() => format!("draft {draft}"),
        (main, draft) => format!("{main}, draft {draft}"),
    }
}

/// A number with its thousands set apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
