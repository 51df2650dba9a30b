//! What only the kernel's files tell about a device.

use std::fs;

/// The NUMA node that a device's bus hangs on; `None` for a device without a bus, and on a machine without nodes.
pub(super) fn numa_node(device: &str) -> Option<u32> {
    read(&format!("{device}/device/numa_node"))?.parse().ok()
}

/// The network interface behind an entry of a port's GID table.
pub(super) fn interface(device: &str, port: u8, index: u32) -> Option<String> {
    read(&format!("{device}/ports/{port}/gid_attrs/ndevs/{index}")).filter(|name| !name.is_empty())
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(format!("/sys/class/infiniband/{path}")).ok()?.trim().to_owned())
}
