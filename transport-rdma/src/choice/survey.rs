//! What this host has.

use crate::{
    choice::{Choice, choose_port, gid_table},
    error::OpenError,
    verbs::{DeviceAttributes, DeviceInfo, GidEntry, PortAttributes, Verbs},
};

/// A device, as it was found.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// Its name and place.
    pub info: DeviceInfo,
    /// Its limits, or why they cannot be had.
    pub attributes: Result<DeviceAttributes, String>,
    /// Its ports.
    pub ports: Vec<PortReport>,
    /// What would be used of it.
    pub choice: Option<Choice>,
}

impl DeviceReport {
    /// What is wrong with it, and what to change; empty where it can be used.
    pub fn problems(&self) -> Vec<String> {
        if self.choice.is_some() {
            return Vec::new();
        }
        let device = self.attributes.as_ref().err().map(|error| format!("{}: {error}", self.info.name));
        device.into_iter().chain(self.ports.iter().filter_map(|port| port.choice.as_ref().err().cloned())).collect()
    }
}

/// A port, as it was found.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// Its number, from 1.
    pub port: u8,
    /// Its state, or why it cannot be had.
    pub attributes: Result<PortAttributes, String>,
    /// The entries of its GID table that are there.
    pub gids: Vec<GidEntry>,
    /// What would be used of it, or what is wrong and what to change.
    pub choice: Result<Choice, String>,
}

/// Looks at all devices of the host. A device that cannot be opened is reported, not an error.
///
/// # Errors
/// When the list of devices cannot be had.
pub fn survey(verbs: &dyn Verbs) -> Result<Vec<DeviceReport>, OpenError> {
    Ok(verbs.devices()?.into_iter().map(|info| report(verbs, info)).collect())
}

fn report(verbs: &dyn Verbs, info: DeviceInfo) -> DeviceReport {
    let opened = verbs.open(&info.name).and_then(|device| device.attributes().map(|attributes| (device, attributes)));
    let (device, attributes) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            return DeviceReport { info, attributes: Err(error.to_string()), ports: Vec::new(), choice: None };
        }
    };
    let ports: Vec<PortReport> = (1..=attributes.ports)
        .map(|port| {
            let state = device.port(port).map_err(|error| error.to_string());
            let gids = state.as_ref().ok().and_then(|state| gid_table(&*device, port, state).ok());
            let choice = choose_port(&*device, port, None, info.numa_node);
            PortReport { port, attributes: state, gids: gids.unwrap_or_default(), choice }
        })
        .collect();
    let choice = ports.iter().find_map(|port| port.choice.clone().ok());
    DeviceReport { info, attributes: Ok(attributes), ports, choice }
}
