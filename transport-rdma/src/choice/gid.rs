//! Which GID of a port.

use std::net::Ipv6Addr;

use crate::verbs::{GidEntry, GidKind};

/// A GID, and what is not good about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The entry.
    pub entry: GidEntry,
    /// Why it may not do, and what to change.
    pub warning: Option<String>,
}

/// The best entry of a GID table: InfiniBand's own or a routable RoCE v2 GID, then link-local v2, then RoCE v1; the
/// first of equals. `None` for a table without a valid entry.
///
/// ```
/// use transport_rdma::{choice::choose_gid, verbs::{GidEntry, GidKind}};
///
/// let entry = |index, gid: &str, kind| GidEntry { index, gid: gid.parse().unwrap(), kind, interface: None };
/// let table = [
///     entry(0, "fe80::1", GidKind::RoceV1),
///     entry(1, "fe80::1", GidKind::RoceV2),
///     entry(2, "2001:db8::1", GidKind::RoceV1),
///     entry(3, "2001:db8::1", GidKind::RoceV2),
/// ];
/// assert_eq!(choose_gid(&table).unwrap().entry.index, 3);
/// ```
pub fn choose_gid(table: &[GidEntry]) -> Option<GidChoice> {
    let entry = table.iter().filter(|entry| entry.gid != Ipv6Addr::UNSPECIFIED).min_by_key(|entry| rank(entry))?;
    let warning = match (entry.kind, is_link_local(entry.gid)) {
        (GidKind::InfiniBand, _) | (GidKind::RoceV2, false) => None,
        (GidKind::RoceV2, true) => Some(format!(
            "only a link-local RoCE v2 GID ({}, index {}): peers behind a router cannot be reached; give the interface an IP address",
            entry.gid, entry.index
        )),
        (GidKind::RoceV1, _) => Some(format!(
            "only RoCE v1 GIDs ({}, index {}): they are not routable, and a peer with RoCE v2 cannot be reached; enable RoCE v2",
            entry.gid, entry.index
        )),
    };
    Some(GidChoice { entry: entry.clone(), warning })
}

fn rank(entry: &GidEntry) -> u8 {
    match (entry.kind, is_link_local(entry.gid)) {
        (GidKind::InfiniBand, _) | (GidKind::RoceV2, false) => 0,
        (GidKind::RoceV2, true) => 1,
        (GidKind::RoceV1, false) => 2,
        (GidKind::RoceV1, true) => 3,
    }
}

fn is_link_local(gid: Ipv6Addr) -> bool {
    gid.is_unicast_link_local()
}
