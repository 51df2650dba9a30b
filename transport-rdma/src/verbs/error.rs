//! What verbs answer when they fail.

use std::{io, sync::Arc};

/// A verb that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} on {device} failed: {reason} (code {code})")]
pub struct VerbsError {
    /// The verb: `"ibv_reg_mr"`.
    pub operation: &'static str,
    /// The device's name, or the library's where no device is open.
    pub device: Arc<str>,
    /// The error number.
    pub code: i32,
    /// It in words.
    pub reason: Arc<str>,
}

impl VerbsError {
    /// A failure with an error number of the system.
    pub fn from_code(operation: &'static str, device: impl Into<Arc<str>>, code: i32) -> Self {
        let reason = io::Error::from_raw_os_error(code).to_string();
        Self { operation, device: device.into(), code, reason: reason.into() }
    }

    /// A failure in words, with an error number of the system.
    pub fn new(operation: &'static str, device: impl Into<Arc<str>>, code: i32, reason: impl Into<Arc<str>>) -> Self {
        Self { operation, device: device.into(), code, reason: reason.into() }
    }
}

/// A chain that was not taken as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue took {posted} work requests and refused the next (code {code})")]
pub struct PostError {
    /// How many were taken.
    pub posted: usize,
    /// The error number: ENOMEM when the queue is full.
    pub code: i32,
}

impl PostError {
    /// Whether the queue was full: there is room again after a completion.
    pub fn is_full(&self) -> bool {
        self.code == rustix::io::Errno::NOMEM.raw_os_error()
    }
}
