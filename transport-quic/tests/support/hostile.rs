//! A peer that has a trusted key and speaks QUIC, but keeps to nothing else.

use std::{net::SocketAddr, sync::Arc};

use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, crypto::rustls::QuicClientConfig};
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring as provider,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    sign::CertifiedKey,
};
use transport_quic::Identity;

/// Trusts everybody: it is the attacker.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A QUIC connection to a node, with this key and application protocol.
pub(crate) async fn connect(
    address: SocketAddr,
    identity: &Identity,
    alpn: &[u8],
) -> Result<(Endpoint, Connection), quinn::ConnectionError> {
    let key = PrivatePkcs8KeyDer::from(identity.to_pkcs8_der().to_vec());
    let key = provider::sign::any_eddsa_type(&key).unwrap();
    let spki = CertificateDer::from(identity.public_key().as_bytes().to_vec());
    let resolver = AlwaysResolvesClientRawPublicKeys::new(Arc::new(CertifiedKey::new(vec![spki], key)));
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_client_cert_resolver(Arc::new(resolver));
    tls.alpn_protocols = vec![alpn.to_vec()];
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connection = endpoint.connect_with(config, address, "kvferry").unwrap().await?;
    Ok((endpoint, connection))
}

/// The hello of this version.
pub(crate) const HELLO: [u8; 8] = *b"KVFq\x01\0\0\0";

/// The streams of the control channel, after a proper hello: engine, transport.
pub(crate) async fn control(connection: &Connection) -> [(SendStream, RecvStream); 2] {
    let (mut engine, mut answer) = connection.open_bi().await.unwrap();
    engine.write_all(&[1]).await.unwrap();
    engine.write_all(&HELLO).await.unwrap();
    let mut hello = [0; 8];
    answer.read_exact(&mut hello).await.unwrap();
    assert_eq!(hello, HELLO);
    let (mut transport, messages) = connection.open_bi().await.unwrap();
    transport.write_all(&[2]).await.unwrap();
    [(engine, answer), (transport, messages)]
}
