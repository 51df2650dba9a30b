//! Threads that block on a transfer and work for the transport meanwhile. There are hardly any ticks here: what is
//! forgotten stays forgotten until the test loses its patience.

use std::sync::atomic::{AtomicBool, Ordering};

use transport_core::{
    Batch, BatchOptions, RegionId, Shutdown, SubmitError, Transfer, TransferError, Waited, WriteSlice,
};

use super::*;
use crate::{Completions, sim::Stall};

const LEN: u64 = 2_000;

/// Two connected transports without ticks.
struct Pair {
    network: SimNetwork,
    sender: Arc<RdmaTransport>,
    sender_host: Arc<SimHost>,
    receiver: Arc<RdmaTransport>,
    peer: PeerId,
    back: PeerId,
    source: RegionId,
    target: RegionId,
}

impl Pair {
    fn new(completions: Completions) -> Self {
        let (network, fabric) = (SimNetwork::new(), MemFabric::new());
        let config = RdmaConfig::default().with_completions(completions).with_loss_bound(Duration::from_secs(2));
        let open = || {
            let host = network.host();
            let transport = RdmaTransport::open(Arc::<SimHost>::clone(&host), config.clone()).unwrap();
            (host, Arc::new(transport))
        };
        let ((sender_host, sender), (_, receiver)) = (open(), open());
        let (here, there) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
        let (dialling, listening) = fabric.channel_pair(&here, &there);
        let both = futures_util::future::join(sender.connect(dialling), receiver.connect(listening));
        let (peer, back) = wait("connecting", both);
        let (peer, back) = (peer.unwrap(), back.unwrap());
        let memory = || Memory::host(1 << 20).unwrap();
        let source = sender.register(memory(), Access::LOCAL).unwrap();
        let target = receiver.register(memory(), Access::REMOTE_WRITE).unwrap();
        sender.import(peer, &receiver.grant(back, target).unwrap()).unwrap();
        let pair = Self { network, sender, sender_host, receiver, peer, back, source, target };
        for transport in [&pair.sender, &pair.receiver] {
            transport.host_for_tests().seldom.store(true, Ordering::Relaxed);
        }
        // The last tick that was planned before.
        thread::sleep(super::super::TICK * 3);
        pair
    }

    fn try_write(&self, options: &BatchOptions<'_>) -> Result<Transfer, SubmitError> {
        let slice = WriteSlice { src: self.source, src_offset: 0, dst: self.target, dst_offset: 0, len: LEN };
        self.sender.batch_write(self.peer, Batch::Slices(&[slice]), options)
    }

    fn write(&self) -> Transfer {
        loop {
            match self.try_write(&BatchOptions::new()) {
                Err(SubmitError::Full { .. }) => wait("room", self.sender.room(self.peer)).unwrap(),
                result => return result.unwrap(),
            }
        }
    }
}

fn sleeping() -> [Completions; 2] {
    [Completions::Event, Completions::Hybrid { spin: Duration::from_micros(20) }]
}

fn finished(waited: Waited) -> Result<(), TransferError> {
    match waited {
        Waited::Finished(outcome) => outcome.map(drop),
        Waited::StillInFlight(status) => panic!("nobody ends a transfer: {status:?}"),
    }
}

/// Some block, some block for a while, some await, all on one transport: whoever takes the turns, all of them end.
#[test]
fn waiters_of_all_kinds_end() {
    for completions in [sleeping().as_slice(), &[Completions::Busy]].concat() {
        let pair = Pair::new(completions);
        for delay in [Duration::ZERO, Duration::from_micros(300)] {
            pair.sender_host.delay_completions(delay, 5);
            thread::scope(|scope| {
                for kind in 0..6 {
                    let pair = &pair;
                    scope.spawn(move || {
                        for round in 0..150 {
                            let mut transfer = pair.write();
                            match kind % 3 {
                                // Without a bound, but a test that hangs says so.
                                0 => finished(transfer.wait_timeout(PATIENCE * 2)).unwrap(),
                                1 => {
                                    let deadline = Instant::now() + PATIENCE;
                                    let waited = loop {
                                        match transfer.wait_timeout(Duration::from_micros(round)) {
                                            Waited::StillInFlight(_) if Instant::now() < deadline => {}
                                            waited => break waited,
                                        }
                                    };
                                    finished(waited).unwrap();
                                }
                                _ => drop(wait("a transfer", &mut transfer).unwrap()),
                            }
                        }
                    });
                }
            });
        }
    }
}

