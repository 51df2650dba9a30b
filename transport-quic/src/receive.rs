//! Receiving batches: every number that comes is checked before a byte is written, and every byte goes straight to its place.

use std::sync::{Arc, Weak};

use bytes::{Buf, Bytes};
use quinn::{Connection, ReadError, RecvStream, SendStream, VarInt};
use tokio::{sync::watch, time::timeout};
use transport_core::{Event, RegionId, RegionRef, Side, SliceError, check_range};

use crate::{
    channel::connected,
    frame::{Answer, Entry, MAX_ENTRIES, MAX_NOTIFICATION, StreamKind},
    node::CLOSE,
    peer::{End, Peer},
};

/// The code of a stream that its receiver refused.
const REFUSED: VarInt = VarInt::from_u32(2);

/// Takes in the streams that the peer opens after those of the control channel. quinn bounds how many there are at a time.
pub(crate) async fn accept(
    connection: Connection,
    data: watch::Receiver<Option<Weak<Peer>>>,
    limit: std::time::Duration,
) {
    while let Ok((send, receive)) = connection.accept_bi().await {
        let (mut data, connection) = (data.clone(), connection.clone());
        tokio::spawn(async move {
            // A peer whose side is connected already may write before ours is.
            match timeout(limit, connected(&mut data)).await {
                Ok(Some(peer)) => batch(peer, send, receive).await,
                Ok(None) => {}
                Err(_) => connection.close(CLOSE, b"a batch came, but the data path was never connected"),
            }
        });
    }
}

/// Why a batch was not received.
enum Failed {
    Refused {
        index: u64,
        cause: SliceError,
    },
    /// The sender gave it up.
    Reset,
    /// The connection has ended.
    Lost,
    /// The peer broke the protocol, or got stuck in the middle: it is cut off.
    CutOff(String),
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(_) => Self::Reset,
            ReadError::ConnectionLost(_) => Self::Lost,
            error => Self::CutOff(error.to_string()),
        }
    }
}

async fn batch(peer: Arc<Peer>, mut send: SendStream, receive: RecvStream) {
    let working = peer.working.enter();
    if peer.end().is_some() {
        return;
    }
    let answering = peer.answering.enter();
    let mut source = Source { peer: &peer, stream: receive, chunk: Bytes::new() };
    let answer = match run(&peer, &mut source).await {
        Ok(()) => Answer::Delivered,
        Err(Failed::Reset) => Answer::Cancelled,
        Err(Failed::Refused { index, cause }) => {
            tracing::warn!(peer = %peer.id, index, %cause, "refused a slice");
            let _ = source.stream.stop(REFUSED);
            Answer::Refused { index, cause }
        }
        Err(Failed::Lost) => return,
        Err(Failed::CutOff(reason)) => {
            tracing::warn!(peer = %peer.id, reason, "cutting a peer off");
            return peer.close(End::Lost(reason.into()));
        }
    };
    drop(working);
    let delivered = answer == Answer::Delivered;
    if send.write_all(&answer.encode()).await.is_ok() && send.finish().is_ok() {
        // Closing a connection drops what is not acknowledged: whoever drains it waits for this.
        let _ = send.stopped().await;
    }
    if delivered {
        source.end().await;
    }
    drop(answering);
}

async fn run(peer: &Arc<Peer>, source: &mut Source<'_>) -> Result<(), Failed> {
    let [kind] = source.array(Patience::Endless).await?;
    if StreamKind::decode(kind) != Some(StreamKind::Batch) {
        return Err(Failed::CutOff(format!("a stream begins with {kind}, not with {}", StreamKind::Batch as u8)));
    }
    let mut entries = Vec::new();
    let mut first = 0;
    loop {
        // Between segments nothing is held: the sender may wait for other transfers here.
        let count = u32::from_le_bytes(source.array(Patience::Endless).await?);
        if count == 0 {
            break;
        }
        if count > MAX_ENTRIES {
            return Err(Failed::CutOff(format!("a segment of {count} slices is longer than {MAX_ENTRIES}")));
        }
        segment(peer, source, count, first, &mut entries).await?;
        first += u64::from(count);
    }
    let notification = match source.array(Patience::Bounded).await? {
        [0] => None,
        [1] => {
            let len = usize::from(u16::from_le_bytes(source.array(Patience::Bounded).await?));
            if len > MAX_NOTIFICATION {
                return Err(Failed::CutOff(format!("a notification of {len} bytes is longer than {MAX_NOTIFICATION}")));
            }
            let mut notification = vec![0; len];
            source.exact(&mut notification, Patience::Bounded).await?;
            Some(notification)
        }
        [flag] => return Err(Failed::CutOff(format!("a batch ends with the flag {flag}"))),
    };
    if !source.chunk.is_empty() {
        return Err(Failed::CutOff("bytes come after the end of a batch".into()));
    }
    if let Some(payload) = notification {
        let event = Event::Notification { peer: peer.id, payload: payload.into() };
        // The program may not listen for a long time, in which the sender may give the batch up.
        tokio::select! {
            biased;
            () = peer.shared.events.push(event) => {}
            _ = peer.ended() => return Err(Failed::Lost),
            reset = source.stream.received_reset() => match reset {
                Ok(Some(_)) => return Err(Failed::Reset),
                _ => return Err(Failed::CutOff("it ended a batch before the answer".into())),
            },
        }
    }
    Ok(())
}

