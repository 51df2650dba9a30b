use std::time::Duration;

/// The limits of one in-memory transport.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemConfig {
    /// Transfers in flight to one peer before a submission is refused as full.
    pub max_in_flight: usize,
    /// Regions that can be registered at a time.
    pub max_regions: usize,
    /// Grants that are kept of one peer.
    pub max_imports: usize,
    /// Notifications of one peer that wait for the program before that peer's transfers have to wait.
    pub events_per_peer: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a notification may wait for a receiver that does not listen.
    pub stall_timeout: Duration,
    /// A pause after each piece of at most 1 MiB, to make a network as slow as a test needs it.
    pub pace: Duration,
}

impl Default for MemConfig {
    fn default() -> Self {
        Self {
            max_in_flight: 256,
            max_regions: 4096,
            max_imports: 4096,
            events_per_peer: 1024,
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            pace: Duration::ZERO,
        }
    }
}

impl MemConfig {
    /// Sets how many transfers may be in flight to one peer.
    #[must_use]
    pub fn with_max_in_flight(mut self, max_in_flight: usize) -> Self {
        self.max_in_flight = max_in_flight;
        self
    }

    /// Sets how many regions can be registered.
    #[must_use]
    pub fn with_max_regions(mut self, max_regions: usize) -> Self {
        self.max_regions = max_regions;
        self
    }

    /// Sets how many grants of one peer are kept.
    #[must_use]
    pub fn with_max_imports(mut self, max_imports: usize) -> Self {
        self.max_imports = max_imports;
        self
    }

    /// Sets how many notifications of one peer may wait for the program.
    #[must_use]
    pub fn with_events_per_peer(mut self, events_per_peer: usize) -> Self {
        self.events_per_peer = events_per_peer;
        self
    }

    /// Sets how long connecting may take.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets how long a notification may wait for a receiver that does not listen.
    #[must_use]
    pub fn with_stall_timeout(mut self, stall_timeout: Duration) -> Self {
        self.stall_timeout = stall_timeout;
        self
    }

    /// Sets the pause after each piece.
    #[must_use]
    pub fn with_pace(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }
}
