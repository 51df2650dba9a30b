//! Each fault of the injector, and that the contract holds under it.

#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join;
use transport_core::{
    Access, Batch, BatchOptions, Event, Fault as Blame, Memory, PeerId, RegionId, Shutdown, State, SubmitError,
    Transfer, TransferError, Transport, Waited, WriteSlice,
    conformance::block_on,
    fault::{Fault, FaultPlan, FaultTransport},
    mem::{MemConfig, MemFabric, MemTransport},
    next_event,
};

const PAGE: u64 = 1024;
const PAGES: u64 = 8;
const LONG: Duration = Duration::from_secs(20);

/// A sender with faults, a receiver without, and memory on both sides.
struct Bench {
    fabric: MemFabric,
    sender: Arc<FaultTransport<Arc<MemTransport>>>,
    receiver: Arc<MemTransport>,
    to_receiver: PeerId,
    source: Memory,
    source_region: RegionId,
    target: Memory,
    target_region: RegionId,
}

impl Bench {
    fn new(plan: FaultPlan) -> Self {
        let fabric = MemFabric::new();
        let inner = fabric.transport(MemConfig::default());
        let sender = Arc::new(FaultTransport::new(inner, plan).expect("a thread"));
        let receiver = fabric.transport(MemConfig::default());
        let source = Memory::host((PAGES * PAGE) as usize).expect("memory");
        for page in 0..PAGES {
            source.fill(page * PAGE, PAGE, page as u8 + 1).expect("inside");
        }
        let target = Memory::host((PAGES * PAGE) as usize).expect("memory");
        let source_region = sender.register(source.clone(), Access::LOCAL).expect("registered");
        let target_region = receiver.register(target.clone(), Access::REMOTE_WRITE).expect("registered");
        let to_receiver = PeerId { index: 0, generation: 0 };
        let mut bench = Self { fabric, sender, receiver, to_receiver, source, source_region, target, target_region };
        bench.connect();
        bench
    }

    fn connect(&mut self) {
        let (here, there) = self.fabric.channel_pair(self.sender.inner(), &self.receiver);
        let (to_receiver, to_sender) = block_on(join(self.sender.connect(here), self.receiver.connect(there)));
        self.to_receiver = to_receiver.expect("connected");
        let grant = self.receiver.grant(to_sender.expect("connected"), self.target_region).expect("granted");
        self.sender.import(self.to_receiver, &grant).expect("imported");
    }

    fn slices(&self) -> Vec<WriteSlice> {
        let slice = |page| WriteSlice {
            src: self.source_region,
            src_offset: page * PAGE,
            dst: self.target_region,
            dst_offset: page * PAGE,
            len: PAGE,
        };
        (0..PAGES).map(slice).collect()
    }

    fn try_submit(&self, slices: &[WriteSlice], notification: &[u8]) -> Result<Transfer, SubmitError> {
        let options = BatchOptions::new().with_notification(notification);
        self.sender.batch_write(self.to_receiver, slices.into(), &options)
    }

    fn submit(&self, notification: &[u8]) -> Transfer {
        self.try_submit(&self.slices(), notification).expect("submitted")
    }

    /// Whether each page is as it was sent; anything between is a failure.
    fn pages(&self) -> Vec<bool> {
        let mut bytes = vec![0; (PAGES * PAGE) as usize];
        self.target.read_at(0, &mut bytes).expect("inside");
        let page = |(page, bytes): (usize, &[u8])| {
            let first = bytes[0];
            assert!(bytes.iter().all(|byte| *byte == first) && (first == 0 || first == page as u8 + 1));
            first != 0
        };
        bytes.chunks(PAGE as usize).enumerate().map(page).collect()
    }

    fn first_pages(&self) -> usize {
        let pages = self.pages();
        let first = pages.iter().take_while(|written| **written).count();
        assert!(pages.iter().skip(first).all(|written| !written), "only the first slices are written: {pages:?}");
        first
    }

    fn notification(&self) -> String {
        match block_on(next_event(&*self.receiver)) {
            Some(Event::Notification { payload, .. }) => String::from_utf8_lossy(&payload).into_owned(),
            other => panic!("a notification was expected, not {other:?}"),
        }
    }

