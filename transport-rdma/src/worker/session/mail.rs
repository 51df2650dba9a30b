//! The control channel, polled by the thread.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use transport_core::{ChannelError, ControlChannel, Topic};

type Pending<T> = Pin<Box<dyn Future<Output = Result<T, ChannelError>> + Send>>;

/// Messages that wait because the peer does not read. A peer that makes us answer and does not read is cut off.
const MAX_WAITING: usize = 4096;

pub(super) struct Mail {
    channel: Arc<dyn ControlChannel>,
    receiving: Option<Pending<Bytes>>,
    sending: Option<Pending<()>>,
    waiting: VecDeque<Vec<u8>>,
    broken: Option<ChannelError>,
}

impl Mail {
    pub(super) fn new(channel: Arc<dyn ControlChannel>) -> Self {
        Self { channel, receiving: None, sending: None, waiting: VecDeque::new(), broken: None }
    }

    pub(super) fn address(&self) -> String {
        self.channel.peer_address()
    }

    /// Puts a message behind those that wait.
    pub(super) fn put(&mut self, message: Vec<u8>) {
        if self.broken.is_some() {
            return;
        }
        if self.waiting.len() >= MAX_WAITING {
            self.broken = Some(ChannelError::Protocol { reason: "the peer asks and does not read the answers".into() });
            self.waiting.clear();
            return;
        }
        self.waiting.push_back(message);
    }

    /// Hands over what the channel takes now.
    pub(super) fn send(&mut self, context: &mut Context<'_>) {
        loop {
            if let Some(sending) = &mut self.sending {
                let Poll::Ready(result) = sending.as_mut().poll(context) else { return };
                self.sending = None;
                if let Err(error) = result {
                    self.broken.get_or_insert(error);
                    self.waiting.clear();
                }
            }
            let Some(message) = self.waiting.pop_front() else { return };
            let channel = Arc::clone(&self.channel);
            self.sending = Some(Box::pin(async move { channel.send(Topic::Transport, &message).await }));
        }
    }

    /// Whether everything is handed over, or never will be.
    pub(super) fn is_sent(&self) -> bool {
        self.broken.is_some() || (self.sending.is_none() && self.waiting.is_empty())
    }

    /// The next message.
    pub(super) fn receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, ChannelError>> {
        if let Some(error) = &self.broken {
            return Poll::Ready(Err(error.clone()));
        }
        let channel = &self.channel;
        let receiving = self.receiving.get_or_insert_with(|| {
            let channel = Arc::clone(channel);
            Box::pin(async move { channel.receive(Topic::Transport).await })
        });
        let result = receiving.as_mut().poll(context);
        if result.is_ready() {
            self.receiving = None;
        }
        result
    }
}
