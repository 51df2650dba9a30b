//! Tests of the life of a transfer, named after the race that each checks.

use std::{
    pin::pin,
    sync::{
        Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Wake, Waker},
    thread,
};

use bytes::Bytes;
use futures_util::FutureExt;

use super::*;
use crate::{
    Access, Event, EventQueue, ImportedRegions, Memory, PeerId, RegionGrant, RegionId, RegionTable, Submit,
    SubmitError, WriteSlice,
};

/// What a transport has, without a transport.
struct Rig {
    regions: RegionTable,
    imported: ImportedRegions,
    pool: Arc<TransferPool>,
    permits: Arc<Permits>,
    memory: Memory,
    slice: WriteSlice,
}

impl Rig {
    fn new(slots: usize, max_in_flight: usize) -> Self {
        let regions = RegionTable::new(4);
        let memory = Memory::host(4096).unwrap();
        let src = regions.insert(memory.clone(), Access::LOCAL).unwrap().id();
        let dst = RegionId { index: 9, generation: 9 };
        let imported = ImportedRegions::new(1);
        imported.insert(RegionGrant { region: dst, len: 4096, keys: Bytes::new() }).unwrap();
        let slice = WriteSlice { src, src_offset: 0, dst, dst_offset: 0, len: 100 };
        let (pool, permits) = (TransferPool::new(slots), Permits::new(max_in_flight));
        Self { regions, imported, pool, permits, memory, slice }
    }

    fn submit(&self, options: &BatchOptions<'_>) -> Result<(Transfer, TransferDriver), SubmitError> {
        let submit = Submit {
            regions: &self.regions,
            imported: &self.imported,
            pool: &self.pool,
            permits: &self.permits,
            max_notification: 64,
        };
        submit.start((&[self.slice]).into(), options)
    }

    fn start(&self) -> (Transfer, TransferDriver) {
        self.submit(&BatchOptions::new()).unwrap()
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll<F: Future + Unpin>(future: &mut F, wakes: &Arc<Wakes>) -> Poll<F::Output> {
    future.poll_unpin(&mut Context::from_waker(&wakes.waker()))
}

#[test]
fn the_last_waker_wins() {
    let rig = Rig::new(1, 1);
    let (mut transfer, driver) = rig.start();
    let (first, last) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
    assert!(poll(&mut transfer, &first).is_pending());
    assert!(poll(&mut transfer, &last).is_pending());
    driver.finish(Ok(()));
    assert_eq!((first.count(), last.count()), (0, 1));
    assert_eq!(Arc::strong_count(&first), 1, "a waker that was replaced is not kept");
    let outcome = transfer.outcome();
    for _ in 0..3 {
        assert_eq!(poll(&mut transfer, &first), Poll::Ready(outcome.clone().unwrap()));
    }
}

#[test]
fn an_outcome_wakes_every_thread_that_blocks() {
    let rig = Rig::new(1, 1);
    let (transfer, driver) = rig.start();
    let transfer = &transfer;
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..4).map(|_| scope.spawn(move || transfer.wait())).collect();
        thread::sleep(Duration::from_millis(5));
        driver.finish(Err(TransferError::Cancelled));
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Err(TransferError::Cancelled));
        }
    });
}

#[test]
fn room_wakes_all_who_wait() {
    let rig = Rig::new(1, 1);
    let (_transfer, driver) = rig.start();
    assert!(matches!(rig.submit(&BatchOptions::new()), Err(SubmitError::Full { in_flight: 1 })));
    let mut waiters: Vec<_> = (0..5).map(|_| (rig.permits.room(), Arc::<Wakes>::default())).collect();
    for (room, wakes) in &mut waiters {
        assert!(poll(room, wakes).is_pending());
    }
    driver.finish(Ok(()));
    for (room, wakes) in &mut waiters {
        assert_eq!(wakes.count(), 1);
        assert!(poll(room, wakes).is_ready());
    }
}

#[test]
fn a_dropped_waiter_swallows_no_wakeup() {
    let rig = Rig::new(1, 1);
    let (_transfer, driver) = rig.start();
    let (gone, stays) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
    let mut first = rig.permits.room();
    assert!(poll(&mut first, &gone).is_pending());
    let mut second = rig.permits.room();
    assert!(poll(&mut second, &stays).is_pending());
    drop(first);
    driver.finish(Ok(()));
    assert_eq!(stays.count(), 1);
    assert!(poll(&mut second, &stays).is_ready());
}

