//! Counts tasks that are still at work, for those who must wait until none is.

use std::sync::Arc;

use tokio::sync::watch;

/// A count of guards.
#[derive(Clone, Debug)]
pub(crate) struct Tracker {
    count: Arc<watch::Sender<usize>>,
}

impl Tracker {
    pub(crate) fn new() -> Self {
        Self { count: Arc::new(watch::Sender::new(0)) }
    }

    /// Counts until the guard is dropped.
    pub(crate) fn enter(&self) -> Guard {
        self.count.send_modify(|count| *count += 1);
        Guard { count: Arc::clone(&self.count) }
    }

    /// Waits until nobody is counted.
    pub(crate) async fn idle(&self) {
        // The sender is held by `self`, so waiting cannot fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// One who is counted.
#[derive(Debug)]
pub(crate) struct Guard {
    count: Arc<watch::Sender<usize>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.count.send_modify(|count| *count -= 1);
    }
}
