//! The example `doctor` as a user runs it, on a machine with RDMA devices and on one without.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::{path::PathBuf, process::Command};

use serde_json::Value;

/// This test is `target/debug/deps/doctor_example-…`, and the example `target/debug/examples/doctor`.
fn program() -> PathBuf {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples/doctor");
    assert!(program.exists(), "{} is missing; build the examples first", program.display());
    program
}

fn run(args: &[&str]) -> (String, i32) {
    let output = Command::new(program()).args(args).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
}

#[test]
fn it_says_what_is_there_or_that_nothing_is() {
    let (text, status) = run(&[]);
    let (json, same) = run(&["--json"]);
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, document["exit_status"].as_i64().unwrap()), (same, i64::from(same)));
    let devices = document["devices"].as_array().unwrap();
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some()) {
        assert!(!devices.is_empty() || document["built_with_rdma"] == false, "{json}");
    } else {
        assert!(devices.is_empty() && text.contains("kvferry uses QUIC"), "{text}");
        assert_eq!(status, 0, "a machine without RDMA is sound");
    }
}

/// Run in the virtual machine, where there are devices.
#[test]
#[ignore = "needs RDMA devices: tests/softroce/run.sh"]
fn it_chooses_the_devices_and_writes_over_them() {
    let names = std::env::var("KVFERRY_RDMA_DEVICES").expect("run by tests/softroce/run.sh");
    let (json, status) = run(&["--json", "--loopback"]);
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status, 0, "{json}");
    let devices = document["devices"].as_array().unwrap();
    for name in names.split(',') {
        assert!(devices.iter().any(|device| device["name"] == name), "{name}: {json}");
    }
    assert!(!document["loopback"].as_array().unwrap().is_empty(), "{json}");
}
