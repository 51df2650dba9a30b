//! One connection, as the thread sees it.
//!
//! [`protocol`] has what is said over the control channel, [`lanes`] the life of the queue pairs, [`mail`] the channel
//! itself; here is what brings them together: completions in, deadlines, and the end.

mod lanes;
mod mail;
mod protocol;

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
    time::Instant,
};

use bytes::Bytes;
use transport_core::{ConnectError, ControlChannel, Event, RegionId};

use self::mail::Mail;
use super::{
    Routes,
    lane::{DRAIN, LaneControl, Step},
    random,
};
use crate::{
    host::Host,
    message::{Body, Message, RailAddress, Side},
    peer::{Attention, End, Peer, finish},
    sender::{ControlMemory, Finished, LaneEvent, receive_slot},
    verbs::{Completion, QueuePair, ReceiveRequest, Status},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The sides tell each other what they are.
    Greeting,
    /// The lanes are built.
    Building,
    /// In use.
    Connected,
    /// The queue pairs are drained, until then.
    Ending { deadline: Instant },
    /// Nothing is left but the last words, which have until then.
    Farewell { deadline: Instant },
}

pub(super) struct Session {
    number: usize,
    host: Arc<Host>,
    peer: Arc<Peer>,
    attention: Arc<Attention>,
    waker: Waker,
    mail: Mail,
    initiator: bool,
    attempt: Option<u64>,
    phase: Phase,
    /// When connecting has taken too long.
    deadline: Instant,
    remote: Option<Side>,
    lanes: Vec<LaneControl>,
    /// Both sides have to say that their lanes are up.
    up_here: bool,
    up_there: bool,
    /// Notifications that came before the program knows of the connection.
    early: Vec<Bytes>,
    /// Notifications of the completions that are being taken.
    arrived: Vec<Bytes>,
    /// Revocations that the peer asked for, and what must have passed before they are answered.
    revoking: Vec<(u64, Vec<u64>)>,
    /// Revocations that the peer has answered.
    revoked: Vec<u64>,
    /// Since when no lane is open.
    pathless: Option<Instant>,
    pub(super) inbox: Vec<(usize, Completion)>,
    finished: Vec<Finished>,
}

impl Session {
    pub(super) fn new(
        number: usize,
        host: &Arc<Host>,
        peer: Arc<Peer>,
        channel: Arc<dyn ControlChannel>,
        now: Instant,
    ) -> Self {
        let attention = Arc::clone(&peer.attention);
        let initiator = channel.is_initiator();
        let mut session = Self {
            number,
            host: Arc::clone(host),
            waker: Waker::from(Arc::clone(&attention)),
            attention,
            peer,
            mail: Mail::new(channel),
            initiator,
            attempt: None,
            phase: Phase::Greeting,
            deadline: now + host.config.connect_timeout,
            remote: None,
            lanes: Vec::new(),
            up_here: false,
            up_there: false,
            early: Vec::new(),
            arrived: Vec::new(),
            revoking: Vec::new(),
            revoked: Vec::new(),
            pathless: None,
            inbox: Vec::new(),
            finished: Vec::new(),
        };
        if initiator {
            session.attempt = Some(random::attempt());
            session.say(Body::Hello(session.side()));
        }
        session.attention.raise();
        session
    }

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(super) fn wants_attention(&self) -> bool {
        self.attention.take()
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.peer.outbound().sender.is_idle()
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.lanes.iter().any(|lane| lane.waits) || self.peer.outbound().sender.is_blocked()
    }

