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
