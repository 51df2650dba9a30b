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
    if ! "$@" 2>&1 | tee "$log/out"; then
        echo "failed: $*" >&2
        exit 1
    fi
    tally "$log/out"
}

# Adds the tests of some output to the total.
tally() {
    local out=$1 counts failed
    counts=$(sed -nE 's/^test result: ok\. ([0-9]+) passed; ([0-9]+) failed.*/\1 \2/p' "$out")
    failed=$(awk '{ f += $2 } END { print f + 0 }' <<<"$counts")
    [ "$failed" -eq 0 ] || exit 1
    passed=$((passed + $(awk '{ p += $1 } END { print p + 0 }' <<<"$counts")))
}

# Installs the Debian packages that are missing.
install() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    fi
}

packages() {
    step "Debian packages"
    # A C compiler for ring, what the binding of libibverbs is built with, and the tools that the tests themselves call.
    install gcc libc6-dev procps cmake clang libclang-dev pkg-config libibverbs-dev libnl-3-dev libnl-route-3-dev
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
    for crate in kv-plan transport-core transport-quic transport-rdma kvferry; do
        cargo check --package "$crate" --locked
    done
    step "RDMA on simulated NICs alone"
    cargo clippy --package transport-rdma --lib --features sim --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --package transport-rdma --lib --features sim --no-deps --locked
}

softroce() {
    step "real verbs, on Soft-RoCE devices in a virtual machine"
    install qemu-system-x86 busybox-static cpio kmod zstd xz-utils iproute2 binutils python3 util-linux \
        rdma-core ibverbs-providers ibverbs-utils perftest libibverbs-dev libnl-3-dev libnl-route-3-dev \
        cmake clang libclang-dev pkg-config
    local list="$log/softroce" status try
    # With everything, as the step `tests` does, so that nothing else is built anew.
    cargo build --workspace --examples --all-features --locked
    cargo test --workspace --all-features --locked --no-run --test native_verbs --test real_conformance \
        --test real_failures --test real_transfers --test rdma_processes --test doctor_example 2>&1 | tee "$log/built"
    # Each line: name, limit in seconds, command. They share the devices, so each test runs alone. In one machine, whose start takes
    # ten seconds; all of it takes less than eight minutes.
    : >"$list"
    in_guest() {
        local binary
        binary=$(sed -n "s/^ *Executable .*(\(.*\/$1-[0-9a-f]*\))\$/\1/p" "$log/built")
        [ -n "$binary" ] || { echo "the test $1 was not built" >&2; exit 1; }
        binary=$(realpath "$binary")
        echo "$1 $2 $binary --test-threads=1 ${*:3}" >>"$list"
    }
    in_guest native_verbs 90 --ignored
    in_guest real_conformance 180
    in_guest real_failures 120
    in_guest real_transfers 60
    in_guest rdma_processes 150
    in_guest doctor_example 30 --ignored
    # The examples themselves. The bench is here to see that it runs: nothing is decided by its figures.
    local examples
    examples=$(realpath target/debug/examples)
    {
        echo "pd_loopback_mla 60 $examples/pd_loopback --transport rdma"
        echo "pd_loopback_gqa 60 $examples/pd_loopback --transport rdma --config tests/data/models/smollm2-135m.json --prefill tp=3 --decode tp=3 --page 16"
        echo "bench 90 $examples/bench --transport rdma --small --runs 1 --pattern 4k --pattern 64k --pattern write-4096"
    } >>"$list"
    for try in 1 2; do
        status=0
        KVFERRY_VM_TIMEOUT=460 KVFERRY_VM_VERBOSE=1 bash tests/softroce/run.sh bash tests/softroce/suite.sh "$list" 2>&1 |
            tee "$log/out" || status=${PIPESTATUS[0]}
        # A machine that died says nothing about the tests. Twice in a row it may be the tests that kill it.
        [ "$status" -eq 125 ] || break
        echo "softroce: the virtual machine died (try $try of 2); this is not a failed test" >&2
    done
    case $status in
    0) tally "$log/out" ;;
    124) echo "softroce: all together took longer than the machine may run" >&2; exit 1 ;;
    125) echo "softroce: no result: the virtual machine dies" >&2; exit 1 ;;
    *) echo "softroce: failed with status $status" >&2; exit 1 ;;
    esac
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
    cargo run --release --locked --example doctor
    passed=$((passed + 5))
}

deny() {
    step "licences, bans and sources of dependencies"
    if ! command -v cargo-deny >/dev/null; then
        cargo install cargo-deny --locked --debug --target-dir target/deny
    fi
    cargo deny --locked check licenses bans sources
}

steps=(packages format lints docs tests features softroce examples sanitizers deny)
[ $# -eq 0 ] || steps=("$@")
for name in "${steps[@]}"; do
    "$name"
done
printf '\nall steps passed in %d s\n%d passed, 0 failed\n' $((SECONDS - started)) "$passed"
