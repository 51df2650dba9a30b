//! The attributes of an open device, its ports and GIDs, and its asynchronous events.

use std::{
    ffi::CStr,
    net::Ipv6Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ibverbs_sys::{self as sys, ibv_async_event, ibv_device_attr, ibv_gid_entry, ibv_port_attr};
use rustix::io::Errno;

use super::{
    completion_queue::NativeCompletionQueue,
    context::Context,
    convert,
    domain::NativeDomain,
    handle::{check, last_error},
    sysfs,
};
use crate::verbs::{
    AsyncEvent, CompletionQueue, Device, DeviceAttributes, GidEntry, PortAttributes, ProtectionDomain, VerbsError,
};

/// An open device.
#[derive(Debug)]
pub(super) struct NativeDevice {
    context: Arc<Context>,
    /// Whether the end of the device was told.
    gone: AtomicBool,
}

impl NativeDevice {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, gone: AtomicBool::new(false) }
    }
}

impl Device for NativeDevice {
    fn name(&self) -> &str {
        &self.context.name
    }

    fn attributes(&self) -> Result<DeviceAttributes, VerbsError> {
        let mut from = ibv_device_attr::default();
        // SAFETY: V1, V2, V4.
        let answer = unsafe { (self.context.library.query_device)(self.context.raw.as_ptr(), &mut from) };
        check(answer).map_err(|code| self.context.error("ibv_query_device", code))?;
        // The characters are bytes, signed on some machines.
        let firmware = from.fw_ver.map(|character| character as u8);
        let firmware = CStr::from_bytes_until_nul(&firmware).unwrap_or_default().to_string_lossy().into_owned();
        Ok(DeviceAttributes {
            ports: from.phys_port_cnt,
            firmware,
            vendor: (from.vendor_id, from.vendor_part_id),
            max_mr_size: from.max_mr_size,
            max_mr: count(from.max_mr),
            max_qp: count(from.max_qp),
            max_qp_wr: count(from.max_qp_wr),
            max_sge: count(from.max_sge),
            max_cq: count(from.max_cq),
            max_cqe: count(from.max_cqe),
        })
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        // Zeroed: the library fills the beginning only.
        let mut from = ibv_port_attr::default();
        // SAFETY: V1, V2, V4.
        let answer = unsafe { (self.context.library.query_port)(self.context.raw.as_ptr(), port, &mut from) };
        check(answer).map_err(|code| self.context.error("ibv_query_port", code))?;
        Ok(PortAttributes {
            state: convert::port_state(from.state),
            link_layer: convert::link_layer(from.link_layer),
            active_mtu: convert::mtu(from.active_mtu),
            max_mtu: convert::mtu(from.max_mtu),
            lid: from.lid,
            gid_table_len: count(from.gid_tbl_len),
            max_message: from.max_msg_sz,
            speed_mbps: convert::speed_mbps(from.active_width, from.active_speed),
        })
    }

    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, VerbsError> {
        const OPERATION: &str = "ibv_query_gid_ex";
        let entries = self.port(port)?.gid_table_len;
        if index >= entries {
            let reason = format!("GID index {index} of port {port} is not below {entries}, the length of its table");
            return Err(self.context.refuse(OPERATION, Errno::INVAL, reason));
        }
        let mut from = ibv_gid_entry::default();
        let query = self.context.library.query_gid;
        // SAFETY: V1, V2, V4: the size is that of the entry.
        let answer =
            unsafe { query(self.context.raw.as_ptr(), port.into(), index, &mut from, 0, size_of::<ibv_gid_entry>()) };
        match check(answer) {
            Ok(()) => {}
            Err(code) if code == Errno::NODATA.raw_os_error() => return Ok(None),
            Err(code) => return Err(self.context.error(OPERATION, code)),
        }
        // SAFETY: V4: sixteen bytes under any of the union's names.
        let gid = Ipv6Addr::from(unsafe { from.gid.raw });
        let Some(kind) = convert::gid_kind(from.gid_type).filter(|_| !gid.is_unspecified()) else { return Ok(None) };
        let interface = sysfs::interface(&self.context.name, port, index);
        Ok(Some(GidEntry { index, gid, kind, interface }))
    }

    fn allocate_domain(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Arc::new(NativeDomain::new(&self.context)?))
    }

    fn create_completion_queue(&self, depth: u32) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        let most = self.attributes()?.max_cqe;
        if depth == 0 || depth > most {
            let reason = format!("a depth of {depth} is not between 1 and {most}, the most that the device has");
            return Err(self.context.refuse("ibv_create_cq", Errno::INVAL, reason));
        }
        Ok(Arc::new(NativeCompletionQueue::new(&self.context, depth)?))
    }

    fn poll_async_event(&self) -> Option<AsyncEvent> {
        let mut from = ibv_async_event::default();
        // SAFETY: V1, V2, V4, V8: the descriptor does not block.
        if unsafe { (self.context.library.get_async_event)(self.context.raw.as_ptr(), &mut from) } != 0 {
            let code = last_error();
            if code == Errno::AGAIN.raw_os_error() || code == Errno::INTR.raw_os_error() {
                return None;
            }
            // The descriptor of a device that was pulled out is readable for ever, and would keep the sleeper awake.
            self.context.sleeper.forget(self.context.events());
            return (!self.gone.swap(true, Ordering::Relaxed)).then_some(AsyncEvent::DeviceFatal);
        }
        let event = self.event(&from);
        // SAFETY: V1, V4, V7: acknowledged once, and what the event points to was read before.
        unsafe { (self.context.library.ack_async_event)(&mut from) };
        Some(event)
    }
}

impl NativeDevice {
    /// An event that is not acknowledged yet.
    fn event(&self, from: &ibv_async_event) -> AsyncEvent {
        match from.event_type {
            sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_QP_REQ_ERR | sys::IBV_EVENT_QP_ACCESS_ERR => {
                // SAFETY: V7: events of this kind carry a queue pair.
                let pair = unsafe { from.element.qp };
                // SAFETY: V7: the queue pair is not freed before the event is acknowledged.
                AsyncEvent::QueuePairFatal(unsafe { (*pair).qp_num })
            }
            sys::IBV_EVENT_CQ_ERR => AsyncEvent::CompletionQueueError,
            sys::IBV_EVENT_DEVICE_FATAL => {
                self.gone.store(true, Ordering::Relaxed);
                AsyncEvent::DeviceFatal
            }
            sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port(from)),
            sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port(from)),
            sys::IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange(port(from)),
            other => AsyncEvent::Other(other),
        }
    }
}

/// The port of an event of a port.
fn port(event: &ibv_async_event) -> u8 {
    // SAFETY: V7: events of this kind carry a port.
    let port = unsafe { event.element.port_num };
    // Lossless: devices count their ports in 8 bits.
    port as u8
}

/// The library counts in signed numbers; a negative one would be a defect of the device.
fn count(from: i32) -> u32 {
    u32::try_from(from).unwrap_or(0)
}
