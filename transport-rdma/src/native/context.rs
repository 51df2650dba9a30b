//! Open devices, as the library sees them.

use std::{ffi::CStr, os::fd::BorrowedFd, sync::Arc};

use ibverbs_sys::{ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};
use rustix::io::Errno;

use super::{
    handle::{Handle, check},
    library::{Library, NAME},
    sleeper::{Sleeper, Trigger},
};
use crate::verbs::VerbsError;

/// The list of devices; freed when it is dropped. Devices are usable until then.
#[derive(Debug)]
pub(super) struct DeviceList<'a> {
    library: &'a Library,
    list: Handle<*mut ibv_device>,
    count: usize,
}

impl<'a> DeviceList<'a> {
    pub(super) fn new(library: &'a Library) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: V1, V4: the counter outlives the call.
        let list = unsafe { (library.get_device_list)(&mut count) };
        let list = Handle::new(list).map_err(|code| {
            if code == Errno::NOSYS.raw_os_error() {
                let reason = "the kernel has no RDMA: load the module ib_uverbs, and the driver of the device";
                VerbsError::new("ibv_get_device_list", NAME, code, reason)
            } else {
                VerbsError::from_code("ibv_get_device_list", NAME, code)
            }
        })?;
        Ok(Self { library, list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: V2: the library said that the list has this many entries, and it lives as long as `self`.
        (0..self.count).map(|index| unsafe { *self.list.as_ptr().wrapping_add(index) })
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: V1, V2: the device is of this list.
        let name = unsafe { (self.library.get_device_name)(device) };
        // SAFETY: V2: the name is a string inside of the device.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.devices().map(|device| self.name(device))
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: V1, V2: the list is freed once, and no pointer to one of its devices is left: they are copied by opening.
        unsafe { (self.library.free_device_list)(self.list.as_ptr()) };
    }
}

/// An open device. All that is made on it holds it, so it is closed last.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) library: Arc<Library>,
    pub(super) sleeper: Arc<Sleeper>,
    pub(super) name: Arc<str>,
    pub(super) raw: Handle<ibv_context>,
    pub(super) calls: Calls,
}

/// The functions of the device's driver that the header calls directly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    pub(super) post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32,
    pub(super) post_receive: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
    pub(super) poll: unsafe extern "C" fn(*mut ibv_cq, i32, *mut ibv_wc) -> i32,
    pub(super) notify: unsafe extern "C" fn(*mut ibv_cq, i32) -> i32,
}

impl Context {
    pub(super) fn open(library: &Arc<Library>, sleeper: &Arc<Sleeper>, name: &str) -> Result<Self, VerbsError> {
        let list = DeviceList::new(library)?;
        let Some(device) = list.devices().find(|device| list.name(*device) == name) else {
            let names: Vec<String> = list.names().collect();
            let there_is = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let reason = format!("there is no such device; there is: {there_is}");
            return Err(VerbsError::new("ibv_open_device", name, Errno::NODEV.raw_os_error(), reason));
        };
        // SAFETY: V1, V2: the device is of a list that is not freed yet.
        let raw = unsafe { (library.open_device)(device) };
        let raw = Handle::new(raw).map_err(|code| VerbsError::from_code("ibv_open_device", name, code))?;
        let Some(calls) = Calls::of(&raw) else {
            // SAFETY: V1, V2: nothing was made on it.
            unsafe { (library.close_device)(raw.as_ptr()) };
            let reason = "the device's driver has no functions to post and poll";
            return Err(VerbsError::new("ibv_open_device", name, Errno::OPNOTSUPP.raw_os_error(), reason));
        };
        // From here on the device is closed when the context is dropped.
        let (library, sleeper) = (Arc::clone(library), Arc::clone(sleeper));
        let context = Self { library, sleeper, name: name.into(), raw, calls };
        context.sleeper.watch(context.events(), Trigger::While).map_err(|error| {
            context.error("ibv_open_device", error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
        })?;
        Ok(context)
    }

    /// Where asynchronous events come from.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: V2: the context is open.
        let descriptor = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: V8: the library closes it with the context, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }

    /// A failure with the error number of a function.
    pub(super) fn error(&self, operation: &'static str, code: i32) -> VerbsError {
        VerbsError::from_code(operation, Arc::clone(&self.name), code)
    }

    /// A failure that is noticed before the library is asked, or that has more to say than the number.
    pub(super) fn refuse(&self, operation: &'static str, code: Errno, reason: impl Into<Arc<str>>) -> VerbsError {
        VerbsError::new(operation, Arc::clone(&self.name), code.raw_os_error(), reason)
    }

    /// Logs that something was not destroyed. It stays with the device until that is closed; nothing here uses it any more.
    pub(super) fn destroyed(&self, operation: &'static str, answer: i32) {
        if let Err(code) = check(answer) {
            let error = self.error(operation, code);
            tracing::warn!(%error, "an RDMA object outlives its owner");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.sleeper.forget(self.events());
        // SAFETY: V1, V2: everything that was made on the device is gone, because it held `self`.
        let answer = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
        self.destroyed("ibv_close_device", answer);
    }
}

impl Calls {
    fn of(context: &Handle<ibv_context>) -> Option<Self> {
        // SAFETY: V1, V2: the context is open, and its table was filled when it was opened.
        let table = unsafe { (*context.as_ptr()).ops };
        Some(Self {
            post_send: table.post_send?,
            post_receive: table.post_recv?,
            poll: table.poll_cq?,
            notify: table.req_notify_cq?,
        })
    }
}
