//! Who a node is, and whom it trusts: Ed25519 keys, 44 bytes of public key, no dates and no names.

use std::{
    collections::HashSet,
    fmt,
    str::FromStr,
    sync::{Arc, PoisonError, RwLock},
};

use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair},
};
use rustls::pki_types::PrivatePkcs8KeyDer;

/// What comes before the 32 bytes of an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A node's private key. Its debug form shows the public key only.
#[derive(Clone)]
pub struct Identity {
    pkcs8: Arc<[u8]>,
    public_key: PublicKey,
}

impl Identity {
    /// A new random identity.
    ///
    /// # Panics
    /// When the operating system has no randomness to give, which no program survives sensibly.
    pub fn generate() -> Self {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).ok();
        match made.and_then(|document| Self::from_pkcs8_der(document.as_ref()).ok()) {
            Some(identity) => identity,
            None => panic!("the operating system gives no random numbers"),
        }
    }

    /// Reads an Ed25519 key in PKCS #8 form.
    ///
    /// # Errors
    /// [`KeyError`] when it is something else.
    pub fn from_pkcs8_der(der: &[u8]) -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
            .map_err(|error| KeyError { reason: format!("not an Ed25519 key in PKCS #8 form: {error}") })?;
        let mut spki = [0; PublicKey::LEN];
        let (prefix, key) = spki.split_at_mut(SPKI_PREFIX.len());
        prefix.copy_from_slice(&SPKI_PREFIX);
        key.copy_from_slice(pair.public_key().as_ref());
        Ok(Self { pkcs8: der.into(), public_key: PublicKey(spki) })
    }

    /// The private key in PKCS #8 form, to be kept as secret as any.
    pub fn to_pkcs8_der(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The public key: what other nodes trust.
    pub fn public_key(&self) -> PublicKey {
        self.public_key
    }

    pub(crate) fn private_key(&self) -> PrivatePkcs8KeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pkcs8.to_vec())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("public_key", &self.public_key).finish_non_exhaustive()
    }
}

/// A node's public key, as a SubjectPublicKeyInfo of 44 bytes. Shown and read as 88 hexadecimal digits.
///
/// ```
/// use transport_quic::{Identity, PublicKey};
///
/// let key = Identity::generate().public_key();
/// assert_eq!(key.to_string().parse::<PublicKey>()?, key);
/// # Ok::<(), transport_quic::KeyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; Self::LEN]);

impl PublicKey {
    /// Length in bytes.
    pub const LEN: usize = 44;

    /// The SubjectPublicKeyInfo.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads a SubjectPublicKeyInfo of an Ed25519 key.
    ///
    /// # Errors
    /// [`KeyError`] when it is something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        match bytes.try_into() {
            Ok(spki) if bytes.starts_with(&SPKI_PREFIX) => Ok(Self(spki)),
            _ => Err(KeyError { reason: format!("{} bytes are not the public key of an Ed25519 pair", bytes.len()) }),
        }
    }

    /// A short form for messages: the first eight bytes of the key proper.
    pub fn fingerprint(&self) -> String {
        hex(self.0.iter().skip(SPKI_PREFIX.len()).take(8))
    }
}

fn hex<'a>(bytes: impl Iterator<Item = &'a u8>) -> String {
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0.iter()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({}…)", self.fingerprint())
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let malformed =
            || KeyError { reason: format!("{text:?} is not a key of {} hexadecimal digits", 2 * Self::LEN) };
        if text.len() != 2 * Self::LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        let digits: Option<Vec<u8>> =
            (0..Self::LEN).map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()).collect();
        Self::from_bytes(&digits.ok_or_else(malformed)?)
    }
}

/// A key that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct KeyError {
    reason: String,
}

/// The keys of the nodes that may connect, shared by all clones, and changeable while connections run. Removing a key keeps
/// its node from connecting again; a connection that is there is ended by `disconnect`.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys {
    keys: Arc<RwLock<HashSet<PublicKey>>>,
}

impl TrustedKeys {
    /// Nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts a node; answers whether it was new.
    pub fn insert(&self, key: PublicKey) -> bool {
        self.keys.write().unwrap_or_else(PoisonError::into_inner).insert(key)
    }

    /// Trusts a node no longer; answers whether it was trusted.
    pub fn remove(&self, key: &PublicKey) -> bool {
        self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    /// Whether a node is trusted.
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).contains(key)
    }
}

impl FromIterator<PublicKey> for TrustedKeys {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        Self { keys: Arc::new(RwLock::new(keys.into_iter().collect())) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_identity_survives_being_stored() {
        let identity = Identity::generate();
        let again = Identity::from_pkcs8_der(identity.to_pkcs8_der()).unwrap();
        assert_eq!(again.public_key(), identity.public_key());
        assert!(!format!("{identity:?}").contains(&hex(identity.pkcs8.iter().skip(16).take(8))));
    }

    #[test]
    fn only_ed25519_keys_are_keys() {
        let key = Identity::generate().public_key().to_string();
        assert!(key[2..].parse::<PublicKey>().is_err());
        assert!(key.replacen("302a", "302b", 1).parse::<PublicKey>().is_err());
        assert!("é".repeat(44).parse::<PublicKey>().is_err());
        assert!(Identity::from_pkcs8_der(b"nonsense").is_err());
    }

    proptest! {
        #[test]
        fn reading_a_key_never_panics(text in ".{0,100}", bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = text.parse::<PublicKey>();
            let _ = PublicKey::from_bytes(&bytes);
        }
    }
}
