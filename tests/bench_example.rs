//! The example `bench` as a user runs it: a small run, and wrong arguments.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use serde_json::Value;

/// The example. `cargo test` builds all examples; `cargo test --test …` alone does not, so then it is built here.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // This test is `target/debug/deps/bench_example-…`, and the example `target/debug/examples/bench`.
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let program = profile.join("examples").join(format!("bench{}", std::env::consts::EXE_SUFFIX));
        if !program.exists() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--example", "bench", "--target-dir"]).arg(profile.parent().unwrap());
            if profile.ends_with("release") {
                cargo.arg("--release");
            }
            let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
            assert!(built.success(), "the example does not build");
        }
        program
    })
}

fn bench(args: &[&str]) -> Output {
    Command::new(program()).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_small_run_prints_one_document_with_every_lane_and_draws_them() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("bench.svg");
    let output = bench(&["--pattern", "4k", "--runs", "1", "--json", "--plot", plot.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines = document["lines"].as_array().unwrap();
    let lanes: Vec<_> = lines.iter().map(|line| line["transport"].as_str().unwrap()).collect();
    assert_eq!(lanes, ["quic", "tcp", "memcpy"]);
    for line in lines {
        assert_eq!(line["pattern"], "4k");
        assert_eq!(line["runs"], 1);
        for figure in ["gb_per_s", "vs_tcp", "vs_memcpy", "cpu_s_per_gib"] {
            assert!(line[figure].as_f64().unwrap() > 0.0, "{figure} of {line}");
        }
        assert!(line["p50_us"].is_null() && line["p99_us"].is_null(), "{line}");
    }
    let plot = std::fs::read_to_string(plot).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("memcpy"));
}

#[test]
fn latency_has_percentiles_and_no_throughput() {
    let output = bench(&["--pattern", "latency-64", "--runs", "1", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines = document["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 2, "{document}");
    for line in lines {
        let (p50, p99) = (line["p50_us"].as_f64().unwrap(), line["p99_us"].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99, "{line}");
        assert!(line["gb_per_s"].is_null(), "{line}");
    }
}

#[test]
fn without_json_there_is_a_table() {
    let output = bench(&["--pattern", "latency-4096", "--runs", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("p99 µs") && table.contains("| latency-4096 | quic "), "{table}");
}

#[test]
fn what_a_line_does_not_have_is_a_dash() {
    let output = bench(&["--pattern", "write-4096", "--runs", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains(" – |") && !table.contains("NaN"), "{table}");
}

#[test]
fn wrong_arguments_end_with_status_1_and_say_what_there_is() {
    for (args, said) in [
        (&["--pattern", "8k"][..], "there is no pattern \"8k\"; there are mla, gqa,"),
        (&["--transport", "carrier-pigeon"], "there is no transport \"carrier-pigeon\"; there are quic,"),
        (&["--runs", "0"], "0 is not in 1.."),
        (&["--frobnicate"], "unexpected argument"),
        (&["--pattern", "latency", "--plot", "x.svg"], "only latency is measured"),
        (&["--pattern", "4k", "--runs", "1", "--plot", "no/such/folder/x.svg"], "no/such/folder"),
    ] {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
