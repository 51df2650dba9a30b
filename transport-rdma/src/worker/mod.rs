//! The worker of a transport: it owns the completion queues and the connections' protocol.
//!
//! It polls the completion queues of all rails, reads and writes the control channels, makes and destroys queue pairs, and
//! ends transfers, turn by turn. Batches are posted by the threads that submit them, as far as there is room; the rest is
//! posted from here as completions come. Turns are taken by the transport's thread, and by a thread that blocks on a
//! transfer ([`progress`]); one thread at a time.

mod deregistration;
mod lane;
mod progress;
mod random;
mod seat;
mod session;
#[cfg(all(test, feature = "sim"))]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use transport_core::Progress;

use self::{deregistration::Deregistrations, progress::Turns, session::Session};
use crate::{
    config::Completions,
    error::OpenError,
    host::{Command, Host, phase},
    peer::End,
    verbs::{AsyncEvent, Completion},
};

/// How often deadlines are looked at while there are connections.
const TICK: Duration = Duration::from_millis(50);
/// How soon a queue that refused a work request is tried again, if no completion comes before.
const RETRY: Duration = Duration::from_millis(1);
/// Completions that are taken out at a time.
const POLL: usize = 64;

#[cfg_attr(not(test), expect(unused_variables, reason = "only tests change it"))]
fn tick_of(host: &Host) -> Duration {
    #[cfg(test)]
    if host.seldom.load(std::sync::atomic::Ordering::Relaxed) {
        return Duration::from_secs(600);
    }
    TICK
}

/// Which lane of which session a queue pair is, by rail and number.
pub(crate) type Routes = HashMap<(usize, u32), (usize, usize)>;

/// Starts the thread.
pub(crate) fn start(host: &Arc<Host>) -> Result<(), OpenError> {
    let now = Instant::now();
    let worker = Worker {
        host: Arc::clone(host),
        sessions: Vec::new(),
        routes: Routes::new(),
        deregistrations: Deregistrations::default(),
        touched: Vec::new(),
        completions: [Completion::EMPTY; POLL],
        armed: vec![false; host.rails.len()],
        last_work: now,
        next_tick: now,
        thread_wakes: None,
    };
    let turns = Arc::new(Turns::new(worker));
    // A thread that polls all the time is faster than a waiter who takes the lock from it.
    if host.config.completions != Completions::Busy {
        let progress: Weak<dyn Progress> = Arc::<Turns>::downgrade(&turns);
        host.pool.set_progress(progress);
    }
    thread::Builder::new()
        .name("kvferry-rdma".into())
        .spawn(move || turns.run())
        .map(drop)
        .map_err(|error| OpenError::Thread { reason: error.to_string() })
}

struct Worker {
    host: Arc<Host>,
    sessions: Vec<Option<Session>>,
    routes: Routes,
    deregistrations: Deregistrations,
    /// Sessions that have completions to look at.
    touched: Vec<usize>,
    completions: [Completion; POLL],
    /// By rail: its completion queue is armed for certain. It stays so until a completion comes.
    armed: Vec<bool>,
    last_work: Instant,
    next_tick: Instant,
    /// When the thread wakes up by itself, at the latest; `None` for never.
    thread_wakes: Option<Instant>,
}

/// What came of a turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    began: Instant,
    /// There was something to do.
    worked: bool,
    /// Somebody called for it.
    woken: bool,
    /// A shutdown is through, and the worker can end.
    done: bool,
}

impl Worker {
    /// Does everything that there is to do now. `slept` says that this thread comes from a sleep.
    fn turn(&mut self, slept: bool) -> Turn {
        let completed = self.poll_completions();
        let woken = self.host.signal.take();
        if slept || woken {
            // The event of a completion may have come, and ended this sleep or that of one who calls.
            self.armed.fill(false);
        }
        if slept && !completed && !woken {
            // Neither completions nor a call have ended the sleep: it may be a device.
            self.take_device_events();
        }
        let now = Instant::now();
        if woken {
            self.take_commands(now);
        }
        let tick = now >= self.next_tick;
        if woken || tick {
            self.attend(now, tick);
            self.next_tick = now + if self.is_blocked() { RETRY } else { tick_of(&self.host) };
        }
        let worked = completed || woken;
        if worked {
            self.last_work = now;
        }
        let done = self.host.phase() >= phase::DRAINING && self.is_done();
        Turn { began: now, worked, woken, done }
    }

