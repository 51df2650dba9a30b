//! A thread that runs the futures of altered batches.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use futures_util::stream::{FuturesUnordered, StreamExt};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The way to the thread. It ends when this is dropped and all tasks are done.
#[derive(Debug)]
pub(super) struct Tasks {
    inbox: Arc<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<State>,
    woken: AtomicBool,
}

#[derive(Default)]
struct State {
    tasks: Vec<Task>,
    thread: Option<Thread>,
    closed: bool,
}

impl Tasks {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the operating system said when it gave none.
    pub(super) fn start() -> std::io::Result<Self> {
        let inbox = Arc::<Inbox>::default();
        let worker = Arc::clone(&inbox);
        let handle = thread::Builder::new().name("kvferry-fault".into()).spawn(move || worker.run())?;
        inbox.lock().thread = Some(handle.thread().clone());
        inbox.wake_by_ref();
        Ok(Self { inbox })
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inbox.lock().tasks.push(Box::pin(task));
        self.inbox.wake_by_ref();
    }

    /// Runs a future on the thread, so that it goes on whoever drops the waiting for it.
    pub(super) async fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> T {
        let answer = Arc::new(Mutex::new((None, None::<Waker>)));
        let place = Arc::clone(&answer);
        self.spawn(async move {
            let output = task.await;
            let waker = {
                let mut answer = place.lock().unwrap_or_else(PoisonError::into_inner);
                answer.0 = Some(output);
                answer.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        });
        poll_fn(|context| {
            let mut answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
            answer.1 = Some(context.waker().clone());
            answer.0.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.inbox.lock().closed = true;
        self.inbox.wake_by_ref();
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        let mut tasks = FuturesUnordered::new();
        loop {
            let closed = {
                let mut state = self.lock();
                tasks.extend(state.tasks.drain(..));
                state.closed
            };
            while let Poll::Ready(Some(())) = tasks.poll_next_unpin(&mut context) {}
            if closed && tasks.is_empty() {
                return;
            }
            while !self.woken.swap(false, Ordering::AcqRel) {
                thread::park();
            }
        }
    }
}

impl Wake for Inbox {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        // A wake-up before the thread is known is seen by the one that follows when it is.
        if let Some(thread) = &self.lock().thread {
            thread.unpark();
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("tasks", &self.tasks.len()).field("closed", &self.closed).finish_non_exhaustive()
    }
}
