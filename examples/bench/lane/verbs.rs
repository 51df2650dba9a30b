//! Plain verbs between the same two devices: one write after the other on one queue pair, each completion waited for by an event,
//! on the thread that posts. The floor under the latency of a transport.

use std::{sync::Arc, time::Duration};

use transport_core::Memory;
use transport_rdma::{
    choice::Choice,
    verbs::{
        AddressVector, Completion, CompletionQueue, Device, GlobalRoute, InitAttributes, LocalSegment, MemoryRegion,
        Operation, ProtectionDomain, QueuePair, QueuePairCapacity, ReceiveAttributes, SendAttributes, SendRequest,
        Status, Verbs,
    },
};

use super::Lane;
use crate::{Result, peer::Peer, workload::Workload};

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(5);

/// A queue pair on each device, joined.
pub(crate) struct VerbsLane {
    verbs: Arc<dyn Verbs>,
    here: End,
    there: End,
    len: u32,
    posted: u64,
}

/// One device's part. Fields are dropped in order: the queue pair first.
struct End {
    queue_pair: Box<dyn QueuePair>,
    completions: Arc<dyn CompletionQueue>,
    region: Box<dyn MemoryRegion>,
    memory: Memory,
    _domain: Arc<dyn ProtectionDomain>,
    _device: Arc<dyn Device>,
}

impl VerbsLane {
    pub(crate) fn new(verbs: Arc<dyn Verbs>, here: &Choice, there: &Choice, workload: &Workload) -> Result<Self> {
        let len = workload.page_bytes;
        let ends = [here, there].map(|choice| End::new(&*verbs, choice, len));
        let [one, two] = ends;
        let (one, two) = (one?, two?);
        one.join(here, &two, there)?;
        two.join(there, &one, here)?;
        // A page fits 32 bits.
        Ok(Self { verbs, here: one, there: two, len: len as u32, posted: 0 })
    }
}

impl End {
    fn new(verbs: &dyn Verbs, choice: &Choice, len: usize) -> Result<Self> {
        let device = verbs.open(&choice.device)?;
        let domain = device.allocate_domain()?;
        let completions = device.create_completion_queue(16)?;
        let memory = Memory::host(len)?;
        let region = domain.register(&memory, 0, len as u64, true)?;
        let capacity = QueuePairCapacity { send: 8, receive: 1, inline: 0 };
        let queue_pair = domain.create_queue_pair(&completions, capacity)?;
        queue_pair.initialize(&InitAttributes { port: choice.port, pkey_index: 0, remote_write: true })?;
        Ok(Self { queue_pair, completions, region, memory, _domain: domain, _device: device })
    }

    fn join(&self, here: &Choice, other: &Self, there: &Choice) -> Result<()> {
        let global = here.gid.as_ref().zip(there.gid.as_ref()).map(|(local, remote)| GlobalRoute {
            gid: remote.gid,
            local_index: local.index,
            hop_limit: 64,
            traffic_class: 0,
        });
        self.queue_pair.ready_to_receive(&ReceiveAttributes {
            path_mtu: here.mtu.min(there.mtu),
            remote_queue_pair: other.queue_pair.number(),
            remote_psn: 0,
            min_rnr_timer: 12,
            address: AddressVector { port: here.port, lid: there.lid, service_level: 0, global },
        })?;
        self.queue_pair.ready_to_send(&SendAttributes { psn: 0, timeout: 14, retry_count: 6, rnr_retry: 6 })?;
        Ok(())
    }

    fn address(&self) -> u64 {
        self.memory.address().as_ptr().addr() as u64
    }
}

impl Lane for VerbsLane {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn batch(&mut self) -> Result<()> {
        let request = SendRequest {
            id: self.posted,
            operation: Operation::Write { address: self.there.address(), key: self.there.region.remote_key() },
            local: LocalSegment { address: self.here.address(), len: self.len, key: self.here.region.local_key() },
            signalled: true,
            inline: false,
        };
        self.posted += 1;
        self.here.completions.arm()?;
        self.here.queue_pair.post_send(&[request])?;
        let mut completion = [Completion::EMPTY];
        while self.here.completions.poll(&mut completion)? == 0 {
            self.verbs.wait(Some(PATIENCE));
        }
        match completion {
            [Completion { status: Status::Success, .. }] => Ok(()),
            [Completion { status, .. }] => Err(format!("a plain write failed: {status}").into()),
        }
    }

    fn verify(&self, _: &Workload, _: &mut Peer) -> Result<()> {
        let mut bytes = [vec![0; self.len as usize], vec![0; self.len as usize]];
        let [here, there] = &mut bytes;
        self.here.memory.read_at(0, here)?;
        self.there.memory.read_at(0, there)?;
        if here == there { Ok(()) } else { Err("a plain write left other bytes".into()) }
    }
}
