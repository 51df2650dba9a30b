//! Which device, port and GID carry the data, and why.
//!
//! Choosing wrong is the most frequent failure of a RoCE set-up: a link-local or RoCE v1 GID pairs with a routable one, no packet ever
//! arrives, and the first write fails after a time-out. So the choice is made by rule, can be looked at
//! ([`survey()`]) and overridden by hand ([`Rails::Manual`]).

mod gid;
mod survey;

use std::net::Ipv6Addr;

pub use self::{
    gid::{GidChoice, choose_gid},
    survey::{DeviceReport, PortReport, survey},
};
use crate::{
    config::{Rail, Rails},
    error::OpenError,
    verbs::{Device, GidEntry, LinkLayer, Mtu, PortAttributes, PortState, Verbs},
};

/// A device with the port and the GID to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The device's name.
    pub device: String,
    /// The port.
    pub port: u8,
    /// The GID; InfiniBand does without.
    pub gid: Option<GidEntry>,
    /// The port's LID; zero on Ethernet.
    pub lid: u16,
    /// What the port is plugged into.
    pub link_layer: LinkLayer,
    /// The port's active MTU.
    pub mtu: Mtu,
    /// The longest message that the port takes.
    pub max_message: u32,
    /// The port's speed in Mbit/s, where it is known.
    pub speed_mbps: Option<u32>,
    /// The device's NUMA node, where it is known.
    pub numa_node: Option<u32>,
    /// What is not as it should be, but works.
    pub warning: Option<String>,
}

impl Choice {
    /// Port, GID and MTU in words, for messages.
    pub fn describe(&self) -> String {
        let gid = self.gid.as_ref().map_or_else(
            || format!("LID {}", self.lid),
            |gid| format!("GID index {} ({})", gid.index, show_gid(gid.gid)),
        );
        format!("{} port {} {gid}, MTU {}", self.device, self.port, self.mtu)
    }
}

/// A GID as people know it: mapped IPv4 addresses as such.
pub(crate) fn show_gid(gid: Ipv6Addr) -> String {
    gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |ipv4| format!("::ffff:{ipv4}"))
}

/// The rails that a setting means, best first.
///
/// # Errors
/// [`OpenError::NoDevice`] with what is wrong with each device, or [`OpenError::Choice`] for one that was named by hand.
pub fn choose(verbs: &dyn Verbs, rails: &Rails) -> Result<Vec<Choice>, OpenError> {
    match rails {
        Rails::Automatic { numa_node, max } => automatic(verbs, *numa_node, *max),
        Rails::Manual(rails) if rails.is_empty() => {
            Err(OpenError::Choice { device: "none".into(), reason: "the list of rails is empty; name a device".into() })
        }
        Rails::Manual(rails) => rails.iter().map(|rail| by_hand(verbs, rail)).collect(),
    }
}

fn automatic(verbs: &dyn Verbs, numa_node: Option<u32>, max: usize) -> Result<Vec<Choice>, OpenError> {
    let reports = survey(verbs)?;
    let problems = reports.iter().flat_map(DeviceReport::problems).collect::<Vec<_>>();
    let mut choices: Vec<Choice> = reports.into_iter().filter_map(|report| report.choice).collect();
    if choices.is_empty() {
        let reason = if problems.is_empty() {
            "the host has none; check that the NIC's driver is loaded, or add a Soft-RoCE device with `rdma link add`"
                .into()
        } else {
            problems.join("; ")
        };
        return Err(OpenError::NoDevice { reason });
    }
    choices.sort_by_key(|choice| {
        let far = numa_node.is_some() && choice.numa_node != numa_node;
        (far, std::cmp::Reverse(choice.speed_mbps), choice.device.clone())
    });
    // A far device would be a bottleneck for the near ones.
    if choices.iter().any(|choice| numa_node.is_some() && choice.numa_node == numa_node) {
        choices.retain(|choice| choice.numa_node == numa_node);
    }
    choices.truncate(max.max(1));
    Ok(choices)
}

fn by_hand(verbs: &dyn Verbs, rail: &Rail) -> Result<Choice, OpenError> {
    let wrong = |reason: String| OpenError::Choice { device: rail.device.clone(), reason };
    let infos = verbs.devices()?;
    let info = infos.iter().find(|info| info.name == rail.device).ok_or_else(|| {
        let names: Vec<&str> = infos.iter().map(|info| info.name.as_str()).collect();
        wrong(format!("there is no such device; this host has: {}", names.join(", ")))
    })?;
    let device = verbs.open(&rail.device)?;
    let ports = device.attributes()?.ports;
    let candidates = rail.port.map_or(1..=ports, |port| port..=port);
    let mut reasons = Vec::new();
    for port in candidates {
        match choose_port(&*device, port, rail.gid_index, info.numa_node) {
            Ok(choice) => return Ok(choice),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(wrong(reasons.join("; ")))
}

/// The choice for one port, or what is wrong with it and what to change.
fn choose_port(
    device: &dyn Device,
    port: u8,
    gid_index: Option<u32>,
    numa_node: Option<u32>,
) -> Result<Choice, String> {
    let attributes = device.port(port).map_err(|error| error.to_string())?;
    if attributes.state != PortState::Active {
        return Err(format!(
            "{} port {port} is {:?} and not active; bring its link up (`ip link`, `rdma link`)",
            device.name(),
            attributes.state
        ));
    }
    let (gid, warning) = choose_port_gid(device, port, &attributes, gid_index)?;
    Ok(Choice {
        device: device.name().to_owned(),
        port,
        gid,
        lid: attributes.lid,
        link_layer: attributes.link_layer,
        mtu: attributes.active_mtu,
        max_message: attributes.max_message,
        speed_mbps: attributes.speed_mbps,
        numa_node,
        warning,
    })
}

fn choose_port_gid(
    device: &dyn Device,
    port: u8,
    attributes: &PortAttributes,
    wanted: Option<u32>,
) -> Result<(Option<GidEntry>, Option<String>), String> {
    let place = || format!("{} port {port}", device.name());
    if let Some(index) = wanted {
        if index >= attributes.gid_table_len {
            return Err(format!(
                "{} has no GID index {index}: its table has {} entries; choose a smaller one",
                place(),
                attributes.gid_table_len
            ));
        }
        let entry = device.gid(port, index).map_err(|error| error.to_string())?;
        return entry.map(|entry| (Some(entry), None)).ok_or_else(|| {
            format!("{}: GID index {index} is empty; give its network interface an address, or choose another", place())
        });
    }
    let table = gid_table(device, port, attributes)?;
    match choose_gid(&table) {
        Some(GidChoice { entry, warning }) => {
            Ok((Some(entry), warning.map(|warning| format!("{}: {warning}", place()))))
        }
        // Within a subnet InfiniBand needs the LID only.
        None if attributes.link_layer == LinkLayer::InfiniBand && attributes.lid != 0 => Ok((None, None)),
        None => Err(format!(
            "{} has an empty GID table: nothing can be addressed on {:?} without a GID; give its network interface an IP address",
            place(),
            attributes.link_layer
        )),
    }
}

/// The entries of a port's GID table that are there; never asks beyond the table's length.
fn gid_table(device: &dyn Device, port: u8, attributes: &PortAttributes) -> Result<Vec<GidEntry>, String> {
    (0..attributes.gid_table_len)
        .filter_map(|index| device.gid(port, index).map_err(|error| error.to_string()).transpose())
        .collect()
}
