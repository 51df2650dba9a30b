//! The main example as its users run it: what it prints, how it ends, and that it leaves no process behind.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// This test is `target/debug/deps/pd_loopback_example-…`, and the example `target/debug/examples/pd_loopback`.
fn program() -> PathBuf {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples/pd_loopback");
    assert!(program.exists(), "{} is missing; build the examples first", program.display());
    program
}

fn run(args: &[&str]) -> Output {
    Command::new(program()).args(args).output().unwrap()
}

/// Rank processes of the example that are alive.
fn ranks() -> Vec<String> {
    let program = program();
    let of = |entry: std::fs::DirEntry| {
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        (command.starts_with(program.to_str()?) && command.contains("--rank-process")).then_some(command)
    };
    std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter_map(of).collect()
}

fn no_rank_is_left() {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !ranks().is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:?}", ranks());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One after the other, since each looks at all rank processes.
#[test]
fn the_main_example_ends_as_it_says_and_leaves_nothing_behind() {
    verified();
    other_splits();
    what_does_not_fit();
    bad_arguments();
    interrupted();
    killed();
}

fn verified() {
    let output = run(&["--tokens", "200", "--requests", "3", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["verified"], true);
    assert_eq!(document["requests"], 3);
    // 61 layers of 1,152 bytes a token.
    assert_eq!(document["bytes"], 3 * 200 * 61 * 1_152);
    // Where there is an RDMA device and the feature, it is used.
    assert!(["quic", "rdma"].contains(&document["transport"].as_str().unwrap()), "{document}");
    assert!(document["seconds"].as_f64().unwrap() > 0.0 && document["gb_per_s"].as_f64().unwrap() > 0.0);
    no_rank_is_left();
}

fn other_splits() {
    for args in [
        "--prefill pp=2 --decode pp=4 --tokens 100 --requests 2",
        "--config tests/data/models/llama-3-70b.json --prefill pp=3,tp=2 --decode tp=2 --page 16 --tokens 40 --requests 2",
        "--config tests/data/models/smollm2-135m.json --prefill pp=4 --decode pp=1,draft=1 --page 16 --tokens 1 --requests 5",
        // Other tensor splits, page sizes and orders on the two sides.
        "--config tests/data/models/llama-3-70b.json --prefill pp=2,tp=2 --decode tp=4,page=32,order=hnd --page 16 --tokens 50 --requests 2",
        "--prefill tp=4 --decode tp=2 --tokens 100 --requests 2",
        // States, and pools of sliding windows.
        "--config tests/data/models/qwen3-next-80b.json --prefill tp=2,pp=2 --decode tp=4 --page 16 --tokens 50 --requests 2",
        "--config tests/data/models/gpt-oss-120b.json --prefill tp=2,pp=2 --decode tp=4,order=hnd --page 16 --tokens 200 --requests 2",
        // Context and data parallelism.
        "--config tests/data/models/smollm2-135m.json --prefill cp=2,tp=3,dp=2 --decode dp=2,order=hnd,page=24 --page 16 --tokens 99 --requests 4",
    ] {
        let output = run(&args.split(' ').collect::<Vec<_>>());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("every byte verified"), "{args}: {output:?}");
    }
    no_rank_is_left();
}

fn what_does_not_fit() {
    let started = Instant::now();
    let output = run(&["--decode", "pp=1,layers=60", "--json"]);
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    for word in ["layer 60", "60 latent tables", "61 layers"] {
        assert!(error.contains(word), "{error}");
    }
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["error"]["kind"], "missing_layer");
    no_rank_is_left();
}

fn bad_arguments() {
    for args in [&["--prefill", "pp=x"][..], &["--page", "0"], &["--config", "no/such/file"], &["--nonsense"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// Starts a run that takes a while, and waits until its ranks are there.
fn long_run() -> std::process::Child {
    let child = Command::new(program())
        .args(["--tokens", "2048", "--requests", "64"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while ranks().len() < 5 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    child
}

fn interrupted() {
    let mut child = long_run();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    no_rank_is_left();
}

fn killed() {
    let mut child = long_run();
    child.kill().unwrap();
    child.wait().unwrap();
    no_rank_is_left();
}
