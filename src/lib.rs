//! kvferry.