    /// Whether no queue pair is left, so that nothing of the peer lands any more.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self.phase, Phase::Farewell { .. })
    }

    /// Whether there is nothing left to do.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Farewell { deadline } if self.mail.is_sent() || now >= deadline)
    }

    /// What this side is.
    fn side(&self) -> Side {
        let rails = self.host.rails.iter().map(|rail| RailAddress {
            device: rail.choice.device.clone(),
            link_layer: rail.choice.link_layer,
            gid: rail.choice.gid.as_ref().map(|entry| entry.gid.octets()),
            lid: rail.choice.lid,
            mtu: rail.choice.mtu,
        });
        Side {
            rails: rails.collect(),
            queue_pairs: self.host.config.queue_pairs as u16,
            credits: self.host.config.events_per_peer as u32,
        }
    }

    fn say(&mut self, body: Body) {
        let Some(attempt) = self.attempt else { return };
        self.mail.put(Message { attempt, body }.encode());
    }

    /// Does what there is to do: messages, deadlines, lanes, the end.
    pub(super) fn attend(&mut self, now: Instant, routes: &mut Routes) {
        if self.peer.ended().is_none() {
            self.read(now, routes);
        }
        if let Some(end) = self.peer.ended().cloned()
            && !matches!(self.phase, Phase::Ending { .. } | Phase::Farewell { .. })
        {
            self.begin_ending(&end, now);
        }
        {
            let mut outbound = self.peer.outbound();
            outbound.sender.cancel_asked();
            outbound.sender.unblock();
            outbound.sender.fail_stalled(now);
        }
        match self.phase {
            Phase::Greeting | Phase::Building if now >= self.deadline => self.give_up(),
            Phase::Greeting => {}
            Phase::Building | Phase::Connected => {
                self.drive_lanes(now, routes);
                self.look_for_stuck_lanes(now);
                self.check_paths(now);
            }
            Phase::Ending { deadline } => self.drive_end(now, deadline, routes),
            Phase::Farewell { .. } => {}
        }
        self.return_credits();
        self.pump();
        self.answer_revocations();
        self.mail.send(&mut Context::from_waker(&self.waker));
    }

    /// Takes the completions in the inbox.
    pub(super) fn take_completions(&mut self, routes: &mut Routes) {
        let mut inbox = std::mem::take(&mut self.inbox);
        let peer = Arc::clone(&self.peer);
        let mut events = Vec::new();
        {
            let mut outbound = peer.outbound();
            for (lane, completion) in &inbox {
                if let Some(slot) = receive_slot(completion.id) {
                    let rail = lane_rail(&self.host, self.remote.as_ref(), *lane).0;
                    let control = outbound.sender.control();
                    let payload = (completion.status == Status::Success)
                        .then(|| control.received(*lane, slot, completion.bytes))
                        .flatten();
                    let again = control.receive(rail, *lane, slot);
                    self.received(*lane, payload, again, &outbound.queue_pairs);
                    continue;
                }
                match outbound.sender.completed(*lane, completion.id, completion.status) {
                    LaneEvent::None => {}
                    LaneEvent::Carried if self.lanes.get(*lane).is_some_and(|lane| lane.failures == 0) => {}
                    event => events.push((*lane, event)),
                }
            }
            outbound.pump();
            outbound.sender.take_finished(&mut self.finished);
        }
        inbox.clear();
        self.inbox = inbox;
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.drain(..).for_each(|payload| self.arrive(payload));
        self.arrived = arrived;
        finish(&mut self.finished);
        // The clock is not asked for what nearly every completion is: one more that went well.
        if !events.is_empty() {
            let now = Instant::now();
            events.into_iter().for_each(|(lane, event)| self.lane_event(lane, event, now));
        }
        self.answer_revocations();
        self.mail.send(&mut Context::from_waker(&self.waker));
        if !matches!(self.phase, Phase::Connected) {
            self.settle_drained(Instant::now(), routes);
        }
    }

    /// A receive has ended: a notification, or the end of its queue pair.
    fn received(
        &mut self,
        lane: usize,
        payload: Option<Bytes>,
        again: Option<ReceiveRequest>,
        queue_pairs: &[Option<Box<dyn QueuePair>>],
    ) {
        let Some(control) = self.lanes.get_mut(lane) else { return };
        let Some(payload) = payload else {
            control.receives = control.receives.saturating_sub(1);
            return;
        };
        control.received += 1;
        control.carried = true;
        let posted = match (again, queue_pairs.get(lane)) {
            (Some(request), Some(Some(queue_pair))) => queue_pair.post_receive(&[request]).is_ok(),
            _ => false,
        };
        if !posted {
            control.receives = control.receives.saturating_sub(1);
        }
        self.peer.credit.received.fetch_add(1, Ordering::AcqRel);
        self.arrived.push(payload);
    }

    /// Passes a notification on. Not under the peer's lock: one too many ends the connection, which takes it.
    fn arrive(&mut self, payload: Bytes) {
        match self.phase {
            Phase::Greeting | Phase::Building if self.early.len() >= self.host.config.events_per_peer => {
                self.break_off("it sends more notifications than there is room for");
            }
            Phase::Greeting | Phase::Building => self.early.push(payload),
            // Also at the end: a peer that says goodbye may have heard of the delivery before this side's thread did.
            _ if self.was_disconnected_here() => {}
            _ => self.deliver(payload),
        }
    }

    /// Whether the program does not want to hear of the peer any more.
    fn was_disconnected_here(&self) -> bool {
        matches!(self.peer.ended(), Some(End::Disconnected))
    }

    /// Puts a notification into the queue of events. There is room: the peer counts its credits.
    fn deliver(&self, payload: Bytes) {
        let mut event = Some(Event::Notification { peer: self.peer.id, payload });
        let pushed = self.host.events.poll_push(&mut Context::from_waker(Waker::noop()), &mut event);
        if pushed.is_pending() {
            self.peer.begin_end(End::Lost("the peer sent more notifications than it has room for".into()));
        }
    }

    /// Tells the peer that the program has taken notifications, once it is likely to wait for that.
    fn return_credits(&mut self) {
        let capacity = self.host.config.events_per_peer as u64;
        if self.phase != Phase::Connected || !self.peer.credit.is_due(capacity) {
            return;
        }
        let taken = self.peer.credit.taken.load(Ordering::Acquire);
        self.peer.credit.told.store(taken, Ordering::Release);
        self.say(Body::Credits { total: taken + capacity });
    }

    /// Posts what there is room for, and ends what is over.
    pub(super) fn pump(&mut self) {
        {
            let mut outbound = self.peer.outbound();
            outbound.pump();
            outbound.sender.take_finished(&mut self.finished);
        }
        finish(&mut self.finished);
    }

    /// Asks the peer to stop writing to a region; answers whether it has to be waited for.
    pub(super) fn revoke(&mut self, serial: u64, region: RegionId) -> bool {
        if self.is_quiet() || !self.peer.granted.revoke(region) {
            return false;
        }
        if self.phase == Phase::Connected {
            self.say(Body::Revoke { serial, index: region.index, generation: region.generation });
            self.attention.raise();
        }
        true
    }

    /// The revocations that the peer has answered since the last call.
    pub(super) fn take_revoked(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.revoked)
    }

    /// Answers the peer's revocations, once nothing that it could hit is on its way.
    fn answer_revocations(&mut self) {
        if self.revoking.is_empty() {
            return;
        }
        let passed: Vec<u64> = {
            let outbound = self.peer.outbound();
            self.revoking
                .iter()
                .filter(|(_, mark)| outbound.sender.has_passed(mark))
                .map(|(serial, _)| *serial)
                .collect()
        };
        self.revoking.retain(|(serial, _)| !passed.contains(serial));
        for serial in passed {
            self.say(Body::Revoked { serial });
        }
    }

    // The end.

    /// Connecting has taken too long.
    fn give_up(&mut self) {
        let address = self.mail.address();
        let timeout = self.host.config.connect_timeout;
        let reason = self.reasons();
        let error = if self.phase == Phase::Greeting || reason.is_empty() {
            ConnectError::TimedOut { address, timeout }
        } else {
            ConnectError::Broken { address, reason }
        };
        self.refuse(error);
    }

    /// Connecting has failed.
    fn refuse(&self, error: ConnectError) {
        // The end first: whoever waits for the connection ends it as well when it has failed, and the first end counts.
        // Nobody has a name for it yet, so nobody is told of its loss.
        self.peer.begin_end(End::Lost(error.to_string().into()));
        self.peer.set_connected(Err(error));
    }

    /// The control channel or the peer has ended the connection.
    fn lose(&self, reason: &str, error: ConnectError) {
        self.peer.begin_end(End::Lost(reason.into()));
        self.peer.set_connected(Err(error));
    }

    fn begin_ending(&mut self, end: &End, now: Instant) {
        // Whoever began the end does this as well, and may not have come to it yet.
        self.peer.outbound().sender.close(&end.error());
        let address = self.mail.address();
        self.peer.set_connected(Err(match end {
            End::Closed => ConnectError::Closed,
            End::Disconnected | End::Lost(_) => ConnectError::Broken { address, reason: end.reason() },
        }));
        self.say(Body::Goodbye { reason: crate::message::reason(&end.farewell()) });
        self.mail.send(&mut Context::from_waker(&self.waker));
        for lane in 0..self.lanes.len() {
            self.stop_lane(lane, &end.reason(), now);
        }
        // It is over as soon as the lanes are drained.
        self.attention.raise();
        self.phase = Phase::Ending { deadline: now + DRAIN };
    }

    fn drive_end(&mut self, now: Instant, deadline: Instant, routes: &mut Routes) {
        self.settle_drained(now, routes);
        if now >= deadline {
            (0..self.lanes.len()).for_each(|lane| self.release(lane, now, routes));
        }
        if self.lanes.iter().any(|lane| !matches!(lane.step, Step::Idle { .. })) {
            return;
        }
        // No queue pair is left: nothing of the peer can land, and nothing of ours is read.
        self.pump();
        {
            let mut outbound = self.peer.outbound();
            debug_assert!(outbound.sender.is_idle(), "all work requests have ended");
            outbound.sender.begin(Vec::new(), 0, ControlMemory::default());
            outbound.queue_pairs.clear();
        }
        self.phase = Phase::Farewell { deadline: now + DRAIN };
        if let Some(End::Lost(reason)) = self.peer.ended()
            && self.peer.was_connected()
        {
            self.host.events.push_lost(self.peer.id, reason.to_string());
        }
        self.peer.set_ended();
        self.attention.raise();
    }
}

/// The rails of a lane, here and there: pairs of rails in turn, so that the side with fewer uses each several times.
fn lane_rail(host: &Host, remote: Option<&Side>, lane: usize) -> (usize, usize) {
    let (ours, theirs) = (host.rails.len().max(1), remote.map_or(1, |side| side.rails.len().max(1)));
    let pair = lane % ours.max(theirs);
    (pair % ours, pair % theirs)
}