#[test]
fn whoever_sees_an_outcome_finds_its_place_free() {
    let rig = &Rig::new(2, 1);
    for _ in 0..500 {
        let (transfer, driver) = rig.start();
        thread::scope(|scope| {
            scope.spawn(|| driver.finish(Ok(())));
            transfer.wait().unwrap();
            // No waiting for room in between.
            rig.start().1.finish(Ok(()));
        });
    }
}

#[test]
fn whoever_waits_for_idleness_finds_every_outcome() {
    let rig = &Rig::new(2, 2);
    for _ in 0..500 {
        let (transfer, driver) = rig.start();
        thread::scope(|scope| {
            scope.spawn(|| driver.finish(Ok(())));
            let wakes = Arc::<Wakes>::default();
            let mut idle = rig.permits.idle();
            while poll(&mut idle, &wakes).is_pending() {
                std::hint::spin_loop();
            }
            assert!(transfer.outcome().is_some());
        });
    }
}

#[test]
fn closing_wakes_those_who_wait_for_room_and_not_those_who_drain() {
    let rig = Rig::new(1, 1);
    let (_transfer, driver) = rig.start();
    let (roomy, idle) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
    let (mut room, mut drain) = (rig.permits.room(), rig.permits.idle());
    assert!(poll(&mut room, &roomy).is_pending());
    assert!(poll(&mut drain, &idle).is_pending());
    rig.permits.close();
    assert!(poll(&mut room, &roomy).is_ready());
    assert!(poll(&mut drain, &idle).is_pending(), "closing ends no transfer");
    driver.finish(Ok(()));
    assert!(poll(&mut drain, &idle).is_ready());
}

#[test]
fn cancelling_wakes_the_driver_before_and_after_it_listens() {
    let rig = Rig::new(1, 1);
    let wakes = Arc::<Wakes>::default();
    let (transfer, driver) = rig.start();
    let waker = wakes.waker();
    let mut context = Context::from_waker(&waker);
    assert!(driver.poll_cancelled(&mut context).is_pending());
    transfer.cancel();
    assert_eq!(wakes.count(), 1);
    assert!(driver.poll_cancelled(&mut context).is_ready());
    assert_eq!(transfer.outcome(), None, "asking is not an outcome");
    driver.finish(Err(TransferError::Cancelled));
    drop(transfer);
    // The request does not reach the next transfer in the slot, and a request before listening is not lost.
    let (transfer, driver) = rig.start();
    assert!(!driver.is_cancelled());
    transfer.cancel();
    assert!(driver.poll_cancelled(&mut context).is_ready());
    driver.finish(Ok(()));
    assert!(transfer.wait().is_ok(), "faster than the request");
}

#[test]
fn cancelling_and_finishing_at_once_gives_one_outcome() {
    let rig = Rig::new(1, 1);
    let barrier = Barrier::new(2);
    for _ in 0..500 {
        let (transfer, driver) = rig.start();
        thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                let result = if driver.is_cancelled() { Err(TransferError::Cancelled) } else { Ok(()) };
                driver.finish(result);
            });
            barrier.wait();
            transfer.cancel();
            let outcome = transfer.wait();
            transfer.cancel();
            assert_eq!(transfer.wait(), outcome);
            assert_eq!(transfer.outcome(), Some(outcome));
        });
    }
}

#[test]
fn a_lost_driver_fails_its_transfer_and_leaks_the_memory() {
    let Rig { regions, memory, .. } = {
        let rig = Rig::new(1, 1);
        let wakes = Arc::<Wakes>::default();
        let (mut transfer, driver) = rig.start();
        assert!(poll(&mut transfer, &wakes).is_pending());
        thread::spawn(move || drop(driver)).join().unwrap();
        assert_eq!(wakes.count(), 1);
        assert_eq!(transfer.wait(), Err(TransferError::EngineLost));
        assert_eq!(rig.permits.in_flight(), 0, "its place is free");
        // The slot serves again, with new buffers.
        drop(transfer);
        let (transfer, driver) = rig.start();
        assert_eq!(driver.batch().iter().count(), 1);
        driver.finish(Ok(()));
        assert!(transfer.wait().is_ok());
        rig
    };
    drop(regions);
    assert_eq!(memory.holders(), 2, "whoever was lost may still use it");
}

