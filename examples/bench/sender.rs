//! The sending process: sets a workload up on every lane, and measures the lanes in turn.

use std::sync::Arc;

use crate::{
    Result,
    args::Args,
    lane::{Lane, MemcpyLane, TcpLane, TransportLane},
    measure::{self, Run},
    messages::{Command, Reply},
    peer::{self, Peer},
    placement::Placement,
    report::Line,
    tables::Tables,
    transport::{Endpoint, Identity, Kind, Side},
    workload::{Measure, Workload},
};

/// Measures one workload: rounds, in each of which every lane runs once, so that a change of the machine's pace
/// meets all of them.
pub(crate) fn measure(workload: &Workload, kinds: &[Kind], args: &Args) -> Result<Vec<Line>> {
    let runs = usize::from(args.runs);
    let mut peer = Peer::start(workload, kinds, args.small)?;
    let mut lanes = open(workload, kinds, &mut peer)?;
    for lane in &mut lanes {
        // Memory is touched, connections find their pace; and what has arrived is compared, byte for byte.
        measure::run(lane.as_mut(), workload, &mut peer)
            .and_then(|_| lane.verify(workload, &mut peer))
            .map_err(|error| format!("{} over {}: {error}", workload.name, lane.name()))?;
    }
    let mut results: Vec<Vec<Run>> = lanes.iter().map(|_| Vec::with_capacity(runs)).collect();
    for _ in 0..runs {
        for (lane, results) in lanes.iter_mut().zip(&mut results) {
            let run = measure::run(lane.as_mut(), workload, &mut peer);
            results.push(run.map_err(|error| format!("{} over {}: {error}", workload.name, lane.name()))?);
        }
    }
    for lane in &lanes {
        if let Some(remark) = lane.remark() {
            eprintln!("  {}: {remark}", lane.name());
        }
    }
    let results: Vec<_> = lanes.iter().map(|lane| lane.name()).zip(results).collect();
    Ok(Line::summarize(workload, &results))
}

fn open(workload: &Workload, kinds: &[Kind], peer: &mut Peer) -> Result<Vec<Box<dyn Lane>>> {
    let identities: Vec<_> = kinds.iter().map(|_| Identity::new()).collect();
    peer.command(&Command::Open { identities: identities.iter().map(Identity::public).collect() })?;
    let (tcp, invitations) = match peer.reply()? {
        Reply::Opened { tcp, invitations } => (tcp, invitations),
        other => return Err(peer::unexpected(&other)),
    };
    peer.command(&Command::Accept)?;
    let mut connected = Vec::new();
    for ((kind, identity), invitation) in kinds.iter().zip(identities).zip(&invitations) {
        let endpoint = Endpoint::open(*kind, Side::Sender, identity, &invitation.identity)?;
        let receiver = endpoint.connect(invitation)?;
        connected.push((*kind, endpoint, receiver));
    }
    let grants = match peer.reply()? {
        Reply::Accepted { grants } => grants,
        other => return Err(peer::unexpected(&other)),
    };
    let placement = Placement::new(workload);
    let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
    for ((kind, endpoint, receiver), grants) in connected.into_iter().zip(&grants) {
        #[cfg(feature = "rdma")]
        let baselines = endpoint.baselines(workload)?;
        lanes.push(Box::new(TransportLane::new(workload, &placement, kind, endpoint, receiver, grants)?));
        #[cfg(feature = "rdma")]
        lanes.extend(baselines);
    }
    let source = Arc::new(Tables::filled(workload, &placement)?);
    lanes.push(Box::new(TcpLane::connect(tcp, workload, &placement, Arc::clone(&source))?));
    if workload.measure == Measure::Throughput {
        lanes.push(Box::new(MemcpyLane::new(workload, placement, source)?));
    }
    Ok(lanes)
}
