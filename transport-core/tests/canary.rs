//! Dropping and forgetting every handle at any point, and ending connections and transports with transfers in flight, never
//! touches a byte around a region, nor memory that was given back. Runs under the address sanitizer as well; see
//! docs/testing.md.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    pin::pin,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join;
use transport_core::{
    Access, BatchOptions, ForeignMemory, Memory, PeerId, RegionId, Shutdown, Transfer, Transport, WriteSlice,
    conformance::block_on,
    mem::{MemConfig, MemFabric, MemTransport},
};

const LEN: usize = 256 << 10;
const GUARD: usize = 4096;
const CANARY: u8 = 0xc5;

/// An allocation with a guard on either side of what is registered. When the last user is gone it looks at the guards.
struct Guarded {
    bytes: NonNull<u8>,
    released: Arc<AtomicUsize>,
}

// SAFETY: the allocation belongs to this value and is not tied to a thread.
unsafe impl Send for Guarded {}
// SAFETY: nothing but `drop` looks at the bytes.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn memory(released: &Arc<AtomicUsize>) -> Memory {
        let whole = vec![CANARY; GUARD + LEN + GUARD].into_boxed_slice();
        let bytes = NonNull::new(Box::into_raw(whole).cast::<u8>()).unwrap();
        // SAFETY: the region lies inside the allocation.
        let region = unsafe { bytes.add(GUARD) };
        let keeper = Self { bytes, released: Arc::clone(released) };
        // SAFETY: the keeper frees the allocation, and nobody holds a reference to it.
        Memory::new(unsafe { ForeignMemory::new(region, LEN, keeper) })
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let whole = std::ptr::slice_from_raw_parts_mut(self.bytes.as_ptr(), GUARD + LEN + GUARD);
        // SAFETY: it was made by `Box::into_raw`, and its last user is gone.
        let whole = unsafe { Box::from_raw(whole) };
        let intact = whole[..GUARD].iter().chain(&whole[GUARD + LEN..]).all(|byte| *byte == CANARY);
        // A panic here may be on the transport's thread; counting is seen by the test.
        self.released.fetch_add(if intact { 1 } else { 1 << 20 }, Ordering::SeqCst);
    }
}

struct Scene {
    fabric: MemFabric,
    a: Arc<MemTransport>,
    b: Arc<MemTransport>,
    to_b: PeerId,
    to_a: PeerId,
    src: RegionId,
    dst: RegionId,
}

fn scene(released: &Arc<AtomicUsize>) -> Scene {
    let fabric = MemFabric::new();
    // A small queue of events: batches with a notification stay in flight, since nobody listens.
    let config = MemConfig::default().with_events_per_peer(2).with_max_in_flight(64);
    let (a, b) = (fabric.transport(config.clone()), fabric.transport(config));
    let (here, there) = fabric.channel_pair(&a, &b);
    let (to_b, to_a) = block_on(join(a.connect(here), b.connect(there)));
    let (to_b, to_a) = (to_b.unwrap(), to_a.unwrap());
    let src = a.register(Guarded::memory(released), Access::LOCAL).unwrap();
    let dst = b.register(Guarded::memory(released), Access::REMOTE_WRITE).unwrap();
    a.import(to_b, &b.grant(to_a, dst).unwrap()).unwrap();
    Scene { fabric, a, b, to_b, to_a, src, dst }
}

fn submit(scene: &Scene, dice: &mut Dice) -> Option<Transfer> {
    let slices: Vec<WriteSlice> = (0..1 + dice.roll(40))
        .map(|_| {
            let len = [0, 1, 100, 5000, 70_000, LEN as u64][dice.roll(6) as usize];
            // At the very ends as often as not.
            let offset = [0, LEN as u64 - len, dice.roll(LEN as u64 - len + 1)];
            WriteSlice {
                src: scene.src,
                src_offset: offset[dice.roll(3) as usize],
                dst: scene.dst,
                dst_offset: offset[dice.roll(3) as usize],
                len,
            }
        })
        .collect();
    let mut options = BatchOptions::new();
    options.notification = (dice.roll(2) == 0).then_some(&b"never taken"[..]);
    scene.a.batch_write(scene.to_b, (&slices).into(), &options).ok()
}

fn use_handle(dice: &mut Dice, transfer: Transfer, kept: &mut Vec<Transfer>) {
    match dice.roll(5) {
        0 => drop(transfer),
        1 => std::mem::forget(transfer),
        2 => transfer.cancel(),
        3 => drop(transfer.wait_timeout(Duration::from_micros(dice.roll(200)))),
        _ => kept.push(transfer),
    }
}

/// Polls a future once and drops it.
fn abandon(future: impl Future) {
    let future = pin!(future);
    drop(future.poll(&mut Context::from_waker(Waker::noop())));
}

#[test]
fn whatever_is_dropped_or_ended_no_byte_beside_a_region_is_touched() {
    let rounds = std::env::var("KVFERRY_CANARY_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(300);
    let seed = std::env::var("KVFERRY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed);
    println!("KVFERRY_SEED={seed}");
    let mut dice = Dice(seed);
    for round in 0..rounds {
        let released = Arc::new(AtomicUsize::new(0));
        let scene = scene(&released);
        let mut kept = Vec::new();
        for _ in 0..dice.roll(20) {
            if let Some(transfer) = submit(&scene, &mut dice) {
                use_handle(&mut dice, transfer, &mut kept);
            }
        }
        if dice.roll(2) == 0 {
            thread::sleep(Duration::from_micros(dice.roll(500)));
        }
        match dice.roll(10) {
            0 => abandon(scene.a.deregister(scene.src)),
            1 => abandon(scene.b.deregister(scene.dst)),
            2 => drop(block_on(scene.b.deregister(scene.dst))),
            3 => block_on(scene.a.disconnect(scene.to_b)),
            4 => block_on(scene.b.disconnect(scene.to_a)),
            5 => scene.a.kill(),
            6 => scene.b.kill(),
            7 => block_on(scene.a.shutdown(Shutdown::Abort)),
            8 => abandon(scene.b.shutdown(Shutdown::Drain)),
            _ => {}
        }
        for _ in 0..dice.roll(4) {
            if let Some(transfer) = submit(&scene, &mut dice) {
                use_handle(&mut dice, transfer, &mut kept);
            }
        }
        let Scene { fabric, a, b, .. } = scene;
        match dice.roll(3) {
            0 => drop((a, b, fabric, kept)),
            1 => drop((b, kept, a, fabric)),
            _ => {
                drop((a, b));
                for transfer in kept {
                    drop(transfer.wait());
                }
            }
        }
        // Both owners are given back in the end, with their guards as they were.
        let start = Instant::now();
        while released.load(Ordering::SeqCst) < 2 {
            assert!(start.elapsed() < Duration::from_secs(20), "round {round}: the memory is never given back");
            thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(released.load(Ordering::SeqCst), 2, "round {round}: a guard was touched");
    }
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
