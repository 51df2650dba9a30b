//! Why a GID is used, and why the others are not.

use transport_rdma::{
    choice::{PortReport, choose_gid},
    verbs::{GidEntry, GidKind},
};

/// A GID's protocol, for people.
pub(crate) fn kind(entry: &GidEntry) -> &'static str {
    match entry.kind {
        GidKind::InfiniBand => "InfiniBand",
        GidKind::RoceV1 => "RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
    }
}

/// Whether the rule chooses this entry of a port.
pub(crate) fn is_chosen(port: &PortReport, entry: &GidEntry) -> bool {
    choose_gid(&port.gids).is_some_and(|choice| choice.entry.index == entry.index)
}

/// What the rule says about an entry of a port.
pub(crate) fn verdict(port: &PortReport, entry: &GidEntry) -> String {
    let Some(choice) = choose_gid(&port.gids) else { return "the table has no entry that can be used".into() };
    if choice.entry.index == entry.index {
        return match (choice.warning.is_some(), entry.kind) {
            (true, _) => format!("chosen, for want of a better one: {}", nature(entry)),
            (false, GidKind::InfiniBand) => "chosen: InfiniBand's own".into(),
            (false, _) => format!("chosen: {}, the first one", nature(entry)),
        };
    }
    if nature(entry) == nature(&choice.entry) {
        return format!("as good as index {}, which comes first", choice.entry.index);
    }
    format!("not chosen: {}", nature(entry))
}

/// What the rule looks at.
fn nature(entry: &GidEntry) -> &'static str {
    match (entry.kind, entry.gid.is_unicast_link_local()) {
        (GidKind::InfiniBand, _) => "InfiniBand",
        (GidKind::RoceV1, _) => "RoCE v1 is not routable",
        (GidKind::RoceV2, true) => "link-local, not routable",
        (GidKind::RoceV2, false) => "RoCE v2 and routable",
    }
}
