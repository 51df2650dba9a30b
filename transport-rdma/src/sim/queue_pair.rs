//! The handle to a queue pair: its verbs, and what they refuse.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::{
    code,
    completion::{SimCompletionQueue, Slots},
    device::DeviceCore,
    lock,
    network::Place,
    receiving::Receiving,
    sending::Sending,
    state::{Path, QpCore, State, Work},
};
use crate::verbs::{
    AddressVector, CompletionQueue, InitAttributes, LinkLayer, PostError, QueuePair, QueuePairCapacity, QueuePairState,
    ReceiveAttributes, ReceiveRequest, SendAttributes, SendRequest, VerbsError,
};

/// The first number that has more than 24 bits.
const TOO_LONG: u32 = 1 << 24;
const MODIFY: &str = "ibv_modify_qp";

#[derive(Debug)]
pub(super) struct SimQueuePair {
    core: Arc<QpCore>,
}

impl SimQueuePair {
    pub(super) fn new(
        device: &Arc<DeviceCore>,
        domain: u64,
        completions: &Arc<dyn CompletionQueue>,
        capacity: QueuePairCapacity,
    ) -> Result<Self, VerbsError> {
        let verb = "ibv_create_qp";
        device.check(verb)?;
        let completions = completions.as_any().downcast_ref::<SimCompletionQueue>().map(|queue| &queue.core);
        let completions = completions.filter(|queue| Arc::ptr_eq(&queue.device, device));
        let limit = device.config.attributes.max_qp_wr;
        let fits = capacity.send <= limit && capacity.receive <= limit && capacity.inline <= device.config.max_inline;
        let Some(completions) = completions.filter(|_| fits) else { return Err(device.error(verb, code::EINVAL)) };
        let number = device.next_pair_number();
        let core = Arc::new(QpCore {
            device: Arc::clone(device),
            number,
            domain,
            capacity,
            completions: Arc::clone(completions),
            slots: Arc::new(Slots::default()),
            scheduled: AtomicBool::new(false),
            lost_acks: AtomicU64::new(0),
            sending: Mutex::new(Sending::new(capacity.inline)),
            receiving: Mutex::new(Receiving::default()),
            state: Mutex::new(State::new(capacity)),
        });
        if !device.add_pair(number, &core) {
            return Err(device.error(verb, code::ENOMEM));
        }
        completions.attach(&core);
        device.host.nic.add_pair();
        Ok(Self { core })
    }

    fn refuse(&self) -> VerbsError {
        self.core.device.error(MODIFY, code::EINVAL)
    }

    /// Where both ends are, if such a peer can be addressed.
    fn places(&self, address: &AddressVector) -> Option<(Place, Place)> {
        let device = &self.core.device;
        let port = device.port_config(address.port)?;
        if let Some(route) = &address.global {
            let (gid, kind) = device.gid_at(address.port, route.local_index)?;
            if port.link_layer == LinkLayer::Ethernet || address.lid == 0 {
                return Some((Place::Gid(gid, kind), Place::Gid(route.gid, kind)));
            }
        }
        let addressed = port.link_layer == LinkLayer::InfiniBand && address.lid != 0;
        addressed.then_some((Place::Lid(port.lid), Place::Lid(address.lid)))
    }
}

impl QueuePair for SimQueuePair {
    fn number(&self) -> u32 {
        self.core.number
    }

    fn capacity(&self) -> QueuePairCapacity {
        self.core.capacity
    }

    fn state(&self) -> Result<QueuePairState, VerbsError> {
        self.core.device.check("ibv_query_qp")?;
        Ok(lock(&self.core.state).phase)
    }

    fn initialize(&self, attributes: &InitAttributes) -> Result<(), VerbsError> {
        self.core.device.check(MODIFY)?;
        let mut state = lock(&self.core.state);
        let known = self.core.device.port_config(attributes.port).is_some();
        if state.phase != QueuePairState::Reset || !known || attributes.pkey_index != 0 {
            return Err(self.refuse());
        }
        state.init = Some(*attributes);
        state.phase = QueuePairState::Init;
        Ok(())
    }

