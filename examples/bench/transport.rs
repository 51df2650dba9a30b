//! The transports that can be measured, and how each is opened. The rest of the program sees `dyn Transport` only.

use std::{net::SocketAddr, str::FromStr, sync::Arc};

use transport_core::{PeerId, Transport};

use crate::{Result, messages::Invitation};

/// A transport with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// QUIC as kvferry uses it.
    Quic,
    /// The same data path with quinn's default settings: how much the settings are worth.
    QuicDefaults,
}

impl Kind {
    /// Each of them.
    pub(crate) const ALL: [Self; 2] = [Self::Quic, Self::QuicDefaults];

    /// Its name on the command line and in the results.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::QuicDefaults => "quic-defaults",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(|kind| kind.name()).join(", ");
            format!("there is no transport \"{name}\"; there are {known}")
        })
    }
}

/// Who an endpoint is.
pub(crate) struct Identity;

impl Identity {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self)
    }

    /// What the other side must know to believe it.
    pub(crate) fn public(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// A transport on a port of the loopback interface, which talks to one other endpoint only.
pub(crate) struct Endpoint {
    transport: Arc<dyn Transport>,
}

impl Endpoint {
    pub(crate) fn open(_kind: Kind, _identity: Identity, _peer: &[u8]) -> Result<Self> {
        Err("there is no QUIC yet".into())
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// What the sender must know.
    pub(crate) fn invitation(&self) -> Result<Invitation> {
        Err("there is no QUIC yet".into())
    }

    /// Connects to an endpoint that accepts.
    pub(crate) fn connect(&self, _address: SocketAddr) -> Result<PeerId> {
        Err("there is no QUIC yet".into())
    }

    /// Waits for the endpoint that connects.
    pub(crate) fn accept(&self) -> Result<PeerId> {
        Err("there is no QUIC yet".into())
    }
}
