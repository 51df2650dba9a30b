//! The throughput as a picture.

use plotters::prelude::*;

use super::{Figures, Line};
use crate::Result;

const SIZE: (u32, u32) = (900, 480);
const COLOURS: [RGBColor; 5] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(120, 120, 120),
    RGBColor(190, 190, 190),
    RGBColor(44, 160, 44),
];

/// A group of bars for each pattern, a bar for each lane, on a logarithmic scale; the whisker is the spread.
pub(crate) fn svg(lines: &[Line]) -> Result<String> {
    let bars: Vec<_> = lines
        .iter()
        .filter_map(|line| match &line.figures {
            Figures::Throughput(figures) => Some((line.pattern, line.transport, figures.gb_per_s)),
            Figures::Latency(_) => None,
        })
        .collect();
    let patterns = distinct(bars.iter().map(|(pattern, ..)| *pattern));
    let lanes = distinct(bars.iter().map(|(_, lane, _)| *lane));
    let floor = bars.iter().map(|(.., speed)| speed.min).fold(f64::INFINITY, f64::min) / 2.0;
    let ceiling = bars.iter().map(|(.., speed)| speed.max).fold(0.0, f64::max) * 1.5;
    if patterns.is_empty() {
        return Err("there is no throughput to plot".into());
    }

    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Two processes over loopback: GB/s by pattern", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.5..patterns.len() as f64 - 0.5, (floor..ceiling).log_scale())?;
    let name = |place: &f64| {
        let near = place.round();
        let pattern = patterns.get(near.max(0.0) as usize).filter(|_| (place - near).abs() < 1e-6);
        pattern.map_or_else(String::new, |pattern| (*pattern).to_owned())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .x_labels(2 * patterns.len() + 1)
        .x_label_formatter(&name)
        .y_desc("GB/s (10^9 bytes a second)")
        .y_label_formatter(&|speed| format!("{speed}"))
        .draw()?;
    let width = 0.8 / lanes.len() as f64;
    for (lane, name) in lanes.iter().enumerate() {
        let colour = COLOURS[lane % COLOURS.len()];
        let own = bars.iter().filter(|(_, transport, _)| transport == name);
        let placed: Vec<_> = own
            .filter_map(|(pattern, _, speed)| {
                let group = patterns.iter().position(|known| known == pattern)?;
                Some((group as f64 - 0.4 + width * lane as f64, *speed))
            })
            .collect();
        let bar = |(left, speed): &(f64, crate::stats::Summary)| {
            Rectangle::new([(*left, floor), (left + width * 0.92, speed.median)], colour.filled())
        };
        chart
            .draw_series(placed.iter().map(bar))?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        let whisker = |(left, speed): &(f64, crate::stats::Summary)| {
            let middle = left + width * 0.46;
            PathElement::new([(middle, speed.min), (middle, speed.max)], BLACK)
        };
        chart.draw_series(placed.iter().map(whisker))?;
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).background_style(WHITE).draw()?;
    area.present()?;
    drop(chart);
    drop(area);
    Ok(svg)
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}
