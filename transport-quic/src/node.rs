//! The thread, the endpoint and the connections of one transport instance.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc},
    thread,
    time::Duration,
};

use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, VarInt,
};
use quinn_proto::HashedConnectionIdGenerator;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};
use transport_core::ConnectError;

use crate::{
    auth::{AuthError, Authentication},
    channel::QuicChannel,
    config::{ConfigError, QuicConfig},
    identity::PublicKey,
    socket::{self, CappedSocket},
};

/// The application's code for every close; the reason is in words.
pub(crate) const CLOSE: VarInt = VarInt::from_u32(1);

/// Accepted channels that nobody has taken yet; further ones wait.
const BACKLOG: usize = 64;

/// Why a transport could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}; choose another address or port (port 0 takes any free one)")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The keys or certificates cannot be used.
    #[error(transparent)]
    Authentication(#[from] AuthError),
    /// The transport's thread did not start.
    #[error("the transport's thread did not start: {0}")]
    Thread(#[source] io::Error),
}

/// The endpoint and its thread.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) handle: Handle,
    pub(crate) config: QuicConfig,
    pub(crate) local_addr: SocketAddr,
    /// Bytes that all peers together may have on the way to us, where that is ours to say.
    pub(crate) receive_window: Option<u32>,
    pub(crate) authentication: Authentication,
    client: ClientConfig,
    /// Places for connections.
    places: Arc<Semaphore>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
}

/// The accepted channels.
pub(crate) type Backlog = mpsc::Receiver<Arc<QuicChannel>>;

impl Node {
    pub(crate) fn start(config: QuicConfig, authentication: Authentication) -> Result<(Arc<Self>, Backlog), BindError> {
        config.check()?;
        let failed = |cause| BindError::Address { address: config.listen, cause };
        let (socket, received) = if config.quinn_defaults {
            (std::net::UdpSocket::bind(config.listen).map_err(failed)?, 0)
        } else {
            socket::bind(config.listen, config.socket_buffer).map_err(failed)?
        };
        let local_addr = socket.local_addr().map_err(failed)?;
        let transport = config.transport(received);
        let receive_window = config.window(received);
        let mut client = ClientConfig::new(Arc::new(authentication.client()?));
        client.transport_config(Arc::clone(&transport));
        let mut server = ServerConfig::with_crypto(Arc::new(authentication.server()?));
        server.transport_config(transport);
        // A peer that dials is counted when its first packet comes; more than may connect need not wait in a queue.
        server.max_incoming(config.max_peers.clamp(16, 4096));
        server.migration(false);

        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, started) = std_mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BindError::Thread)?;
        let handle = runtime.handle().clone();
        let endpoint_config = endpoint_config(&authentication);
        let plain = config.quinn_defaults;
        thread::Builder::new()
            .name("kvferry-quic".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let tokio = Arc::new(TokioRuntime);
                    let endpoint = if plain {
                        Endpoint::new(EndpointConfig::default(), Some(server), socket, tokio)
                    } else {
                        CappedSocket::new(socket).and_then(|socket| {
                            Endpoint::new_with_abstract_socket(endpoint_config, Some(server), Arc::new(socket), tokio)
                        })
                    };
                    if ready.send(endpoint).is_ok() {
                        let _ = stopped.await;
                    }
                });
            })
            .map_err(BindError::Thread)?;
        let endpoint =
            started.recv().map_err(|_| BindError::Thread(io::ErrorKind::BrokenPipe.into()))?.map_err(failed)?;
        let places = Arc::new(Semaphore::new(config.max_peers));
        let node = Arc::new(Self {
            endpoint,
            handle,
            config,
            local_addr,
            receive_window,
            authentication,
            client,
            places,
            stop: Mutex::new(Some(stop)),
        });
        let (accepted, backlog) = mpsc::channel(BACKLOG);
        node.handle.spawn(listen(Arc::clone(&node), accepted));
        Ok((node, backlog))
    }

    /// Dials a peer and waits until it has said hello: before that, a peer that does not trust us looks connected.
    pub(crate) async fn dial(
        self: &Arc<Self>,
        address: SocketAddr,
        expected: Option<PublicKey>,
    ) -> Result<Arc<QuicChannel>, ConnectError> {
        let limit = self.config.connect_timeout;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| ConnectError::Local {
            reason: format!("{} connections are open, which is the limit; raise max_peers", self.config.max_peers),
        })?;
        let local = |error: quinn::ConnectError| match error {
            quinn::ConnectError::EndpointStopping => ConnectError::Closed,
            error => ConnectError::Local { reason: format!("{address} cannot be dialled: {error}") },
        };
        let steps = async {
            let connecting = self
                .endpoint
                .connect_with(self.client.clone(), address, self.authentication.server_name())
                .map_err(local)?;
            let connection = connecting.await.map_err(|error| dial_error(address, limit, error))?;
            let identity = identity(&connection);
            if let Some(expected) = expected.filter(|expected| expected.as_bytes() != identity) {
                connection.close(CLOSE, b"another node was expected at this address");
                let found =
                    PublicKey::from_bytes(&identity).map_or_else(|_| "a certificate".into(), |k| k.fingerprint());
                return Err(ConnectError::Authentication {
                    address: address.to_string(),
                    reason: format!("the node there has the key {found}, {} was expected", expected.fingerprint()),
                });
            }
            QuicChannel::initiate(self, connection, identity, place).await
        };
        match timeout(limit, steps).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::TimedOut { address: address.to_string(), timeout: limit }),
        }
    }

    /// Closes the endpoint, lets the closes go out, and ends the thread.
    pub(crate) async fn stop(&self) {
        self.endpoint.close(CLOSE, b"shut down");
        let _ = timeout(Duration::from_millis(500), self.endpoint.wait_idle()).await;
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stop) = stop {
            let _ = stop.send(());
        }
    }
}

