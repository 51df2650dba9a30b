//! Queue pairs and their states.

use std::{
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

use ibverbs_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use rustix::io::Errno;

use super::{
    completion_queue::NativeCompletionQueue,
    convert,
    domain::Domain,
    handle::{Handle, check},
    post::{Receives, Sends},
};
use crate::verbs::{
    AddressVector, CompletionQueue, InitAttributes, PostError, QueuePair, QueuePairCapacity, QueuePairState,
    ReceiveAttributes, ReceiveRequest, SendAttributes, SendRequest, VerbsError,
};

/// RDMA reads and atomics in flight. There are none; one is what every device grants.
const READS: u8 = 1;

/// A reliable-connected queue pair.
#[derive(Debug)]
pub(super) struct NativeQueuePair {
    raw: Handle<ibv_qp>,
    number: u32,
    capacity: QueuePairCapacity,
    sends: Mutex<Sends>,
    receives: Mutex<Receives>,
    domain: Arc<Domain>,
    _completions: Arc<dyn CompletionQueue>,
}

impl NativeQueuePair {
    /// `queue` is `completions`, and of the domain's device.
    pub(super) fn new(
        domain: &Arc<Domain>,
        completions: &Arc<dyn CompletionQueue>,
        queue: &NativeCompletionQueue,
        capacity: QueuePairCapacity,
    ) -> Result<Self, VerbsError> {
        let mut attributes = ibv_qp_init_attr {
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            cap: ibv_qp_cap {
                max_send_wr: capacity.send,
                max_recv_wr: capacity.receive,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: capacity.inline,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        let context = &domain.context;
        // SAFETY: V1, V2, V4: the domain and the completion queue are of one device and outlive the queue pair.
        let raw = unsafe { (context.library.create_pair)(domain.raw.as_ptr(), &mut attributes) };
        let raw = Handle::new(raw).map_err(|code| {
            let error = context.error("ibv_create_qp", code);
            let QueuePairCapacity { send, receive, inline } = capacity;
            let asked = format!("for {send} sends, {receive} receives and {inline} bytes inline");
            VerbsError { reason: format!("{} ({asked}; see the device's limits)", error.reason).into(), ..error }
        })?;
        // SAFETY: V2.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        // The library wrote back what it made.
        let made = attributes.cap;
        let capacity =
            QueuePairCapacity { send: made.max_send_wr, receive: made.max_recv_wr, inline: made.max_inline_data };
        Ok(Self {
            raw,
            number,
            capacity,
            sends: Mutex::new(Sends::new()),
            receives: Mutex::new(Receives::new()),
            domain: Arc::clone(domain),
            _completions: Arc::clone(completions),
        })
    }

    fn modify(
        &self,
        operation: &'static str,
        mut attributes: ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        let context = &self.domain.context;
        // SAFETY: V1, V2, V4. Lossless: the mask is of low bits.
        let answer = unsafe { (context.library.modify_pair)(self.raw.as_ptr(), &mut attributes, mask.0 as i32) };
        check(answer).map_err(|code| context.error(operation, code))
    }

    fn address(&self, to: &AddressVector) -> Result<ibv_ah_attr, VerbsError> {
        let mut address =
            ibv_ah_attr { dlid: to.lid, sl: to.service_level, port_num: to.port, ..ibv_ah_attr::default() };
        if let Some(route) = to.global {
            let index = u8::try_from(route.local_index).map_err(|_| {
                let reason =
                    format!("the local GID's index {} is above 255, the most for a queue pair", route.local_index);
                self.domain.context.refuse("ibv_modify_qp (INIT to RTR)", Errno::INVAL, reason)
            })?;
            address.is_global = 1;
            address.grh = ibv_global_route {
                dgid: ibv_gid { raw: route.gid.octets() },
                flow_label: 0,
                sgid_index: index,
                hop_limit: route.hop_limit,
                traffic_class: route.traffic_class,
            };
        }
        Ok(address)
    }
}

impl QueuePair for NativeQueuePair {
    fn number(&self) -> u32 {
        self.number
    }

    fn capacity(&self) -> QueuePairCapacity {
        self.capacity
    }

    fn state(&self) -> Result<QueuePairState, VerbsError> {
        let (mut attributes, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let context = &self.domain.context;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: V1, V2, V4.
        let answer = unsafe { (context.library.query_pair)(self.raw.as_ptr(), &mut attributes, mask, &mut made) };
        check(answer).map_err(|code| context.error("ibv_query_qp", code))?;
        Ok(convert::state(attributes.qp_state))
    }

    fn initialize(&self, attributes: &InitAttributes) -> Result<(), VerbsError> {
        let access = if attributes.remote_write { ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 } else { 0 };
        let to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            pkey_index: attributes.pkey_index,
            port_num: attributes.port,
            qp_access_flags: access,
            ..ibv_qp_attr::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp (RESET to INIT)", to, mask)
    }

    fn ready_to_receive(&self, attributes: &ReceiveAttributes) -> Result<(), VerbsError> {
        let to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: convert::mtu_code(attributes.path_mtu),
            dest_qp_num: attributes.remote_queue_pair,
            rq_psn: attributes.remote_psn,
            max_dest_rd_atomic: READS,
            min_rnr_timer: attributes.min_rnr_timer,
            ah_attr: self.address(&attributes.address)?,
            ..ibv_qp_attr::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp (INIT to RTR)", to, mask).map_err(|error| match attributes.address.global {
            Some(route) => {
                let reason =
                    format!("{}, for the peer {} from GID index {}", error.reason, route.gid, route.local_index);
                VerbsError { reason: reason.into(), ..error }
            }
            None => error,
        })
    }

    fn ready_to_send(&self, attributes: &SendAttributes) -> Result<(), VerbsError> {
        let to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            sq_psn: attributes.psn,
            max_rd_atomic: READS,
            timeout: attributes.timeout,
            retry_cnt: attributes.retry_count,
            rnr_retry: attributes.rnr_retry,
            ..ibv_qp_attr::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY;
        self.modify("ibv_modify_qp (RTR to RTS)", to, mask)
    }

    fn fail(&self) -> Result<(), VerbsError> {
        let to = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.modify("ibv_modify_qp (to ERR)", to, ibv_qp_attr_mask::IBV_QP_STATE)
    }

    fn post_send(&self, chain: &[SendRequest]) -> Result<(), PostError> {
        let mut sends = self.sends.lock().unwrap_or_else(PoisonError::into_inner);
        let post = self.domain.context.calls.post_send;
        sends.post(chain, &self.domain.ranges, self.capacity.inline, |first| {
            let mut refused = ptr::null_mut();
            // SAFETY: V1, V2, V4, V6: the chain is linked and ends, and it outlives the call.
            (unsafe { post(self.raw.as_ptr(), first, &mut refused) }, refused)
        })
    }

    fn post_receive(&self, chain: &[ReceiveRequest]) -> Result<(), PostError> {
        let mut receives = self.receives.lock().unwrap_or_else(PoisonError::into_inner);
        let post = self.domain.context.calls.post_receive;
        receives.post(chain, |first| {
            let mut refused = ptr::null_mut();
            // SAFETY: V1, V2, V4: the chain is linked and ends, and it outlives the call.
            (unsafe { post(self.raw.as_ptr(), first, &mut refused) }, refused)
        })
    }
}

impl Drop for NativeQueuePair {
    fn drop(&mut self) {
        // SAFETY: V1, V2.
        let answer = unsafe { (self.domain.context.library.destroy_pair)(self.raw.as_ptr()) };
        self.domain.context.destroyed("ibv_destroy_qp", answer);
    }
}