/// Receives one segment: all of it is checked before its first byte is written.
async fn segment(
    peer: &Arc<Peer>,
    source: &mut Source<'_>,
    count: u32,
    first: u64,
    entries: &mut Vec<u8>,
) -> Result<(), Failed> {
    entries.clear();
    // At most `MAX_ENTRIES`, and the bytes really come before the next segment can.
    entries.resize(count as usize * Entry::LEN, 0);
    source.exact(entries, Patience::Bounded).await?;
    let (entries, _) = entries.as_chunks::<{ Entry::LEN }>();
    let mut targets = Targets::default();
    for (index, entry) in (first..).zip(entries) {
        let Entry { region, offset, len } = Entry::decode(entry);
        targets
            .get(peer, region)
            .and_then(|target| check_range(Side::Destination, region, offset, len, target.len()))
            .map_err(|cause| Failed::Refused { index, cause })?;
    }
    for (index, entry) in (first..).zip(entries) {
        let Entry { region, offset, len } = Entry::decode(entry);
        let target = targets.get(peer, region).map_err(|cause| Failed::Refused { index, cause })?;
        source.write_to(target, offset, len).await?;
    }
    Ok(())
}

/// The regions of a segment, held while its bytes come in.
#[derive(Default)]
struct Targets {
    held: Vec<RegionRef>,
    /// The one that was asked for last; slices of one region follow each other as a rule.
    last: usize,
}

impl Targets {
    fn get(&mut self, peer: &Peer, region: RegionId) -> Result<&RegionRef, SliceError> {
        if self.held.get(self.last).is_none_or(|held| held.id() != region) {
            self.last = match self.held.binary_search_by_key(&region, RegionRef::id) {
                Ok(place) => place,
                Err(place) => {
                    self.held.insert(place, peer.granted.target(&peer.shared.regions, region)?);
                    place
                }
            };
        }
        self.held.get(self.last).ok_or(SliceError::NotGranted { asked: region })
    }
}

/// How long to wait for bytes.
#[derive(Clone, Copy)]
enum Patience {
    /// For as long as the connection lives: the sender may have nothing to send.
    Endless,
    /// In the middle of something that was begun: memory is held.
    Bounded,
}

/// The bytes of a stream, as they come.
struct Source<'a> {
    peer: &'a Peer,
    stream: RecvStream,
    chunk: Bytes,
}

impl Source<'_> {
    /// Sees to it that at least one byte is there.
    async fn fill(&mut self, patience: Patience) -> Result<(), Failed> {
        while self.chunk.is_empty() {
            let read = self.stream.read_chunk(usize::MAX, true);
            let chunk = match patience {
                Patience::Endless => read.await,
                Patience::Bounded => match self.peer.patient(read).await {
                    Ok(chunk) => chunk,
                    Err(stalled) => {
                        return Err(Failed::CutOff(format!("it sent no byte of a batch for {:?}", stalled.limit)));
                    }
                },
            };
            match chunk? {
                Some(chunk) => self.chunk = chunk.bytes,
                None => return Err(Failed::CutOff("a batch breaks off in the middle".into())),
            }
        }
        Ok(())
    }

    async fn exact(&mut self, mut out: &mut [u8], patience: Patience) -> Result<(), Failed> {
        while !out.is_empty() {
            self.fill(patience).await?;
            let len = out.len().min(self.chunk.len());
            let (now, later) = out.split_at_mut(len);
            self.chunk.copy_to_slice(now);
            out = later;
        }
        Ok(())
    }

    async fn array<const N: usize>(&mut self, patience: Patience) -> Result<[u8; N], Failed> {
        let mut out = [0; N];
        self.exact(&mut out, patience).await?;
        Ok(out)
    }

    /// Writes the next `len` bytes to their place.
    async fn write_to(&mut self, target: &RegionRef, mut offset: u64, mut len: u64) -> Result<(), Failed> {
        while len > 0 {
            self.fill(Patience::Bounded).await?;
            let part = self.chunk.len().min(usize::try_from(len).unwrap_or(usize::MAX));
            let bytes = self.chunk.split_to(part);
            // The range was checked before.
            target.memory().write_at(offset, &bytes).map_err(|error| Failed::CutOff(error.to_string()))?;
            offset += part as u64;
            len -= part as u64;
        }
        Ok(())
    }

    /// Waits for the end of the stream, which the sender keeps open until it has the answer.
    async fn end(&mut self) {
        let _ = self.peer.patient(self.stream.read_chunk(1, true)).await;
    }
}
