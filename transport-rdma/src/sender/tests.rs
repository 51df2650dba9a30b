//! The sender against a made-up NIC that refuses, delays, reorders across lanes and fails at random: bytes are written
//! exactly once, each transfer ends exactly once with nothing outstanding, and every place comes back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

use std::{collections::VecDeque, sync::Arc, task::Waker, time::Duration};

use proptest::prelude::*;
use transport_core::{
    Access, Batch, BatchOptions, ImportedRegions, Memory, Permits, RegionGrant, RegionId, RegionRef, RegionTable,
    Submit, Transfer, TransferPool, WriteSlice,
};

use super::*;
use crate::{
    RdmaConfig,
    choice::choose,
    peer::finish,
    rail::{CompletionCredits, Rail},
    sim::SimNetwork,
};

const LEN: u64 = 4096;
const TARGET: u64 = 1 << 17;
const BASE: u64 = 1 << 33;
const DEPTH: u32 = 8;
const COMPLETIONS: u32 = 20;
const MAX_WORK_REQUEST: u64 = 300;
const ROOM: u64 = 1_000;

/// A batch: slices of (source, length), one behind the other in the target, with gaps.
type Plan = Vec<(u64, u64)>;
/// From where, to where and how much a batch writes.
type Parts = Vec<(u64, u64, u64)>;

