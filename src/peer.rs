//! A handle to a connected peer.

use std::{fmt, sync::Arc};

use kv_plan::{CacheLayout, Pages, Pairing, Rank};
use transport_core::SubmitError;

use crate::{
    config::Role,
    engine::Inner,
    error::PushError,
    push::{Push, PushParts},
    request::Request,
    session::Session,
    transports::PassedOver,
};

/// A connected peer. It names this connection: a peer that was lost and came back has another handle.
#[derive(Clone)]
pub struct Peer {
    inner: Arc<Inner>,
    session: Arc<Session>,
}

impl Peer {
    pub(crate) fn new(inner: &Arc<Inner>, session: Arc<Session>) -> Self {
        Self { inner: Arc::clone(inner), session }
    }

    /// The peer's rank on its side.
    pub fn rank(&self) -> Rank {
        self.session.rank()
    }

    /// The peer's role.
    pub fn role(&self) -> Role {
        self.session.metadata.role
    }

    /// The deployment that it belongs to.
    pub fn deployment(&self) -> &str {
        &self.session.metadata.deployment
    }

    /// What it holds.
    pub fn layout(&self) -> &CacheLayout {
        &self.session.metadata.layout
    }

    /// What moves between the two.
    pub fn pairing(&self) -> &Pairing {
        &self.session.pairing
    }

    /// Where it is.
    pub fn address(&self) -> String {
        self.session.channel.peer_address()
    }

    /// Differs for each start of the peer, so that a restart shows.
    pub fn incarnation(&self) -> u64 {
        self.session.hello.incarnation
    }

    /// Which transport carries the pages. It was chosen when the two met, and stays for the connection's life.
    pub fn transport(&self) -> &'static str {
        self.session.path.data.name()
    }

    /// The transports that do not, though one of the two sides would have preferred them or could not get them, and why.
    pub fn passed_over(&self) -> &[PassedOver] {
        &self.session.passed_over
    }

    /// Whether the connection still is.
    pub fn is_connected(&self) -> bool {
        self.inner.is_connected(self.session.link())
    }

    /// Sends this rank's part of a request, and commits it. `src` (here) and `dst` (there) are the same tokens in the same order:
    /// one list of pages for all pools, or [a list for each](Pages). The pages must hold what they are to hold, and stay as they
    /// are until the push is over.
    ///
    /// Once an attempt has failed, its pages may belong to somebody else, so a later push of the same attempt is refused: a retry is
    /// another attempt. The last `EngineConfig::max_aborted` such attempts are remembered.
    ///
    /// # Errors
    /// [`PushError`]; nothing was sent, and the receiver knows nothing of it. After [`PushError::Submit`] with a full queue, try again
    /// when [`Peer::room`] says so.
    ///
    /// # Example
    /// See `examples/loopback`.
    pub fn push<'a>(
        &self,
        request: impl Into<Request>,
        src: impl Into<Pages<'a>>,
        dst: impl Into<Pages<'a>>,
    ) -> Result<Push, PushError> {
        self.check_role()?;
        PushParts::whole(&self.inner, &self.session, request.into(), src.into(), dst.into())
    }

    /// Begins a push in several parts, by layers or by pages, under one commit.
    ///
    /// # Errors
    /// [`PushError`]; nothing was sent.
    pub fn begin(&self, request: impl Into<Request>) -> Result<PushParts, PushError> {
        self.check_role()?;
        PushParts::begin(&self.inner, &self.session, request.into())
    }

    fn check_role(&self) -> Result<(), PushError> {
        match self.inner.role() {
            Role::Prefill => Ok(()),
            role => Err(PushError::WrongRole { role }),
        }
    }

    /// Waits until the transport has room for another part to this peer.
    ///
    /// # Errors
    /// The connection is gone, or the engine closed.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn room(&self) -> Result<(), SubmitError> {
        self.session.path.data.transport.room(self.session.path.peer).await
    }

    /// Ends the connection. Once it has returned, no byte of the peer lands here any more.
    ///
    /// # Cancel safety
    /// Only a completed call promises its end.
    pub async fn disconnect(&self) {
        self.inner.lose(&self.session, "this side disconnected").await;
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("role", &self.role())
            .field("deployment", &self.deployment())
            .field("rank", &self.rank())
            .field("address", &self.address())
            .field("transport", &self.transport())
            .finish_non_exhaustive()
    }
}
