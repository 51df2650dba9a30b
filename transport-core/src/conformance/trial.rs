//! Trials and how they are run.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{harness::Harness, suite::Suite};

/// What became of a trial that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The contract holds.
    Passed,
    /// It does not apply here, and why.
    Skipped(String),
}

/// One named trial of one clause.
#[derive(Clone, Copy)]
pub struct Trial {
    name: &'static str,
    clause: u8,
    body: fn(&mut Suite) -> Verdict,
}

impl Trial {
    pub(super) const fn new(clause: u8, name: &'static str, body: fn(&mut Suite) -> Verdict) -> Self {
        Self { name, clause, body }
    }

    /// Its name, which begins with its clause: `c05_…`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The clause that it tries: 1 to 20.
    pub fn clause(&self) -> u8 {
        self.clause
    }

    /// Runs it with a fresh harness, with a random seed that is printed, or with that in `KVFERRY_SEED`.
    ///
    /// # Panics
    /// When the contract is broken.
    pub fn run<H: Harness>(&self, harness: H) -> Verdict {
        let seed = std::env::var("KVFERRY_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| RandomState::new().hash_one(self.name));
        println!("{}: to run it again with the same bytes set KVFERRY_SEED={seed}", self.name);
        let mut suite = Suite::new(harness, seed);
        let verdict = (self.body)(&mut suite);
        suite.finish();
        if let Verdict::Skipped(reason) = &verdict {
            // Past the capture of the test runner, which would swallow it: nothing is skipped in silence.
            let _ = writeln!(std::io::stderr(), "{}: SKIPPED: {reason}", self.name);
        }
        verdict
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All trials, ordered by clause.
pub fn trials() -> impl Iterator<Item = &'static Trial> {
    super::trials::ALL.iter().copied().flatten()
}

/// Runs the trial of a name. What [`conformance_tests!`](crate::conformance_tests) expands to.
///
/// # Panics
/// When there is no such trial, and when the contract is broken.
pub fn run<H: Harness>(name: &str, harness: H) -> Verdict {
    let trial = trials().find(|trial| trial.name == name);
    trial.unwrap_or_else(|| panic!("there is no trial {name}")).run(harness)
}

/// Runs all trials, one after the other, and collects what became of them.
pub fn run_all<H: Harness>(mut harness: impl FnMut() -> H) -> Report {
    let mut report = Report::default();
    for trial in trials() {
        match catch_unwind(AssertUnwindSafe(|| trial.run(harness()))) {
            Ok(Verdict::Passed) => report.passed.push(trial.name),
            Ok(Verdict::Skipped(reason)) => report.skipped.push((trial.name, reason)),
            Err(_) => report.failed.push(trial.name),
        }
    }
    report
}

/// Asserts that `names` are all trials there are, and that each clause has at least one.
///
/// # Panics
/// When one is missing.
pub fn assert_complete(names: &[&str]) {
    assert!(!names.is_empty(), "a suite without trials proves nothing");
    let all: Vec<&str> = trials().map(Trial::name).collect();
    assert_eq!(names, all, "the list of conformance_tests! is the list of trials");
    for clause in 1..=20 {
        assert!(trials().any(|trial| trial.clause == clause), "clause C{clause} has no trial");
    }
    for trial in trials() {
        assert!(trial.name.starts_with(&format!("c{:02}_", trial.clause)), "{} is named after its clause", trial.name);
    }
}

/// What became of the trials of a suite.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Those where the contract held.
    pub passed: Vec<&'static str>,
    /// Those that did not apply, and why.
    pub skipped: Vec<(&'static str, String)>,
    /// Those where it did not hold.
    pub failed: Vec<&'static str>,
}

impl Report {
    /// Asserts that nothing failed and that something ran.
    ///
    /// # Panics
    /// When something failed, and when nothing ran.
    pub fn assert_passed(&self) {
        assert!(self.failed.is_empty(), "the contract is broken: {self}");
        assert!(!self.passed.is_empty(), "a suite that ran no trial proves nothing: {self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} skipped, {} failed", self.passed.len(), self.skipped.len(), self.failed.len())?;
        for name in &self.failed {
            write!(f, "\nFAILED  {name}")?;
        }
        for (name, reason) in &self.skipped {
            write!(f, "\nskipped {name}: {reason}")?;
        }
        Ok(())
    }
}
