//! How two nodes prove to each other who they are, and the TLS configurations that follow. TLS 1.3 only, both sides always.

use std::{fmt, sync::Arc};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::{
    CertificateError, CipherSuite, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring as provider, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use crate::identity::{Identity, PublicKey, TrustedKeys};

/// The application protocol, the same on both sides. A change of the wire format changes it.
const ALPN: &[u8] = b"kvferry/1";

/// How nodes authenticate each other. There is no way to accept just anybody.
#[derive(Clone)]
pub struct Authentication(Kind);

#[derive(Clone)]
enum Kind {
    RawKeys { identity: Identity, trusted: TrustedKeys },
    ClusterCa(Arc<ClusterCa>),
}

/// Certificates of a cluster's own authority. A node is known by its certificate: one that comes back with another certificate is
/// another node.
pub struct ClusterCa {
    /// This node's certificate and those between it and a root.
    pub certificate_chain: Vec<CertificateDer<'static>>,
    /// The private key of the certificate.
    pub private_key: PrivateKeyDer<'static>,
    /// The authority's certificates. Every node whose certificate leads to one may connect.
    pub roots: Vec<CertificateDer<'static>>,
    /// The DNS name that every node's certificate carries.
    pub server_name: String,
}

impl fmt::Debug for ClusterCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterCa").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// What is wrong with keys or certificates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the keys or certificates cannot be used: {0}")]
pub struct AuthError(String);

impl Authentication {
    /// Raw public keys (RFC 7250): each side shows its key, and accepts those in its list.
    pub fn raw_keys(identity: Identity, trusted: TrustedKeys) -> Self {
        Self(Kind::RawKeys { identity, trusted })
    }

    /// Certificates of a cluster's own authority, checked on both sides.
    pub fn cluster_ca(ca: ClusterCa) -> Self {
        Self(Kind::ClusterCa(Arc::new(ca)))
    }

    /// This node's public key, where it has a raw one.
    pub fn public_key(&self) -> Option<PublicKey> {
        match &self.0 {
            Kind::RawKeys { identity, .. } => Some(identity.public_key()),
            Kind::ClusterCa(_) => None,
        }
    }

    /// The name to dial a peer by. Raw keys have none, and it is not sent.
    pub(crate) fn server_name(&self) -> &str {
        match &self.0 {
            Kind::RawKeys { .. } => "kvferry",
            Kind::ClusterCa(ca) => &ca.server_name,
        }
    }

    /// A secret that stays the same when the node restarts with the same keys, for the purpose named by `label`.
    pub(crate) fn derive(&self, label: &[u8]) -> [u8; 32] {
        let secret = match &self.0 {
            Kind::RawKeys { identity, .. } => identity.to_pkcs8_der(),
            Kind::ClusterCa(ca) => ca.private_key.secret_der(),
        };
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
        let mut out = [0; 32];
        out.copy_from_slice(ring::hmac::sign(&key, label).as_ref());
        out
    }

    pub(crate) fn client(&self) -> Result<QuicClientConfig, AuthError> {
        let builder = rustls::ClientConfig::builder_with_provider(Arc::new(crypto()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed)?;
        let mut config = match &self.0 {
            Kind::RawKeys { identity, trusted } => {
                let verifier = Arc::new(TrustedKeysVerifier::new(trusted.clone()));
                let resolver = AlwaysResolvesClientRawPublicKeys::new(certified(identity)?);
                let mut config = builder
                    .dangerous()
                    .with_custom_certificate_verifier(verifier)
                    .with_client_cert_resolver(Arc::new(resolver));
                config.enable_sni = false;
                config
            }
            Kind::ClusterCa(ca) => {
                let roots = Arc::new(roots(ca)?);
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(crypto()))
                    .build()
                    .map_err(|error| AuthError(error.to_string()))?;
                builder
                    .with_webpki_verifier(verifier)
                    .with_client_auth_cert(ca.certificate_chain.clone(), ca.private_key.clone_key())
                    .map_err(failed)?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Every connection proves both identities anew, and nothing is sent that could be replayed.
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        QuicClientConfig::try_from(config).map_err(|error| AuthError(error.to_string()))
    }

    pub(crate) fn server(&self) -> Result<QuicServerConfig, AuthError> {
        let builder = rustls::ServerConfig::builder_with_provider(Arc::new(crypto()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed)?;
        let mut config = match &self.0 {
            Kind::RawKeys { identity, trusted } => builder
                .with_client_cert_verifier(Arc::new(TrustedKeysVerifier::new(trusted.clone())))
                .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified(identity)?))),
            Kind::ClusterCa(ca) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), Arc::new(crypto()))
                    .build()
                    .map_err(|error| AuthError(error.to_string()))?;
                builder
                    .with_client_cert_verifier(verifier)
                    .with_single_cert(ca.certificate_chain.clone(), ca.private_key.clone_key())
                    .map_err(failed)?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        QuicServerConfig::try_from(config).map_err(|error| AuthError(error.to_string()))
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::RawKeys { identity, .. } => f.debug_tuple("RawKeys").field(&identity.public_key()).finish(),
            Kind::ClusterCa(ca) => f.debug_tuple("ClusterCa").field(&ca.server_name).finish(),
        }
    }
}

fn failed(error: rustls::Error) -> AuthError {
    AuthError(error.to_string())
}

/// ring with one suite: AES-128-GCM was the fastest by far where the processor has AES, and QUIC needs it anyway.
fn crypto() -> CryptoProvider {
    let mut crypto = provider::default_provider();
    crypto.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256);
    crypto
}

fn roots(ca: &ClusterCa) -> Result<RootCertStore, AuthError> {
    let mut roots = RootCertStore::empty();
    for root in &ca.roots {
        roots.add(root.clone()).map_err(failed)?;
    }
    Ok(roots)
}

fn certified(identity: &Identity) -> Result<Arc<CertifiedKey>, AuthError> {
    let key = provider::sign::any_eddsa_type(&identity.private_key()).map_err(failed)?;
    let spki = CertificateDer::from(identity.public_key().as_bytes().to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![spki], key)))
}

/// Accepts the raw public keys that are trusted, in both directions, and the signature that proves that the peer has the
/// private key.
#[derive(Debug)]
struct TrustedKeysVerifier {
    trusted: TrustedKeys,
    algorithms: WebPkiSupportedAlgorithms,
}

impl TrustedKeysVerifier {
    fn new(trusted: TrustedKeys) -> Self {
        Self { trusted, algorithms: crypto().signature_verification_algorithms }
    }

    fn check(&self, end_entity: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        match PublicKey::from_bytes(end_entity) {
            Ok(key) if self.trusted.contains(&key) => Ok(()),
            Ok(key) => {
                tracing::warn!(key = %key.fingerprint(), "a node with a key that is not trusted");
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            Err(_) => Err(CertificateError::BadEncoding.into()),
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        end_entity: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let spki = SubjectPublicKeyInfoDer::from(end_entity.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, signature, &self.algorithms)
    }
}

/// What TLS 1.2 would ask; it is never spoken.
fn no_tls12() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not spoken".into())
}

impl ServerCertVerifier for TrustedKeysVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        end_entity: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, end_entity, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for TrustedKeysVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        end_entity: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, end_entity, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
