//! What the kernel says, without the library: devices, device files, limits, processors.

use std::{collections::BTreeMap, fs, path::Path};

use rustix::process::{Resource, getrlimit};

/// This machine and this process.
#[derive(Debug)]
pub(crate) struct System {
    /// The devices that the kernel has drivers for.
    pub(crate) devices: Vec<KernelDevice>,
    pub(crate) memlock: Memlock,
    /// Processors and NUMA nodes that this process may use, as the kernel lists them: `0-3,8`.
    pub(crate) cpus: String,
    pub(crate) memory_nodes: String,
    /// The processors of each NUMA node.
    pub(crate) nodes: BTreeMap<u32, String>,
}

/// A device, as the kernel shows it.
#[derive(Debug)]
pub(crate) struct KernelDevice {
    pub(crate) name: String,
    /// `CA` for InfiniBand and RoCE, `RNIC` for iWARP.
    pub(crate) kind: String,
    /// `None` for a device without a bus.
    pub(crate) driver: Option<String>,
    /// Its device file, and whether this process may use it.
    pub(crate) file: Option<(String, Result<(), String>)>,
}

impl KernelDevice {
    /// Whether it can have RC queue pairs that are joined by GIDs and LIDs.
    pub(crate) fn is_infiniband_or_roce(&self) -> bool {
        self.kind == "CA" || self.kind.is_empty()
    }
}

/// How much memory this process may lock.
#[derive(Debug)]
pub(crate) struct Memlock {
    /// Bytes; `None` is unlimited.
    pub(crate) soft: Option<u64>,
    pub(crate) hard: Option<u64>,
    /// The limit does not hold for this process: it has CAP_IPC_LOCK, outside of user namespaces.
    pub(crate) lifted: bool,
}

impl Memlock {
    /// What holds, in bytes; `None` is unlimited.
    pub(crate) fn effective(&self) -> Option<u64> {
        if self.lifted { None } else { self.soft }
    }
}

impl System {
    pub(crate) fn look() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map_or_else(String::new, |rest| rest.trim().to_owned())
        };
        let limit = getrlimit(Resource::Memlock);
        let lifted = has_ipc_lock(&field("CapEff:")) && in_first_user_namespace();
        Self {
            devices: names("/sys/class/infiniband").into_iter().map(kernel_device).collect(),
            memlock: Memlock { soft: limit.current, hard: limit.maximum, lifted },
            cpus: field("Cpus_allowed_list:"),
            memory_nodes: field("Mems_allowed_list:"),
            nodes: nodes(),
        }
    }

    /// Whether this process may run on a NUMA node; `None` where the node is not known.
    pub(crate) fn may_run_on(&self, node: u32) -> Option<bool> {
        Some(overlap(&ranges(self.nodes.get(&node)?), &ranges(&self.cpus)))
    }
}

/// The MTU of a network interface.
pub(crate) fn interface_mtu(name: &str) -> Option<u32> {
    read(&format!("/sys/class/net/{name}/mtu"))?.parse().ok()
}

fn kernel_device(name: String) -> KernelDevice {
    let folder = format!("/sys/class/infiniband/{name}");
    // "1: CA"
    let kind = read(&format!("{folder}/node_type")).unwrap_or_default();
    let kind = kind.split_once(": ").map_or(kind.as_str(), |(_, kind)| kind).to_owned();
    let driver = fs::read_link(format!("{folder}/device/driver")).ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let file = names("/sys/class/infiniband_verbs")
        .into_iter()
        .find(|file| read(&format!("/sys/class/infiniband_verbs/{file}/ibdev")).is_some_and(|device| device == name));
    let file = file.map(|file| {
        let path = format!("/dev/infiniband/{file}");
        let access = fs::File::options().read(true).write(true).open(&path).map(drop);
        (path, access.map_err(|error| error.to_string()))
    });
    KernelDevice { name, kind, driver, file }
}

/// CAP_IPC_LOCK is bit 14.
fn has_ipc_lock(capabilities: &str) -> bool {
    u64::from_str_radix(capabilities, 16).is_ok_and(|bits| bits & (1 << 14) != 0)
}

/// The kernel asks for the right in the first user namespace: that of a container's root does not count.
fn in_first_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn nodes() -> BTreeMap<u32, String> {
    let root = "/sys/devices/system/node";
    let number = |name: &String| name.strip_prefix("node").and_then(|number| number.parse().ok());
    let cpus = |number: u32| read(&format!("{root}/node{number}/cpulist")).map(|cpus| (number, cpus));
    names(root).iter().filter_map(number).filter_map(cpus).collect()
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(folder)).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The ranges of a list of the kernel's.
fn ranges(list: &str) -> Vec<(u32, u32)> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    list.split(',').filter_map(range).collect()
}

fn overlap(one: &[(u32, u32)], other: &[(u32, u32)]) -> bool {
    one.iter().any(|a| other.iter().any(|b| a.0 <= b.1 && b.0 <= a.1))
}
