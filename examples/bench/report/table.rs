//! The results for people.

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::{Figures, Line};
use crate::stats::Summary;

/// For a figure that a line does not have.
const NONE: &str = "–";

/// One table for throughput and one for latency, as far as there are lines.
pub(crate) fn render(lines: &[Line]) -> String {
    let mut throughput = Vec::new();
    let mut latency = Vec::new();
    for line in lines {
        let names = [Cell::new(line.pattern), Cell::new(line.transport)];
        match &line.figures {
            Figures::Throughput(figures) => {
                let sender = figures.sender_cpu_s_per_gib.median;
                let cpu = figures.cpu_s_per_gib;
                throughput.push(row(
                    names,
                    [
                        spread(figures.gb_per_s, 2),
                        spread(figures.vs_tcp, 2),
                        spread(figures.vs_memcpy, 2),
                        figures.vs_perftest.map_or_else(none, |versus| spread(versus, 2)),
                        spread(cpu, 2),
                        format!("{sender:.2} + {:.2}", cpu.median - sender),
                        line.runs.to_string(),
                    ],
                ));
            }
            Figures::Latency(figures) => latency.push(row(
                names,
                [
                    spread(figures.p50_us, 0),
                    spread(figures.p99_us, 0),
                    spread(figures.notified_p50_us, 0),
                    spread(figures.notified_p99_us, 0),
                    spread(figures.p50_vs_tcp, 1),
                    spread(figures.p99_vs_tcp, 1),
                    figures.p50_vs_perftest.map_or_else(none, |versus| spread(versus, 2)),
                    figures.p50_vs_verbs.map_or_else(none, |versus| spread(versus, 2)),
                    line.runs.to_string(),
                ],
            )),
        }
    }
    let mut text = String::from("Medians of the runs (least to most).\n");
    if !throughput.is_empty() {
        let header = [
            "pattern",
            "transport",
            "GB/s",
            "speed / TCP",
            "speed / memcpy",
            "speed / perftest",
            "CPU s/GiB",
            "send + receive",
            "runs",
        ];
        text += &format!("\n{}\n", table(&header, throughput));
    }
    if !latency.is_empty() {
        let header = [
            "pattern",
            "transport",
            "p50 µs",
            "p99 µs",
            "notified p50 µs",
            "notified p99 µs",
            "p50 / TCP",
            "p99 / TCP",
            "p50 / perftest",
            "p50 / verbs",
            "runs",
        ];
        text += &format!("\n{}\n", table(&header, latency));
    }
    text
}

fn table(header: &[&str], rows: Vec<Vec<Cell>>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header).add_rows(rows);
    table
}

fn row<const N: usize>(names: [Cell; 2], figures: [String; N]) -> Vec<Cell> {
    let figures = figures.into_iter().map(|figure| Cell::new(figure).set_alignment(CellAlignment::Right));
    names.into_iter().chain(figures).collect()
}

fn none() -> String {
    NONE.into()
}

fn spread(summary: Summary, decimals: usize) -> String {
    let Summary { median, min, max } = summary;
    if median.is_nan() {
        return none();
    }
    if min == max {
        return format!("{median:.decimals$}");
    }
    format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
}
