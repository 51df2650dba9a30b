//! Sending batches.
//!
//! A peer has a few lanes, tasks that each carry one batch at a time. A transfer is over when the receiver has answered, or
//! when the connection is: cancelling resets the stream and waits for the answer too, so that whatever the outcome, no byte of
//! the batch lands after it.

use std::{future::poll_fn, sync::Arc, task::Poll};

use bytes::Bytes;
use quinn::{RecvStream, SendStream, VarInt, WriteError};
use tokio::time::timeout;
use transport_core::{Cursor, TransferDriver, TransferError};

use crate::{
    frame::{Answer, Entry, MAX_ENTRIES, StreamKind},
    peer::{End, Peer, Stalled},
    staging::Staging,
};

/// The code of a stream that its sender gave up.
const GIVEN_UP: VarInt = VarInt::from_u32(1);

/// How many times the bound on stalls the last answer of a batch may take while other batches of the peer make progress.
const PATIENCE: u32 = 10;

/// A segment from this many bytes on is worth a buffer of its own for its header.
const LARGE: u64 = 64 << 10;

/// Carries the peer's batches one after the other until the connection ends.
pub(crate) async fn lane(peer: Arc<Peer>) {
    while let Some(mut driver) = peer.next().await {
        let result =
            if driver.is_cancelled() { Err(TransferError::Cancelled) } else { carry(&peer, &mut driver).await };
        driver.finish(result);
    }
}

/// Why a stream cannot be written any more.
enum Broken {
    /// The user asked to cancel, or a transfer that this one comes after failed.
    GivenUp(TransferError),
    /// The receiver does not read it any more, and its answer says why.
    Stopped,
    Lost,
    Stalled(Stalled),
}

impl From<Stalled> for Broken {
    fn from(stalled: Stalled) -> Self {
        Self::Stalled(stalled)
    }
}

impl From<WriteError> for Broken {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(_) => Self::Stopped,
            _ => Self::Lost,
        }
    }
}

async fn carry(peer: &Arc<Peer>, driver: &mut TransferDriver) -> Result<(), TransferError> {
    let opened = unless_cancelled(driver, peer.patient(peer.connection().open_bi())).await;
    let (mut send, mut answer) = match opened {
        Ok(Ok(Ok(streams))) => streams,
        Ok(Ok(Err(_))) => return Err(peer.ended().await.error()),
        Ok(Err(stalled)) => return Err(stall(peer, driver, stalled).await),
        Err(cancelled) => return Err(cancelled),
    };
    driver.mark_posted();
    let written = match unless_cancelled(driver, write_payload(peer, driver, &mut send)).await {
        Ok(Ok(staging)) => write_end(peer, driver, &mut send, staging).await,
        Ok(Err(broken)) => Err(broken),
        Err(cancelled) => Err(Broken::GivenUp(cancelled)),
    };
    let given_up = match written {
        Ok(()) => match unless_cancelled(driver, read_answer(peer, &mut answer)).await {
            Ok(answer) => {
                let _ = send.finish();
                return conclude(peer, driver, answer, None).await;
            }
            Err(cancelled) => Some(cancelled),
        },
        Err(Broken::GivenUp(cause)) => Some(cause),
        Err(Broken::Stopped) => None,
        Err(Broken::Lost) => return Err(peer.ended().await.error()),
        Err(Broken::Stalled(stalled)) => return Err(stall(peer, driver, stalled).await),
    };
    if given_up.is_some() {
        let _ = send.reset(GIVEN_UP);
    }
    let answer = read_answer(peer, &mut answer).await;
    conclude(peer, driver, answer, given_up).await
}

/// The outcome, from the receiver's last word.
async fn conclude(
    peer: &Arc<Peer>,
    driver: &TransferDriver,
    answer: Result<Answer, Broken>,
    given_up: Option<TransferError>,
) -> Result<(), TransferError> {
    match (answer, given_up) {
        (Ok(Answer::Delivered), _) => Ok(()),
        (Ok(Answer::Refused { index, cause }), None) => Err(TransferError::Refused { index, cause }),
        (Ok(_), Some(cause)) => Err(cause),
        (Ok(Answer::Cancelled), None) | (Err(Broken::Stopped), _) => {
            let reason = "it ended a batch without an answer";
            peer.close(End::Lost(reason.into()));
            Err(TransferError::Protocol { reason: reason.into() })
        }
        (Err(Broken::Stalled(stalled)), _) => Err(stall(peer, driver, stalled).await),
        (Err(Broken::Lost | Broken::GivenUp(_)), given_up) => {
            let end = peer.ended().await;
            Err(given_up.unwrap_or_else(|| end.error()))
        }
    }
}

/// Cuts a peer off that takes no byte: after that none can land.
async fn stall(peer: &Arc<Peer>, driver: &TransferDriver, stalled: Stalled) -> TransferError {
    let (done, total) = (driver.bytes_done(), driver.bytes_total());
    let error = TransferError::Stalled { timeout: stalled.limit, done, total };
    peer.close(End::Lost(error.to_string().into()));
    peer.ended().await;
    error
}

/// Runs a future unless the user cancels the transfer.
async fn unless_cancelled<T>(driver: &TransferDriver, future: impl Future<Output = T>) -> Result<T, TransferError> {
    tokio::select! {
        biased;
        () = poll_fn(|context| driver.poll_cancelled(context)) => Err(TransferError::Cancelled),
        value = future => Ok(value),
    }
}

