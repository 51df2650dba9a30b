//! The first message: fixed length, the same in all versions.

use super::WireError;

/// Who an engine is and which protocol it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) major: u16,
    pub(crate) minor: u16,
    /// Differs for each engine, and stays for its life.
    pub(crate) engine: u64,
    /// Differs for each start of an engine, so that a restarted peer is never taken for its former self.
    pub(crate) incarnation: u64,
}

impl Hello {
    /// A different one ends the handshake: the meaning of messages changed.
    pub(crate) const MAJOR: u16 = 2;

    /// A newer one has added fields or messages that older engines can skip.
    pub(crate) const MINOR: u16 = 0;

    const MAGIC: [u8; 8] = *b"KVFERRY\0";

    /// Length of the part that no version changes. Later versions may append.
    const LEN: usize = 28;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend_from_slice(&Self::MAGIC);
        out.extend_from_slice(&self.major.to_le_bytes());
        out.extend_from_slice(&self.minor.to_le_bytes());
        out.extend_from_slice(&self.engine.to_le_bytes());
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let short = || WireError::new(format!("a hello of {} bytes is shorter than {}", bytes.len(), Self::LEN));
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        if *magic != Self::MAGIC {
            return Err(WireError::new("the peer is not a kvferry engine (its first bytes are not those of a hello)"));
        }
        let (major, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (minor, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (engine, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (incarnation, _) = rest.split_first_chunk().ok_or_else(short)?;
        Ok(Self {
            major: u16::from_le_bytes(*major),
            minor: u16::from_le_bytes(*minor),
            engine: u64::from_le_bytes(*engine),
            incarnation: u64::from_le_bytes(*incarnation),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HELLO: Hello = Hello { major: 7, minor: 3, engine: 1, incarnation: 2 };

    #[test]
    fn a_hello_of_any_version_is_read_and_what_later_versions_append_is_skipped() {
        let mut bytes = HELLO.encode();
        assert_eq!(bytes.len(), Hello::LEN);
        bytes.extend_from_slice(b"from the future");
        assert_eq!(Hello::decode(&bytes).unwrap(), HELLO);
    }

    #[test]
    fn a_stranger_is_told_apart_from_a_short_hello() {
        assert_eq!(
            Hello::decode(b"GET / HTTP/1.1\r\n\r\n 0123456789").unwrap_err().to_string(),
            "the peer is not a kvferry engine (its first bytes are not those of a hello)"
        );
        let bytes = HELLO.encode();
        for len in 8..Hello::LEN {
            let error = Hello::decode(&bytes[..len]).unwrap_err().to_string();
            assert_eq!(error, format!("a hello of {len} bytes is shorter than 28"));
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Hello::decode(&bytes);
        }
    }
}