#[derive(Clone, Debug)]
enum Step {
    Submit {
        plan: Plan,
        notify: bool,
    },
    /// Takes completions of a lane, so many signalled ones.
    Complete {
        lane: usize,
        count: usize,
    },
    /// The NIC takes so many work requests more, and then refuses one.
    Refuse {
        after: usize,
    },
    Cancel {
        which: usize,
    },
    /// A queue pair fails with its oldest work request; the rest is flushed. It is replaced.
    Fail {
        lane: usize,
        status: Status,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let plan = prop::collection::vec((0..LEN - 700, 0u64..700), 0..40);
    let status = prop::sample::select(vec![Status::RetryExceeded, Status::RemoteAccess, Status::LocalProtection]);
    let step = prop_oneof![
        3 => (plan, any::<bool>()).prop_map(|(plan, notify)| Step::Submit { plan, notify }),
        5 => (0..3usize, 1..4usize).prop_map(|(lane, count)| Step::Complete { lane, count }),
        2 => (0..40usize).prop_map(|after| Step::Refuse { after }),
        1 => (0..20usize).prop_map(|which| Step::Cancel { which }),
        1 => (0..3usize, status).prop_map(|(lane, status)| Step::Fail { lane, status }),
    ];
    prop::collection::vec(step, 1..60)
}

/// What the made-up NIC has of one lane.
#[derive(Default)]
struct Wire {
    posted: VecDeque<SendRequest>,
}

struct Nic {
    lanes: Vec<Wire>,
    refuse: Option<usize>,
    source: u64,
    bytes: Vec<u8>,
    /// How often each byte of the target was written, and with what.
    written: Vec<(u32, u8)>,
    /// Notifications that went out.
    notified: usize,
}

impl Post for Nic {
    fn post(&mut self, lane: usize, chain: &[SendRequest]) -> Result<(), PostError> {
        assert!(chain.last().is_some_and(|last| last.signalled), "the end of a chain is signalled");
        for (posted, request) in chain.iter().enumerate() {
            if let Some(after) = &mut self.refuse {
                if *after == 0 {
                    self.refuse = None;
                    return Err(PostError { posted, code: rustix::io::Errno::NOMEM.raw_os_error() });
                }
                *after -= 1;
            }
            assert!(self.lanes[lane].posted.len() < DEPTH as usize, "the send queue overruns");
            self.lanes[lane].posted.push_back(*request);
        }
        let all: usize = self.lanes.iter().map(|lane| lane.posted.len()).sum();
        assert!(all <= COMPLETIONS as usize, "the completion queue may overrun: {all}");
        Ok(())
    }
}

impl Nic {
    fn carry(&mut self, request: &SendRequest) {
        let local = request.local;
        match request.operation {
            Verb::Write { address, .. } => {
                for step in 0..u64::from(local.len) {
                    let byte = self.bytes[(local.address + step - self.source) as usize];
                    let place = &mut self.written[(address + step - BASE) as usize];
                    *place = (place.0 + 1, byte);
                }
            }
            Verb::Send => self.notified += 1,
        }
    }
}

struct Rig {
    sender: Sender,
    nic: Nic,
    regions: RegionTable,
    imported: ImportedRegions,
    pool: Arc<TransferPool>,
    permits: Arc<Permits>,
    source: RegionRef,
    registered: Arc<Registered>,
    target: RegionId,
    credits: Arc<CompletionCredits>,
    transfers: Vec<(Transfer, Parts, bool)>,
    /// The end of what batches have used of the target.
    used: u64,
    lanes: usize,
    failures: usize,
    cancelled: usize,
    finished: usize,
}

impl Rig {
    fn new(lanes: usize, target_len: u64) -> Self {
        let config = RdmaConfig::default();
        let host = SimNetwork::new().host();
        let choice = choose(&*host, &config.rails).unwrap().remove(0);
        let rails = vec![Rail::open(&*host, choice, &config).unwrap()];
        let memory = Memory::host(LEN as usize).unwrap();
        let bytes: Vec<u8> = (0..LEN).map(|place| (place % 251) as u8).collect();
        memory.write_at(0, &bytes).unwrap();
        let regions = RegionTable::new(4);
        let source = regions.insert(memory.clone(), Access::LOCAL).unwrap();
        // Borders of pieces at odd places on both sides.
        let registered = Arc::new(Registered::new(&rails, 1500, &memory, Access::LOCAL, 0).unwrap());
        let target = RegionId { index: 3, generation: 3 };
        let piece: u64 = 1 << 20;
        let mut keys = vec![1];
        keys.extend_from_slice(&BASE.to_le_bytes());
        keys.extend_from_slice(&piece.to_le_bytes());
        (0..target_len.div_ceil(piece)).for_each(|piece| keys.extend_from_slice(&(piece as u32).to_le_bytes()));
        let grant = RegionGrant { region: target, len: target_len, keys: keys.into() };
        let imported = ImportedRegions::new(2);
        imported.insert(grant.clone()).unwrap();
        let control = ControlMemory::new(&rails, LEN, 3, 1, lanes, 0).unwrap();
        let credits = CompletionCredits::new(COMPLETIONS);
        let mut sender =
            Sender::new(ControlMemory::default(), MAX_WORK_REQUEST, Duration::from_secs(60), Waker::noop().clone());
        let made = (0..lanes).map(|_| Lane::new(0, 0, "made-up".into(), DEPTH, Arc::clone(&credits))).collect();
        sender.begin(made, ROOM, control);
        sender.import(target, Arc::new(RemoteRegion::decode(&grant, 1).unwrap()));
        let nic = Nic {
            lanes: (0..lanes).map(|_| Wire::default()).collect(),
            refuse: None,
            source: memory.address().as_ptr().addr() as u64,
            bytes,
            written: vec![(0, 0); target_len as usize],
            notified: 0,
        };
        let mut rig = Self {
            sender,
            nic,
            regions,
            imported,
            pool: TransferPool::new(4),
            permits: Permits::new(1000),
            source,
            registered,
            target,
            credits,
            transfers: vec![],
            used: 0,
            lanes,
            failures: 0,
            cancelled: 0,
            finished: 0,
        };
        (0..lanes).for_each(|lane| rig.open(lane));
        rig
    }

    /// A lane's first write is tried until there is room, and comes back.
    fn open(&mut self, lane: usize) {
        while !self.sender.probe(lane, &mut self.nic) {
            self.sender.unblock();
            // Others have to complete first.
            (0..self.lanes).for_each(|lane| self.complete(lane, 1));
        }
        while !self.sender.lane(lane).unwrap().is_open() {
            self.complete(lane, 1);
        }
    }

