//! The control channel as a transport sees it while the engine tries to connect it, and after that.
//!
//! The hazards: a message of an attempt that has failed is taken for one of the next attempt, a task that an old attempt left
//! behind reads what the next one waits for, and a transport speaks in the engine's name. So each attempt has a channel of its
//! own, which carries only the topic of transports, writes the attempt's number before each message, and goes silent when the
//! attempt is over. Both sides then say that nothing follows, and read what is left up to there: what comes next on the topic
//! is of the next attempt.

use std::{any::Any, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{
    runtime::Handle,
    sync::{Mutex, watch},
};
use transport_core::{ChannelError, ControlChannel, Topic};

/// What a message of an attempt is, in its second byte.
const MESSAGE: u8 = 0;
const END: u8 = 1;
const HEADER: usize = 2;

/// Messages of a failed attempt that are skipped, at most: an honest transport exchanges a few.
const MAX_SKIPPED: usize = 1024;

/// The channel of one attempt.
#[derive(Debug)]
pub(crate) struct AttemptChannel {
    channel: Arc<dyn ControlChannel>,
    number: u8,
    runtime: Handle,
    /// Held while a message is handed over, so that none comes after the end.
    sending: Arc<Mutex<()>>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// This side has ended the attempt.
    over: bool,
    /// The peer has said that nothing follows.
    ended_by_peer: bool,
}

impl AttemptChannel {
    pub(crate) fn new(channel: &Arc<dyn ControlChannel>, number: u8, runtime: &Handle) -> Arc<Self> {
        Arc::new(Self {
            channel: Arc::clone(channel),
            number,
            runtime: runtime.clone(),
            sending: Arc::default(),
            state: watch::Sender::default(),
        })
    }

    /// Ends the attempt: after this the topic carries nothing of it in either direction. Both sides call it.
    pub(crate) async fn end(&self) -> Result<(), ChannelError> {
        self.state.send_modify(|state| state.over = true);
        let say = async {
            let _turn = self.sending.lock().await;
            self.channel.send(Topic::Transport, &[self.number, END]).await
        };
        // Side by side: the peer may have to be read before it reads.
        tokio::try_join!(say, self.skip()).map(drop)
    }

    /// Reads what is left of the attempt.
    async fn skip(&self) -> Result<(), ChannelError> {
        let mut state = self.state.subscribe();
        for _ in 0..MAX_SKIPPED {
            tokio::select! {
                biased;
                // Whoever was receiving may have got it.
                _ = state.wait_for(|state| state.ended_by_peer) => return Ok(()),
                message = self.channel.receive(Topic::Transport) => drop(self.open(message?)?),
            }
        }
        let reason = format!("more than {MAX_SKIPPED} messages of a transport came after it had failed to connect");
        Err(ChannelError::Protocol { reason })
    }

    /// The content of a message; `None` at the attempt's end.
    fn open(&self, message: Bytes) -> Result<Option<Bytes>, ChannelError> {
        match message.first_chunk::<HEADER>() {
            Some([number, MESSAGE]) if *number == self.number => Ok(Some(message.slice(HEADER..))),
            Some([number, END]) if *number == self.number => {
                self.state.send_modify(|state| state.ended_by_peer = true);
                Ok(None)
            }
            _ => {
                let (len, number) = (message.len(), self.number);
                let reason = format!("a message of {len} bytes does not belong to attempt {number} at a transport");
                Err(ChannelError::Protocol { reason })
            }
        }
    }

    fn check(&self, topic: Topic) -> Result<(), ChannelError> {
        match topic {
            Topic::Transport => Ok(()),
            topic => Err(ChannelError::Protocol { reason: format!("a transport may not use the topic {topic:?}") }),
        }
    }

    fn is_over(&self) -> bool {
        self.state.borrow().over
    }
}

#[async_trait]
impl ControlChannel for AttemptChannel {
    fn peer_identity(&self) -> &[u8] {
        self.channel.peer_identity()
    }

    fn peer_address(&self) -> String {
        self.channel.peer_address()
    }

    fn is_initiator(&self) -> bool {
        self.channel.is_initiator()
    }

    fn max_message(&self) -> usize {
        self.channel.max_message().saturating_sub(HEADER)
    }

    /// Safe to cancel, unlike what it wraps: a task of the engine hands the message over, because an attempt that is given up
    /// must not cost the channel.
    async fn send(&self, topic: Topic, message: &[u8]) -> Result<(), ChannelError> {
        self.check(topic)?;
        let (len, max) = (message.len(), self.max_message());
        if len > max {
            return Err(ChannelError::TooLong { len, max });
        }
        let mut bytes = Vec::with_capacity(HEADER + len);
        bytes.extend_from_slice(&[self.number, MESSAGE]);
        bytes.extend_from_slice(message);
        let turn = Arc::clone(&self.sending).lock_owned().await;
        if self.is_over() {
            return Err(ChannelError::Closed);
        }
        let channel = Arc::clone(&self.channel);
        let sent = self.runtime.spawn(async move {
            let _turn = turn;
            channel.send(topic, &bytes).await
        });
        sent.await.unwrap_or(Err(ChannelError::Closed))
    }

    async fn receive(&self, topic: Topic) -> Result<Bytes, ChannelError> {
        self.check(topic)?;
        let mut state = self.state.subscribe();
        tokio::select! {
            biased;
            state = state.wait_for(|state| state.over || state.ended_by_peer) => match state {
                Ok(state) if state.ended_by_peer && !state.over => Err(gave_up()),
                _ => Err(ChannelError::Closed),
            },
            message = self.channel.receive(topic) => self.open(message?)?.ok_or_else(gave_up),
        }
    }

    async fn closed(&self) -> ChannelError {
        let mut state = self.state.subscribe();
        tokio::select! {
            biased;
            _ = state.wait_for(|state| state.over) => ChannelError::Closed,
            error = self.channel.closed() => error,
        }
    }

    /// Closes the control channel itself, unless the attempt is over.
    fn close(&self, reason: &str) {
        if !self.is_over() {
            self.channel.close(reason);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn gave_up() -> ChannelError {
    ChannelError::ClosedByPeer { reason: "it gave up connecting this transport".into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use transport_core::mem::{MemConfig, MemFabric};

    use super::*;

    /// Both ends of a control channel, and the fabric that keeps it.
    fn channels() -> (MemFabric, Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
        let fabric = MemFabric::new();
        let (a, b) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
        let (here, there) = fabric.channel_pair(&a, &b);
        (fabric, here, there)
    }

    fn attempts(
        here: &Arc<dyn ControlChannel>,
        there: &Arc<dyn ControlChannel>,
        number: u8,
    ) -> (Arc<AttemptChannel>, Arc<AttemptChannel>) {
        let runtime = Handle::current();
        (AttemptChannel::new(here, number, &runtime), AttemptChannel::new(there, number, &runtime))
    }

    #[tokio::test]
    async fn nothing_of_an_attempt_is_heard_after_its_end() {
        let (_fabric, here, there) = channels();
        let (one, other) = attempts(&here, &there, 0);
        one.send(Topic::Transport, b"heard").await.unwrap();
        assert_eq!(other.receive(Topic::Transport).await.unwrap(), &b"heard"[..]);
        // More than the channel keeps unread: the end has to read while it speaks.
        let talkative = tokio::spawn({
            let one = Arc::clone(&one);
            async move { while one.send(Topic::Transport, b"not heard").await.is_ok() {} }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        // What an old attempt left behind listens all the time.
        let lingering = tokio::spawn({
            let one = Arc::clone(&one);
            async move { one.receive(Topic::Transport).await }
        });
        tokio::try_join!(one.end(), other.end()).unwrap();
        talkative.await.unwrap();
        assert!(lingering.await.unwrap().is_err());
        assert_eq!(one.send(Topic::Transport, b"late").await, Err(ChannelError::Closed));
        assert_eq!(one.receive(Topic::Transport).await, Err(ChannelError::Closed));
        assert_eq!(one.closed().await, ChannelError::Closed);
        one.close("an attempt that is over closes nothing");

        let (one, other) = attempts(&here, &there, 1);
        other.send(Topic::Transport, b"next").await.unwrap();
        assert_eq!(one.receive(Topic::Transport).await.unwrap(), &b"next"[..]);
        tokio::try_join!(one.end(), other.end()).unwrap();
        // And what numbers nothing finds the topic empty.
        here.send(Topic::Transport, &[9]).await.unwrap();
        assert_eq!(there.receive(Topic::Transport).await.unwrap(), &[9][..]);
    }

    #[tokio::test]
    async fn a_peer_that_gave_up_is_heard_while_waiting_and_its_word_counts_at_the_end() {
        let (_fabric, here, there) = channels();
        let (one, other) = attempts(&here, &there, 3);
        let ending = tokio::spawn(async move { other.end().await });
        assert_eq!(one.receive(Topic::Transport).await, Err(gave_up()));
        assert_eq!(one.receive(Topic::Transport).await, Err(gave_up()));
        one.end().await.unwrap();
        ending.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_no_honest_peer_sends_ends_the_attempt() {
        for wrong in [&[][..], &[2], &[2, 2, 1], &[1, MESSAGE, 7], &[3, END], &[255; 64]] {
            let (_fabric, here, there) = channels();
            let (one, _) = attempts(&here, &there, 2);
            there.send(Topic::Transport, wrong).await.unwrap();
            assert!(matches!(one.receive(Topic::Transport).await, Err(ChannelError::Protocol { .. })), "{wrong:?}");
            there.send(Topic::Transport, wrong).await.unwrap();
            assert!(matches!(one.end().await, Err(ChannelError::Protocol { .. })), "{wrong:?}");
        }
        // One that never stops speaking.
        let (_fabric, here, there) = channels();
        let (one, _) = attempts(&here, &there, 2);
        let speaking = tokio::spawn(async move { while there.send(Topic::Transport, &[2, MESSAGE]).await.is_ok() {} });
        assert!(matches!(one.end().await, Err(ChannelError::Protocol { .. })));
        speaking.abort();
    }

    #[tokio::test]
    async fn a_transport_speaks_on_its_own_topic_and_no_longer_than_fits() {
        let (_fabric, here, there) = channels();
        let (one, other) = attempts(&here, &there, 0);
        assert!(matches!(one.send(Topic::Engine, b"commit").await, Err(ChannelError::Protocol { .. })));
        assert!(matches!(one.receive(Topic::Engine).await, Err(ChannelError::Protocol { .. })));
        let longest = vec![5; one.max_message()];
        one.send(Topic::Transport, &longest).await.unwrap();
        assert_eq!(other.receive(Topic::Transport).await.unwrap(), longest);
        let (len, max) = (longest.len() + 1, longest.len());
        assert_eq!(one.send(Topic::Transport, &vec![5; len]).await, Err(ChannelError::TooLong { len, max }));
    }
}
