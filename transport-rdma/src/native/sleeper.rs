//! Sleeping until a device has something.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, Timespec, epoll, eventfd},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, write},
};

use crate::verbs::VerbsError;

/// Sleeps longer than this are cut: a longer one may not fit the system's types, and one wake-up an hour costs nothing.
const LONGEST: Duration = Duration::from_secs(3600);

/// One epoll over the completion channels and the asynchronous events of all devices, and a bell to ring from any thread.
///
/// Of several threads that sleep in one epoll, the kernel wakes one for each event, the one that came last.
#[derive(Debug)]
pub(super) struct Sleeper {
    epoll: OwnedFd,
    bell: OwnedFd,
}

/// How a descriptor ends the sleep.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trigger {
    /// Once for each event. An event that nobody takes does not keep the sleeper awake: a completion queue whose event came is no
    /// longer armed.
    Once,
    /// Until all its events are taken.
    While,
}

impl Sleeper {
    pub(super) fn new() -> Result<Self, VerbsError> {
        let failed = |error: Errno| VerbsError::from_code("epoll", super::library::NAME, error.raw_os_error());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        // Each time that it is rung is an event, whether it was heard before or not: nobody has to read it.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(0), flags).map_err(failed)?;
        Ok(Self { epoll, bell })
    }

    /// Adds a descriptor of the library's, and makes its reads answer at once when there is nothing.
    pub(super) fn watch(&self, descriptor: BorrowedFd<'_>, trigger: Trigger) -> io::Result<()> {
        fcntl_setfl(descriptor, fcntl_getfl(descriptor)? | OFlags::NONBLOCK)?;
        let flags = match trigger {
            Trigger::Once => epoll::EventFlags::IN | epoll::EventFlags::ET,
            Trigger::While => epoll::EventFlags::IN,
        };
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(0), flags)?)
    }

    /// Takes a descriptor out. Call it before the descriptor is closed.
    pub(super) fn forget(&self, descriptor: BorrowedFd<'_>) {
        // It fails only where the descriptor was taken out before.
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    pub(super) fn wait(&self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| {
            let timeout = timeout.min(LONGEST);
            // Lossless: an hour is some thousand seconds, and a second has some billion nanoseconds.
            Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos().into() }
        });
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 16];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            // A signal: the caller looks around and comes back, as it does for an event.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                // A caller that is told nothing would come back at once, for ever.
                tracing::error!(%error, "waiting for RDMA events fails; polling every 10 ms instead");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    pub(super) fn wake(&self) {
        // It fails only when the counter is full, which takes centuries.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }
}
