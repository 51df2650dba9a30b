//! Nodes for tests, and a wire between them that can be cut.
#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

pub(crate) mod hostile;

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use socket2::SockRef;
use transport_core::ControlChannel;
use transport_quic::{Authentication, Identity, PublicKey, QuicConfig, QuicTransport, TrustedKeys};

/// One process, as it were: a transport whose wires can be cut.
pub(crate) struct Node {
    pub(crate) transport: Arc<QuicTransport>,
    pub(crate) key: PublicKey,
    cut: Arc<AtomicBool>,
    accepting: Mutex<()>,
}

/// Nodes that all trust each other.
pub(crate) struct Cluster {
    trusted: TrustedKeys,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self { trusted: TrustedKeys::new() }
    }

    pub(crate) fn node(&self, config: QuicConfig) -> Node {
        let identity = Identity::generate();
        let key = identity.public_key();
        self.trusted.insert(key);
        let authentication = Authentication::raw_keys(identity, self.trusted.clone());
        let transport = QuicTransport::bind(config, authentication).unwrap();
        Node { transport, key, cut: Arc::default(), accepting: Mutex::default() }
    }

    /// An identity that every node trusts.
    pub(crate) fn identity(&self) -> Identity {
        let identity = Identity::generate();
        self.trusted.insert(identity.public_key());
        identity
    }

    pub(crate) fn trusted(&self) -> TrustedKeys {
        self.trusted.clone()
    }
}

impl Node {
    /// Cuts all wires of the node, for ever: what `kill -9` looks like to its peers.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

/// A channel between two nodes, over a wire of its own.
pub(crate) fn channels(dialler: &Node, listener: &Node) -> (Arc<dyn ControlChannel>, Arc<dyn ControlChannel>) {
    let wire = wire(listener.transport.local_addr(), [Arc::clone(&dialler.cut), Arc::clone(&listener.cut)]);
    // One at a time, so that what is accepted is what was dialled.
    let _accepting = listener.accepting.lock().unwrap();
    block_on(async {
        let (dialled, accepted) = tokio::join!(dialler.transport.dial(wire, None), listener.transport.accept());
        (dialled.unwrap(), accepted.unwrap())
    })
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A relay to `target`; gives the address to dial. It forwards until one of the switches is thrown.
pub(crate) fn wire(target: SocketAddr, cut: [Arc<AtomicBool>; 2]) -> SocketAddr {
    let near = relay_socket();
    let far = relay_socket();
    far.connect(target).unwrap();
    let address = near.local_addr().unwrap();
    let dialler: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
    let (near, far) = (Arc::new(near), Arc::new(far));
    {
        let (near, far, dialler, cut) = (Arc::clone(&near), Arc::clone(&far), Arc::clone(&dialler), cut.clone());
        relay(near, cut, move |bytes, from| {
            *dialler.lock().unwrap() = Some(from);
            let _ = far.send(bytes);
        });
    }
    relay(far, cut, move |bytes, _| {
        if let Some(dialler) = *dialler.lock().unwrap() {
            let _ = near.send_to(bytes, dialler);
        }
    });
    address
}

fn relay_socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let _ = SockRef::from(&socket).set_recv_buffer_size(4 << 20);
    let _ = SockRef::from(&socket).set_send_buffer_size(4 << 20);
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// Forwards what comes until a switch is thrown or nothing has come for a minute.
fn relay(from: Arc<UdpSocket>, cut: [Arc<AtomicBool>; 2], forward: impl Fn(&[u8], SocketAddr) + Send + 'static) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        let mut quiet = 0;
        while quiet < 300 {
            let received = from.recv_from(&mut buffer);
            if cut.iter().any(|cut| cut.load(Ordering::SeqCst)) {
                return;
            }
            match received {
                Ok((len, address)) => {
                    quiet = 0;
                    forward(&buffer[..len], address);
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => quiet += 1,
                // A datagram could not be delivered: the other end is gone, which is for QUIC to find out.
                Err(_) => quiet += 1,
            }
        }
    });
}
