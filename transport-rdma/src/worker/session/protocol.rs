//! What is said over the control channel.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use transport_core::{ChannelError, ConnectError, RegionId};

use super::{Phase, Session, lane_rail};
use crate::{
    message::{Body, MAX_LANES, Message, Offer, Side},
    peer::{End, Outbound},
    sender::{ControlMemory, Lane},
    worker::{
        Routes,
        lane::{LaneControl, Step},
    },
};

/// Messages of one peer in one turn, so that a talkative one does not hold up the others.
const TURN: usize = 64;

impl Session {
    /// Reads what has come.
    pub(super) fn read(&mut self, now: Instant, routes: &mut Routes) {
        let waker = self.waker.clone();
        for _ in 0..TURN {
            match self.mail.receive(&mut Context::from_waker(&waker)) {
                Poll::Pending => return,
                Poll::Ready(Ok(bytes)) => match Message::decode(&bytes) {
                    Ok(message) => self.hear(message, now, routes),
                    Err(malformed) => return self.break_off(&malformed.to_string()),
                },
                Poll::Ready(Err(error)) => {
                    let reason = match &error {
                        ChannelError::Lost { reason } => reason.clone(),
                        other => other.to_string(),
                    };
                    let address = self.mail.address();
                    return self.lose(&reason, ConnectError::Broken { address, reason: error.to_string() });
                }
            }
            if self.peer.ended().is_some() {
                return;
            }
        }
        self.attention.raise();
    }

    /// The peer broke the protocol.
    pub(super) fn break_off(&self, reason: &str) {
        let address = self.mail.address();
        let error = ConnectError::Protocol { address, reason: reason.into() };
        self.lose(&format!("it broke the protocol: {reason}"), error);
    }

    fn hear(&mut self, message: Message, now: Instant, routes: &mut Routes) {
        let Message { attempt, body } = message;
        if let Body::Hello(side) = body {
            return self.hear_hello(attempt, side, now, routes);
        }
        // What belongs to another attempt is late.
        if self.attempt != Some(attempt) {
            return;
        }
        match body {
            Body::Hello(_) => {}
            Body::Welcome(side) => {
                if self.initiator && self.phase == Phase::Greeting {
                    self.set_up(side, now);
                }
            }
            Body::Offer(offer) => self.hear_offer(offer, now),
            Body::Answer(offer) => self.hear_answer(offer, now),
            Body::Ready { lane, epoch } => self.hear_ready(usize::from(lane), epoch, now),
            Body::Down { lane, epoch, carried, reason } => {
                self.hear_down(usize::from(lane), epoch, carried, &reason, now);
            }
            Body::Up => {
                self.up_there = true;
                self.check_connected();
            }
            Body::Credits { total } => {
                if !self.peer.outbound().sender.grant(total) {
                    self.break_off("it takes room for notifications back");
                }
            }
            Body::Revoke { serial, index, generation } => {
                let region = RegionId { index, generation };
                self.peer.imported.revoke(region);
                let mark = self.peer.outbound().sender.revoke(region);
                self.revoking.push((serial, mark));
            }
            Body::Revoked { serial } => self.revoked.push(serial),
            Body::Goodbye { reason } => {
                let address = self.mail.address();
                self.lose(&reason, ConnectError::Refused { address, reason: reason.clone() });
            }
        }
    }

    fn hear_hello(&mut self, attempt: u64, side: Side, now: Instant, routes: &mut Routes) {
        if self.initiator {
            return self.break_off("it greets as the side that dialled, and so did this side");
        }
        match self.phase {
            Phase::Greeting => {}
            Phase::Building => {
                // The other side has given its last attempt up and begins again.
                (0..self.lanes.len()).for_each(|lane| self.release(lane, now, routes));
                (self.up_here, self.up_there) = (false, false);
            }
            Phase::Connected => {
                let reason = "the peer connected again over the same channel";
                return self.peer.begin_end(End::Lost(reason.into()));
            }
            Phase::Ending { .. } | Phase::Farewell { .. } => return,
        }
        self.attempt = Some(attempt);
        self.say(Body::Welcome(self.side()));
        self.set_up(side, now);
    }