#[test]
fn followers_are_woken_by_the_outcome() {
    let rig = Rig::new(4, 4);
    let (first, first_driver) = rig.start();
    let (second, second_driver) = rig.start();
    let after = [&first, &second];
    let (commit, mut commit_driver) = rig.submit(&BatchOptions::new().with_after(&after)).unwrap();
    // The handles may go: the commit holds what it comes after.
    drop((first, second));
    let wakes = Arc::<Wakes>::default();
    let waker = wakes.waker();
    let mut context = Context::from_waker(&waker);
    assert!(commit_driver.poll_dependencies(&mut context).is_pending());
    second_driver.finish(Ok(()));
    assert_eq!(wakes.count(), 1);
    assert!(commit_driver.poll_dependencies(&mut context).is_pending());
    first_driver.finish(Ok(()));
    assert_eq!(wakes.count(), 2);
    assert_eq!(commit_driver.poll_dependencies(&mut context), Poll::Ready(Ok(())));
    commit_driver.finish(Ok(()));
    assert!(commit.wait().is_ok());
}

#[test]
fn a_long_chain_of_failures_stays_flat() {
    const LENGTH: usize = 20_000;
    let rig = Rig::new(4, 4);
    let (mut last, driver) = rig.start();
    driver.finish(Err(TransferError::Disconnected));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..LENGTH {
        let (next, mut driver) = rig.submit(&BatchOptions::new().with_after(&[&last])).unwrap();
        let Poll::Ready(Err(error)) = driver.poll_dependencies(&mut context) else { panic!("the chain has failed") };
        driver.finish(Err(error));
        last = next;
    }
    let error = last.wait().unwrap_err();
    assert_eq!(error, TransferError::Dependency { cause: Arc::new(TransferError::Disconnected) });
    assert_eq!(
        error.to_string(),
        "a transfer that this one was to come after failed: this side disconnected from the peer"
    );
}

#[test]
fn a_slot_is_used_again_only_when_nobody_looks_at_it() {
    let rig = Rig::new(1, 8);
    let (kept, driver) = rig.submit(&BatchOptions::new().with_label(1)).unwrap();
    driver.finish(Err(TransferError::Disconnected));
    // The only slot is looked at: another one is made.
    let (other, driver) = rig.submit(&BatchOptions::new().with_label(2)).unwrap();
    driver.progress(60);
    assert_eq!((kept.status().label, other.status().label), (1, 2));
    assert_eq!((kept.status().bytes_done, other.status().bytes_done), (0, 60));
    driver.finish(Ok(()));
    assert_eq!(other.status().bytes_done, 100, "all of them once delivered");
    assert_eq!(kept.wait(), Err(TransferError::Disconnected));
    drop((kept, other));
    let (fresh, driver) = rig.start();
    let status = fresh.status();
    assert_eq!((status.state, status.bytes_done, status.label), (State::InFlight, 0, 0));
    assert_eq!((status.times.posted, status.times.finished), (None, None));
    driver.finish(Ok(()));
}

#[test]
fn a_slot_keeps_nothing_of_its_last_user() {
    let rig = Rig::new(1, 1);
    let wakes = Arc::<Wakes>::default();
    let (mut transfer, driver) = rig.start();
    driver.wake_on_cancel(&wakes.waker());
    assert!(poll(&mut transfer, &wakes).is_pending());
    driver.finish(Ok(()));
    assert_eq!(Arc::strong_count(&wakes), 1, "wakers are gone with the outcome");
    rig.regions.close(rig.slice.src).unwrap();
    assert_eq!(rig.memory.holders(), 1, "and so is the memory");
    drop(transfer);
}

#[test]
fn a_refused_submission_uses_no_slot_and_no_place() {
    let rig = Rig::new(1, 1);
    let mut bad = Rig::new(1, 1);
    bad.slice.len = 5000;
    for _ in 0..10 {
        assert!(matches!(bad.submit(&BatchOptions::new()), Err(SubmitError::Slice { index: 0, .. })));
        assert_eq!(bad.permits.in_flight(), 0);
    }
    let long = [0; 65];
    let error = rig.submit(&BatchOptions::new().with_notification(&long)).unwrap_err();
    assert_eq!(error, SubmitError::NotificationTooLong { len: 65, max: 64 });
    assert_eq!(format!("{:?}", bad.pool), "TransferPool { free: 1, keep: 1 }");
}

