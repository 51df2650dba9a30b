//! The life of a lane: its queue pairs, one after the other.
//!
//! The initiator of the connection drives: it makes a queue pair and offers it, the other side makes one and answers, both try the path
//! with an empty write. A queue pair that failed is drained, destroyed and replaced, later each time, until bytes go over it again.

use std::time::{Duration, Instant};

use crate::{
    message::{Offer, RailAddress},
    peer::Outbound,
    rail::{Rail, Room},
    timing::QueuePairTimers,
    verbs::{
        AddressVector, GlobalRoute, InitAttributes, LinkLayer, QueuePair, QueuePairCapacity, ReceiveAttributes,
        SendAttributes, VerbsError,
    },
};

/// How long a failed queue pair is given to complete what was posted, before it is destroyed with it.
pub(super) const DRAIN: Duration = Duration::from_secs(1);
/// How long the NIC is given to say what the peer answered, when the peer's word on the control channel was faster: only the NIC says which
/// write was refused.
pub(super) const FADE: Duration = Duration::from_millis(5);

/// What the thread keeps of a lane.
#[derive(Debug)]
pub(super) struct LaneControl {
    pub(super) epoch: u32,
    pub(super) step: Step,
    /// Failures since bytes last went over it, as far as either side knows.
    pub(super) failures: u32,
    /// Whether bytes went over its queue pair.
    pub(super) carried: bool,
    pub(super) reason: String,
    /// Number and first packet sequence number of the queue pair.
    pub(super) number: u32,
    pub(super) psn: u32,
    /// Notifications that came over it, from the start of the connection.
    pub(super) received: u64,
    /// Receives that are posted.
    pub(super) receives: u32,
    /// Whether it waits for room in the completion queue.
    pub(super) waits: bool,
    /// What the peer offers, to be answered when the old queue pair is gone.
    pub(super) offered: Option<Offer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// No queue pair; the initiator makes one at this time.
    Idle { next: Instant },
    /// The queue pair is offered, or the offer answered; the peer has until then to go on.
    Offered { deadline: Instant },
    /// The queue pair is joined to the peer's; the write that tries the path has found no room yet.
    Joined { deadline: Instant },
    /// The path is tried.
    Probing { deadline: Instant },
    /// In use.
    Open,
    /// The peer has given it up. Nothing is posted any more, and the own NIC has until then to say why.
    Fading { until: Instant },
    /// Failed; what was posted is waited for.
    Draining { deadline: Instant },
}

impl LaneControl {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            epoch: 0,
            step: Step::Idle { next: now },
            failures: 0,
            carried: false,
            reason: String::new(),
            number: 0,
            psn: 0,
            received: 0,
            receives: 0,
            waits: false,
            offered: None,
        }
    }

    /// Whether it is known if the lane works.
    pub(super) fn is_resolved(&self) -> bool {
        self.step == Step::Open || self.failures > 0
    }

    pub(super) fn offer(&self, lane: usize) -> Offer {
        Offer { lane: lane as u16, epoch: self.epoch, number: self.number, psn: self.psn, received: self.received }
    }

    /// When to try again after so many failures in a row. The first is tried again at once; one that keeps failing costs transfers each
    /// time and is left out for longer and longer.
    pub(super) fn backoff(&self) -> Duration {
        match self.failures {
            0..=2 => Duration::ZERO,
            3 => Duration::from_millis(200),
            4 => Duration::from_secs(1),
            5 => Duration::from_secs(10),
            _ => Duration::from_secs(30),
        }
    }
}

/// Makes the queue pair of a lane, up to INIT with all receives posted.
///
/// `None` where the completion queue has no room now, and will have.
pub(super) fn create(
    rail: &Rail,
    outbound: &mut Outbound,
    lane: usize,
    send: u32,
    receive: u32,
) -> Result<Option<u32>, String> {
    match rail.credits.take_receives(receive) {
        Room::Taken => {}
        Room::Later => return Ok(None),
        Room::Never => {
            return Err(format!(
                "the completion queue of {} has no room for the {receive} receives of a further queue pair; raise completion_queue_depth (the device takes {}) or lower events_per_peer",
                rail.name, rail.attributes.max_cqe
            ));
        }
    }
    let made = make(rail, outbound, lane, send, receive);
    if made.is_err() {
        rail.credits.give_receives(receive);
    }
    made.map(Some)
}

