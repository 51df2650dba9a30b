//! Trying it: two transports of this process, each on the same device, and bytes from one to the other over its port.

use std::time::{Duration, Instant};

use transport_core::{
    Access, BatchOptions, Event, Memory, Shutdown, Transport, WriteSlice,
    mem::{MemConfig, MemFabric},
    next_event,
};
use transport_rdma::{Rail, Rails, RdmaConfig, RdmaTransport};

use crate::source::Source;

/// Bytes of a region, of which one half is written.
const REGION: usize = 256 << 10;
const HALF: u64 = REGION as u64 / 2;
const WORD: &[u8] = b"all of it";
/// Longer than any device that works needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// How it went on one device.
#[derive(Debug)]
pub(crate) struct Loopback {
    pub(crate) device: String,
    pub(crate) result: Result<Times, String>,
}

/// What took how long.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) register: Duration,
    pub(crate) connect: Duration,
    /// From the submission to the notification at the receiver.
    pub(crate) write: Duration,
    pub(crate) bytes: u64,
}

/// Tries one device.
pub(crate) fn run(source: &Source, device: &str) -> Loopback {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let result = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        runtime.block_on(async {
            let trial = tokio::time::timeout(PATIENCE, write(source, device));
            trial.await.unwrap_or_else(|_| Err(format!("it was not done after {PATIENCE:?}")))
        })
    });
    Loopback { device: device.to_owned(), result }
}

async fn write(source: &Source, device: &str) -> Result<Times, String> {
    let (sender, receiver) = (open(source, device)?, open(source, device)?);
    let result = between(&sender, &receiver).await;
    // Nothing is read or written when these have returned, so the memory may go.
    tokio::join!(sender.shutdown(Shutdown::Abort), receiver.shutdown(Shutdown::Abort));
    result
}

fn open(source: &Source, device: &str) -> Result<RdmaTransport, String> {
    let config = RdmaConfig::default().with_rails(Rails::Manual(vec![Rail::new(device)]));
    RdmaTransport::open(source.open()?, config).map_err(words)
}

async fn between(sender: &RdmaTransport, receiver: &RdmaTransport) -> Result<Times, String> {
    let started = Instant::now();
    let (from, to) = (Memory::host(REGION).map_err(words)?, Memory::host(REGION).map_err(words)?);
    let bytes: Vec<u8> = (0..HALF).map(|place| (place * 31 + place / 251) as u8).collect();
    from.write_at(0, &bytes).map_err(words)?;
    let source = sender.register(from, Access::LOCAL).map_err(words)?;
    let target = receiver.register(to.clone(), Access::REMOTE_WRITE).map_err(words)?;
    let register = started.elapsed();

    // The keys and queue pair numbers go over a channel in memory: an engine has QUIC for that.
    let started = Instant::now();
    let fabric = MemFabric::new();
    let (one, other) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
    let (here, there) = fabric.channel_pair(&one, &other);
    let (to_receiver, to_sender) = tokio::join!(sender.connect(here), receiver.connect(there));
    let (to_receiver, to_sender) = (to_receiver.map_err(words)?, to_sender.map_err(words)?);
    let connect = started.elapsed();

    let grant = receiver.grant(to_sender, target).map_err(words)?;
    sender.import(to_receiver, &grant).map_err(words)?;
    let started = Instant::now();
    let slice = WriteSlice { src: source, src_offset: 0, dst: target, dst_offset: HALF, len: HALF };
    let options = BatchOptions::new().with_notification(WORD);
    let transfer = sender.batch_write(to_receiver, (&[slice]).into(), &options).map_err(words)?;
    transfer.await.map_err(words)?;
    match next_event(receiver).await {
        Some(Event::Notification { payload, .. }) if payload == WORD => {}
        event => return Err(format!("a notification was expected and there came {event:?}")),
    }
    let write = started.elapsed();

    let mut found = vec![0; REGION];
    to.read_at(0, &mut found).map_err(words)?;
    let (untouched, written) = found.split_at(REGION / 2);
    if let Some(place) = written.iter().zip(&bytes).position(|(found, sent)| found != sent) {
        return Err(format!("byte {place} of {HALF} is not what was sent, although the device reports success"));
    }
    if untouched.iter().any(|byte| *byte != 0) {
        return Err("the device wrote where it was not told to".into());
    }
    Ok(Times { register, connect, write, bytes: HALF })
}

/// An error in words.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