    /// Both sides are known: makes the lanes.
    fn set_up(&mut self, side: Side, now: Instant) {
        let host = Arc::clone(&self.host);
        let pairs = host.rails.len().max(side.rails.len());
        let queue_pairs = host.config.queue_pairs.min(usize::from(side.queue_pairs)).max(1);
        let count = (pairs * queue_pairs).min(MAX_LANES);
        let (send, receive) = self.depths();
        let slots = (side.credits as usize).min(host.config.max_in_flight).min(256) as u32;
        let control = ControlMemory::new(&host.rails, host.piece, slots, receive, count, host.regions.count());
        let control = match control {
            Ok(control) => control,
            Err(error) => return self.refuse(ConnectError::Local { reason: error.to_string() }),
        };
        let lanes = (0..count).filter_map(|lane| {
            let (ours, theirs) = lane_rail(&host, Some(&side), lane);
            let rail = host.rails.get(ours)?;
            Some(Lane::new(ours, theirs, Arc::clone(&rail.name), send, Arc::clone(&rail.credits)))
        });
        {
            let mut outbound = self.peer.outbound();
            let Outbound { sender, queue_pairs } = &mut *outbound;
            sender.begin(lanes.collect(), side.credits.into(), control);
            queue_pairs.clear();
            queue_pairs.resize_with(count, || None);
        }
        self.lanes = (0..count).map(|_| LaneControl::new(now)).collect();
        let _ = self.peer.remote_rails.set(side.rails.len());
        self.remote = Some(side);
        self.phase = Phase::Building;
        self.attention.raise();
    }

    /// Work requests in the queues of a queue pair.
    pub(super) fn depths(&self) -> (u32, u32) {
        let most = self.host.rails.iter().map(|rail| rail.attributes.max_qp_wr).min().unwrap_or(1).max(1);
        (self.host.config.queue_depth.clamp(1, most), (self.host.config.events_per_peer as u32).clamp(1, most))
    }

    fn hear_offer(&mut self, offer: Offer, now: Instant) {
        if self.initiator {
            return self.break_off("it offers a queue pair, which is for the side that dialled");
        }
        let number = usize::from(offer.lane);
        let Some(lane) = self.lanes.get_mut(number) else {
            return self.break_off("it offers a queue pair for a lane that there is not");
        };
        if offer.epoch <= lane.epoch {
            return;
        }
        lane.offered = Some(offer);
        if !matches!(lane.step, Step::Idle { .. } | Step::Draining { .. }) {
            self.stop_lane(number, "the peer builds it anew", now);
        }
    }

    fn hear_answer(&mut self, offer: Offer, now: Instant) {
        let number = usize::from(offer.lane);
        let offered = |lane: &LaneControl| lane.epoch == offer.epoch && matches!(lane.step, Step::Offered { .. });
        if !self.initiator || !self.lanes.get(number).is_some_and(offered) {
            return;
        }
        if !self.reconcile(number, offer) {
            return;
        }
        match self.join(number, offer) {
            Ok(()) => {
                self.say(Body::Ready { lane: offer.lane, epoch: offer.epoch });
                self.probe(number, now);
            }
            Err(reason) => self.lane_failed(number, &reason, now),
        }
    }

    fn hear_ready(&mut self, number: usize, epoch: u32, now: Instant) {
        let answered = |lane: &LaneControl| lane.epoch == epoch && matches!(lane.step, Step::Offered { .. });
        if !self.initiator && self.lanes.get(number).is_some_and(answered) {
            self.probe(number, now);
        }
    }

    fn hear_down(&mut self, number: usize, epoch: u32, carried: bool, reason: &str, now: Instant) {
        let Some(lane) = self.lanes.get_mut(number) else { return };
        if epoch < lane.epoch {
            return;
        }
        let reason = format!("the peer says: {reason}");
        lane.offered.take_if(|offer| offer.epoch <= epoch);
        match &mut lane.step {
            Step::Draining { .. } | Step::Idle { .. } => {
                // Of a queue pair that this side had as well, it is the failure that was counted here.
                if epoch > lane.epoch || epoch == 0 {
                    lane.failures = lane.failures.saturating_add(1);
                    lane.reason = reason;
                }
                if carried {
                    lane.failures = lane.failures.min(1);
                }
                let next = now + lane.backoff();
                if let Step::Idle { next: planned } = &mut lane.step {
                    *planned = next.min(*planned);
                }
                self.check_resolved();
            }
            Step::Fading { .. } => {}
            _ => {
                lane.carried |= carried;
                self.fade(number, &reason, now);
            }
        }
    }

    /// What the peer says that it has received must not be more than what was sent.
    pub(super) fn reconcile(&mut self, number: usize, offer: Offer) -> bool {
        let valid = self.peer.outbound().sender.reconcile(number, offer.received);
        if !valid {
            self.break_off("it says that it received more notifications than were sent");
        }
        valid
    }
}