    /// Whether there is nothing more to do, and polling has been in vain for long enough.
    fn may_sleep(&self, turn: &Turn) -> bool {
        match self.host.config.completions {
            // Without spinning, what came meanwhile is looked for once, when the queues are armed again.
            Completions::Event => !turn.woken,
            Completions::Hybrid { spin } => {
                !turn.worked && turn.began.saturating_duration_since(self.last_work) >= spin
            }
            Completions::Busy => false,
        }
    }

    /// Makes the next completion end a sleep. Answers whether some came before that, which make no event.
    fn arm(&mut self) -> bool {
        let mut anew = false;
        for (rail, armed) in self.host.rails.iter().zip(&mut self.armed) {
            if *armed || rail.is_lost() {
                continue;
            }
            match rail.completions.arm() {
                Ok(()) => *armed = true,
                Err(error) => tracing::debug!(%error, "a completion queue cannot be armed"),
            }
            anew = true;
        }
        anew && self.poll_completions()
    }

    /// When the next turn is due, if nothing happens before; `None` for never.
    fn next_look(&self) -> Option<Instant> {
        let idle = self.sessions.iter().all(Option::is_none) && self.deregistrations.is_empty();
        (!idle).then_some(self.next_tick)
    }

    /// Takes completions out and passes them on; answers whether there were any.
    fn poll_completions(&mut self) -> bool {
        let mut any = false;
        for number in 0..self.host.rails.len() {
            let Some(rail) = self.host.rails.get(number) else { continue };
            if rail.is_lost() {
                continue;
            }
            let count = match rail.completions.poll(&mut self.completions) {
                Ok(count) => count,
                Err(error) => {
                    // The device may say more than its queue.
                    self.take_device_events();
                    self.lose_rail(number, &error.to_string());
                    continue;
                }
            };
            for completion in self.completions.iter().take(count) {
                let Some((session, lane)) = self.routes.get(&(number, completion.queue_pair)) else { continue };
                let Some(Some(place)) = self.sessions.get_mut(*session) else { continue };
                if place.inbox.is_empty() {
                    self.touched.push(*session);
                }
                place.inbox.push((*lane, *completion));
            }
            if count > 0 {
                any = true;
                if let Some(armed) = self.armed.get_mut(number) {
                    *armed = false;
                }
            }
        }
        while let Some(number) = self.touched.pop() {
            if let Some(Some(session)) = self.sessions.get_mut(number) {
                session.take_completions(&mut self.routes);
            }
        }
        // Room in a completion queue may be what another connection waits for.
        if any && self.host.rails.iter().any(|rail| rail.credits.was_starved()) {
            self.sessions.iter_mut().flatten().for_each(Session::pump);
        }
        any
    }

    fn take_commands(&mut self, now: Instant) {
        for command in self.host.take_commands() {
            match command {
                Command::Connect { peer, channel } => {
                    let number = self.sessions.iter().position(Option::is_none).unwrap_or_else(|| {
                        self.sessions.push(None);
                        self.sessions.len() - 1
                    });
                    let session = Session::new(number, &self.host, peer, channel, now);
                    if let Some(place) = self.sessions.get_mut(number) {
                        *place = Some(session);
                    }
                }
                Command::Deregister { region, closed, done } => {
                    let serial = self.deregistrations.next_serial();
                    let asked: Vec<usize> = self
                        .sessions
                        .iter_mut()
                        .enumerate()
                        .filter_map(|(number, session)| session.as_mut()?.revoke(serial, region).then_some(number))
                        .collect();
                    let deadline = now + self.host.config.loss_bound;
                    self.deregistrations.add(serial, region, closed, asked, deadline, done);
                }
            }
        }
    }

