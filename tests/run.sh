#!/usr/bin/env bash
# All checks, from a fresh machine on: Debian packages, format, lints, docs, tests at every depth, and each example.
#
#   bash tests/run.sh            everything
#   bash tests/run.sh STEP...    only these steps (see the list at the end)
#
# Stops at the first failure. The last line counts the tests. Nothing is skipped silently: what cannot run fails.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
started=$SECONDS
passed=0

step() {
    printf '\n== %s (%d s)\n' "$1" $((SECONDS - started))
}

# Runs a command, shows what it prints, and adds the tests that cargo's runners counted to the total.
counted() {
    local out="$log/out" counts failed
    if ! "$@" 2>&1 | tee "$out"; then
        echo "failed: $*" >&2
        exit 1
    fi
    counts=$(sed -nE 's/^test result: ok\. ([0-9]+) passed; ([0-9]+) failed.*/\1 \2/p' "$out")
    failed=$(awk '{ f += $2 } END { print f + 0 }' <<<"$counts")
    [ "$failed" -eq 0 ] || exit 1
    passed=$((passed + $(awk '{ p += $1 } END { print p + 0 }' <<<"$counts")))
}

packages() {
    step "Debian packages"
    local missing=() package
    # A C compiler for ring, and the tools that the tests themselves call.
    for package in gcc libc6-dev procps; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    fi
    command -v cargo >/dev/null || { echo "cargo is missing: install Rust (see rust-version in Cargo.toml)" >&2; exit 1; }
    cargo --version
}

format() {
    step "format"
    cargo fmt --all --check
}

lints() {
    step "lints"
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
}

docs() {
    step "docs"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --document-private-items --locked
}

tests() {
    step "unit, property, conformance and integration tests"
    # Examples are built first: integration tests run them as programs.
    cargo build --workspace --examples --all-features --locked
    counted cargo test --workspace --all-features --locked
}

features() {
    step "each crate alone, with its default features"
    local crate
    for crate in kv-plan transport-core transport-quic kvferry; do
        cargo check --package "$crate" --locked
    done
}

sanitizers() {
    step "address sanitizer on the crate that has unsafe code"
    # Its own target folder: the flags differ for every crate.
    # Tests forget handles on purpose, so leaks are no finding.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=0 CARGO_TARGET_DIR=target/sanitizer \
        counted cargo test --package transport-core --all-features --locked --target "$(rustc -vV | sed -n 's/^host: //p')" \
        --lib --test canary --test conformance_mem --test fault
}

examples() {
    step "examples, as a user runs them"
    cargo build --release --examples --locked
    cargo run --release --locked --example loopback
    cargo run --release --locked --example pd_loopback -- --tokens 2048 --requests 4
    cargo run --release --locked --example plan -- --config tests/data/models/deepseek-v3.json --page 64 --prefill pp=4 --decode pp=1
    cargo run --release --locked --example bench -- --pattern 64k --runs 3
    passed=$((passed + 4))
}

deny() {
    step "licences, bans and sources of dependencies"
    if ! command -v cargo-deny >/dev/null; then
        cargo install cargo-deny --locked --debug --target-dir target/deny
    fi
    cargo deny --locked check licenses bans sources
}

steps=(packages format lints docs tests features examples sanitizers deny)
[ $# -eq 0 ] || steps=("$@")
for name in "${steps[@]}"; do
    "$name"
done
printf '\nall steps passed in %d s\n%d passed, 0 failed\n' $((SECONDS - started)) "$passed"
