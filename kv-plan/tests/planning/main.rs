//! Planning as a user of the crate sees it: cases with their answers, and properties that hold for all layouts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod cases;
mod common;
mod corruption;
mod derived;
mod hostile;
mod messages;
mod models;
mod symmetry;
