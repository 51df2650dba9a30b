//! Control channels: two bounded queues of messages for each topic.

use std::{
    any::Any,
    collections::VecDeque,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{host::Host, link::Link};
use crate::{
    channel::{ControlChannel, Topic},
    error::ChannelError,
    timer::Timer,
};

/// Longest message, in bytes.
const MAX_MESSAGE: usize = 1 << 20;
/// Messages of one topic that the reader has not taken yet.
const MAX_UNREAD: usize = 64;
/// How long a full queue is waited for.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// One end of a control channel between two hosts of a [`MemFabric`](super::MemFabric).
#[derive(Debug)]
pub struct MemChannel {
    wire: Arc<Wire>,
    /// Which end this is: 0 dialled, 1 listened.
    side: usize,
    host: u64,
    peer_name: String,
    timer: Arc<Timer>,
}

/// What the two ends share.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) link: Link,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By topic, then by the side that reads.
    queues: [[Queue; 2]; 2],
    closed: Option<Closed>,
    watchers: Vec<Waker>,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Bytes>,
    wakers: Vec<Waker>,
}

#[derive(Clone, Debug)]
enum Closed {
    By { side: usize, reason: String },
    Lost { reason: String },
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host of one end died.
    pub(super) fn lose(&self, reason: &str) {
        self.close(Closed::Lost { reason: reason.into() });
    }

    fn close(&self, how: Closed) {
        let wakers = {
            let mut state = self.lock();
            if state.closed.is_some() {
                return;
            }
            state.closed = Some(how);
            let mut wakers = std::mem::take(&mut state.watchers);
            for queue in state.queues.iter_mut().flatten() {
                wakers.append(&mut queue.wakers);
            }
            wakers
        };
        wakers.into_iter().for_each(Waker::wake);
        self.link.wake();
    }
}

impl State {
    fn ended(&self, side: usize) -> Option<ChannelError> {
        self.closed.as_ref().map(|closed| match closed {
            Closed::By { side: by, .. } if *by == side => ChannelError::Closed,
            Closed::By { reason, .. } => ChannelError::ClosedByPeer { reason: reason.clone() },
            Closed::Lost { reason } => ChannelError::Lost { reason: reason.clone() },
        })
    }

    fn queue(&mut self, topic: Topic, reader: usize) -> &mut Queue {
        let [engine, transport] = &mut self.queues;
        let [dialler, listener] = match topic {
            Topic::Engine => engine,
            Topic::Transport => transport,
        };
        if reader == 0 { dialler } else { listener }
    }
}

fn watch(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
    }
}

impl MemChannel {
    pub(super) fn pair(dialler: &Arc<Host>, listener: &Arc<Host>, timer: &Arc<Timer>) -> (Arc<Self>, Arc<Self>) {
        let wire = Arc::new(Wire { link: Link::default(), state: Mutex::default() });
        dialler.add_wire(&wire);
        listener.add_wire(&wire);
        let end = |side, host: &Host, peer: &Host| {
            let timer = Arc::clone(timer);
            Arc::new(Self { wire: Arc::clone(&wire), side, host: host.number, peer_name: peer.name(), timer })
        };
        (end(0, dialler, listener), end(1, listener, dialler))
    }

    pub(super) fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }

    pub(super) fn side(&self) -> usize {
        self.side
    }

    /// The number of the host whose end this is.
    pub(super) fn host(&self) -> u64 {
        self.host
    }

    pub(super) fn ended(&self) -> Option<ChannelError> {
        self.wire.lock().ended(self.side)
    }

    fn poll_send(&self, context: &Context<'_>, topic: Topic, message: &[u8]) -> Poll<Result<(), ChannelError>> {
        let readers = {
            let mut state = self.wire.lock();
            if let Some(error) = state.ended(self.side) {
                return Poll::Ready(Err(error));
            }
            let queue = state.queue(topic, 1 - self.side);
            if queue.messages.len() >= MAX_UNREAD {
                watch(&mut queue.wakers, context);
                return Poll::Pending;
            }
            queue.messages.push_back(Bytes::copy_from_slice(message));
            std::mem::take(&mut queue.wakers)
        };
        readers.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }

    fn poll_receive(&self, context: &Context<'_>, topic: Topic) -> Poll<Result<Bytes, ChannelError>> {
        let (message, senders) = {
            let mut state = self.wire.lock();
            let ended = state.ended(self.side);
            let queue = state.queue(topic, self.side);
            match (queue.messages.pop_front(), ended) {
                (Some(message), _) => (message, std::mem::take(&mut queue.wakers)),
                (None, Some(error)) => return Poll::Ready(Err(error)),
                (None, None) => {
                    watch(&mut queue.wakers, context);
                    return Poll::Pending;
                }
            }
        };
        senders.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(message))
    }
}

