//! Building, failing, draining and rebuilding lanes.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use transport_core::ConnectError;

use super::{Phase, Session, lane_rail};
use crate::{
    message::{self, Body, Offer},
    peer::End,
    rail::Rail,
    sender::LaneEvent,
    verbs::{PortState, QueuePair},
    worker::{
        Routes,
        lane::{self, DRAIN, FADE, Join, LAST_PATH_PAUSE, LaneControl, Step},
        random,
    },
};

/// How often lanes are tried while none is open: a port that comes back on the other side makes no event on this one.
const WITHOUT_A_PATH: Duration = Duration::from_millis(200);

impl Session {
    /// Takes each lane on: new queue pairs where there is none, deadlines, drained ones.
    pub(super) fn drive_lanes(&mut self, now: Instant, routes: &mut Routes) {
        self.settle_drained(now, routes);
        for number in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get(number) else { continue };
            let (rail, _) = lane_rail(&self.host, self.remote.as_ref(), number);
            let lost = self.host.rails.get(rail).is_none_or(Rail::is_lost);
            match lane.step {
                Step::Idle { .. } if lost => self.refuse_lane(number, now),
                Step::Idle { next } if self.initiator && now >= next => self.offer(number, now, routes),
                Step::Idle { .. } if !self.initiator && lane.offered.is_some() => self.answer(number, now, routes),
                Step::Offered { deadline } if now >= deadline => {
                    self.lane_failed(number, "the peer does not go on with it in time", now);
                }
                Step::Fading { until } if now >= until => {
                    let reason = lane.reason.clone();
                    self.lane_failed_quietly(number, &reason, now);
                }
                Step::Joined { deadline } if now >= deadline => {
                    let reason = "its queues had no room for a first write in time; raise completion_queue_depth";
                    self.lane_failed(number, reason, now);
                }
                Step::Joined { .. } => self.probe(number, now),
                Step::Probing { deadline } if now >= deadline => {
                    self.lane_failed(number, "the first write over it does not complete in time", now);
                }
                _ => {}
            }
        }
        let broken = self.peer.outbound().sender.broken_lane();
        if let Some((number, error)) = broken {
            self.lane_failed(number, &error.to_string(), now);
        }
    }

    /// A lane whose device is gone: says so once, and again to each offer, so that the peer waits for nothing.
    fn refuse_lane(&mut self, number: usize, now: Instant) {
        let Some(lane) = self.lanes.get_mut(number) else { return };
        let offer = lane.offered.take();
        if offer.is_none() && lane.failures > 0 {
            return;
        }
        lane.epoch = offer.map_or(lane.epoch, |offer| offer.epoch);
        self.lane_failed(number, "its device is gone", now);
    }

    /// The initiator makes a queue pair and offers it.
    fn offer(&mut self, number: usize, now: Instant, routes: &mut Routes) {
        match self.create(number, routes) {
            Ok(false) => {}
            Ok(true) => {
                let deadline = now + self.host.config.loss_bound;
                let Some(lane) = self.lanes.get_mut(number) else { return };
                lane.epoch += 1;
                lane.step = Step::Offered { deadline };
                let offer = lane.offer(number);
                self.say(Body::Offer(offer));
            }
            Err(reason) => self.lane_failed(number, &reason, now),
        }
    }

    /// The other side makes one too, joins it to the initiator's, and answers.
    fn answer(&mut self, number: usize, now: Instant, routes: &mut Routes) {
        let Some(lane) = self.lanes.get_mut(number) else { return };
        let Some(offer) = lane.offered.take() else { return };
        lane.epoch = offer.epoch;
        if !self.reconcile(number, offer) {
            return;
        }
        match self
            .create(number, routes)
            .and_then(|made| if made { self.join(number, offer).map(Some) } else { Ok(None) })
        {
            Ok(None) => {
                if let Some(lane) = self.lanes.get_mut(number) {
                    lane.offered = Some(offer);
                }
            }
            Ok(Some(())) => {
                let deadline = now + self.host.config.loss_bound;
                let Some(lane) = self.lanes.get_mut(number) else { return };
                lane.step = Step::Offered { deadline };
                let offer = lane.offer(number);
                self.say(Body::Answer(offer));
            }
            Err(reason) => self.lane_failed(number, &reason, now),
        }
    }

    /// Makes a queue pair; answers whether there was room for it.
    fn create(&mut self, number: usize, routes: &mut Routes) -> Result<bool, String> {
        let (send, receive) = self.depths();
        let (place, _) = lane_rail(&self.host, self.remote.as_ref(), number);
        let rail = self.host.rails.get(place).ok_or("there is no such rail")?;
        // Joining over a port that is down makes the kernel look for the peer's address for a second and more, and this thread, which all
        // peers share, wait for it.
        let port = rail.device.port(rail.choice.port).map_err(|error| error.to_string())?;
        if port.state != PortState::Active {
            return Err(format!("the port is {:?}", port.state));
        }
        let made = lane::create(rail, &mut self.peer.outbound(), number, send, receive);
        if let Some(lane) = self.lanes.get_mut(number) {
            lane.waits = made == Ok(None);
        }
        let Some(queue_pair) = made? else { return Ok(false) };
        routes.insert((place, queue_pair), (self.number, number));
        if let Some(lane) = self.lanes.get_mut(number) {
            lane.number = queue_pair;
            lane.psn = random::packet_sequence_number();
            lane.receives = receive;
            lane.carried = false;
            // From here on the queue pair is there, and has to be drained.
            lane.step = Step::Draining { deadline: Instant::now() + DRAIN };
        }
        Ok(true)
    }

    pub(super) fn join(&mut self, number: usize, offer: Offer) -> Result<(), String> {
        let (ours, theirs) = lane_rail(&self.host, self.remote.as_ref(), number);
        let rail = self.host.rails.get(ours).ok_or("there is no such rail")?;
        let remote = self.remote.as_ref().and_then(|side| side.rails.get(theirs));
        let remote = remote.ok_or("the peer has no such rail")?;
        let psn = self.lanes.get(number).map_or(0, |lane| lane.psn);
        let config = &self.host.config;
        let (traffic_class, service_level) = (config.traffic_class, config.service_level);
        let join = Join { rail, remote, offer, psn, timers: self.host.timers, traffic_class, service_level };
        let outbound = self.peer.outbound();
        match outbound.queue_pairs.get(number) {
            Some(Some(queue_pair)) => join.join(&**queue_pair),
            _ => Err("there is no queue pair".into()),
        }
    }

    /// Tries the path, before a batch does.
    pub(super) fn probe(&mut self, number: usize, now: Instant) {
        let posted = self.peer.outbound().probe(number);
        let Some(lane) = self.lanes.get_mut(number) else { return };
        lane.waits = !posted;
        lane.step = match lane.step {
            _ if posted => Step::Probing { deadline: now + self.host.config.loss_bound },
            step @ Step::Joined { .. } => step,
            _ => Step::Joined { deadline: now + self.host.config.loss_bound },
        };
    }

    /// What completions have said of a lane.
    pub(super) fn lane_event(&mut self, number: usize, event: LaneEvent, now: Instant) {
        match event {
            LaneEvent::None => {}
            LaneEvent::Carried => {
                if let Some(lane) = self.lanes.get_mut(number) {
                    lane.failures = 0;
                    lane.carried = true;
                }
            }
            LaneEvent::Probed => {
                if let Some(lane) = self.lanes.get_mut(number) {
                    lane.step = Step::Open;
                    lane.opened = now;
                    self.attention.raise();
                }
                self.check_resolved();
            }
            LaneEvent::Answered => self.lane_answered(number, now),
            LaneEvent::Failed { reason, answered } => {
                if let Some(lane) = self.lanes.get_mut(number) {
                    lane.carried |= answered;
                }
                self.lane_failed(number, &reason, now);
            }
        }
    }

    /// The peer's answer on a lane that was given up before: not the path has failed.
    fn lane_answered(&mut self, number: usize, now: Instant) {
        let Some(lane) = self.lanes.get_mut(number) else { return };
        lane.carried = true;
        if let Step::Fading { .. } = lane.step {
            let reason = lane.reason.clone();
            return self.lane_failed(number, &reason, now);
        }
        lane.failures = lane.failures.min(1);
        let (epoch, reason) = (lane.epoch, message::reason(&lane.reason));
        self.say(Body::Down { lane: number as u16, epoch, carried: true, reason });
    }

    /// The peer has given a lane up. What is posted may have been answered already.
    pub(super) fn fade(&mut self, number: usize, reason: &str, now: Instant) {
        if self.peer.outbound().sender.is_drained(number) {
            return self.lane_failed_quietly(number, reason, now);
        }
        self.peer.outbound().sender.fail_lane(number, reason);
        let Some(lane) = self.lanes.get_mut(number) else { return };
        lane.step = Step::Fading { until: now + FADE };
        lane.reason = reason.into();
        // So that the thread looks again in time.
        lane.waits = true;
    }

    /// A lane has failed: it is drained and built anew, and the peer hears of it.
    pub(super) fn lane_failed(&mut self, number: usize, reason: &str, now: Instant) {
        let (epoch, carried) = self.lanes.get(number).map_or((0, false), |lane| (lane.epoch, lane.carried));
        let was_draining = self.is_draining(number);
        self.lane_failed_quietly(number, reason, now);
        if !was_draining || self.phase == Phase::Building {
            self.say(Body::Down { lane: number as u16, epoch, carried, reason: message::reason(reason) });
        }
    }

    /// How long a lane is left alone after its failures.
    pub(super) fn pause(&self, number: usize) -> Duration {
        let others = self.lanes.iter().enumerate().any(|(other, lane)| other != number && lane.step == Step::Open);
        let pause = self.lanes.get(number).map_or(Duration::ZERO, LaneControl::backoff);
        if others { pause } else { pause.min(LAST_PATH_PAUSE) }
    }

    fn is_draining(&self, number: usize) -> bool {
        let outbound = self.peer.outbound();
        let failed = self.lanes.get(number).is_some_and(|lane| matches!(lane.step, Step::Draining { .. }));
        failed && !outbound.sender.is_usable(number)
    }

    pub(super) fn lane_failed_quietly(&mut self, number: usize, reason: &str, now: Instant) {
        let (place, theirs) = lane_rail(&self.host, self.remote.as_ref(), number);
        let local = self.host.rails.get(place).map(|rail| rail.choice.describe()).unwrap_or_default();
        let remote = self.remote.as_ref().and_then(|side| side.rails.get(theirs)).map(lane::describe);
        let Some(control) = self.lanes.get_mut(number) else { return };
        control.forgive(now);
        control.failures = control.failures.saturating_add(1);
        control.waits = false;
        control.reason = format!("{local} to {}: {reason}", remote.unwrap_or_default());
        let failures = control.failures;
        tracing::warn!(peer = %self.peer.id, lane = number, failures, reason = control.reason, "a lane failed");
        if failures == 3 {
            tracing::warn!(
                peer = %self.peer.id, lane = number, rail = local,
                "the lane failed {failures} times without carrying a byte and is out of use between further tries"
            );
        }
        if matches!(control.step, Step::Idle { .. }) {
            let next = now + self.pause(number);
            if let Some(lane) = self.lanes.get_mut(number) {
                lane.step = Step::Idle { next };
            }
        } else {
            self.stop_lane(number, reason, now);
        }
        // A failed path may be that of the others too: those that nothing is posted on would not tell.
        self.peer.outbound().try_idle_lanes();
        self.check_resolved();
        self.attention.raise();
    }

    /// Moves a lane's queue pair to ERR: what is posted completes, and packets for it are dropped.
    pub(super) fn stop_lane(&mut self, number: usize, reason: &str, now: Instant) {
        let mut outbound = self.peer.outbound();
        outbound.sender.fail_lane(number, reason);
        if let Some(Some(queue_pair)) = outbound.queue_pairs.get(number)
            && let Err(error) = queue_pair.fail()
        {
            tracing::debug!(%error, "a queue pair cannot be moved to ERR");
        }
        drop(outbound);
        if let Some(lane) = self.lanes.get_mut(number)
            && !matches!(lane.step, Step::Idle { .. })
        {
            lane.step = Step::Draining { deadline: now + DRAIN };
        }
    }

    /// Destroys the queue pairs that are drained, or that had long enough.
    pub(super) fn settle_drained(&mut self, now: Instant, routes: &mut Routes) {
        for number in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get(number) else { continue };
            let Step::Draining { deadline } = lane.step else { continue };
            let (place, _) = lane_rail(&self.host, self.remote.as_ref(), number);
            // A lost device completes nothing any more.
            let lost = self.host.rails.get(place).is_none_or(Rail::is_lost);
            let drained = lane.receives == 0 && self.peer.outbound().sender.is_drained(number);
            if drained || lost || now >= deadline {
                if !drained && !lost {
                    tracing::warn!(peer = %self.peer.id, lane = number, "a failed queue pair did not complete what was posted; it is destroyed");
                }
                self.release(number, now, routes);
            }
        }
    }

    /// Destroys a lane's queue pair. Nothing is sent, received or read through it after that.
    pub(super) fn release(&mut self, number: usize, now: Instant, routes: &mut Routes) {
        let next = now + self.pause(number);
        let Some(lane) = self.lanes.get_mut(number) else { return };
        if matches!(lane.step, Step::Idle { .. }) {
            return;
        }
        let (place, _) = lane_rail(&self.host, self.remote.as_ref(), number);
        routes.remove(&(place, lane.number));
        // At the end of a connection its queue pairs are waited for.
        let mut quiet = lane.receives == 0
            && matches!(lane.step, Step::Draining { .. })
            && !matches!(self.phase, Phase::Ending { .. });
        lane.receives = 0;
        lane.step = Step::Idle { next };
        let (_, receive) = self.depths();
        {
            let mut outbound = self.peer.outbound();
            quiet &= outbound.sender.is_drained(number);
            if let Some(queue_pair) = outbound.queue_pairs.get_mut(number).and_then(Option::take) {
                destroy(queue_pair, quiet);
                if let Some(rail) = self.host.rails.get(place) {
                    rail.credits.give_receives(receive);
                }
            }
            outbound.sender.fail_lane(number, "its queue pair is destroyed");
            outbound.sender.abandon_lane(number);
            outbound.sender.renew_lane(number);
        }
        self.attention.raise();
    }

    /// Whether each lane is known to work or not; then this side is up, or has failed.
    pub(super) fn check_resolved(&mut self) {
        if self.phase != Phase::Building || self.up_here || !self.lanes.iter().all(|lane| lane.is_resolved()) {
            return;
        }
        if self.lanes.iter().any(|lane| lane.step == Step::Open) {
            self.up_here = true;
            self.say(Body::Up);
            self.check_connected();
        } else {
            let (address, reason) = (self.mail.address(), self.reasons());
            self.refuse(ConnectError::Broken { address, reason });
        }
    }

    pub(super) fn check_connected(&mut self) {
        if self.phase != Phase::Building || !self.up_here || !self.up_there {
            return;
        }
        self.phase = Phase::Connected;
        tracing::info!(
            peer = %self.peer.id, address = self.mail.address(), lanes = self.lanes.len(),
            local = self.host.rails.first().map(|rail| rail.choice.describe()), "connected over RDMA"
        );
        self.peer.set_connected(Ok(()));
        for payload in std::mem::take(&mut self.early) {
            self.deliver(payload);
        }
        self.attention.raise();
    }

    /// Why lanes failed, each reason once.
    pub(super) fn reasons(&self) -> String {
        let mut reasons: Vec<&str> =
            self.lanes.iter().map(|lane| lane.reason.as_str()).filter(|reason| !reason.is_empty()).collect();
        reasons.dedup();
        reasons.join("; ")
    }

    /// A peer to which no path leads for too long is lost.
    pub(super) fn check_paths(&mut self, now: Instant) {
        if self.phase != Phase::Connected || self.lanes.iter().any(|lane| lane.step == Step::Open) {
            self.pathless = None;
            return;
        }
        if self.pathless.is_none() {
            // Those that were left out while others worked are needed now.
            for lane in &mut self.lanes {
                if let Step::Idle { next } = &mut lane.step {
                    *next = (now + LAST_PATH_PAUSE).min(*next);
                }
            }
        }
        let since = *self.pathless.get_or_insert(now);
        // The peer is lost soon if none of them works; one that is left out for longer may be the one that does.
        for lane in &mut self.lanes {
            if let Step::Idle { next } = &mut lane.step {
                *next = (*next).min(now + WITHOUT_A_PATH);
            }
        }
        let bound = self.host.config.loss_bound / 2;
        if now.saturating_duration_since(since) >= bound {
            let reason = format!("no path leads to it for {bound:?}: {}", self.reasons());
            self.peer.begin_end(End::Lost(reason.into()));
        }
    }

    /// Fails lanes of which nothing completes although the NIC does not say so.
    pub(super) fn look_for_stuck_lanes(&mut self, now: Instant) {
        let stuck: Vec<usize> = self.peer.outbound().sender.stuck_lanes(now).collect();
        for number in stuck {
            self.peer.outbound().sender.stall_lane(number);
            let timeout = self.host.config.stall_timeout;
            self.lane_failed(number, &format!("nothing has completed for {timeout:?} (stall_timeout)"), now);
        }
    }

    /// The device reports an error of a lane.
    pub(in crate::worker) fn fail_lane(&mut self, number: usize, reason: &str) {
        if self.lanes.get(number).is_some_and(|lane| !matches!(lane.step, Step::Idle { .. } | Step::Draining { .. })) {
            self.lane_failed(number, reason, Instant::now());
        }
    }

    /// A rail works again: its lanes are tried at once.
    pub(in crate::worker) fn retry_rail(&mut self, rail: usize) {
        let now = Instant::now();
        let (host, remote) = (Arc::clone(&self.host), self.remote.clone());
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if lane_rail(&host, remote.as_ref(), number).0 == rail
                && let Step::Idle { next } = &mut lane.step
            {
                *next = now;
            }
        }
        self.attention.raise();
    }

    /// A rail's device is gone.
    pub(in crate::worker) fn lose_rail(&mut self, rail: usize, reason: &str) {
        for number in 0..self.lanes.len() {
            if lane_rail(&self.host, self.remote.as_ref(), number).0 == rail {
                self.fail_lane(number, reason);
            }
        }
    }
}

/// Destroys a queue pair. One that is in ERR and has completed everything touches no memory any more, and nobody has to wait until it is
/// gone: Soft-RoCE keeps it for seconds where its last packets wait for the address of a peer that does not answer.
fn destroy(queue_pair: Box<dyn QueuePair>, quiet: bool) {
    if quiet {
        // Without a thread it is dropped here.
        let _ = thread::Builder::new().name("kvferry-rdma-qp".into()).spawn(move || drop(queue_pair));
    }
}