/// Many threads submit, poll, drop, forget, wait, cancel and finish, in any order. What must hold in the end: one outcome each, all
/// places free, all memory released.
#[test]
fn slots_and_places_survive_random_interleavings() {
    const SUBMITTERS: usize = 4;
    const BATCHES: usize = 600;
    let rig = Rig::new(8, 6);
    let outcomes = AtomicUsize::new(0);
    let (rig_ref, outcomes_ref) = (&rig, &outcomes);
    thread::scope(|scope| {
        let (drivers, queue) = mpsc::channel::<TransferDriver>();
        let queue = Arc::new(Mutex::new(queue));
        for worker in 0..3 {
            let queue = Arc::clone(&queue);
            scope.spawn(move || {
                let mut dice = Dice(worker);
                loop {
                    let driver = queue.lock().unwrap().recv();
                    let Ok(mut driver) = driver else { return };
                    drive(&mut dice, &mut driver);
                    let cancelled = driver.is_cancelled();
                    driver.finish(if cancelled { Err(TransferError::Cancelled) } else { Ok(()) });
                }
            });
        }
        for submitter in 0..SUBMITTERS {
            let drivers = drivers.clone();
            scope.spawn(move || {
                let mut dice = Dice(submitter as u64 + 100);
                let mut kept: Vec<Transfer> = Vec::new();
                for _ in 0..BATCHES {
                    let (transfer, driver) = loop {
                        let after: Vec<&Transfer> = kept.last().into_iter().collect();
                        let options = BatchOptions::new().with_after(if dice.roll(3) == 0 { &after } else { &[] });
                        match rig_ref.submit(&options) {
                            Ok(started) => break started,
                            Err(SubmitError::Full { .. }) => wait_for(&mut pin!(rig_ref.permits.room())),
                            Err(other) => panic!("{other}"),
                        }
                    };
                    drivers.send(driver).unwrap();
                    use_handle(&mut dice, transfer, &mut kept, outcomes_ref);
                }
                for transfer in kept {
                    let outcome = transfer.wait();
                    assert_eq!(transfer.outcome(), Some(outcome));
                }
            });
        }
        drop(drivers);
    });
    wait_for(&mut pin!(rig.permits.idle()));
    assert_eq!(rig.permits.in_flight(), 0);
    rig.regions.close(rig.slice.src).unwrap();
    assert_eq!(rig.memory.holders(), 1, "all memory is released");
    assert!(outcomes.load(Ordering::SeqCst) > 0);
}

fn drive(dice: &mut Dice, driver: &mut TransferDriver) {
    let mut context = Context::from_waker(Waker::noop());
    driver.mark_posted();
    match dice.roll(4) {
        0 => driver.progress(50),
        1 => thread::yield_now(),
        2 => assert!(driver.region(driver.batch().iter().next().unwrap().src).is_some()),
        _ => drop(driver.poll_dependencies(&mut context)),
    }
    let _ = driver.poll_cancelled(&mut context);
}

