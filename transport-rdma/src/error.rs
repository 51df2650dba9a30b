//! Why a transport cannot be opened.

use crate::verbs::VerbsError;

/// Why there is no RDMA transport. The program goes on with another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device of the host can be used.
    #[error("no RDMA device can be used: {reason}")]
    NoDevice {
        /// What is wrong with each, and what to change.
        reason: String,
    },
    /// A device that was named by hand cannot be used.
    #[error("the RDMA device {device} cannot be used: {reason}")]
    Choice {
        /// Its name.
        device: String,
        /// What is wrong, and what to change.
        reason: String,
    },
    /// A setting cannot be kept.
    #[error("the setting {setting} is {value}: {reason}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What it was set to.
        value: String,
        /// What to change.
        reason: String,
    },
    /// A verb failed, or there is no library.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The operating system gave no thread.
    #[error("the transport's thread cannot be started: {reason}")]
    Thread {
        /// What it said.
        reason: String,
    },
}
