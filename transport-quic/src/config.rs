//! Settings of the transport, and what quinn is given for them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt, congestion::CubicConfig};

/// Settings of a [`QuicTransport`](crate::QuicTransport). Sizes are in bytes.
///
/// ```
/// use std::time::Duration;
/// use transport_quic::QuicConfig;
///
/// let config = QuicConfig::default()
///     .with_listen("127.0.0.1:0".parse()?)
///     .with_peer_loss_timeout(Duration::from_secs(2));
/// assert_eq!(config.peer_loss_timeout, Duration::from_secs(2));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuicConfig {
    /// Where to listen; port 0 takes any free one. Default 127.0.0.1:0.
    pub listen: SocketAddr,
    /// From dialling to the peer's answer. Default 5 s.
    pub connect_timeout: Duration,
    /// The bound on noticing that a peer is gone. QUIC's idle timeout is 0.8 of it, and keep-alives go out six times in it.
    /// Default 3 s.
    pub peer_loss_timeout: Duration,
    /// How long a peer that is there may take no byte of a batch, or no control message, before it is cut off. The answer to a batch
    /// may take ten times as long while other batches make progress. Default 10 s.
    pub stall_timeout: Duration,
    /// Transfers in flight to one peer; one more is refused as full. Default 256.
    pub max_in_flight: usize,
    /// Batches of one peer that are on the wire at a time; others wait in their slots. Default 4.
    pub concurrent_batches: u32,
    /// Regions that can be registered. Default 65,536.
    pub max_regions: usize,
    /// Regions that a peer may grant. Default 65,536.
    pub max_granted_regions: usize,
    /// Connections at a time, in both directions together. Default 1,024.
    pub max_peers: usize,
    /// Notifications of one peer that wait to be taken; then its senders wait. Default 1,024.
    pub events_per_peer: usize,
    /// Longest message of the control channel. Default 4 MiB.
    pub max_control_message: usize,
    /// Largest datagram payload that discovery tries. Loopback carries 65,507, a jumbo network 8,952. Default 65,507.
    pub max_mtu: u16,
    /// What the socket is asked for in each direction; the kernel may grant less (net.core.rmem_max, wmem_max). Default 4 MiB.
    pub socket_buffer: usize,
    /// Bytes that a peer may have on the way to us. Default 3 MiB.
    pub receive_window: u32,
    /// Bytes that we may have on the way to a peer. Default 6 MiB.
    pub send_window: u32,
    /// quinn's own settings instead of ours, to measure what ours are worth.
    pub(crate) quinn_defaults: bool,
}

impl Default for QuicConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            connect_timeout: Duration::from_secs(5),
            peer_loss_timeout: Duration::from_secs(3),
            stall_timeout: Duration::from_secs(10),
            max_in_flight: 256,
            concurrent_batches: 4,
            max_regions: 65_536,
            max_granted_regions: 65_536,
            max_peers: 1024,
            events_per_peer: 1024,
            max_control_message: 4 << 20,
            max_mtu: 65_507,
            socket_buffer: 4 << 20,
            receive_window: 3 << 20,
            send_window: 6 << 20,
            quinn_defaults: false,
        }
    }
}

/// The congestion window to start with. Cubic's own is smaller than one datagram at a large MTU, and then nothing is sent.
const INITIAL_WINDOW: u64 = 1 << 20;

impl QuicConfig {
    /// Sets where to listen.
    #[must_use]
    pub fn with_listen(mut self, listen: SocketAddr) -> Self {
        self.listen = listen;
        self
    }

    /// Sets the bound on connecting.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the bound on noticing that a peer is gone.
    #[must_use]
    pub fn with_peer_loss_timeout(mut self, timeout: Duration) -> Self {
        self.peer_loss_timeout = timeout;
        self
    }

    /// Sets the bound on a peer that takes no byte.
    #[must_use]
    pub fn with_stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// Sets the number of transfers in flight to one peer.
    #[must_use]
    pub fn with_max_in_flight(mut self, transfers: usize) -> Self {
        self.max_in_flight = transfers;
        self
    }

    /// Sets the number of batches of one peer on the wire at a time.
    #[must_use]
    pub fn with_concurrent_batches(mut self, batches: u32) -> Self {
        self.concurrent_batches = batches;
        self
    }

    /// Sets the number of notifications of one peer that wait to be taken.
    #[must_use]
    pub fn with_events_per_peer(mut self, events: usize) -> Self {
        self.events_per_peer = events;
        self
    }

    /// Sets the number of connections at a time.
    #[must_use]
    pub fn with_max_peers(mut self, peers: usize) -> Self {
        self.max_peers = peers;
        self
    }