    /// Goes through connections that asked for it, and at a tick through all.
    fn attend(&mut self, now: Instant, tick: bool) {
        if tick {
            self.host.rails.iter().for_each(|rail| rail.credits.forget_reserved());
        }
        // Those that end first: a new attempt over the same channel must not be heard before the goodbye of the last one.
        for ended in [true, false] {
            for number in 0..self.sessions.len() {
                self.attend_one(number, ended, now, tick);
            }
        }
        self.deregistrations.turn(&self.host, now);
        if self.host.phase() == phase::ABORTING {
            self.sessions.iter().flatten().for_each(|session| session.peer().begin_end(End::Closed));
        }
        if tick {
            self.take_device_events();
        }
    }

    fn attend_one(&mut self, number: usize, ended: bool, now: Instant, tick: bool) {
        let Some(place) = self.sessions.get_mut(number) else { return };
        let Some(session) = place.as_mut().filter(|session| session.peer().ended().is_some() == ended) else { return };
        if !session.wants_attention() && !tick {
            return;
        }
        session.attend(now, &mut self.routes);
        for serial in session.take_revoked() {
            self.deregistrations.answered(serial, number);
        }
        if session.is_quiet() {
            self.deregistrations.gone(number);
        }
        if session.is_over(now) {
            *place = None;
        }
    }

    fn is_blocked(&self) -> bool {
        self.sessions.iter().flatten().any(Session::is_blocked)
    }

    /// Whether a shutdown is through. A drain waits for what is in flight, then ends the connections.
    fn is_done(&mut self) -> bool {
        if self.host.phase() == phase::DRAINING {
            if self.sessions.iter().flatten().any(|session| !session.is_idle()) {
                return false;
            }
            self.sessions.iter().flatten().for_each(|session| session.peer().begin_end(End::Closed));
        }
        self.sessions.iter().all(Option::is_none) && self.host.close_commands()
    }

    /// The order of docs/safety.md: nothing is in flight and no queue pair is left; the events end, the regions are
    /// deregistered, and only then are those woken who wait for the end.
    fn end(mut self) {
        self.host.advance(phase::CLOSED);
        self.host.events.close();
        self.deregistrations.finish(&self.host);
        self.host.clear_registered();
        self.host.signal.announce_end();
    }

    fn take_device_events(&mut self) {
        for number in 0..self.host.rails.len() {
            while let Some(event) = self.host.rails.get(number).and_then(|rail| rail.device.poll_async_event()) {
                self.device_event(number, event);
            }
        }
    }

    fn device_event(&mut self, number: usize, event: AsyncEvent) {
        let Some(rail) = self.host.rails.get(number) else { return };
        let device = Arc::clone(&rail.name);
        match event {
            // The retries of the queue pairs decide whether it was only a moment.
            AsyncEvent::PortDown(port) => tracing::warn!(%device, port, "the port has no link"),
            AsyncEvent::PortActive(port) => {
                tracing::info!(%device, port, "the port has a link");
                self.sessions.iter_mut().flatten().for_each(|session| session.retry_rail(number));
            }
            AsyncEvent::GidChange(port) => tracing::warn!(%device, port, "the port's GID table changed"),
            AsyncEvent::QueuePairFatal(queue_pair) => {
                if let Some((session, lane)) = self.routes.get(&(number, queue_pair)).copied()
                    && let Some(Some(session)) = self.sessions.get_mut(session)
                {
                    session.fail_lane(lane, "the device reports a fatal error of the queue pair");
                }
            }
            AsyncEvent::CompletionQueueError => self.lose_rail(number, "its completion queue failed"),
            AsyncEvent::DeviceFatal => self.lose_rail(number, "the device is gone"),
            AsyncEvent::Other(code) => tracing::debug!(%device, code, "an event of the device"),
        }
    }

    /// A device is of no use any more: its lanes end, and it gets no new ones.
    fn lose_rail(&mut self, number: usize, reason: &str) {
        let Some(rail) = self.host.rails.get(number).filter(|rail| rail.lose()) else { return };
        tracing::error!(device = %rail.name, reason, "a device is lost");
        self.sessions.iter_mut().flatten().for_each(|session| session.lose_rail(number, reason));
        self.host.signal.wake();
    }
}