    fn is_quiet(&self) -> bool {
        thread::sleep(Duration::from_millis(10));
        self.receiver.poll_event(&mut Context::from_waker(Waker::noop())).is_pending()
    }
}

fn outcome(transfer: &Transfer) -> Result<u64, TransferError> {
    match transfer.wait_timeout(LONG) {
        Waited::Finished(outcome) => outcome.map(|delivered| delivered.bytes),
        Waited::StillInFlight(status) => panic!("still in flight: {status:?}"),
    }
}

#[test]
fn a_refused_submission_starts_nothing() {
    let full = SubmitError::Full { in_flight: 7 };
    let bench = Bench::new(FaultPlan::new(1).at(0, Fault::Refuse(full.clone())));
    assert_eq!(bench.try_submit(&bench.slices(), b"never").unwrap_err(), full);
    assert!(bench.is_quiet());
    assert_eq!(bench.first_pages(), 0);
    block_on(bench.sender.room(bench.to_receiver)).expect("there is room");
    assert_eq!(outcome(&bench.submit(b"now")), Ok(PAGES * PAGE));
    assert_eq!(bench.notification(), "now");
}

#[test]
fn a_delayed_batch_is_in_flight_until_it_arrives() {
    let bench = Bench::new(FaultPlan::new(1).at(0, Fault::Delay(Duration::from_millis(60))));
    let start = Instant::now();
    let transfer = bench.submit(b"late");
    assert!(matches!(transfer.wait_timeout(Duration::from_millis(5)), Waited::StillInFlight(_)));
    assert_eq!(bench.first_pages(), 0);
    assert_eq!(bench.notification(), "late");
    assert!(start.elapsed() >= Duration::from_millis(60));
    assert_eq!(bench.first_pages(), PAGES as usize);
    assert_eq!(outcome(&transfer), Ok(PAGES * PAGE));
}

#[test]
fn a_delayed_batch_can_be_cancelled_and_moves_nothing() {
    let bench = Bench::new(FaultPlan::new(1).at(0, Fault::Delay(LONG)));
    let transfer = bench.submit(b"never");
    transfer.cancel();
    assert_eq!(outcome(&transfer), Err(TransferError::Cancelled));
    assert!(bench.is_quiet());
    assert_eq!(bench.first_pages(), 0);
}

#[test]
fn a_delayed_batch_holds_its_memory() {
    let bench = Bench::new(FaultPlan::new(1).at(0, Fault::Delay(Duration::from_millis(40))));
    let transfer = bench.submit(b"late");
    let memory = block_on(bench.sender.deregister(bench.source_region)).expect("registered");
    assert!(transfer.status().state.is_terminal(), "deregistering waits for the batch that is held back");
    assert_eq!(outcome(&transfer), Ok(PAGES * PAGE));
    let Bench { source, .. } = bench;
    drop(source);
    assert!(memory.try_into_owner().is_ok());
}

#[test]
fn a_checked_batch_is_checked_before_it_is_delayed() {
    let bench = Bench::new(FaultPlan::new(1).sometimes(1, Fault::Delay(LONG)));
    let mut slices = bench.slices();
    slices[5].dst_offset += 1 << 20;
    assert!(matches!(bench.try_submit(&slices, b"never"), Err(SubmitError::Slice { index: 5, .. })));
}

#[test]
fn a_reordered_batch_is_overtaken() {
    let fault = Fault::Reorder { batches: 2, at_most: LONG };
    let bench = Bench::new(FaultPlan::new(1).at(0, fault));
    let first = bench.submit(b"first");
    let second = bench.submit(b"second");
    assert_eq!(bench.notification(), "second");
    assert_eq!(first.status().state, State::InFlight);
    let third = bench.submit(b"third");
    assert_eq!(bench.notification(), "third");
    assert_eq!(bench.notification(), "first");
    for transfer in [first, second, third] {
        assert_eq!(outcome(&transfer), Ok(PAGES * PAGE));
    }
}

