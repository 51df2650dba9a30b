//! What is wrong, and what to change.

use transport_rdma::{
    choice::{DeviceReport, PortReport},
    verbs::{DeviceAttributes, LinkLayer, Mtu},
};

use crate::{
    args::Args,
    report::Report,
    source::BUILD,
    system::{self, KernelDevice},
};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// RDMA does not work, or not as it was asked for.
    Broken,
    /// It works, and would be better otherwise.
    Warning,
}

impl Level {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Warning => "warning",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) what: String,
    pub(crate) remedy: String,
}

fn broken(what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level: Level::Broken, what: what.into(), remedy: remedy.into() }
}

fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level: Level::Warning, what: what.into(), remedy: remedy.into() }
}

/// All of them, the worst first.
pub(crate) fn all(report: &Report, args: &Args) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(kernel(report));
    all.extend(choice(report, args));
    if report.has_devices() {
        all.extend(memlock(report));
    }
    for device in &report.devices {
        all.extend(limits(report, device));
        all.extend(device.ports.iter().filter_map(|port| mtu(device, port)));
        all.extend(numa(report, device));
    }
    all.extend(report.rails().iter().filter_map(|choice| {
        let what = choice.warning.clone()?;
        Some(warning(what, "do what it says, or name another rail by hand"))
    }));
    for loopback in &report.loopbacks {
        if let Err(reason) = &loopback.result {
            all.push(broken(
                format!("writing over {} does not work: {reason}", loopback.device),
                "look at the port, its GID and the switch; `ibv_rc_pingpong -g INDEX` tries the same without kvferry",
            ));
        }
    }
    all.sort_by_key(|finding| finding.level != Level::Broken);
    all
}

/// What the kernel and the library disagree about.
fn kernel(report: &Report) -> Vec<Finding> {
    let mut found = Vec::new();
    if report.simulated {
        return found;
    }
    for device in &report.system.devices {
        found.extend(file(device));
        if !device.is_infiniband_or_roce() {
            found.push(warning(
                format!(
                    "{} is of the kind {}: it has no RC queue pairs that are joined by GID or LID",
                    device.name, device.kind
                ),
                "use QUIC on it, or an InfiniBand or RoCE device (irdma: load it with `roce_ena=1`)",
            ));
        }
    }
    let names: Vec<&str> = report.system.devices.iter().map(|device| device.name.as_str()).collect();
    match &report.library {
        _ if names.is_empty() => {}
        Err(reason) if report.built => found.push(broken(reason.clone(), "install the packages that it names")),
        Err(_) => found.push(broken(
            format!("this host has RDMA devices ({}), and this program was built without RDMA", names.join(", ")),
            BUILD,
        )),
        Ok(library) if report.devices.is_empty() => found.push(broken(
            format!("the kernel has {}, and {library} has none of them", names.join(", ")),
            "install the library's driver for it (Debian: ibverbs-providers) and load the module ib_uverbs",
        )),
        Ok(_) => {}
    }
    found
}

fn file(device: &KernelDevice) -> Option<Finding> {
    let name = &device.name;
    match &device.file {
        None => Some(broken(format!("{name} has no device file"), "load the module ib_uverbs (`modprobe ib_uverbs`)")),
        Some((path, Err(reason))) => Some(broken(
            format!("{path}, the file of {name}, cannot be opened: {reason}"),
            format!(
                "give this user the right to read and write {path}; into a container it comes with `--device {path}`"
            ),
        )),
        Some((_, Ok(()))) => None,
    }
}

/// Why nothing, or less than wanted, is chosen.
fn choice(report: &Report, args: &Args) -> Vec<Finding> {
    let mut found = Vec::new();
    match &report.chosen {
        Err(reason) if !args.named().is_empty() => found.push(broken(
            format!("{} cannot be used: {reason}", args.named().join(", ")),
            "name devices of this host (--device, KVFERRY_RDMA_DEVICES), or none to have the best one chosen",
        )),
        Err(reason) if !report.devices.is_empty() => {
            found.push(broken(reason.clone(), "do what it says for one of them"));
        }
        Err(_) if args.loopback => {
            found.push(broken(
                "--loopback was asked for, and there is no device to try",
                "leave it out, or add a device",
            ));
        }
        Err(_) => {}
        // A port without a cable beside one that works is no reason for an alarm.
        Ok(_) => {
            let problems = report.devices.iter().flat_map(DeviceReport::problems);
            found.extend(problems.map(|problem| warning(problem, "nothing, unless it is to be used")));
        }
    }
    found
}

