//! The library's numbers and ours.

use ibverbs_sys::{self as sys, ibv_port_state, ibv_qp_state, ibv_wc, ibv_wc_status};

use crate::verbs::{Completion, GidKind, LinkLayer, Mtu, PortState, QueuePairState, Status};

/// Set in the opcode of every completion of a receive.
const RECEIVED: u32 = sys::ibv_wc_opcode::IBV_WC_RECV;

pub(super) fn status(status: ibv_wc_status::Type) -> Status {
    match status {
        ibv_wc_status::IBV_WC_SUCCESS => Status::Success,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => Status::LocalOperation,
        ibv_wc_status::IBV_WC_LOC_PROT_ERR => Status::LocalProtection,
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        ibv_wc_status::IBV_WC_BAD_RESP_ERR => Status::BadResponse,
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => Status::RemoteInvalidRequest,
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        ibv_wc_status::IBV_WC_REM_OP_ERR => Status::RemoteOperation,
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => Status::RetryExceeded,
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => Status::RnrRetryExceeded,
        other => Status::Other(other),
    }
}

pub(super) fn completion(from: &ibv_wc) -> Completion {
    let (status, vendor) = from.error().map_or((Status::Success, 0), |(code, vendor)| (status(code), vendor));
    // Other fields have no value when the status is an error, and the length only counts for receives.
    let received = status == Status::Success && from.opcode() & RECEIVED != 0;
    // Lossless: the field behind `len` has 32 bits.
    let bytes = if received { from.len() as u32 } else { 0 };
    Completion { id: from.wr_id(), queue_pair: from.qp_num, status, vendor, bytes }
}

pub(super) fn state(state: ibv_qp_state::Type) -> QueuePairState {
    match state {
        ibv_qp_state::IBV_QPS_RESET => QueuePairState::Reset,
        ibv_qp_state::IBV_QPS_INIT => QueuePairState::Init,
        ibv_qp_state::IBV_QPS_RTR => QueuePairState::ReadyToReceive,
        ibv_qp_state::IBV_QPS_RTS => QueuePairState::ReadyToSend,
        ibv_qp_state::IBV_QPS_ERR => QueuePairState::Error,
        other => QueuePairState::Other(other),
    }
}

pub(super) fn port_state(state: ibv_port_state::Type) -> PortState {
    match state {
        ibv_port_state::IBV_PORT_DOWN => PortState::Down,
        ibv_port_state::IBV_PORT_INIT | ibv_port_state::IBV_PORT_ARMED => PortState::Initializing,
        ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
        other => PortState::Other(other),
    }
}

/// Ports without a link layer of their own are InfiniBand, as the manual of `ibv_query_port` says.
pub(super) fn link_layer(layer: u8) -> LinkLayer {
    if u32::from(layer) == sys::IBV_LINK_LAYER_ETHERNET { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
}

/// Answers the smallest where a device gives a number that the specification does not have.
pub(super) fn mtu(mtu: sys::ibv_mtu) -> Mtu {
    match mtu {
        sys::IBV_MTU_512 => Mtu::B512,
        sys::IBV_MTU_1024 => Mtu::B1024,
        sys::IBV_MTU_2048 => Mtu::B2048,
        sys::IBV_MTU_4096 => Mtu::B4096,
        _ => Mtu::B256,
    }
}

pub(super) fn mtu_code(mtu: Mtu) -> sys::ibv_mtu {
    match mtu {
        Mtu::B256 => sys::IBV_MTU_256,
        Mtu::B512 => sys::IBV_MTU_512,
        Mtu::B1024 => sys::IBV_MTU_1024,
        Mtu::B2048 => sys::IBV_MTU_2048,
        Mtu::B4096 => sys::IBV_MTU_4096,
    }
}

pub(super) fn gid_kind(kind: sys::ibv_gid_type) -> Option<GidKind> {
    match kind {
        sys::IBV_GID_TYPE_IB => Some(GidKind::InfiniBand),
        sys::IBV_GID_TYPE_ROCE_V1 => Some(GidKind::RoceV1),
        sys::IBV_GID_TYPE_ROCE_V2 => Some(GidKind::RoceV2),
        _ => None,
    }
}

/// Speed in Mbit/s: lanes times the speed of one. Both codes are those of InfiniBand's `PortInfo`.
pub(super) fn speed_mbps(width: u8, speed: u8) -> Option<u32> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    // The rates as the kernel names them.
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => return None,
    };
    Some(lanes * lane)
}