#[test]
fn a_commit_waits_for_a_batch_that_was_overtaken() {
    let fault = Fault::Reorder { batches: 9, at_most: Duration::from_millis(50) };
    let bench = Bench::new(FaultPlan::new(1).at(0, fault));
    let slices = bench.slices();
    let slow = bench.sender.batch_write(bench.to_receiver, (&slices).into(), &BatchOptions::new()).expect("submitted");
    let after = [&slow];
    let options = BatchOptions::new().with_notification(b"commit").with_after(&after);
    let commit = bench.sender.batch_write(bench.to_receiver, Batch::Slices(&[]), &options).expect("submitted");
    assert_eq!(bench.notification(), "commit");
    assert_eq!(bench.first_pages(), PAGES as usize, "all bytes are there at the commit");
    assert_eq!(outcome(&commit), Ok(0));
}

#[test]
fn a_stalled_batch_fails_as_stalled() {
    let timeout = Duration::from_millis(30);
    let bench = Bench::new(FaultPlan::new(1).at(0, Fault::Stall { after_slices: 3, timeout }));
    let transfer = bench.submit(b"never");
    let error = outcome(&transfer).unwrap_err();
    assert_eq!(error, TransferError::Stalled { timeout, done: 3 * PAGE, total: PAGES * PAGE });
    assert_eq!(bench.first_pages(), 3);
    assert!(bench.is_quiet());
    // Cancelled, a stall ends at once.
    let bench = Bench::new(FaultPlan::new(1).at(0, Fault::Stall { after_slices: 3, timeout: LONG }));
    let transfer = bench.submit(b"never");
    transfer.cancel();
    assert_eq!(outcome(&transfer), Err(TransferError::Cancelled));
}

#[test]
fn a_batch_that_fails_at_any_slice_stays_failed() {
    for after_slices in 0..=PAGES {
        let bench = Bench::new(FaultPlan::new(1).at(0, Fault::Fail { after_slices }));
        let transfer = bench.submit(b"never");
        let error = outcome(&transfer).unwrap_err();
        assert!(matches!(error, TransferError::Device { .. }), "{error}");
        assert_eq!(error.fault(), Blame::Ours);
        assert_eq!(bench.first_pages() as u64, after_slices);
        assert!(bench.is_quiet());
        // The source is quiet: what is written to it now arrives with the next batch only.
        bench.source.fill(0, PAGE, 1).expect("inside");
        assert_eq!(outcome(&bench.submit(b"next")), Ok(PAGES * PAGE));
        assert_eq!(bench.notification(), "next");
        assert_eq!(outcome(&transfer), Err(error));
    }
}

#[test]
fn a_lost_peer_takes_everything_in_flight_with_it() {
    for after_slices in [0, 1, 5, PAGES] {
        let plan = FaultPlan::new(1).at(0, Fault::Delay(LONG)).at(1, Fault::LosePeer { after_slices });
        let mut bench = Bench::new(plan);
        let other = bench.submit(b"never");
        let lost = bench.submit(b"never");
        for transfer in [&lost, &other] {
            let error = outcome(transfer).unwrap_err();
            assert!(matches!(error, TransferError::PeerLost { .. }), "{error}");
        }
        assert_eq!(bench.first_pages() as u64, after_slices);
        let event = block_on(next_event(&*bench.sender));
        assert!(matches!(event, Some(Event::PeerLost { peer, .. }) if peer == bench.to_receiver), "{event:?}");
        let refused = bench.try_submit(&[], b"never").unwrap_err();
        assert!(matches!(refused, SubmitError::NotConnected { .. }), "{refused}");
        assert!(block_on(bench.sender.room(bench.to_receiver)).is_err());
        assert!(matches!(block_on(next_event(&*bench.receiver)), Some(Event::PeerLost { .. })));
        bench.connect();
        assert_eq!(outcome(&bench.submit(b"again")), Ok(PAGES * PAGE));
        assert_eq!(bench.notification(), "again");
    }
}

#[test]
fn a_late_completion_is_a_delivery_whatever_happens_meanwhile() {
    let bench = Bench::new(FaultPlan::new(1).at(0, Fault::CompleteLate(LONG)));
    let transfer = bench.submit(b"here");
    assert_eq!(bench.notification(), "here");
    assert_eq!(bench.first_pages(), PAGES as usize);
    assert_eq!(transfer.status().state, State::InFlight);
    transfer.cancel();
    assert_eq!(outcome(&transfer), Ok(PAGES * PAGE));
}

