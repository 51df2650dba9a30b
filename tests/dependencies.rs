//! The arrows between the crates, as docs/ARCHITECTURE.md draws them, checked on what cargo really resolves.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::{collections::BTreeSet, process::Command};

const OURS: [&str; 5] = ["kv-plan", "transport-core", "transport-quic", "transport-rdma", "kvferry"];

/// Names of all packages that a package needs to be built with all its features, tests left out.
fn tree(package: &str) -> BTreeSet<String> {
    tree_with(package, &["--all-features"])
}

/// As [`tree`], with these features.
fn tree_with(package: &str, features: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}", "--package", package])
        .args(features)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let names: BTreeSet<String> = String::from_utf8(output.stdout)
        .expect("cargo prints UTF-8")
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != package)
        .map(str::to_owned)
        .collect();
    assert!(!names.is_empty(), "{package} has dependencies");
    names
}

fn ours(package: &str) -> Vec<String> {
    tree(package).into_iter().filter(|name| OURS.contains(&name.as_str())).collect()
}

#[test]
fn dependencies_run_one_way() {
    assert_eq!(ours("kv-plan"), Vec::<String>::new());
    assert_eq!(ours("transport-core"), Vec::<String>::new());
    assert_eq!(ours("transport-quic"), ["transport-core"]);
    assert_eq!(ours("transport-rdma"), ["transport-core"]);
    assert_eq!(ours("kvferry"), ["kv-plan", "transport-core", "transport-quic", "transport-rdma"]);
}

/// What only the real verbs need: whoever does not ask for them needs no C compiler and no header of theirs.
#[test]
fn the_verbs_are_optional() {
    let foreign = ["ibverbs-sys", "libloading", "bindgen", "clang-sys", "cmake", "cc"];
    for (package, features) in [("transport-rdma", &[][..]), ("transport-rdma", &["--features", "sim"])] {
        let tree = tree_with(package, features);
        for banned in foreign {
            assert!(!tree.contains(banned), "{package} with {features:?} depends on {banned}");
        }
        assert!(!tree.contains("tokio"), "{package} brings a runtime");
    }
    let plain = tree_with("kvferry", &[]);
    for banned in ["transport-rdma", "ibverbs-sys", "libloading", "bindgen"] {
        assert!(!plain.contains(banned), "kvferry depends on {banned} by default");
    }
    // With the feature the library is opened at run time; the binding brings the types.
    let verbs = tree_with("transport-rdma", &["--features", "verbs"]);
    assert!(verbs.contains("ibverbs-sys") && verbs.contains("libloading"));
}

#[test]
fn the_contract_pulls_in_no_runtime_no_network_and_no_ffi() {
    let tree = tree("transport-core");
    for banned in ["tokio", "quinn", "quinn-proto", "rustls", "ring", "libc", "ibverbs-sys", "libloading", "cc"] {
        assert!(!tree.contains(banned), "transport-core depends on {banned}");
    }
}

#[test]
fn planning_is_pure() {
    let allowed = [
        "bytemuck",
        "bytemuck_derive",
        "itoa",
        "memchr",
        "proc-macro2",
        "quote",
        "ryu",
        "serde",
        "serde_core",
        "serde_derive",
        "serde_json",
        "syn",
        "thiserror",
        "thiserror-impl",
        "unicode-ident",
        "zmij",
    ];
    for name in tree("kv-plan") {
        assert!(allowed.contains(&name.as_str()), "kv-plan depends on {name}");
    }
}