fn make(rail: &Rail, outbound: &mut Outbound, lane: usize, send: u32, receive: u32) -> Result<u32, String> {
    let words = |error: VerbsError| error.to_string();
    let capacity = QueuePairCapacity { send, receive, inline: 0 };
    let queue_pair = rail.domain.create_queue_pair(&rail.completions, capacity).map_err(words)?;
    let attributes = InitAttributes { port: rail.choice.port, pkey_index: 0, remote_write: true };
    queue_pair.initialize(&attributes).map_err(words)?;
    let local_rail = outbound.sender.lane(lane).map_or(0, |lane| lane.rail);
    for slot in 0..receive {
        let request = outbound.sender.control().receive(local_rail, lane, slot);
        let request = request.ok_or("there is no memory for notifications")?;
        queue_pair.post_receive(&[request]).map_err(|error| error.to_string())?;
    }
    let number = queue_pair.number();
    if let Some(place) = outbound.queue_pairs.get_mut(lane) {
        *place = Some(queue_pair);
    }
    Ok(number)
}

/// What joins a queue pair to the peer's.
pub(super) struct Join<'a> {
    pub(super) rail: &'a Rail,
    pub(super) remote: &'a RailAddress,
    pub(super) offer: Offer,
    pub(super) psn: u32,
    pub(super) timers: QueuePairTimers,
    pub(super) traffic_class: u8,
    pub(super) service_level: u8,
}

impl Join<'_> {
    /// INIT to RTR to RTS.
    pub(super) fn join(&self, queue_pair: &dyn QueuePair) -> Result<(), String> {
        let failed = |error: VerbsError| {
            format!("{} cannot reach {}: {error}", self.rail.choice.describe(), describe(self.remote))
        };
        let address = self.address()?;
        queue_pair
            .ready_to_receive(&ReceiveAttributes {
                path_mtu: self.rail.choice.mtu.min(self.remote.mtu),
                remote_queue_pair: self.offer.number,
                remote_psn: self.offer.psn,
                min_rnr_timer: self.timers.min_rnr_timer,
                address,
            })
            .map_err(failed)?;
        queue_pair
            .ready_to_send(&SendAttributes {
                psn: self.psn,
                timeout: self.timers.timeout,
                retry_count: self.timers.retry_count,
                rnr_retry: self.timers.rnr_retry,
            })
            .map_err(failed)
    }

    fn address(&self) -> Result<AddressVector, String> {
        let choice = &self.rail.choice;
        if choice.link_layer != self.remote.link_layer {
            return Err(format!(
                "{} is on {:?} and the peer's {} on {:?}; choose rails of one kind",
                choice.device, choice.link_layer, self.remote.device, self.remote.link_layer
            ));
        }
        // Always by GID where both have one: on Ethernet there is no other way, and on InfiniBand it crosses subnets.
        let global = choice.gid.as_ref().zip(self.remote.gid).map(|(local, remote)| GlobalRoute {
            gid: remote.into(),
            local_index: local.index,
            hop_limit: 64,
            traffic_class: self.traffic_class,
        });
        if global.is_none() && choice.link_layer == LinkLayer::Ethernet {
            return Err(format!(
                "{} cannot reach {}: Ethernet needs a GID on both sides",
                choice.describe(),
                describe(self.remote)
            ));
        }
        Ok(AddressVector { port: choice.port, lid: self.remote.lid, service_level: self.service_level, global })
    }
}

/// A peer's rail in words.
pub(super) fn describe(remote: &RailAddress) -> String {
    let gid = remote.gid.map_or_else(|| "no GID".into(), |gid| format!("GID {}", crate::choice::show_gid(gid.into())));
    format!("the peer's {} ({gid}, LID {}, MTU {})", remote.device, remote.lid, remote.mtu)
}
