//! Who may connect to whom, with raw keys and with a cluster's own authority.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use support::Cluster;
use tokio::time::timeout;
use transport_core::{ConnectError, ControlChannel, Topic};
use transport_quic::{Authentication, BindError, ClusterCa, Identity, QuicConfig, QuicTransport, TrustedKeys};

const LONG: Duration = Duration::from_secs(10);

fn node(identity: &Identity, trusted: &TrustedKeys) -> Arc<QuicTransport> {
    let config = QuicConfig::default().with_connect_timeout(Duration::from_secs(2));
    QuicTransport::bind(config, Authentication::raw_keys(identity.clone(), trusted.clone())).unwrap()
}

async fn dial(from: &QuicTransport, to: &QuicTransport) -> Result<Arc<dyn ControlChannel>, ConnectError> {
    timeout(LONG, from.dial(to.local_addr(), None)).await.unwrap()
}

#[tokio::test]
async fn both_sides_must_trust_each_other() {
    let (a, b) = (Identity::generate(), Identity::generate());
    let (nobody, only_a, only_b) =
        (TrustedKeys::new(), TrustedKeys::from_iter([a.public_key()]), TrustedKeys::from_iter([b.public_key()]));

    // The dialler does not trust the listener.
    let (dialler, listener) = (node(&a, &nobody), node(&b, &only_a));
    let error = dial(&dialler, &listener).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::Authentication { reason, .. } if reason.contains("this side refused")),
        "{error}"
    );

    // The listener does not trust the dialler, which learns that although its own part of the handshake went well.
    let (dialler, listener) = (node(&a, &only_b), node(&b, &nobody));
    let error = dial(&dialler, &listener).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::Authentication { reason, .. } if reason.contains("the peer refused")),
        "{error}"
    );

    // Keys can change while nodes run.
    let trusted = TrustedKeys::new();
    let (dialler, listener) = (node(&a, &only_b), node(&b, &trusted));
    assert!(dial(&dialler, &listener).await.is_err());
    trusted.insert(a.public_key());
    let (dialled, accepted) = tokio::join!(dial(&dialler, &listener), listener.accept());
    let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap());
    assert_eq!(dialled.peer_identity(), b.public_key().as_bytes());
    assert_eq!(accepted.peer_identity(), a.public_key().as_bytes());
    dialled.send(Topic::Engine, b"hello").await.unwrap();
    assert_eq!(accepted.receive(Topic::Engine).await.unwrap(), "hello");
    trusted.remove(&a.public_key());
    assert!(dial(&dialler, &listener).await.is_err());
}

#[tokio::test]
async fn a_trusted_node_at_the_wrong_address_is_not_taken_for_the_expected_one() {
    let cluster = Cluster::new();
    let (a, b, c) =
        (cluster.node(QuicConfig::default()), cluster.node(QuicConfig::default()), cluster.node(QuicConfig::default()));
    let error = a.transport.dial(b.transport.local_addr(), Some(&c.key)).await.unwrap_err();
    match error {
        ConnectError::Authentication { reason, .. } => {
            assert!(reason.contains(&b.key.fingerprint()) && reason.contains(&c.key.fingerprint()), "{reason}");
        }
        error => panic!("{error:?}"),
    }
    assert!(a.transport.dial(b.transport.local_addr(), Some(&b.key)).await.is_ok());
}

#[tokio::test]
async fn nobody_listening_is_noticed_within_the_bound() {
    let cluster = Cluster::new();
    let a = cluster.node(QuicConfig::default().with_connect_timeout(Duration::from_millis(600)));
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let free: SocketAddr = {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap()
    };
    for address in [silent.local_addr().unwrap(), free] {
        let started = std::time::Instant::now();
        let error = a.transport.dial(address, None).await.unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(3));
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let cluster = Cluster::new();
    let a = cluster.node(QuicConfig::default());
    let taken = a.transport.local_addr();
    let authentication = Authentication::raw_keys(Identity::generate(), TrustedKeys::new());
    let error = QuicTransport::bind(QuicConfig::default().with_listen(taken), authentication).unwrap_err();
    assert!(matches!(error, BindError::Address { address, .. } if address == taken));
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn node(&self, trusts: &Self, name: &str) -> Arc<QuicTransport> {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let authentication = Authentication::cluster_ca(ClusterCa {
            certificate_chain: vec![certificate.der().clone()],
            private_key: PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())),
            roots: vec![trusts.certificate.clone()],
            server_name: "kvferry.cluster".into(),
        });
        let config = QuicConfig::default().with_connect_timeout(Duration::from_secs(2));
        QuicTransport::bind(config, authentication).unwrap()
    }
}

#[tokio::test]
async fn nodes_of_one_authority_connect_and_others_do_not() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (a, b) = (ours.node(&ours, "kvferry.cluster"), ours.node(&ours, "kvferry.cluster"));
    let (dialled, accepted) = tokio::join!(dial(&a, &b), b.accept());
    let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap());
    assert_ne!(dialled.peer_identity(), accepted.peer_identity());

    // A stranger that trusts us, but whose certificate is of another authority.
    let stranger = other.node(&ours, "kvferry.cluster");
    assert!(matches!(dial(&stranger, &b).await, Err(ConnectError::Authentication { .. })));
    assert!(matches!(dial(&b, &stranger).await, Err(ConnectError::Authentication { .. })));
    // A certificate of the authority for something else.
    let misnamed = ours.node(&ours, "database.cluster");
    assert!(matches!(dial(&b, &misnamed).await, Err(ConnectError::Authentication { .. })));
    // Raw keys and certificates do not mix.
    let raw = node(&Identity::generate(), &TrustedKeys::new());
    assert!(dial(&raw, &b).await.is_err());
    assert!(dial(&b, &raw).await.is_err());
}
