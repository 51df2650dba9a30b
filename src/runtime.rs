//! The engine's thread: a current-thread runtime for the tasks that outlive a caller's future.

use std::{io, thread};

use tokio::{runtime::Handle, sync::oneshot};

/// Starts the thread. It runs until `stop` is sent or dropped; what it still runs then is dropped.
pub(crate) fn start() -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    thread::Builder::new().name("kvferry-engine".into()).spawn(move || {
        let _ = runtime.block_on(stopped);
    })?;
    Ok((handle, stop))
}
