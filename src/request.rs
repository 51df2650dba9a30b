//! The name of a request.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One attempt at one request.
///
/// Ids are the client's and may be used again, zero included, so nothing is keyed by the id alone: a retry is another
/// attempt, and what an earlier attempt still sends is never taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Request {
    /// The client's number.
    pub id: u64,
    /// Which attempt at it.
    pub attempt: u32,
}

impl Request {
    /// The given attempt at the request with this id.
    pub const fn new(id: u64, attempt: u32) -> Self {
        Self { id, attempt }
    }
}

impl From<u64> for Request {
    /// Attempt 0.
    fn from(id: u64) -> Self {
        Self { id, attempt: 0 }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} (attempt {})", self.id, self.attempt)
    }
}