fn use_handle(dice: &mut Dice, mut transfer: Transfer, kept: &mut Vec<Transfer>, outcomes: &AtomicUsize) {
    match dice.roll(7) {
        0 => drop(transfer),
        1 => std::mem::forget(transfer),
        2 => kept.push(transfer),
        3 => {
            transfer.cancel();
            drop(transfer);
        }
        4 => {
            let waited = transfer.wait_timeout(Duration::from_micros(dice.roll(100)));
            if let Waited::StillInFlight(status) = waited {
                assert_eq!(status.bytes_total, 100);
            }
        }
        5 => {
            let wakes = Arc::<Wakes>::default();
            if poll(&mut transfer, &wakes).is_pending() {
                let outcome = transfer.wait();
                // The wake-up follows the outcome closely.
                while wakes.count() == 0 {
                    thread::yield_now();
                }
                assert_eq!(poll(&mut transfer, &wakes), Poll::Ready(outcome));
            }
            outcomes.fetch_add(1, Ordering::SeqCst);
        }
        _ => {
            let outcome = transfer.wait();
            transfer.cancel();
            assert_eq!(transfer.wait(), outcome);
            outcomes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Producers that find no room and a listener that comes and goes: every event arrives once, those of one peer in
/// order.
#[test]
fn the_event_queue_loses_no_event_and_no_wakeup() {
    const PEERS: u32 = 3;
    const EVENTS: u32 = 2000;
    let queue = EventQueue::new(2);
    let queue = &queue;
    thread::scope(|scope| {
        for index in 0..PEERS {
            scope.spawn(move || {
                for number in 0..EVENTS {
                    let peer = PeerId { index, generation: 0 };
                    let payload = Bytes::copy_from_slice(&number.to_le_bytes());
                    wait_for(&mut pin!(queue.push(Event::Notification { peer, payload })));
                }
            });
        }
        let mut seen = [0; PEERS as usize];
        for _ in 0..PEERS * EVENTS {
            let mut next = pin!(std::future::poll_fn(|context| queue.poll_next(context)));
            let event = block(&mut next).unwrap();
            let Event::Notification { peer, payload } = event else { panic!("nobody is lost") };
            let next = &mut seen[peer.index as usize];
            assert_eq!(payload, &u32::to_le_bytes(*next)[..]);
            *next += 1;
        }
    });
}

/// Polls when woken, and never otherwise: a lost wake-up hangs, which the deadline turns into a failure.
fn block<F: Future + Unpin>(future: &mut F) -> F::Output {
    struct Parker(thread::Thread, AtomicUsize);
    impl Wake for Parker {
        fn wake(self: Arc<Self>) {
            self.1.store(1, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    let parker = Arc::new(Parker(thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&parker));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Poll::Ready(output) = future.poll_unpin(&mut Context::from_waker(&waker)) {
            return output;
        }
        while parker.1.swap(0, Ordering::SeqCst) == 0 {
            assert!(Instant::now() < deadline, "a wake-up was lost");
            thread::park_timeout(Duration::from_secs(1));
        }
    }
}

fn wait_for(future: &mut (impl Future<Output = ()> + Unpin)) {
    block(future);
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// A transport that ends a transfer on the thread that waits for it, or leaves it to others.
#[derive(Default)]
struct Works {
    driver: Mutex<Option<TransferDriver>>,
    drives: AtomicUsize,
    nudges: AtomicUsize,
    deadlines: Mutex<Vec<Option<Instant>>>,
    /// Whether it stays until the transfer is over.
    stays: AtomicBool,
}

impl Progress for Works {
    fn drive(&self, done: &dyn Fn() -> bool, deadline: Option<Instant>) {
        assert!(!done());
        self.deadlines.lock().unwrap().push(deadline);
        if let Some(driver) = self.driver.lock().unwrap().take() {
            driver.finish(Ok(()));
            assert!(done());
        }
        self.drives.fetch_add(1, Ordering::SeqCst);
        while self.stays.load(Ordering::SeqCst) && !done() {
            thread::yield_now();
        }
    }

    fn nudge(&self) {
        self.nudges.fetch_add(1, Ordering::SeqCst);
    }
}

fn working() -> (Rig, Arc<Works>) {
    let (rig, works) = (Rig::new(4, 4), Arc::<Works>::default());
    let weak: std::sync::Weak<dyn Progress> = Arc::<Works>::downgrade(&works);
    rig.pool.set_progress(weak);
    (rig, works)
}

#[test]
fn a_waiter_ends_its_transfer_itself_and_is_not_nudged() {
    let (rig, works) = working();
    let (transfer, driver) = rig.start();
    *works.driver.lock().unwrap() = Some(driver);
    transfer.wait().unwrap();
    transfer.wait().unwrap();
    assert_eq!(works.drives.load(Ordering::SeqCst), 1, "what is over is not driven");
    let (transfer, driver) = rig.start();
    *works.driver.lock().unwrap() = Some(driver);
    let before = Instant::now();
    assert!(matches!(transfer.wait_timeout(Duration::from_secs(30)), Waited::Finished(Ok(_))));
    assert_eq!(works.nudges.load(Ordering::SeqCst), 0);
    let deadlines = works.deadlines.lock().unwrap();
    assert!(deadlines[0].is_none() && deadlines[1].unwrap() >= before + Duration::from_secs(30));
}

#[test]
fn a_driving_waiter_is_nudged_by_others_and_a_parked_one_woken() {
    for stays in [true, false] {
        let (rig, works) = working();
        works.stays.store(stays, Ordering::SeqCst);
        let (transfer, driver) = rig.start();
        thread::scope(|scope| {
            // The second one on the same transfer parks.
            let waiters = [scope.spawn(|| transfer.wait()), scope.spawn(|| transfer.wait())];
            while works.drives.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            driver.finish(Ok(()));
            for waiter in waiters {
                waiter.join().unwrap().unwrap();
            }
        });
        assert_eq!(works.nudges.load(Ordering::SeqCst), usize::from(stays));
    }
}

#[test]
fn waiting_goes_on_without_a_transport_that_works() {
    let (rig, works) = working();
    let (transfer, driver) = rig.start();
    // It comes back early: the time limit is kept all the same.
    assert!(matches!(transfer.wait_timeout(Duration::from_millis(10)), Waited::StillInFlight(_)));
    assert_eq!(works.drives.load(Ordering::SeqCst), 1);
    assert!(matches!(transfer.wait_timeout(Duration::ZERO), Waited::StillInFlight(_)));
    assert_eq!(works.drives.load(Ordering::SeqCst), 1, "a look is not a wait");
    drop(works);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| transfer.wait_timeout(Duration::MAX));
        thread::sleep(Duration::from_millis(10));
        driver.finish(Ok(()));
        assert!(matches!(waiter.join().unwrap(), Waited::Finished(Ok(_))));
    });
}