#[async_trait]
impl ControlChannel for MemChannel {
    fn peer_identity(&self) -> &[u8] {
        self.peer_name.as_bytes()
    }

    fn peer_address(&self) -> String {
        self.peer_name.clone()
    }

    fn is_initiator(&self) -> bool {
        self.side == 0
    }

    fn max_message(&self) -> usize {
        MAX_MESSAGE
    }

    async fn send(&self, topic: Topic, message: &[u8]) -> Result<(), ChannelError> {
        if message.len() > MAX_MESSAGE {
            return Err(ChannelError::TooLong { len: message.len(), max: MAX_MESSAGE });
        }
        let mut timeout = pin!(self.timer.sleep_until(Instant::now() + SEND_TIMEOUT));
        poll_fn(|context| match self.poll_send(context, topic, message) {
            Poll::Pending => {
                timeout.as_mut().poll(context).map(|()| Err(ChannelError::Stalled { timeout: SEND_TIMEOUT }))
            }
            ready => ready,
        })
        .await
    }

    async fn receive(&self, topic: Topic) -> Result<Bytes, ChannelError> {
        poll_fn(|context| self.poll_receive(context, topic)).await
    }

    async fn closed(&self) -> ChannelError {
        poll_fn(|context| {
            let mut state = self.wire.lock();
            if let Some(error) = state.ended(self.side) {
                return Poll::Ready(error);
            }
            watch(&mut state.watchers, context);
            Poll::Pending
        })
        .await
    }

    fn close(&self, reason: &str) {
        self.wire.close(Closed::By { side: self.side, reason: reason.into() });
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::mem::{MemConfig, MemFabric};

    #[test]
    fn messages_arrive_in_order_and_a_full_topic_holds_up_no_other() {
        let fabric = MemFabric::new();
        let (a, b) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
        let (here, there) = fabric.channel_pair(&a, &b);
        assert!(here.is_initiator() && !there.is_initiator());
        for number in 0..MAX_UNREAD {
            here.send(Topic::Engine, &[number as u8]).now_or_never().unwrap().unwrap();
        }
        assert!(here.send(Topic::Engine, b"too many").now_or_never().is_none());
        here.send(Topic::Transport, b"another topic").now_or_never().unwrap().unwrap();
        assert_eq!(there.receive(Topic::Transport).now_or_never().unwrap().unwrap(), &b"another topic"[..]);
        for number in 0..MAX_UNREAD {
            assert_eq!(there.receive(Topic::Engine).now_or_never().unwrap().unwrap(), &[number as u8][..]);
        }
        assert!(there.receive(Topic::Engine).now_or_never().is_none());
    }

    #[test]
    fn closing_tells_both_ends_who_and_why() {
        let fabric = MemFabric::new();
        let (a, b) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
        let (here, there) = fabric.channel_pair(&a, &b);
        assert!(there.closed().now_or_never().is_none());
        here.send(Topic::Engine, b"last words").now_or_never().unwrap().unwrap();
        here.close("done");
        assert_eq!(there.receive(Topic::Engine).now_or_never().unwrap().unwrap(), &b"last words"[..]);
        let reason = String::from("done");
        assert_eq!(there.closed().now_or_never(), Some(ChannelError::ClosedByPeer { reason }));
        assert_eq!(here.send(Topic::Engine, b"more").now_or_never(), Some(Err(ChannelError::Closed)));
    }
}
