//! An outcome that is set once and waited for in any way: polled, blocked on, awaited, by any number of holders.

use std::{
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

/// One end of an outcome; all clones see the same.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    inner: Arc<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    state: Mutex<State<T>>,
    set: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    wakers: Vec<Waker>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Clone> Shared<T> {
    pub(crate) fn new() -> Self {
        let state = Mutex::new(State { value: None, wakers: Vec::new() });
        Self { inner: Arc::new(Inner { state, set: Condvar::new() }) }
    }

    /// Sets the outcome. The first one stays; answers whether this was it.
    pub(crate) fn set(&self, value: T) -> bool {
        let wakers = {
            let mut state = self.lock();
            if state.value.is_some() {
                return false;
            }
            state.value = Some(value);
            std::mem::take(&mut state.wakers)
        };
        self.inner.set.notify_all();
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    pub(crate) fn get(&self) -> Option<T> {
        self.lock().value.clone()
    }

    pub(crate) fn wait(&self) -> T {
        let mut state = self.lock();
        loop {
            if let Some(value) = &state.value {
                return value.clone();
            }
            state = self.inner.set.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn wait_timeout(&self, timeout: Duration) -> Option<T> {
        let (state, _) = self
            .inner
            .set
            .wait_timeout_while(self.lock(), timeout, |state| state.value.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.value.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Future for Shared<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.lock();
        if let Some(value) = &state.value {
            return Poll::Ready(value.clone());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_outcome_stays_and_everybody_sees_it() {
        let shared = Shared::new();
        assert_eq!(shared.wait_timeout(Duration::from_millis(1)), None);
        let waiter = std::thread::spawn({
            let shared = shared.clone();
            move || shared.wait()
        });
        assert!(shared.set(1));
        assert!(!shared.set(2));
        assert_eq!(waiter.join().unwrap(), 1);
        assert_eq!(shared.get(), Some(1));
    }
}
