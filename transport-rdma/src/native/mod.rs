//! The real verbs: libibverbs, opened at run time.
//!
//! Types come from `ibverbs-sys`, functions from the library that this host has: a program with this module starts also where
//! there is none, and learns from [`NativeVerbs::open`] what to install. Posting, polling and arming go through the table of functions
//! of an open device, as the header's inline functions do.
//!
//! All `unsafe` code of this crate is here. docs/safety.md has the rules (V1 to V8) that the comments cite.

mod completion_queue;
mod context;
mod convert;
mod device;
mod domain;
mod handle;
mod library;
mod post;
mod queue_pair;
mod region;
mod sleeper;
mod sysfs;

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc, time::Duration};

use self::{context::Context, device::NativeDevice, library::Library, sleeper::Sleeper};
use crate::verbs::{Device, DeviceInfo, Verbs, VerbsError};

/// The verbs of this host, by libibverbs.
///
/// ```no_run
/// use transport_rdma::{native::NativeVerbs, verbs::Verbs};
///
/// let verbs = NativeVerbs::open()?;
/// for device in verbs.devices()? {
///     println!("{}: {:?}", device.name, verbs.open(&device.name)?.port(1)?);
/// }
/// # Ok::<(), transport_rdma::verbs::VerbsError>(())
/// ```
#[derive(Debug)]
pub struct NativeVerbs {
    library: Arc<Library>,
    sleeper: Arc<Sleeper>,
}

impl NativeVerbs {
    /// Opens libibverbs.
    ///
    /// # Errors
    /// When it is not installed or too old; the error names the packages.
    pub fn open() -> Result<Arc<Self>, VerbsError> {
        Self::open_library(Path::new(library::NAME))
    }

    fn open_library(path: &Path) -> Result<Arc<Self>, VerbsError> {
        let library = Arc::new(Library::open(path)?);
        let sleeper = Arc::new(Sleeper::new()?);
        Ok(Arc::new(Self { library, sleeper }))
    }
}

impl Verbs for NativeVerbs {
    fn name(&self) -> &str {
        "libibverbs"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let list = context::DeviceList::new(&self.library)?;
        Ok(list.names().map(|name| DeviceInfo { numa_node: sysfs::numa_node(&name), name }).collect())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        let context = Context::open(&self.library, &self.sleeper, name)?;
        Ok(Arc::new(NativeDevice::new(Arc::new(context))))
    }

    fn wait(&self, timeout: Option<Duration>) {
        self.sleeper.wait(timeout);
    }

    fn wake(&self) {
        self.sleeper.wake();
    }
}
