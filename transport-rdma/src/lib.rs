//! The RDMA transport: reliable-connected queue pairs that write into a peer's registered memory.

#[cfg(feature = "sim")]
pub mod sim;
pub mod verbs;
