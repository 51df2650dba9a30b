//! The transports that can be measured, and how each is opened. The rest of the program sees `dyn Transport` only.

#[cfg(feature = "rdma")]
mod rdma;

use std::{str::FromStr, sync::Arc};

use transport_core::{PeerId, Transport};
use transport_quic::{Authentication, PublicKey, QuicConfig, QuicTransport, TrustedKeys};

use crate::{Result, block_on, messages::Invitation};
#[cfg(feature = "rdma")]
use crate::{lane::Lane, workload::Workload};

/// A transport with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// QUIC as kvferry uses it.
    Quic,
    /// The same data path with quinn's default settings: how much the settings are worth.
    QuicDefaults,
    /// RDMA, on the devices that `KVFERRY_RDMA_DEVICES` names (the sender's first), or on those that are chosen.
    #[cfg(feature = "rdma")]
    Rdma,
}

/// Which end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

impl Kind {
    /// Each of them.
    pub(crate) const ALL: &[Self] = &[
        Self::Quic,
        Self::QuicDefaults,
        #[cfg(feature = "rdma")]
        Self::Rdma,
    ];

    /// Its name on the command line and in the results.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::QuicDefaults => "quic-defaults",
            #[cfg(feature = "rdma")]
            Self::Rdma => "rdma",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.iter().find(|kind| kind.name() == name).copied().ok_or_else(|| {
            let known = Self::ALL.iter().map(Self::name).collect::<Vec<_>>().join(", ");
            format!("there is no transport \"{name}\"; there are {known}")
        })
    }
}

/// Who an endpoint is.
pub(crate) struct Identity(transport_quic::Identity);

impl Identity {
    pub(crate) fn new() -> Self {
        Self(transport_quic::Identity::generate())
    }

    /// What the other side must know to believe it.
    pub(crate) fn public(&self) -> Vec<u8> {
        self.0.public_key().as_bytes().to_vec()
    }
}

/// A transport on a port of the loopback interface, which talks to one other endpoint only.
pub(crate) struct Endpoint {
    /// Makes the control channel.
    control: Arc<QuicTransport>,
    /// Moves the bytes; for QUIC it is the same thing.
    data: Arc<dyn Transport>,
    identity: Vec<u8>,
    #[cfg(feature = "rdma")]
    rdma: Option<rdma::Rdma>,
}

impl Endpoint {
    /// Opens an endpoint that trusts the identity `peer`.
    pub(crate) fn open(kind: Kind, side: Side, identity: Identity, peer: &[u8]) -> Result<Self> {
        let config = match kind {
            Kind::QuicDefaults => QuicConfig::quinn_defaults(),
            _ => QuicConfig::default(),
        };
        #[cfg(not(feature = "rdma"))]
        let _ = side;
        #[cfg(feature = "rdma")]
        let rdma = (kind == Kind::Rdma).then(|| rdma::Rdma::open(side)).transpose()?;
        let public = identity.public();
        let trusted = TrustedKeys::from_iter([PublicKey::from_bytes(peer)?]);
        let control = QuicTransport::bind(config, Authentication::raw_keys(identity.0, trusted))?;
        let data: Arc<dyn Transport> = match kind {
            #[cfg(feature = "rdma")]
            Kind::Rdma => rdma.as_ref().ok_or("RDMA is open for its own kind")?.transport(),
            Kind::Quic | Kind::QuicDefaults => Arc::clone(&control) as _,
        };
        Ok(Self {
            control,
            data,
            identity: public,
            #[cfg(feature = "rdma")]
            rdma,
        })
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.data
    }

    /// The state of the way to the peer, in words.
    pub(crate) fn path(&self, peer: PeerId) -> Option<String> {
        #[cfg(feature = "rdma")]
        if let Some(rdma) = &self.rdma {
            return Some(rdma.describe());
        }
        let path = self.control.path(peer)?;
        let (mtu, lost, sent, black_holes) = (path.mtu, path.lost_packets, path.sent_packets, path.black_holes);
        Some(format!("MTU {mtu}, {lost} of {sent} packets lost, {black_holes} black holes"))
    }

    /// What RDMA is measured against, on the same two devices.
    #[cfg(feature = "rdma")]
    pub(crate) fn baselines(&self, workload: &Workload) -> Result<Vec<Box<dyn Lane>>> {
        self.rdma.as_ref().map_or_else(|| Ok(Vec::new()), |rdma| rdma.baselines(workload))
    }

    /// What the sender must know.
    pub(crate) fn invitation(&self) -> Invitation {
        Invitation { address: self.control.local_addr(), identity: self.identity.clone() }
    }

    /// Connects to an endpoint that accepts.
    pub(crate) fn connect(&self, invitation: &Invitation) -> Result<PeerId> {
        block_on(async {
            let channel = self.control.dial(invitation.address, None).await?;
            Ok(self.data.connect(channel).await?)
        })?
    }

    /// Waits for the endpoint that connects.
    pub(crate) fn accept(&self) -> Result<PeerId> {
        block_on(async {
            let channel = self.control.accept().await.ok_or("the endpoint is closed")?;
            Ok(self.data.connect(channel).await?)
        })?
    }
}
