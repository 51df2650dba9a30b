//! The report for people.

use transport_rdma::{
    QueuePairTimers,
    choice::{DeviceReport, PortReport},
};

use crate::{gids, report::Report, system::System};

/// Prints the report.
pub(crate) fn print(report: &Report) {
    let verdict = report.verdict();
    println!("{}\n", verdict.sentence());
    match &report.library {
        Ok(name) => println!("library     {name}"),
        Err(reason) => println!("library     none: {reason}"),
    }
    system(&report.system);
    report.devices.iter().for_each(|found| device(report, found));
    engine(report);
    for loopback in &report.loopbacks {
        match &loopback.result {
            Ok(times) => println!(
                "\nloopback    {}: {} KiB arrived, every byte checked; register {:.1?}, connect {:.1?}, write {:.1?}",
                loopback.device,
                times.bytes >> 10,
                times.register,
                times.connect,
                times.write
            ),
            Err(reason) => println!("\nloopback    {}: failed: {reason}", loopback.device),
        }
    }
    for finding in &report.findings {
        println!("\n{:<12}{}\n{:<12}{}", finding.level.name(), finding.what, "  remedy", finding.remedy);
    }
}

fn system(system: &System) {
    if system.devices.is_empty() {
        println!("kernel      no device below /sys/class/infiniband");
    }
    for device in &system.devices {
        let file = match &device.file {
            None => "no device file".into(),
            Some((path, Ok(()))) => format!("{path} can be opened"),
            Some((path, Err(reason))) => format!("{path} cannot be opened: {reason}"),
        };
        let driver = device.driver.as_deref().unwrap_or("none, it has no bus");
        println!("kernel      {}: {}, driver {driver}; {file}", device.name, device.kind);
    }
    let memlock = &system.memlock;
    let lifted = if memlock.lifted { "; CAP_IPC_LOCK lifts it" } else { "" };
    println!("memlock     soft {}, hard {}{lifted}", limit(memlock.soft), limit(memlock.hard));
    println!("process     processors {}, memory of NUMA nodes {}", system.cpus, system.memory_nodes);
}

fn limit(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unlimited".into(), |bytes| format!("{bytes} bytes"))
}

fn device(report: &Report, device: &DeviceReport) {
    let node = device.info.numa_node.map_or_else(String::new, |node| {
        let near = match report.system.may_run_on(node) {
            Some(true) => ", where this process may run",
            Some(false) => ", where this process may not run",
            None => "",
        };
        format!(", NUMA node {node}{near}")
    });
    match &device.attributes {
        Err(reason) => println!("\ndevice      {}{node}: {reason}", device.info.name),
        Ok(has) => {
            println!("\ndevice      {}{node}, firmware {}", device.info.name, has.firmware);
            println!("  regions   {} of at most {} bytes", has.max_mr, has.max_mr_size);
            println!(
                "  queues    {} queue pairs of {} work requests; {} completion queues of {} entries",
                has.max_qp, has.max_qp_wr, has.max_cq, has.max_cqe
            );
        }
    }
    device.ports.iter().for_each(port);
}

fn port(port: &PortReport) {
    match &port.attributes {
        Err(reason) => println!("  port {}    {reason}", port.port),
        Ok(has) => println!(
            "  port {}    {:?}, {:?}, {}, MTU {} of {}",
            port.port,
            has.state,
            has.link_layer,
            has.speed_mbps
                .map_or_else(|| "speed not known".into(), |speed| format!("{} Gbit/s", f64::from(speed) / 1e3)),
            has.active_mtu,
            has.max_mtu
        ),
    }
    for gid in &port.gids {
        let interface = gid.interface.as_deref().unwrap_or("-");
        println!(
            "    {} {:<4}{:<11}{:<40}{interface:<12}{}",
            if gids::is_chosen(port, gid) { "*" } else { " " },
            gid.index,
            gids::kind(gid),
            gid.gid.to_string(),
            gids::verdict(port, gid)
        );
    }
    if let Err(reason) = &port.choice {
        println!("    not used: {reason}");
    }
}

fn engine(report: &Report) {
    let config = &report.config;
    match &report.chosen {
        Err(reason) => println!("\nengine      uses no rail: {reason}"),
        Ok(rails) => {
            for (number, rail) in rails.iter().enumerate() {
                println!("\nengine      rail {number}: {}", rail.describe());
            }
            println!(
                "  peers     {} queue pairs each on a pair of rails; one completion queue has room for {} peers",
                config.queue_pairs,
                report.peers()
            );
        }
    }
    let timers = QueuePairTimers::within(config.loss_bound);
    println!(
        "  timers    loss bound {:?}: time-out code {} and {} retries, so a queue pair fails within {:.1?}; a connection without a path ends {:?} later",
        config.loss_bound,
        timers.timeout,
        timers.retry_count,
        timers.longest(),
        config.loss_bound / 2
    );
}