    fn ready_to_receive(&self, attributes: &ReceiveAttributes) -> Result<(), VerbsError> {
        let device = &self.core.device;
        device.check(MODIFY)?;
        let address = &attributes.address;
        let mut state = lock(&self.core.state);
        let port = state.init.map(|init| init.port).filter(|port| *port == address.port && device.carries(*port));
        let mtu = device.port_config(address.port).map(|port| port.active_mtu);
        let fits = mtu.is_some_and(|mtu| attributes.path_mtu <= mtu)
            && attributes.remote_queue_pair < TOO_LONG
            && attributes.remote_psn < TOO_LONG
            && attributes.min_rnr_timer < 32;
        if state.phase != QueuePairState::Init || port.is_none() || !fits {
            return Err(self.refuse());
        }
        let (from, to) = self.places(address).ok_or_else(|| self.refuse())?;
        state.path = Some(Path {
            port: address.port,
            from,
            to,
            hop_limit: address.global.map_or(0, |route| route.hop_limit),
            mtu: attributes.path_mtu,
            remote_queue_pair: attributes.remote_queue_pair,
            remote_psn: attributes.remote_psn,
            min_rnr_timer: attributes.min_rnr_timer,
        });
        state.phase = QueuePairState::ReadyToReceive;
        Ok(())
    }

    fn ready_to_send(&self, attributes: &SendAttributes) -> Result<(), VerbsError> {
        self.core.device.check(MODIFY)?;
        let mut state = lock(&self.core.state);
        let fits = attributes.psn < TOO_LONG
            && attributes.timeout < 32
            && attributes.retry_count < 8
            && attributes.rnr_retry < 8;
        if state.phase != QueuePairState::ReadyToReceive || !fits {
            return Err(self.refuse());
        }
        state.send = Some(*attributes);
        state.phase = QueuePairState::ReadyToSend;
        Ok(())
    }

    fn fail(&self) -> Result<(), VerbsError> {
        self.core.device.check(MODIFY)?;
        {
            let mut state = lock(&self.core.state);
            if state.phase == QueuePairState::Reset {
                return Err(self.refuse());
            }
            state.phase = QueuePairState::Error;
        }
        self.core.quiesce();
        let sending = lock(&self.core.sending);
        self.core.flush();
        drop(sending);
        Ok(())
    }

    fn post_send(&self, chain: &[SendRequest]) -> Result<(), PostError> {
        if self.core.device.is_gone() {
            return Err(PostError { posted: 0, code: code::EIO });
        }
        let mut state = lock(&self.core.state);
        if !matches!(state.phase, QueuePairState::ReadyToSend | QueuePairState::Error) {
            return Err(PostError { posted: 0, code: code::EINVAL });
        }
        let mut posted = 0;
        let result = chain.iter().try_for_each(|request| {
            self.core.take_request(&mut state, request).map_err(|code| PostError { posted, code })?;
            posted += 1;
            Ok(())
        });
        drop(state);
        if posted > 0 {
            self.core.schedule();
        }
        result
    }

    fn post_receive(&self, chain: &[ReceiveRequest]) -> Result<(), PostError> {
        if self.core.device.is_gone() {
            return Err(PostError { posted: 0, code: code::EIO });
        }
        let mut state = lock(&self.core.state);
        if state.phase == QueuePairState::Reset {
            return Err(PostError { posted: 0, code: code::EINVAL });
        }
        let mut result = Ok(());
        for (posted, request) in chain.iter().enumerate() {
            if self.core.slots.receive.load(Ordering::Acquire) >= self.core.capacity.receive {
                result = Err(PostError { posted, code: code::ENOMEM });
                break;
            }
            self.core.slots.receive.fetch_add(1, Ordering::AcqRel);
            state.receives.push_back(*request);
        }
        let failed = state.phase == QueuePairState::Error;
        drop(state);
        if failed {
            self.core.schedule();
        }
        result
    }
}

impl QpCore {
    /// Takes a work request into the send queue, or says why not.
    fn take_request(&self, state: &mut State, request: &SendRequest) -> Result<(), i32> {
        if self.device.host.faults.refuses_post() || self.slots.send.load(Ordering::Acquire) >= self.capacity.send {
            return Err(code::ENOMEM);
        }
        let local = &request.local;
        if request.inline && local.len > 0 {
            if local.len > self.capacity.inline {
                return Err(code::EINVAL);
            }
            let slot = (state.posted % u64::from(self.capacity.send)) as usize;
            let start = slot * self.capacity.inline as usize;
            let source = self.device.regions.local(local.key, self.domain, local.address, u64::from(local.len));
            let target = state.inline.get_mut(start..start + local.len as usize);
            let (Some(source), Some(target)) = (source, target) else { return Err(code::EINVAL) };
            source.read(target);
        }
        self.slots.send.fetch_add(1, Ordering::AcqRel);
        state.sends.push_back(Work { request: *request, sequence: state.posted, sent: 0 });
        state.posted += 1;
        Ok(())
    }
}

impl Drop for SimQueuePair {
    fn drop(&mut self) {
        lock(&self.core.state).clear();
        self.core.quiesce();
        self.core.device.remove_pair(self.core.number);
        self.core.device.host.nic.remove_pair();
    }
}
