//! The output for people.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use comfy_table::{CellAlignment, Table, presets};
use kv_plan::{
    Attention, BufferKey, CacheLayout, LayerKind, ModelShape, Pairing, Part, PlannedSlice, Pool, Rank, Role,
};

use crate::cluster::{Cluster, Transfer};

/// Slices of one transfer that are printed at most; `--json` prints all.
const SHOWN: usize = 24;

/// Below it, what a piece costs by itself outweighs its bytes.
const SMALL: u64 = 4096;

pub(crate) fn print(out: &mut impl Write, cluster: &Cluster, transfers: &[Transfer], bytes: u64) -> io::Result<()> {
    writeln!(out, "{}", model(&cluster.model))?;
    writeln!(out, "prefill: {}", side(&cluster.prefill))?;
    writeln!(out, "decode:  {}", side(&cluster.decode))?;
    writeln!(out)?;
    if transfers.is_empty() {
        writeln!(out, "nothing moves between these ranks")?;
    } else {
        writeln!(out, "{}", overview(transfers, bytes))?;
        costs(out, transfers)?;
    }
    for transfer in transfers {
        slices(out, transfer)?;
    }
    drafts(out, cluster, transfers)
}

fn model(model: &ModelShape) -> String {
    let layers = model.layer_count();
    let attention = match model.attention() {
        Attention::Latent { dim } => format!(", a latent of {dim} elements a token"),
        Attention::Heads { kv_heads, key_dim, value_dim } => {
            format!(", {kv_heads} key-value heads of {key_dim} and {value_dim} elements")
        }
        _ => String::new(),
    };
    let count = |is: fn(&LayerKind) -> bool| model.layers().iter().filter(|kind| is(kind)).count();
    let kinds = [
        (count(|kind| matches!(kind, LayerKind::SlidingWindow { .. })), "of sliding-window attention"),
        (count(|kind| matches!(kind, LayerKind::Linear)), "of linear attention, with states"),
        (count(|kind| matches!(kind, LayerKind::Indexed { .. })), "with index keys"),
    ];
    let kinds = kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} layers {what}"));
    format!("model {}: {layers} layers{attention}{}", model.name(), kinds.collect::<String>())
}

fn side(side: &[CacheLayout]) -> String {
    let Some(layout) = side.first() else { return "no ranks".into() };
    let stages: Vec<String> = layout.shard.stages.iter().map(u32::to_string).collect();
    let draft = match layout.shard.draft_layers {
        0 => String::new(),
        layers => format!(", draft {layers}"),
    };
    format!(
        "pp={} (layers {}{draft}), tp={}{}, pages of {} tokens, {}, {}, {} pages a buffer",
        layout.shard.stages.len(),
        stages.join("+"),
        layout.shard.tp,
        other_axes(layout),
        layout.page_tokens,
        layout.dtype,
        layout.order,
        layout.page_count(Pool::FULL)
    )
}

/// Context and data parallelism, where there is any.
fn other_axes(layout: &CacheLayout) -> String {
    let axes = [("cp", layout.shard.cp), ("dp", layout.shard.dp)];
    axes.iter().filter(|(_, ranks)| *ranks > 1).map(|(axis, ranks)| format!(", {axis}={ranks}")).collect()
}

/// Who sends to whom and how much.
fn overview(transfers: &[Transfer], total: u64) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let with_slices = transfers.iter().any(|transfer| transfer.slices.is_some());
    let mut header = vec!["from", "to", "layers", "buffers"];
    let with_states = !with_slices && transfers.iter().any(|transfer| transfer.pairing.bytes_per_request() > 0);
    header.extend(if with_slices { ["slices", "smallest", "bytes"].as_slice() } else { &["bytes a token"] });
    header.extend(with_states.then_some("bytes a request"));
    table.set_header(&header);
    for transfer in transfers {
        let keys = keys(&transfer.pairing);
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
        row.extend(with_states.then(|| grouped(transfer.pairing.bytes_per_request())));
        table.add_row(row);
    }
    if transfers.len() > 1 {
        let mut row = vec![String::new(); header.len()];
        let place = row.len() - 1 - usize::from(with_states);
        if let Some(first) = row.first_mut() {
            *first = "together".into();
        }
        if let Some(bytes) = row.get_mut(place) {
            *bytes = grouped(total);
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The buffers that something of moves, each once.
fn keys(pairing: &Pairing) -> Vec<BufferKey> {
    let mut keys: Vec<BufferKey> = pairing.tables().iter().map(|table| table.key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// What costs time: how the load is shared, and how small the pieces are.
fn costs(out: &mut impl Write, transfers: &[Transfer]) -> io::Result<()> {
    let mut senders: BTreeMap<Rank, u64> = BTreeMap::new();
    for transfer in transfers {
        let sum = senders.entry(transfer.pairing.prefill_rank()).or_default();
        *sum = sum.saturating_add(transfer.bytes);
    }
    if let (Some(least), Some(most)) = (senders.values().min(), senders.values().max())
        && senders.len() > 1
    {
        writeln!(
            out,
            "{} senders, of which each sends {} to {} bytes",
            senders.len(),
            grouped(*least),
            grouped(*most)
        )?;
    }
    let slices = || transfers.iter().filter_map(|transfer| transfer.slices.as_ref()).flatten();
    if let Some(smallest) = slices().map(|slice| slice.len).min() {
        let note = if smallest < SMALL { "; pieces that small cost more than their bytes" } else { "" };
        writeln!(
            out,
            "{} slices, the smallest of {} bytes{note}",
            grouped(slices().count() as u64),
            grouped(smallest)
        )?;
    }
    Ok(())
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
