//! The report for programs.

use serde_json::{Value, json};
use transport_rdma::{
    QueuePairTimers,
    choice::{Choice, DeviceReport, PortReport},
};

use crate::{gids, loopback::Loopback, report::Report, system::System};

/// The document of `--json`.
pub(crate) fn document(report: &Report) -> Value {
    let verdict = report.verdict();
    let timers = QueuePairTimers::within(report.config.loss_bound);
    json!({
        "verdict": verdict.name(),
        "message": verdict.sentence(),
        "exit_status": verdict.exit_status(),
        "built_with_rdma": report.built,
        "simulated": report.simulated,
        "library": { "name": report.library.as_ref().ok(), "error": report.library.as_ref().err() },
        "system": system(&report.system),
        "devices": report.devices.iter().map(|found| device(report, found)).collect::<Vec<_>>(),
        "engine": {
            "rails": report.rails().iter().map(choice).collect::<Vec<_>>(),
            "error": report.chosen.as_ref().err(),
            "queue_pairs": report.config.queue_pairs,
            "peers_at_most": report.chosen.is_ok().then(|| report.peers()),
            "timers": {
                "loss_bound_seconds": report.config.loss_bound.as_secs_f64(),
                "timeout": timers.timeout,
                "retry_count": timers.retry_count,
                "longest_seconds": timers.longest().as_secs_f64(),
            },
        },
        "loopback": report.loopbacks.iter().map(loopback).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(|finding| json!({
            "level": finding.level.name(),
            "what": finding.what,
            "remedy": finding.remedy,
        })).collect::<Vec<_>>(),
    })
}

fn system(system: &System) -> Value {
    let devices = system.devices.iter().map(|device| {
        let file = device.file.as_ref();
        json!({
            "name": device.name,
            "kind": device.kind,
            "driver": device.driver,
            "file": file.map(|(path, _)| path),
            "file_error": file.and_then(|(_, access)| access.as_ref().err()),
        })
    });
    json!({
        "devices": devices.collect::<Vec<_>>(),
        "memlock": {
            "soft": system.memlock.soft,
            "hard": system.memlock.hard,
            "lifted": system.memlock.lifted,
        },
        "processors": system.cpus,
        "memory_nodes": system.memory_nodes,
    })
}

fn device(report: &Report, device: &DeviceReport) -> Value {
    let limits = device.attributes.as_ref().ok().map(|has| {
        json!({
            "max_mr_size": has.max_mr_size,
            "max_mr": has.max_mr,
            "max_qp": has.max_qp,
            "max_qp_wr": has.max_qp_wr,
            "max_cq": has.max_cq,
            "max_cqe": has.max_cqe,
        })
    });
    json!({
        "name": device.info.name,
        "numa_node": device.info.numa_node,
        "process_may_run_there": device.info.numa_node.and_then(|node| report.system.may_run_on(node)),
        "firmware": device.attributes.as_ref().ok().map(|has| &has.firmware),
        "error": device.attributes.as_ref().err(),
        "limits": limits,
        "ports": device.ports.iter().map(port).collect::<Vec<_>>(),
        "choice": device.choice.as_ref().map(choice),
    })
}

fn port(port: &PortReport) -> Value {
    let has = port.attributes.as_ref().ok();
    let gids = port.gids.iter().map(|gid| {
        json!({
            "index": gid.index,
            "kind": gids::kind(gid),
            "gid": gid.gid.to_string(),
            "interface": gid.interface,
            "chosen": gids::is_chosen(port, gid),
            "why": gids::verdict(port, gid),
        })
    });
    json!({
        "port": port.port,
        "state": has.map(|has| format!("{:?}", has.state)),
        "link_layer": has.map(|has| format!("{:?}", has.link_layer)),
        "speed_mbps": has.and_then(|has| has.speed_mbps),
        "active_mtu": has.map(|has| has.active_mtu.bytes()),
        "max_mtu": has.map(|has| has.max_mtu.bytes()),
        "gids": gids.collect::<Vec<_>>(),
        "error": port.choice.as_ref().err(),
    })
}

fn choice(choice: &Choice) -> Value {
    json!({
        "device": choice.device,
        "port": choice.port,
        "gid": choice.gid.as_ref().map(|entry| entry.gid.to_string()),
        "gid_index": choice.gid.as_ref().map(|entry| entry.index),
        "gid_kind": choice.gid.as_ref().map(gids::kind),
        "lid": choice.lid,
        "mtu": choice.mtu.bytes(),
        "warning": choice.warning,
    })
}

fn loopback(loopback: &Loopback) -> Value {
    let times = loopback.result.as_ref().ok();
    json!({
        "device": loopback.device,
        "ok": loopback.result.is_ok(),
        "error": loopback.result.as_ref().err(),
        "bytes": times.map(|times| times.bytes),
        "register_seconds": times.map(|times| times.register.as_secs_f64()),
        "connect_seconds": times.map(|times| times.connect.as_secs_f64()),
        "write_seconds": times.map(|times| times.write.as_secs_f64()),
    })
}
