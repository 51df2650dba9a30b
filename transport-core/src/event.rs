//! What a transport tells its program without being asked.
//!
//! The hazards: a program that does not listen must not make the queue grow, one peer must not fill it for the others,
//! and a listener must not miss a wake-up. The queue is bounded by peer; whoever delivers waits for room, and with that
//! the sender of the notification waits too.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use crate::id::PeerId;

/// Something that happened at a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// All bytes of a batch with a notification, and of the transfers that it came after, are visible.
    Notification {
        /// Who sent it.
        peer: PeerId,
        /// What the sender attached.
        payload: Bytes,
    },
    /// The connection to a peer ended and was not ended by this side. No byte of that peer lands any more.
    PeerLost {
        /// The peer.
        peer: PeerId,
        /// What was noticed.
        reason: String,
    },
}

impl Event {
    /// The peer that it is about.
    pub fn peer(&self) -> PeerId {
        match self {
            Self::Notification { peer, .. } | Self::PeerLost { peer, .. } => *peer,
        }
    }
}

/// The queue of events of one transport instance.
#[derive(Debug)]
pub struct EventQueue {
    per_peer: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    notifications: HashMap<PeerId, usize>,
    closed: bool,
    listener: Option<Waker>,
    producers: Vec<Waker>,
}

impl EventQueue {
    /// A queue that keeps at most `per_peer` notifications of each peer.
    pub fn new(per_peer: usize) -> Self {
        Self { per_peer: per_peer.max(1), state: Mutex::default() }
    }

    /// Puts an event into the queue, or waits for room. The event is taken out of `event` when it is in the queue; after
    /// a close it is taken and dropped.
    ///
    /// The happens-before edge of contract clause C5: what the caller wrote before this call is visible to the thread
    /// that takes the event out.
    pub fn poll_push(&self, context: &mut Context<'_>, event: &mut Option<Event>) -> Poll<()> {
        let listener = {
            let mut state = self.lock();
            let Some(peer) = event.as_ref().map(Event::peer) else { return Poll::Ready(()) };
            if state.closed {
                *event = None;
                return Poll::Ready(());
            }
            if matches!(event, Some(Event::Notification { .. })) {
                let count = state.notifications.entry(peer).or_default();
                if *count >= self.per_peer {
                    if !state.producers.iter().any(|waker| waker.will_wake(context.waker())) {
                        state.producers.push(context.waker().clone());
                    }
                    return Poll::Pending;
                }
                *count += 1;
            }
            state.events.extend(event.take());
            state.listener.take()
        };
        if let Some(listener) = listener {
            listener.wake();
        }
        Poll::Ready(())
    }

    /// Puts an event into the queue, waiting for room.
    ///
    /// # Cancel safety
    /// Safe: a push whose future was dropped has not happened.
    pub async fn push(&self, event: Event) {
        let mut event = Some(event);
        std::future::poll_fn(|context| self.poll_push(context, &mut event)).await;
    }

    /// Notes the loss of a peer; needs no room, since there is one a connection.
    pub fn push_lost(&self, peer: PeerId, reason: String) {
        let listener = {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            state.events.push_back(Event::PeerLost { peer, reason });
            state.listener.take()
        };
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    /// The next event; `None` once the queue is closed and empty. Of several listeners the last one is woken.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let (event, producers) = {
            let mut state = self.lock();
            let Some(event) = state.events.pop_front() else {
                if state.closed {
                    return Poll::Ready(None);
                }
                state.listener = Some(context.waker().clone());
                return Poll::Pending;
            };
            if matches!(event, Event::Notification { .. }) {
                let peer = event.peer();
                let left = state.notifications.get_mut(&peer).map_or(0, |count| {
                    *count -= 1;
                    *count
                });
                if left == 0 {
                    state.notifications.remove(&peer);
                }
            }
            (event, std::mem::take(&mut state.producers))
        };
        producers.into_iter().for_each(Waker::wake);
        Poll::Ready(Some(event))
    }

    /// Closes the queue: what is in it can still be taken out, nothing comes in any more, and nobody waits.
    pub fn close(&self) {
        let (listener, producers) = {
            let mut state = self.lock();
            state.closed = true;
            (state.listener.take(), std::mem::take(&mut state.producers))
        };
        listener.into_iter().chain(producers).for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    const A: PeerId = PeerId { index: 0, generation: 1 };
    const B: PeerId = PeerId { index: 1, generation: 1 };

    fn notification(peer: PeerId) -> Option<Event> {
        Some(Event::Notification { peer, payload: Bytes::from_static(b"n") })
    }

    #[test]
    fn a_full_peer_waits_and_holds_up_no_other() {
        let queue = EventQueue::new(1);
        let mut context = Context::from_waker(noop_waker_ref());
        assert!(queue.poll_push(&mut context, &mut notification(A)).is_ready());
        let mut second = notification(A);
        assert!(queue.poll_push(&mut context, &mut second).is_pending());
        assert!(second.is_some(), "an event that found no room stays with its producer");
        assert!(queue.poll_push(&mut context, &mut notification(B)).is_ready());
        queue.push_lost(A, "gone".into());
        assert_eq!(queue.poll_next(&mut context), Poll::Ready(notification(A)));
        assert!(queue.poll_push(&mut context, &mut second).is_ready());
        assert_eq!(queue.poll_next(&mut context), Poll::Ready(notification(B)));
        assert!(matches!(queue.poll_next(&mut context), Poll::Ready(Some(Event::PeerLost { .. }))));
        queue.close();
        assert_eq!(queue.poll_next(&mut context), Poll::Ready(notification(A)));
        assert_eq!(queue.poll_next(&mut context), Poll::Ready(None));
    }
}
