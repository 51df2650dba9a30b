//! RDMA between two devices of this machine.

use std::sync::Arc;

use transport_core::Transport;
use transport_rdma::{
    Completions, Rail, Rails, RdmaConfig, RdmaTransport,
    choice::{Choice, choose},
    native::NativeVerbs,
    verbs::Verbs,
};

use super::Side;
use crate::{
    Result,
    lane::{Lane, PerftestLane, VerbsLane},
    workload::{Measure, Workload},
};

/// Names the devices, separated by a comma: the sender's and the receiver's.
const DEVICES: &str = "KVFERRY_RDMA_DEVICES";

/// An open transport.
pub(crate) struct Rdma {
    transport: Arc<RdmaTransport>,
    verbs: Arc<dyn Verbs>,
}

impl Rdma {
    pub(super) fn open(side: Side) -> Result<Self> {
        let verbs: Arc<dyn Verbs> = NativeVerbs::open()?;
        let mut config = RdmaConfig::default().with_rails(rails(side));
        // As perftest with -e: the thread sleeps for each completion.
        if std::env::var_os("KVFERRY_RDMA_EVENTS").is_some() {
            config = config.with_completions(Completions::Event);
        }
        let transport = Arc::new(RdmaTransport::open(Arc::clone(&verbs), config)?);
        Ok(Self { transport, verbs })
    }

    pub(super) fn transport(&self) -> Arc<dyn Transport> {
        Arc::<RdmaTransport>::clone(&self.transport)
    }

    pub(super) fn describe(&self) -> String {
        self.transport.rails().iter().map(Choice::describe).collect::<Vec<_>>().join("; ")
    }

    /// perftest and plain verbs between the sender's device, which is this one, and the receiver's.
    pub(super) fn baselines(&self, workload: &Workload) -> Result<Vec<Box<dyn Lane>>> {
        let first = |choices: Vec<Choice>| choices.into_iter().next().ok_or("there is no rail");
        let there = choose(&*self.verbs, &rails(Side::Receiver))?;
        let (here, there) = (first(self.transport.rails())?, first(there)?);
        let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
        if workload.measure == Measure::Latency {
            // By verbs of its own, so that its completions do not wake the transport's thread.
            lanes.push(Box::new(VerbsLane::new(NativeVerbs::open()?, &here, &there, workload)?));
        }
        lanes.push(Box::new(PerftestLane::new(here, there)));
        Ok(lanes)
    }
}

fn rails(side: Side) -> Rails {
    let Ok(names) = std::env::var(DEVICES) else { return RdmaConfig::default().rails };
    let names: Vec<&str> = names.split(',').collect();
    let place = match side {
        Side::Sender => 0,
        Side::Receiver => 1,
    };
    let name = names.get(place).or_else(|| names.first()).copied().unwrap_or_default();
    Rails::Manual(vec![Rail::new(name)])
}