#[test]
fn shutting_down_ends_batches_that_are_held_back() {
    let bench = Bench::new(FaultPlan::new(1).sometimes(1, Fault::Delay(LONG)));
    let transfers = [bench.submit(b"never"), bench.submit(b"never")];
    block_on(bench.sender.shutdown(Shutdown::Abort));
    for transfer in &transfers {
        assert_eq!(transfer.outcome().map(|outcome| outcome.is_err()), Some(true), "nothing is in flight");
    }
    assert_eq!(bench.try_submit(&[], b"never").unwrap_err(), SubmitError::Closed);
    assert_eq!(bench.first_pages(), 0);
    // Draining waits for them.
    let bench = Bench::new(FaultPlan::new(1).sometimes(1, Fault::Delay(Duration::from_millis(30))));
    let transfer = bench.submit(b"late");
    block_on(bench.sender.shutdown(Shutdown::Drain));
    assert!(matches!(transfer.outcome(), Some(Ok(_))));
}

#[test]
fn dropping_the_injector_releases_what_it_held_back() {
    let bench = Bench::new(FaultPlan::new(1).sometimes(1, Fault::Delay(LONG)));
    let transfer = bench.submit(b"never");
    let Bench { sender, receiver, source, target, .. } = bench;
    drop(sender);
    assert!(outcome(&transfer).is_err());
    drop(receiver);
    let start = Instant::now();
    while source.holders() + target.holders() > 2 {
        assert!(start.elapsed() < LONG, "the memory is released");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Everything at once, by a seed: whatever the faults, a batch has one outcome, and a notification exactly when it
/// was delivered.
#[test]
fn a_storm_of_faults_keeps_the_contract() {
    const BATCHES: u64 = 400;
    for seed in 0..4 {
        let plan = FaultPlan::new(seed)
            .sometimes(7, Fault::Delay(Duration::from_micros(500)))
            .sometimes(7, Fault::Reorder { batches: 3, at_most: Duration::from_millis(2) })
            .sometimes(9, Fault::Stall { after_slices: 4, timeout: Duration::from_millis(1) })
            .sometimes(9, Fault::Fail { after_slices: 2 })
            .sometimes(11, Fault::Refuse(SubmitError::Full { in_flight: 1 }))
            .sometimes(7, Fault::CompleteLate(Duration::from_micros(500)))
            .sometimes(150, Fault::LosePeer { after_slices: 5 });
        let mut bench = Bench::new(plan);
        let mut transfers = Vec::new();
        let mut notified = Vec::new();
        let mut losses = 0;
        for number in 0..BATCHES {
            loop {
                match bench.try_submit(&bench.slices(), &number.to_le_bytes()) {
                    Ok(transfer) => {
                        if number % 13 == 0 {
                            transfer.cancel();
                        }
                        transfers.push((number, transfer));
                        break;
                    }
                    Err(SubmitError::Full { .. }) => {
                        // Lost peers show at the next submission.
                        let _ = block_on(bench.sender.room(bench.to_receiver));
                    }
                    Err(SubmitError::NotConnected { .. }) => {
                        losses += 1;
                        bench.connect();
                    }
                    Err(other) => panic!("seed {seed}: {other}"),
                }
            }
            collect(&bench, &mut notified);
        }
        let mut delivered = Vec::new();
        for (number, transfer) in &transfers {
            let first = outcome(transfer);
            assert_eq!(outcome(transfer), first, "seed {seed}");
            if first.is_ok() {
                delivered.push(*number);
            }
        }
        collect(&bench, &mut notified);
        notified.sort_unstable();
        assert_eq!(notified, delivered, "seed {seed}: notified exactly when delivered");
        println!("seed {seed}: {} of {BATCHES} delivered, {losses} losses", delivered.len());
        assert!(delivered.len() as u64 > BATCHES / 3);
    }
}

/// Takes the notifications that are there.
fn collect(bench: &Bench, notified: &mut Vec<u64>) {
    while let Poll::Ready(Some(event)) = bench.receiver.poll_event(&mut Context::from_waker(Waker::noop())) {
        if let Event::Notification { payload, .. } = event {
            notified.push(u64::from_le_bytes(payload[..].try_into().expect("eight bytes")));
        }
    }
}
