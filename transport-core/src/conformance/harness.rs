//! What an implementation gives the suite.

use std::{sync::Arc, time::Duration};

use crate::{channel::ControlChannel, transport::Transport};

/// Makes transports of one implementation, and the channels between them.
///
/// A *node* is what a process would be: one transport, and whatever it takes to reach it. Each trial makes a harness of its
/// own, starts nodes with it and connects them. Nothing here is async: a harness that needs a runtime brings one, and
/// blocks on it.
pub trait Harness: Send + Sync + 'static {
    /// One process.
    type Node: Send + Sync + 'static;

    /// What the suite may assume of the nodes.
    fn profile(&self) -> Profile;

    /// Starts a node. All nodes of one harness can reach each other.
    fn start(&self) -> Self::Node;

    /// The node's transport, the same one at each call.
    fn transport(&self, node: &Self::Node) -> Arc<dyn Transport>;

    /// A new control channel between two nodes: the dialling end and the listening end. The suite connects the transports
    /// over it, and asks for a new one for each connection.
    fn channels(
        &self,
        dialler: &Self::Node,
        listener: &Self::Node,
    ) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>);

    /// Makes the node silent for ever, as `kill -9` or an unplugged cable would: its peers hear nothing, and have to
    /// notice within [`Profile::loss_bound`]. Answers whether it could; if not, the trials that need it are skipped.
    fn kill(&self, node: &Self::Node) -> bool {
        let _ = node;
        false
    }
}

/// What the suite may assume of a harness's nodes. A public field for each, and a `with_*` function to set it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Profile {
    /// Transfers in flight to one peer before a submission is refused as full; 4 to 64 keep the suite quick.
    pub max_in_flight: usize,
    /// After so many notifications of one peer that the receiving program has not taken, a batch with a further one
    /// stays in flight until it takes one (or the connection ends). Small, and below `max_in_flight` or not.
    pub events_per_peer: usize,
    /// Regions that can be registered at a time, where a trial may fill the table.
    pub max_regions: Option<usize>,
    /// The longest time from a peer's death to the end of its transfers.
    pub loss_bound: Duration,
    /// How long anything may take that must come to an end by itself. What takes longer fails.
    pub patience: Duration,
    /// Whether [`TransferError::Refused`](crate::TransferError::Refused) carries what the receiver's check said. A NIC
    /// says only "remote access error", and any failure will do then. Without it the trials do not assume that the receiver tells
    /// its peers apart when it checks a grant either.
    pub explains_refusals: bool,
    /// How much the trials move.
    pub sizes: Sizes,
}

impl Profile {
    /// A profile with two limits, a bound on peer loss of 5 s, 20 s of patience, explained refusals and full sizes.
    pub fn new(max_in_flight: usize, events_per_peer: usize) -> Self {
        Self {
            max_in_flight,
            events_per_peer,
            max_regions: None,
            loss_bound: Duration::from_secs(5),
            patience: Duration::from_secs(20),
            explains_refusals: true,
            sizes: Sizes::full(),
        }
    }

    /// Sets how many regions can be registered.
    #[must_use]
    pub fn with_max_regions(mut self, max_regions: usize) -> Self {
        self.max_regions = Some(max_regions);
        self
    }

    /// Sets the bound on peer loss.
    #[must_use]
    pub fn with_loss_bound(mut self, loss_bound: Duration) -> Self {
        self.loss_bound = loss_bound;
        self
    }

    /// Sets how long things may take.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets whether refusals carry their reason.
    #[must_use]
    pub fn with_explains_refusals(mut self, explains_refusals: bool) -> Self {
        self.explains_refusals = explains_refusals;
        self
    }

    /// Sets how much the trials move.
    #[must_use]
    pub fn with_sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }
}

/// How much the trials move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sizes {
    /// Bytes of the one batch that is beyond every window.
    pub largest_batch: u64,
    /// The longest slice of those that are checked size by size, in bytes.
    pub largest_slice: u64,
    /// Slices of the longest batch.
    pub most_slices: usize,
    /// Bytes of a batch that keeps the transport busy for a while.
    pub bulk: u64,
    /// Rounds of trials that repeat something.
    pub rounds: usize,
}

impl Sizes {
    /// For transports that move hundreds of megabytes a second: 64 MiB, 100,000 slices.
    pub const fn full() -> Self {
        Self { largest_batch: 64 << 20, largest_slice: 16 << 20, most_slices: 100_000, bulk: 8 << 20, rounds: 100 }
    }

    /// For transports that move tens of megabytes a second: 8 MiB, 20,000 slices.
    pub const fn small() -> Self {
        Self { largest_batch: 8 << 20, largest_slice: 4 << 20, most_slices: 20_000, bulk: 2 << 20, rounds: 20 }
    }
}