/// What is under way when a waiter leaves is taken over.
#[test]
fn transfers_that_a_waiter_leaves_behind_end() {
    for completions in sleeping() {
        let pair = Pair::new(completions);
        // Their completions come one after the other, some before and some after that of the waiter.
        pair.sender_host.delay_completions(Duration::from_millis(2), 7);
        for _ in 0..100 {
            let before: Vec<_> = (0..3).map(|_| pair.write()).collect();
            let own = pair.write();
            let after: Vec<_> = (0..3).map(|_| pair.write()).collect();
            finished(own.wait_timeout(PATIENCE)).unwrap();
            for transfer in before.into_iter().chain(after) {
                wait("a transfer that a waiter left behind", transfer).unwrap();
            }
        }
    }
}

/// A notification comes to a transport whose waiters come and go.
#[test]
fn notifications_come_while_waiters_come_and_go() {
    for completions in sleeping() {
        let pair = Pair::new(completions);
        let back = pair.receiver.register(Memory::host(4096).unwrap(), Access::LOCAL).unwrap();
        let home = pair.sender.register(Memory::host(4096).unwrap(), Access::REMOTE_WRITE).unwrap();
        pair.receiver.import(pair.back, &pair.sender.grant(pair.peer, home).unwrap()).unwrap();
        for _ in 0..200 {
            let own = pair.write();
            let slice = WriteSlice { src: back, src_offset: 0, dst: home, dst_offset: 0, len: 10 };
            let note = BatchOptions::new().with_notification(b"note");
            let sent = pair.receiver.batch_write(pair.back, Batch::Slices(&[slice]), &note).unwrap();
            finished(own.wait_timeout(PATIENCE)).unwrap();
            assert!(matches!(wait("a notification", next_event(&*pair.sender)), Some(Event::Notification { .. })));
            finished(sent.wait_timeout(PATIENCE)).unwrap();
        }
    }
}

/// The device completes nothing: the waiters are freed by the end of what they wait on.
#[test]
fn waiters_are_freed_by_every_end() {
    for completions in sleeping() {
        for end in 0..4 {
            let pair = Pair::new(completions);
            pair.sender_host.stall(Stall::Work);
            let transfers: Vec<_> = (0..4).map(|_| pair.write()).collect();
            let Pair { network: _network, sender, sender_host: _host, receiver, peer, back, .. } = pair;
            thread::scope(|scope| {
                let waiters: Vec<_> =
                    transfers.iter().map(|transfer| scope.spawn(|| transfer.wait_timeout(PATIENCE))).collect();
                thread::sleep(Duration::from_millis(20));
                match end {
                    0 => wait("disconnecting", sender.disconnect(peer)),
                    1 => wait("the shutdown", sender.shutdown(Shutdown::Abort)),
                    2 => wait("disconnecting", receiver.disconnect(back)),
                    _ => drop(sender),
                }
                for waiter in waiters {
                    finished(waiter.join().unwrap()).unwrap_err();
                }
            });
        }
    }
}

/// Somebody else ends the transfer of a waiter that sleeps, for as long as it likes.
#[test]
fn a_waiter_whose_transfer_others_end_wakes_up() {
    for completions in sleeping() {
        let pair = Pair::new(completions);
        for _ in 0..20 {
            pair.sender_host.stall(Stall::Work);
            let transfer = pair.write();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| transfer.wait_timeout(PATIENCE));
                thread::sleep(Duration::from_millis(2));
                // Any call: the thread or the waiter takes it.
                transfer.cancel();
                pair.sender_host.stall(Stall::None);
                let _ = finished(waiter.join().unwrap());
            });
        }
    }
}

/// A time limit is kept although the device is stuck, and nothing is lost by it.
#[test]
fn a_time_limit_ends_the_wait_and_not_the_transfer() {
    for completions in sleeping() {
        let pair = Pair::new(completions);
        pair.sender_host.stall(Stall::Work);
        let transfer = pair.write();
        for _ in 0..5 {
            assert!(matches!(transfer.wait_timeout(Duration::from_millis(5)), Waited::StillInFlight(_)));
        }
        let freed = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                freed.store(true, Ordering::SeqCst);
                pair.sender_host.stall(Stall::None);
            });
            finished(transfer.wait_timeout(PATIENCE)).unwrap();
            assert!(freed.load(Ordering::SeqCst));
        });
    }
}
