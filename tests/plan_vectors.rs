//! Runs the `plan` example as a program on every case of `tests/data/vectors.json`, and on what else its users meet.

#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    args: String,
    role: Option<String>,
    #[serde(default)]
    layers: Vec<u64>,
    #[serde(default)]
    slices: Vec<[u64; 3]>,
    error: Option<String>,
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The example, built first, since `cargo test --test …` alone does not build it.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // This test is `target/debug/deps/plan_vectors-…`, and the example will be `target/debug/examples/plan`.
        let test = env::current_exe().expect("a test has a path");
        let profile = test.ancestors().nth(2).expect("tests lie in a folder of the profile's folder");
        let target = profile.parent().expect("the profile's folder lies in the target folder");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--example", "plan", "--target-dir"]).arg(target);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        // What cargo tells this test about its own package would look like a change to build scripts that watch these, and build
        // their crates, and all that need them, anew.
        let about_us = env::vars_os().map(|(name, _)| name).filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        about_us.for_each(|name| {
            cargo.env_remove(name);
        });
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo starts");
        assert!(built.success(), "the example does not build");
        profile.join("examples").join(format!("plan{}", env::consts::EXE_SUFFIX))
    })
}

fn plan(args: &str) -> Output {
    let models = data().join("models");
    let models = models.to_str().expect("the repository's path is UTF-8");
    let args = args.split_whitespace().map(|arg| arg.replace("{models}", models));
    Command::new(program()).args(args).output().expect("the example starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)))
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

#[track_caller]
fn refused(args: &str, kind: &str) -> String {
    let output = plan(&format!("{args} --json"));
    let message = message(&output);
    assert_eq!(output.status.code(), Some(2), "{args}: {message}");
    let document = json(&output);
    assert_eq!(document["error"]["kind"], kind, "{args}");
    // One message, the same for people and for programs.
    assert_eq!(message, format!("error: {}", document["error"]["message"].as_str().expect("a text")), "{args}");
    assert!(!message.contains('\n'), "{args}: {message}");
    let plain = plan(args);
    assert_eq!((plain.status.code(), plain.stdout.len()), (Some(2), 0), "{args}");
    message
}

fn check(case: &Case) {
    if let Some(kind) = &case.error {
        refused(&case.args, kind);
        return;
    }
    let output = plan(&format!("{} --json", case.args));
    assert_eq!(output.status.code(), Some(0), "{}: {}", case.name, message(&output));
    let document = json(&output);
    let transfers = document["transfers"].as_array().expect("a list");
    let [transfer] = transfers.as_slice() else { panic!("{}: {} transfers", case.name, transfers.len()) };
    let all = transfer["slices"].as_array().expect("a list");
    assert!(!case.layers.is_empty(), "{}: no layers to check", case.name);
    for layer in &case.layers {
        let of_layer = all.iter().filter(|slice| {
            slice["part"] == "main" && slice["role"] == *case.role.as_ref().expect("a role") && slice["layer"] == *layer
        });
        let found: Vec<[u64; 3]> = of_layer
            .map(|slice| ["src_offset", "dst_offset", "len"].map(|field| slice[field].as_u64().expect("a number")))
            .collect();
        assert_eq!(found, case.slices, "{} layer {layer}", case.name);
    }
    let sum: u64 = all.iter().filter_map(|slice| slice["len"].as_u64()).sum();
    assert_eq!((&transfer["bytes"], &document["bytes"]), (&sum.into(), &sum.into()), "{}", case.name);
    assert!(all.iter().all(|slice| slice["part"] == "main"), "{}: a draft moves", case.name);
}

#[test]
fn every_vector() {
    let text = std::fs::read_to_string(data().join("vectors.json")).expect("the vectors are in the repository");
    let cases: Vec<Case> = serde_json::from_str(&text).expect("the vectors are a list of cases");
    assert_eq!(cases.len(), 16);
    cases.iter().for_each(check);
}

#[test]
fn the_seed_case_says_what_is_missing_and_what_to_change() {
    let message =
        refused("--config {models}/deepseek-v3.json --page 64 --prefill pp=4 --decode pp=1,layers=60", "missing_layer");
    for part in ["layer 60", "pp3.tp0", "pp0.tp0", "60 latent tables", "the model 61", "pipeline settings"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn without_pages_it_prints_the_bytes_of_a_token() {
    let document = json(&plan("--config {models}/deepseek-v3.json --page 64 --prefill pp=4 --decode pp=1 --json"));
    let transfers = document["transfers"].as_array().expect("a list");
    let bytes: Vec<_> = transfers.iter().map(|transfer| transfer["bytes"].as_u64()).collect();
    assert_eq!(bytes, [15 * 1152, 15 * 1152, 15 * 1152, 16 * 1152].map(Some));
    assert!(transfers.iter().all(|transfer| transfer.get("slices").is_none() && transfer["to"] == "pp0.tp0"));
    assert_eq!(document["bytes"], 61 * 1152);
}

#[test]
fn equal_tensor_splits_send_rank_to_rank() {
    let document =
        json(&plan("--config {models}/llama-3-70b.json --page 16 --prefill pp=2,tp=4 --decode pp=1,tp=4 --json"));
    let transfers = document["transfers"].as_array().expect("a list");
    assert_eq!(transfers.len(), 8);
    for transfer in transfers {
        let [from, to] = ["from", "to"].map(|end| transfer[end].as_str().and_then(|rank| rank.split_once(".tp")));
        assert_eq!(from.map(|(_, tp)| tp), to.map(|(_, tp)| tp));
        assert_eq!(transfer["bytes"], 40 * 2 * 512);
    }
}

#[test]
fn the_tokens_that_are_asked_for_move_and_no_others() {
    let pages = "--config {models}/smollm2-135m.json --page 16 --prefill pp=1 --decode pp=1 --src-pages 1,2,9 --dst-pages 7,8,3";
    let bytes = |tokens: u32| json(&plan(&format!("{pages} --json --tokens {tokens}")))["bytes"].as_u64();
    let token = 30 * 2 * 3 * 64 * 2;
    let tokens = [0, 1, 16, 17, 32, 33, 48];
    assert_eq!(tokens.map(bytes), tokens.map(|tokens| Some(u64::from(tokens) * token)));
    let message = refused(&format!("{pages} --tokens 49"), "page_count");
    assert!(message.contains("lists 3 pages of 16 tokens") && message.contains("tokens 0..49 need 4"), "{message}");
}

#[test]
fn an_empty_request_moves_nothing_and_names_who_completes_it() {
    let empty = ["--src-pages=", "--dst-pages="];
    let args = "--config {models}/deepseek-v3.json --page 64 --prefill pp=4 --decode pp=1 --json";
    let document = json(&plan(&format!("{args} {}", empty.join(" "))));
    let transfers = document["transfers"].as_array().expect("a list");
    assert_eq!((transfers.len(), &document["bytes"]), (4, &0.into()));
    assert!(transfers.iter().all(|transfer| transfer["slices"] == Value::Array(Vec::new())), "{document}");
}

#[test]
fn page_lists_are_checked_whatever_is_shown_of_them() {
    // These two ranks share nothing.
    let args = "--config {models}/deepseek-v3.json --page 64 --prefill pp=4 --decode pp=4 --from pp0.tp0 --to pp3.tp0";
    let document = json(&plan(&format!("{args} --src-pages 1 --dst-pages 2 --json")));
    assert_eq!(document, serde_json::json!({"transfers": [], "bytes": 0}));
    assert!(String::from_utf8_lossy(&plan(args).stdout).contains("nothing moves between these ranks"));
    for (pages, kind, part) in [
        ("--src-pages 1,2 --dst-pages 1", "page_count", "lists 2 pages and decode 1"),
        ("--src-pages 1,2 --dst-pages 3,3", "duplicate_page", "page 3 is twice"),
        ("--src-pages 65536 --dst-pages 1", "page_range", "65536"),
        ("--src-pages 1 --dst-pages -1", "page_range", "negative numbers mark absent pages"),
        ("--src-pages 1 --dst-pages 99999999999", "page_range", "page 99999999999 is out of range"),
    ] {
        let message = refused(&format!("{args} {pages}"), kind);
        assert!(message.contains(part), "{pages}: {message}");
    }
}

#[test]
fn a_side_that_contradicts_itself_says_which_side_it_is() {
    let config = "--config {models}/llama-3-70b.json --page 16";
    let message = refused(&format!("{config} --prefill pp=1 --decode pp=2,layers=80"), "config");
    assert!(message.contains("decode pp=2,tp=1,layers=80") && message.contains("layers gives 1 stages"), "{message}");
    let message = refused(&format!("{config} --prefill tp=3 --decode tp=2"), "split");
    assert!(message.contains("prefill pp=1,tp=3") && message.contains("do not divide by tp=3"), "{message}");
}

#[test]
fn a_configuration_that_gives_no_model_is_a_misfit() {
    let file = |name: &str, text: &[u8]| {
        let folder = tempfile::tempdir().expect("a folder for a file");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the file is written");
        let path = path.to_str().expect("the path is UTF-8");
        refused(&format!("--config {path} --page 64 --prefill pp=1 --decode pp=1"), "config")
    };
    let message = file("unknown.json", br#"{"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}"#);
    assert!(
        message.contains("unknown.json") && message.contains("rwkv") && message.contains("RwkvForCausalLM"),
        "{message}"
    );
    assert!(file("list.json", b"[]").contains("not a JSON object"));
    assert!(file("cut.json", b"{").contains("not a JSON object"));
    assert!(file("binary.json", b"\xff\xfe").contains("not a JSON object"));
    assert!(file("part.json", br#"{"model_type": "llama"}"#).contains("\"num_attention_heads\""));
}

#[test]
fn layers_of_every_kind_move() {
    let bytes = |args: &str, role: &str| {
        let output = plan(&format!("{args} --page 64 --src-pages 1,2,3 --dst-pages 4,5,6 --json"));
        assert_eq!(output.status.code(), Some(0), "{}", message(&output));
        let document = json(&output);
        let transfers = document["transfers"].as_array().expect("a list").iter();
        let slices = transfers.flat_map(|transfer| transfer["slices"].as_array().expect("a list"));
        slices.filter(|slice| slice["role"] == role).filter_map(|slice| slice["len"].as_u64()).sum::<u64>()
    };
    // Of 192 tokens the 18 full layers need all, the 18 sliding ones the last 128: keys of 1,024 bytes.
    let oss = "--config {models}/gpt-oss-120b.json --prefill pp=2,tp=2 --decode tp=4,order=hnd";
    assert_eq!(bytes(oss, "key"), 18 * (192 + 128) * 1_024);
    let next = "--config {models}/qwen3-next-80b.json --prefill tp=2 --decode tp=4";
    assert_eq!(bytes(next, "conv"), 36 * 49_152);
    assert_eq!(bytes(next, "recurrent"), 36 * 2_097_152);
    // Two heads on four ranks are there twice.
    assert_eq!(bytes(next, "value"), 12 * 192 * 2 * 512 * 2);
}

#[test]
fn groups_and_positions_are_not_counted_twice() {
    let args = "--config {models}/llama-3-70b.json --page 16 --prefill cp=2,dp=2 --decode dp=3,page=32";
    let document = json(&plan(&format!("{args} --json")));
    assert_eq!(
        (document["transfers"].as_array().expect("a list").len(), &document["bytes"]),
        (12, &(160 * 2_048).into())
    );
    // Four pages of 16 tokens, dealt to two, are two of 32; five are not.
    let request = |src: &str| format!("{args} --src-pages {src} --dst-pages 7,9 --from pp0.tp0.cp1 --to pp0.tp0");
    let document = json(&plan(&format!("{} --json", request("1,2,3,4"))));
    assert_eq!(document["bytes"], 160 * 2 * 16 * 2_048);
    let message = refused(&request("1,2,3,4,5"), "page_count");
    assert!(message.contains("lists 5 pages and decode 2"), "{message}");
}

#[test]
fn the_layouts_are_explained_beside_each_other() {
    let args = "--config {models}/llama-3-70b.json --page 16 --prefill tp=4 --explain";
    let text = String::from_utf8_lossy(&plan(&format!("{args} --decode tp=8")).stdout).into_owned();
    assert!(text.contains("~ tensor ranks") && text.contains("they fit; what is marked with ~"), "{text}");
    let output = plan(&format!("{args} --decode tp=8,dtype=fp8"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("! element type") && text.contains("they do not fit (dtype)"), "{text}");
    assert_eq!(output.status.code(), Some(2));
}

/// Elements of a picture by their class, after a look at whether its tags are closed in order.
fn elements(svg: &str, class: &str) -> usize {
    let mut open: Vec<&str> = Vec::new();
    for tag in svg.split('<').skip(1).map(|rest| rest.split('>').next().expect("a tag ends")) {
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name.trim()), "{tag}"),
            None if tag.ends_with('/') || tag.starts_with('?') => {}
            None => open.push(tag.split_whitespace().next().expect("a tag has a name")),
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
    svg.matches(&format!("class=\"{class}\"")).count()
}

#[test]
fn the_routes_and_slices_are_drawn() {
    let folder = tempfile::tempdir().expect("a folder for a file");
    let path = folder.path().join("plan.svg");
    let draw = |args: &str| {
        let output = plan(&format!("--config {{models}}/llama-3-70b.json --page 16 {args} --svg {}", path.display()));
        assert_eq!(output.status.code(), Some(0), "{}", message(&output));
        std::fs::read_to_string(&path).expect("the picture is there")
    };
    let svg = draw("--prefill tp=4 --decode tp=8");
    assert_eq!((elements(&svg, "rank"), elements(&svg, "ribbon"), elements(&svg, "slice")), (12, 8, 0));
    let svg = draw("--prefill pp=2 --decode pp=1 --src-pages 1,2,5 --dst-pages 7,8,3");
    assert_eq!((elements(&svg, "rank"), elements(&svg, "ribbon"), elements(&svg, "slice")), (3, 2, 2));
    // A picture of a great many pairs leaves most of them out and says so.
    let svg = draw("--prefill pp=80,tp=8 --decode tp=8");
    assert_eq!(elements(&svg, "ribbon"), 400);
    assert!(svg.contains("and 240 more pairs"), "it says what is left out");
    let output = plan(&format!(
        "--config {{models}}/llama-3-70b.json --page 16 --prefill tp=4 --decode tp=8 --svg {}/none/x",
        folder.path().display()
    ));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn every_model_has_a_plan() {
    for model in ["deepseek-v3", "gpt-oss-120b", "llama-3-70b", "qwen3-32b", "qwen3-next-80b", "smollm2-135m"] {
        let args = format!(
            "--config {{models}}/{model}.json --page 64 --prefill pp=3 --decode pp=2 --src-pages 1,2 --dst-pages 4,5"
        );
        let output = plan(&args);
        assert_eq!(output.status.code(), Some(0), "{model}: {}", message(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("pp2.tp0") && text.contains("together"), "{text}");
    }
}

#[test]
fn a_draft_that_one_side_has_is_named() {
    let two = |prefill: &str, decode: &str| {
        let output =
            plan(&format!("--config {{models}}/deepseek-v3.json --page 64 --prefill {prefill} --decode {decode}"));
        assert_eq!(output.status.code(), Some(0), "{}", message(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(two("pp=4", "pp=1,draft=1").contains("only decode has a draft; left alone: draft layer 0 (latent)"));
    assert!(two("pp=4,draft=1", "pp=1").contains("only prefill has a draft; not sent: draft layer 0 (latent)"));
    assert!(two("pp=4,draft=1", "pp=1,draft=1").contains("45-60, draft 0"));
}

#[test]
fn bad_arguments_and_files_are_not_a_misfit() {
    let sides = "--prefill pp=1 --decode pp=1";
    for (args, part) in [
        (format!("--config {{models}}/none.json --page 64 {sides}"), "none.json"),
        (format!("--config {{models}} --page 64 {sides}"), "models"),
        (format!("--config {{models}}/llama-3-70b.json --page 0 {sides}"), "--page"),
        (format!("--config {{models}}/llama-3-70b.json {sides}"), "--page"),
        ("--config {models}/llama-3-70b.json --page 64 --prefill pp=x --decode pp=1".into(), "pp=x"),
        (format!("--config {{models}}/llama-3-70b.json --page 64 {sides} --src-pages 1,b --dst-pages 1,2"), "\"b\""),
        (format!("--config {{models}}/llama-3-70b.json --page 64 {sides} --src-pages 1"), "--dst-pages"),
        (format!("--config {{models}}/llama-3-70b.json --page 64 {sides} --from pp1.tp0"), "pp0.tp0"),
        (format!("--config {{models}}/llama-3-70b.json --page 64 {sides} --from stage1"), "pp3.tp0"),
    ] {
        let output = plan(&args);
        let message = message(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{args}: {message}");
        assert!(message.contains(part), "{args}: {message}");
    }
    assert_eq!(plan("--help").status.code(), Some(0));
}