    fn submit(&mut self, plan: &Plan, notify: bool) {
        let mut slices = vec![];
        let mut parts = vec![];
        for (from, len) in plan {
            if self.used + len > self.nic.written.len() as u64 {
                break;
            }
            slices.push(WriteSlice {
                src: self.source.id(),
                src_offset: *from,
                dst: self.target,
                dst_offset: self.used,
                len: *len,
            });
            parts.push((*from, self.used, *len));
            // No gap after every third, so that neighbours that can be merged occur.
            self.used += len + (self.used % 3);
        }
        let number = (self.transfers.len() as u64).to_le_bytes();
        let options = BatchOptions::new();
        let options = if notify { options.with_notification(&number) } else { options };
        let submit = Submit {
            regions: &self.regions,
            imported: &self.imported,
            pool: &self.pool,
            permits: &self.permits,
            max_notification: MAX_NOTIFICATION,
        };
        let (transfer, driver) = submit.start(Batch::Slices(&slices), &options).unwrap();
        let locals = driver.regions().iter().map(|_| Arc::clone(&self.registered)).collect();
        self.sender.submit(driver, locals).map_err(|(_, error)| error).unwrap();
        self.transfers.push((transfer, parts, notify));
        self.pump();
    }

    fn pump(&mut self) {
        self.sender.pump(&mut self.nic);
        self.finish();
    }

    fn finish(&mut self) {
        let mut finished = vec![];
        self.sender.take_finished(&mut finished);
        self.finished += finished.len();
        finish(&mut finished);
    }

    /// Carries up to the next signalled work requests of a lane, and completes them.
    fn complete(&mut self, lane: usize, count: usize) {
        for _ in 0..count {
            let wire = &mut self.nic.lanes[lane].posted;
            let Some(end) = wire.iter().position(|request| request.signalled) else { break };
            let requests: Vec<SendRequest> = wire.drain(..=end).collect();
            requests.iter().for_each(|request| self.nic.carry(request));
            self.sender.completed(lane, requests[end].id, Status::Success);
        }
        self.pump();
    }

    fn fail(&mut self, lane: usize, status: Status) {
        let requests: Vec<SendRequest> = self.nic.lanes[lane].posted.drain(..).collect();
        let Some((first, rest)) = requests.split_first() else { return };
        self.failures += 1;
        let event = self.sender.completed(lane, first.id, status);
        assert!(matches!(event, LaneEvent::Failed { .. }), "{event:?}");
        self.pump();
        for request in rest {
            assert_eq!(self.sender.completed(lane, request.id, Status::Flushed), LaneEvent::None);
        }
        assert!(self.sender.is_drained(lane));
        self.finish();
        self.sender.renew_lane(lane);
        // A completion of the old queue pair is nobody's.
        assert_eq!(self.sender.completed(lane, first.id, Status::Success), LaneEvent::None);
        self.pump();
        self.open(lane);
    }

    fn cancel(&mut self, which: usize) {
        if let Some((transfer, ..)) = self.transfers.get(which) {
            self.cancelled += 1;
            transfer.cancel();
            self.sender.cancel_asked();
            self.pump();
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Submit { plan, notify } => self.submit(plan, *notify),
            Step::Complete { lane, count } => self.complete(lane % self.lanes, *count),
            Step::Refuse { after } => self.nic.refuse = Some(*after),
            Step::Cancel { which } => self.cancel(*which),
            Step::Fail { lane, status } => self.fail(lane % self.lanes, *status),
        }
    }

