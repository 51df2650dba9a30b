//! The results for programs.

use serde_json::{Map, Value, json};

use super::{Figures, Line};
use crate::stats::Summary;

/// The document: `{"lines": […]}`. A figure that a line does not have is null. Beside each median `X` there are
/// `X_min` and `X_max`.
pub(crate) fn document(lines: &[Line]) -> Value {
    json!({ "lines": lines.iter().map(line).collect::<Vec<_>>() })
}

fn line(line: &Line) -> Value {
    let (throughput, latency) = match &line.figures {
        Figures::Throughput(throughput) => (Some(throughput), None),
        Figures::Latency(latency) => (None, Some(latency)),
    };
    let figures = [
        ("gb_per_s", throughput.map(|throughput| throughput.gb_per_s)),
        ("vs_tcp", throughput.map(|throughput| throughput.vs_tcp)),
        ("vs_memcpy", throughput.map(|throughput| throughput.vs_memcpy)),
        ("vs_perftest", throughput.and_then(|throughput| throughput.vs_perftest)),
        ("cpu_s_per_gib", throughput.map(|throughput| throughput.cpu_s_per_gib)),
        ("sender_cpu_s_per_gib", throughput.map(|throughput| throughput.sender_cpu_s_per_gib)),
        ("p50_us", latency.map(|latency| latency.p50_us)),
        ("p99_us", latency.map(|latency| latency.p99_us)),
        ("notified_p50_us", latency.map(|latency| latency.notified_p50_us)),
        ("notified_p99_us", latency.map(|latency| latency.notified_p99_us)),
        ("p50_vs_tcp", latency.map(|latency| latency.p50_vs_tcp)),
        ("p99_vs_tcp", latency.map(|latency| latency.p99_vs_tcp)),
        ("p50_vs_verbs", latency.and_then(|latency| latency.p50_vs_verbs)),
        ("p50_vs_perftest", latency.and_then(|latency| latency.p50_vs_perftest)),
    ];
    let mut object = Map::new();
    object.insert("pattern".into(), line.pattern.into());
    object.insert("transport".into(), line.transport.into());
    object.insert("runs".into(), line.runs.into());
    for (key, summary) in figures {
        insert(&mut object, key, summary);
    }
    Value::Object(object)
}

fn insert(object: &mut Map<String, Value>, key: &str, summary: Option<Summary>) {
    object.insert(key.into(), summary.map(|summary| rounded(summary.median)).into());
    if let Some(Summary { min, max, .. }) = summary {
        object.insert(format!("{key}_min"), rounded(min).into());
        object.insert(format!("{key}_max"), rounded(max).into());
    }
}

/// Four decimals: more than the noise leaves.
fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}