fn endpoint_config(authentication: &Authentication) -> EndpointConfig {
    // A node that restarts with the same keys can then tell a peer at once that its old connection is gone.
    let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &authentication.derive(b"kvferry reset"));
    let mut endpoint = EndpointConfig::new(Arc::new(reset));
    let [a, b, c, d, e, f, g, h, ..] = authentication.derive(b"kvferry connection ids");
    let cid_key = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    endpoint.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(cid_key)));
    // quinn sizes its receive buffers by this. They must hold what the kernel coalesces, 64 KiB, however long the datagrams are;
    // it is within quinn's limits, so it is not refused.
    let _ = endpoint.max_udp_payload_size(65_527);
    endpoint
}

/// What identifies a peer: its raw public key, or its certificate.
pub(crate) fn identity(connection: &Connection) -> Vec<u8> {
    let certificates = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok());
    certificates.and_then(|chain| chain.first().map(|first| first.to_vec())).unwrap_or_default()
}

/// Takes connections in, each in a task of its own.
async fn listen(node: Arc<Node>, accepted: mpsc::Sender<Arc<QuicChannel>>) {
    while let Some(incoming) = node.endpoint.accept().await {
        let Ok(place) = Arc::clone(&node.places).try_acquire_owned() else {
            tracing::warn!(address = %incoming.remote_address(), max = node.config.max_peers, "refused a connection: the limit is reached");
            incoming.refuse();
            continue;
        };
        let (node, accepted) = (Arc::clone(&node), accepted.clone());
        tokio::spawn(async move {
            let address = incoming.remote_address();
            match timeout(node.config.connect_timeout, welcome(&node, incoming, place)).await {
                Ok(Ok(channel)) => drop(accepted.send(channel).await),
                Ok(Err(error)) => tracing::info!(%address, %error, "a connection failed before its hello"),
                Err(_) => tracing::info!(%address, "a connection did not say hello in time"),
            }
        });
    }
}

async fn welcome(
    node: &Arc<Node>,
    incoming: Incoming,
    place: tokio::sync::OwnedSemaphorePermit,
) -> Result<Arc<QuicChannel>, ConnectError> {
    let address = incoming.remote_address();
    let limit = node.config.connect_timeout;
    let connection = incoming.await.map_err(|error| dial_error(address, limit, error))?;
    let identity = identity(&connection);
    QuicChannel::respond(node, connection, identity, place).await
}

/// The first code of TLS alerts among QUIC's error codes, and their number.
const TLS_ALERTS: std::ops::Range<u64> = 0x100..0x200;

/// What it means that a connection did not come about.
pub(crate) fn dial_error(address: SocketAddr, timeout: Duration, error: ConnectionError) -> ConnectError {
    let address = address.to_string();
    let is_alert = |code: quinn::TransportErrorCode| TLS_ALERTS.contains(&u64::from(code));
    match error {
        ConnectionError::TimedOut => ConnectError::TimedOut { address, timeout },
        ConnectionError::TransportError(error) if is_alert(error.code) => {
            ConnectError::Authentication { address, reason: format!("this side refused the peer: {}", error.reason) }
        }
        ConnectionError::ConnectionClosed(close) if is_alert(close.error_code) => {
            let code = close.error_code;
            ConnectError::Authentication {
                address,
                reason: format!("the peer refused this side, which it may not trust: {code}"),
            }
        }
        ConnectionError::ConnectionClosed(close) => ConnectError::Refused { address, reason: close.to_string() },
        ConnectionError::ApplicationClosed(close) => {
            ConnectError::Refused { address, reason: String::from_utf8_lossy(&close.reason).into_owned() }
        }
        ConnectionError::LocallyClosed => ConnectError::Closed,
        error => ConnectError::Broken { address, reason: error.to_string() },
    }
}
