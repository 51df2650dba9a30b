//! The RDMA transport: reliable-connected queue pairs that write into a peer's registered memory.

pub mod verbs;
