//! The RDMA transport: reliable-connected queue pairs that write into a peer's registered memory.

#[cfg(feature = "verbs")]
pub mod native;
pub mod verbs;
