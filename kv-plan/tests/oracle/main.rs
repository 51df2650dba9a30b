//! Every plan against a model of the caches that labels each byte: what arrives is right, whole, and all that was touched.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod cache;
mod draw;
mod faults;
mod transfer;

use proptest::{prelude::*, strategy::ValueTree};

use crate::{draw::Case, transfer::check};

/// As many as are worth a few seconds; `PROPTEST_CASES` overrides it.
const CASES: u32 = 10_000;

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    ProptestConfig { cases, max_shrink_iters: 2_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_byte_of_every_receiver_is_right_written_once_and_nothing_else_is_touched(case in draw::case()) {
        check(&case)?;
    }
}

/// The drawn cases are not all of one kind: a strategy that only made refusals would pass everything.
#[test]
fn the_cases_are_of_all_kinds() {
    let mut seen = std::collections::BTreeMap::<&'static str, u32>::new();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..600 {
        let case: Case = draw::case().new_tree(&mut runner).unwrap().current();
        for kind in case.kinds() {
            *seen.entry(kind).or_default() += 1;
        }
    }
    for kind in draw::KINDS {
        assert!(seen.get(kind).copied().unwrap_or(0) >= 10, "{kind}: {seen:?}");
    }
}