/// Writes all segments, but for what is left in the staging buffer.
async fn write_payload(peer: &Peer, driver: &TransferDriver, send: &mut SendStream) -> Result<Staging, Broken> {
    let mut staging = Staging::new(&peer.shared.staging);
    staging.push(&[StreamKind::Batch as u8]);
    let batch = driver.batch();
    let (mut ahead, mut behind) = (Cursor::default(), Cursor::default());
    loop {
        // One pass over the slices of a segment for their places, one for their bytes: nothing is kept for each slice.
        let mut counting = ahead;
        let (mut count, mut bytes) = (0u32, 0u64);
        while count < MAX_ENTRIES
            && let Some(slice) = batch.next(&mut counting)
        {
            count += 1;
            bytes = bytes.saturating_add(slice.len);
        }
        if count == 0 {
            return Ok(staging);
        }
        write(peer, send, &mut staging, &count.to_le_bytes()).await?;
        for _ in 0..count {
            let Some(slice) = batch.next(&mut ahead) else { break };
            let entry = Entry { region: slice.dst, offset: slice.dst_offset, len: slice.len };
            write(peer, send, &mut staging, &entry.encode()).await?;
        }
        // Bytes begin at the start of a buffer, which is aligned: pages that are copied to a few bytes behind a page's border
        // are copied at a fifth of the speed by some processors.
        if bytes >= LARGE
            && let Some(head) = staging.take()
        {
            hand_over(peer, send, head).await?;
        }
        for _ in 0..count {
            let Some(slice) = batch.next(&mut behind) else { break };
            let Some(region) = driver.region(slice.src) else { return Err(Broken::Lost) };
            let (mut offset, mut left) = (slice.src_offset, slice.len);
            while left > 0 {
                // The range was checked when the batch was submitted.
                let taken = staging.push_region(region.memory(), offset, left).map_err(|_| Broken::Lost)?;
                offset += taken;
                left -= taken;
                driver.progress(taken);
                if let Some(full) = staging.take_full() {
                    hand_over(peer, send, full).await?;
                }
            }
        }
    }
}

/// Writes the end of the batch, once everything that it comes after is delivered.
async fn write_end(
    peer: &Peer,
    driver: &mut TransferDriver,
    send: &mut SendStream,
    mut staging: Staging,
) -> Result<(), Broken> {
    let ready = poll_fn(|context| driver.poll_dependencies(context));
    let ready = tokio::select! {
        biased;
        ready = ready => Some(ready),
        _ = std::future::ready(()) => None,
    };
    match ready {
        Some(result) => result.map_err(Broken::GivenUp)?,
        None => {
            // The bytes need not wait.
            if let Some(rest) = staging.take() {
                hand_over(peer, send, rest).await?;
            }
            let dependencies = poll_fn(|context| match driver.poll_cancelled(context) {
                Poll::Ready(()) => Poll::Ready(Err(TransferError::Cancelled)),
                Poll::Pending => driver.poll_dependencies(context),
            });
            tokio::select! {
                result = dependencies => result.map_err(Broken::GivenUp)?,
                _ = peer.ended() => return Err(Broken::Lost),
                _ = send.stopped() => return Err(Broken::Stopped),
            }
        }
    }
    let written = unless_cancelled(driver, async {
        write(peer, send, &mut staging, &0u32.to_le_bytes()).await?;
        match driver.notification() {
            Some(notification) => {
                // The submission has bounded it by `MAX_NOTIFICATION`.
                let len = u16::try_from(notification.len()).unwrap_or(u16::MAX);
                write(peer, send, &mut staging, &[1]).await?;
                write(peer, send, &mut staging, &len.to_le_bytes()).await?;
                write(peer, send, &mut staging, notification).await?;
            }
            None => write(peer, send, &mut staging, &[0]).await?,
        }
        if let Some(rest) = staging.take() {
            hand_over(peer, send, rest).await?;
        }
        Ok::<(), Broken>(())
    });
    written.await.map_err(Broken::GivenUp)??;
    driver.mark_last_byte();
    // The stream stays open until the answer: only an open one can still be given up.
    Ok(())
}

/// Appends bytes to the stream, through the staging buffer.
async fn write(peer: &Peer, send: &mut SendStream, staging: &mut Staging, mut bytes: &[u8]) -> Result<(), Broken> {
    while !bytes.is_empty() {
        let taken = staging.push(bytes);
        bytes = bytes.get(taken..).unwrap_or_default();
        if let Some(full) = staging.take_full() {
            hand_over(peer, send, full).await?;
        }
    }
    Ok(())
}

async fn hand_over(peer: &Peer, send: &mut SendStream, bytes: Bytes) -> Result<(), Broken> {
    if peer.channel.node.config.quinn_defaults {
        peer.patient(send.write_all(&bytes)).await??;
    } else {
        peer.patient(send.write_chunk(bytes)).await??;
    }
    Ok(())
}

async fn read_answer(peer: &Peer, answer: &mut RecvStream) -> Result<Answer, Broken> {
    // Other batches may keep the connection busy while this one is never answered, so there is a bound of its own too.
    let limit = peer.channel.node.config.stall_timeout.saturating_mul(PATIENCE);
    let read = timeout(limit, peer.patient(answer.read_to_end(Answer::MAX_LEN))).await;
    match read.map_err(|_| Stalled { limit })?? {
        Ok(bytes) => Answer::decode(&bytes).ok_or(Broken::Stopped),
        Err(quinn::ReadToEndError::Read(quinn::ReadError::ConnectionLost(_))) => Err(Broken::Lost),
        Err(_) => Err(Broken::Stopped),
    }
}