    /// Sets the largest datagram payload that discovery tries.
    #[must_use]
    pub fn with_max_mtu(mut self, mtu: u16) -> Self {
        self.max_mtu = mtu;
        self
    }

    /// Sets what the socket is asked for in each direction.
    #[must_use]
    pub fn with_socket_buffer(mut self, bytes: usize) -> Self {
        self.socket_buffer = bytes;
        self
    }

    /// quinn's own transport settings and socket in place of ours, with the same protocol on top: what a program gets that
    /// uses quinn as it comes. For measurements.
    #[doc(hidden)]
    #[must_use]
    pub fn quinn_defaults() -> Self {
        Self { quinn_defaults: true, ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let zero = |timeout: Duration| timeout < Duration::from_millis(50);
        let rules = [
            (zero(self.connect_timeout), "connect_timeout is below 50 ms"),
            (zero(self.peer_loss_timeout), "peer_loss_timeout is below 50 ms"),
            (self.peer_loss_timeout > Duration::from_secs(3600), "peer_loss_timeout is above an hour"),
            (zero(self.stall_timeout), "stall_timeout is below 50 ms"),
            (self.max_in_flight == 0, "max_in_flight is 0"),
            (self.concurrent_batches == 0, "concurrent_batches is 0"),
            (self.concurrent_batches > 1024, "concurrent_batches is above 1,024"),
            (self.max_peers == 0, "max_peers is 0"),
            (self.max_control_message < 1024, "max_control_message is below 1,024 bytes"),
            (self.max_control_message > 1 << 30, "max_control_message is above 1 GiB"),
            (self.max_mtu < 1200, "max_mtu is below QUIC's minimum of 1,200 bytes"),
            (self.max_mtu > 65_507, "max_mtu is above 65,507, the most that a UDP datagram carries over IPv4"),
            (self.receive_window < 64 << 10, "receive_window is below 64 KiB"),
            (self.send_window < 64 << 10, "send_window is below 64 KiB"),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, rule)) => Err(ConfigError(rule)),
            None => Ok(()),
        }
    }

    /// Bytes that all peers together may have on the way to us: they must fit the socket's buffer, whose size the kernel counts with
    /// its own overhead. `None` where quinn's own settings are in force.
    pub(crate) fn window(&self, received: usize) -> Option<u32> {
        let fits = u32::try_from(received / 8 * 3).unwrap_or(u32::MAX).max(64 << 10);
        (!self.quinn_defaults).then_some(self.receive_window.min(fits))
    }

    /// quinn's settings. `received` is what the kernel granted as receive buffer.
    pub(crate) fn transport(&self, received: usize) -> Arc<TransportConfig> {
        let mut transport = TransportConfig::default();
        // Every peer may open the two streams of its control channel and its batches, and one of each to spare.
        transport.max_concurrent_bidi_streams(VarInt::from_u32(self.concurrent_batches + 4));
        transport.max_concurrent_uni_streams(VarInt::from_u32(0));
        transport.max_idle_timeout(IdleTimeout::try_from(self.peer_loss_timeout.mul_f64(0.8)).ok());
        transport.keep_alive_interval(Some(self.peer_loss_timeout.div_f64(6.0)));
        if self.quinn_defaults {
            return Arc::new(transport);
        }
        let window = VarInt::from_u32(self.window(received).unwrap_or(self.receive_window));
        transport.stream_receive_window(window);
        transport.receive_window(window);
        transport.send_window(u64::from(self.send_window));
        transport.datagram_receive_buffer_size(None);
        transport.initial_rtt(Duration::from_millis(20));
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.max_mtu);
        discovery.black_hole_cooldown(Duration::from_secs(10));
        transport.mtu_discovery_config(Some(discovery));
        let mut congestion = CubicConfig::default();
        congestion.initial_window(INITIAL_WINDOW);
        transport.congestion_controller_factory(Arc::new(congestion));
        Arc::new(transport)
    }
}

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the configuration cannot work: {0}")]
pub struct ConfigError(&'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_named() {
        assert!(QuicConfig::default().check().is_ok());
        let error = QuicConfig::default().with_max_mtu(1199).check().unwrap_err();
        assert_eq!(error.to_string(), "the configuration cannot work: max_mtu is below QUIC's minimum of 1,200 bytes");
        assert!(QuicConfig::default().with_max_in_flight(0).check().is_err());
        assert!(QuicConfig::default().with_concurrent_batches(0).check().is_err());
        assert!(QuicConfig::default().with_peer_loss_timeout(Duration::ZERO).check().is_err());
    }
}