/// Each rail pins the cache once more, and the kernel counts it each time.
fn memlock(report: &Report) -> Option<Finding> {
    let limit = report.system.memlock.effective()?;
    let rails = report.rails().len().max(1) as u64;
    let needed = report.cache.saturating_mul(rails);
    (limit < needed).then(|| {
        broken(
            format!("this process may lock {limit} bytes, and a cache of {} on {rails} rails takes {needed}", report.cache),
            "raise the limit: `ulimit -l unlimited`, LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (containers), or memlock in /etc/security/limits.conf; or say with --cache how large the cache is",
        )
    })
}

fn limits(report: &Report, device: &DeviceReport) -> Vec<Finding> {
    let Ok(attributes) = &device.attributes else { return Vec::new() };
    let DeviceAttributes { max_qp_wr, max_cqe, max_mr_size, max_mr, .. } = *attributes;
    let (name, config) = (&device.info.name, &report.config);
    let mut found = Vec::new();
    let mut less = |what: &str, setting: &str, wanted: u64, has: u64| {
        if has < wanted {
            found.push(warning(
                format!("{name} has at most {has} {what}, and {setting} is {wanted}: the smaller number is used"),
                format!("nothing, or lower {setting}"),
            ));
        }
    };
    less("work requests in a queue", "queue_depth", config.queue_depth.into(), max_qp_wr.into());
    less("receives in a queue", "events_per_peer", config.events_per_peer as u64, max_qp_wr.into());
    less("completions in a queue", "completion_queue_depth", config.completion_queue_depth.into(), max_cqe.into());
    let pieces = report.cache.div_ceil(max_mr_size.max(1));
    if pieces > u64::from(max_mr) {
        found.push(broken(
            format!(
                "{name} takes {max_mr} memory regions of {max_mr_size} bytes, and a cache of {} does not fit",
                report.cache
            ),
            "spread the ranks over several devices, or say with --cache how large the cache is",
        ));
    }
    found
}

/// RoCE's MTU follows the interface's, which has to carry the headers too.
fn mtu(device: &DeviceReport, port: &PortReport) -> Option<Finding> {
    let attributes = port.attributes.as_ref().ok()?;
    let (active, max) = (attributes.active_mtu, attributes.max_mtu);
    if active >= Mtu::B4096 || active >= max || port.choice.is_err() {
        return None;
    }
    let place = format!("{} port {}: the active MTU is {active}, and {max} would go", device.info.name, port.port);
    if attributes.link_layer == LinkLayer::InfiniBand {
        return Some(warning(place, "raise the MTU of the partition in the subnet manager"));
    }
    let interface = port.gids.iter().find_map(|gid| gid.interface.clone());
    let mtu = interface.as_deref().and_then(system::interface_mtu);
    Some(match (interface, mtu) {
        (Some(interface), Some(mtu)) => warning(
            format!("{place}, but the interface {interface} has {mtu}"),
            format!("`ip link set {interface} mtu 9000` (4200 is enough) on both sides, and the switches between them"),
        ),
        _ => warning(place, "raise the MTU of its network interface to 9000 (4200 is enough), there and at the peer"),
    })
}

fn numa(report: &Report, device: &DeviceReport) -> Option<Finding> {
    let node = device.info.numa_node?;
    let used = report.rails().iter().any(|choice| choice.device == device.info.name);
    (used && report.system.may_run_on(node) == Some(false)).then(|| {
        warning(
            format!("{} is on NUMA node {node}, and this process may only run on the processors {}", device.info.name, report.system.cpus),
            format!("run it there (`numactl --cpunodebind={node} --membind={node}`), or choose a device of its own node with --numa-node"),
        )
    })
}