    /// Completes everything; the number of turns is bounded, so nothing hangs.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            if self.sender.is_idle() && (0..self.lanes).all(|lane| self.sender.is_drained(lane)) {
                return;
            }
            self.sender.unblock();
            (0..self.lanes).for_each(|lane| self.complete(lane, 1));
        }
        panic!("it hangs: {:?}", self.sender);
    }

    fn check(&self) {
        assert_eq!(self.finished, self.transfers.len(), "each transfer is finished once");
        let (mut delivered, mut refused, mut notifying) = (0, 0, 0);
        for (transfer, parts, notify) in &self.transfers {
            let outcome = transfer.outcome().expect("it is over");
            match &outcome {
                Ok(_) => {
                    delivered += 1;
                    notifying += usize::from(*notify);
                }
                Err(_) => refused += 1,
            }
            for (from, to, len) in parts {
                for step in 0..*len {
                    let (times, byte) = self.nic.written[(to + step) as usize];
                    assert!(times <= 1, "byte {} is written {times} times", to + step);
                    if outcome.is_ok() {
                        assert_eq!((times, byte), (1, self.nic.bytes[(from + step) as usize]));
                    }
                }
            }
        }
        assert_eq!(self.nic.notified, notifying, "a notification for each delivered batch, and no other");
        if self.failures == 0 && self.cancelled == 0 {
            assert_eq!(refused, 0, "nothing went wrong, and {delivered} are delivered");
        }
        let all: u64 = self.nic.written.iter().map(|(times, _)| u64::from(*times)).sum();
        let planned: u64 = self.transfers.iter().flat_map(|(_, parts, _)| parts).map(|(.., len)| len).sum();
        assert!(all <= planned, "bytes outside of the slices");
        assert_eq!(self.credits.take(COMPLETIONS + 1), COMPLETIONS, "all places of the completion queue are free");
        assert!(self.sender.lanes.iter().all(|lane| lane.posted.is_empty()));
        assert_eq!(self.sender.control.free_slots(), 3, "all slots of notifications are free");
        assert_eq!(self.permits.in_flight(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_are_written_once_and_every_place_comes_back(steps in steps(), lanes in 1..4usize) {
        let mut rig = Rig::new(lanes, TARGET);
        steps.iter().for_each(|step| rig.step(step));
        rig.drain();
        rig.check();
    }
}

/// 128 ranges, with a work request refused at each place in turn.
#[test]
fn a_work_request_refused_at_any_place_is_posted_once() {
    for place in 0..140 {
        let mut rig = Rig::new(2, TARGET);
        rig.nic.refuse = Some(place);
        rig.submit(&(0..128).map(|number| (number * 7, 32)).collect(), true);
        rig.drain();
        rig.check();
        assert!(rig.transfers[0].0.outcome().unwrap().is_ok(), "refused at {place}");
    }
}

/// A reservation is given back as a whole when nothing of it is posted.
#[test]
fn a_queue_that_takes_nothing_keeps_no_place() {
    let mut rig = Rig::new(1, TARGET);
    rig.nic.refuse = Some(0);
    rig.submit(&vec![(0, 10), (20, 10), (40, 10)], false);
    assert!(rig.sender.is_blocked());
    assert_eq!(rig.credits.take(COMPLETIONS), COMPLETIONS);
    rig.credits.give(COMPLETIONS);
    rig.drain();
    rig.check();
}

/// Offsets and lengths beyond 32 bits are cut exactly. The memory is addresses only.
#[test]
fn a_slice_beyond_32_bits_is_cut_without_a_gap() {
    let len = (5u64 << 30) + 64;
    let piece = 4_294_963_200;
    let registered = Registered::for_tests(1 << 40, len, piece);
    let mut keys = vec![1];
    keys.extend_from_slice(&(1u64 << 41).to_le_bytes());
    keys.extend_from_slice(&(4u64 << 20).to_le_bytes());
    (0..len.div_ceil(4 << 20).min(250)).for_each(|key| keys.extend_from_slice(&(key as u32).to_le_bytes()));
    let most = 250 * (4 << 20);
    let grant = RegionGrant { region: RegionId { index: 1, generation: 1 }, len: most, keys: keys.into() };
    let remote = RemoteRegion::decode(&grant, 1).unwrap();
    let (mut source, mut target) = (piece - 1000, 3);
    let mut left = 900u64 << 20;
    while left > 0 {
        let part = left.min(1 << 20).min(registered.until_border(source)).min(remote.until_border(target));
        assert!(part > 0 && part <= 1 << 20);
        let (address, key) = remote.target(0, target).unwrap();
        assert_eq!(address, (1 << 41) + target);
        assert_eq!(u64::from(key), target / (4 << 20));
        let last = remote.target(0, target + part - 1).unwrap();
        assert_eq!(last.1, key, "one work request is in one piece");
        (source, target, left) = (source + part, target + part, left - part);
    }
    assert!(source > 1 << 32);
}
