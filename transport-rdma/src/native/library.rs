//! The functions of libibverbs.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    fmt,
    path::Path,
};

use ibverbs_sys::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use rustix::io::Errno;

use crate::verbs::VerbsError;

/// Its name, with the version of its interface that the types are of.
pub(super) const NAME: &str = "libibverbs.so.1";

const INSTALL: &str = "install rdma-core (Debian: libibverbs1 and ibverbs-providers; at least version 32), or use a transport without RDMA";

/// Makes the table, so that a field, its symbol and its type are in one line.
macro_rules! table {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions, as the library has them. Never unloaded, because its providers never are.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
            /// Not in libraries before version 34.
            pub(super) register_dma_buf: Option<RegisterDmaBuf>,
        }

        impl Library {
            fn look_up(library: &libloading::Library, path: &Path) -> Result<Self, VerbsError> {
                Ok(Self {
                    // SAFETY: V1: the type is the one that the header declares for this symbol.
                    $($field: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|error| unusable(path, $symbol, &error))?,)+
                    // SAFETY: V1: as above.
                    register_dma_buf: unsafe { library.get(b"ibv_reg_dmabuf_mr\0") }.ok().map(|symbol| *symbol),
                })
            }
        }
    };
}

/// `ibv_reg_dmabuf_mr`.
pub(super) type RegisterDmaBuf = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

table! {
    get_device_list = "ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list = "ibv_free_device_list": fn(*mut *mut ibv_device);
    get_device_name = "ibv_get_device_name": fn(*mut ibv_device) -> *const c_char;
    open_device = "ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
    close_device = "ibv_close_device": fn(*mut ibv_context) -> c_int;
    query_device = "ibv_query_device": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    // The symbol fills the older and shorter form of the attributes, which the newer one begins with.
    query_port = "ibv_query_port": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    query_gid = "_ibv_query_gid_ex": fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    get_async_event = "ibv_get_async_event": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event = "ibv_ack_async_event": fn(*mut ibv_async_event);
    allocate_domain = "ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
    free_domain = "ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    register = "ibv_reg_mr": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    deregister = "ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
    create_channel = "ibv_create_comp_channel": fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_channel = "ibv_destroy_comp_channel": fn(*mut ibv_comp_channel) -> c_int;
    create_queue = "ibv_create_cq": fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_queue = "ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
    get_queue_event = "ibv_get_cq_event": fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_queue_events = "ibv_ack_cq_events": fn(*mut ibv_cq, c_uint);
    create_pair = "ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_pair = "ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    query_pair = "ibv_query_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    destroy_pair = "ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
}

impl Library {
    pub(super) fn open(path: &Path) -> Result<Self, VerbsError> {
        // SAFETY: V1: libibverbs runs nothing when it is loaded but what prepares its own variables.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| unusable(path, "dlopen", &error))?;
        let table = Self::look_up(&library, path)?;
        // The functions are used for as long as the process lives, and the providers hold on to the library anyway.
        std::mem::forget(library);
        Ok(table)
    }
}

fn unusable(path: &Path, operation: &'static str, error: &libloading::Error) -> VerbsError {
    let code = if operation == "dlopen" { Errno::NOENT } else { Errno::NOSYS };
    let reason = format!("{error}; {INSTALL}");
    VerbsError::new(operation, path.display().to_string(), code.raw_os_error(), reason)
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("dma_buf", &self.register_dma_buf.is_some()).finish_non_exhaustive()
    }
}
