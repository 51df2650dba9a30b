//! The engine: what a serving stack embeds, one for each rank.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use kv_plan::{CacheLayout, Pages, Rank};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};
use transport_core::{ControlChannel, Event, Shutdown, Transport, next_event};
use transport_quic::{Authentication, PublicKey, QuicTransport};

use crate::{
    builder::EngineBuilder,
    config::{EngineConfig, Role},
    error::{ConnectError, ExpectError},
    handshake,
    incoming::{Incoming, IncomingTable, names},
    origin::Origin,
    peer::Peer,
    request::Request,
    session::{self, Session},
    transports::{self, Data, Link, PassedOver},
    wire::{self, Commit, Hello, Metadata},
};

/// How long the words of a peer may come after the end of its data path.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// One rank's end of all its transfers.
///
/// Clones share the engine. Dropping the last one starts an abort in the background; [`Engine::shutdown`] waits for the
/// end. All its futures can be awaited on any executor.
#[derive(Clone)]
pub struct Engine {
    owner: Arc<Owner>,
}

/// Stops the engine when the last handle is gone; its own tasks hold only [`Inner`].
struct Owner {
    inner: Arc<Inner>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
}

impl Owner {
    async fn stop(inner: Arc<Inner>, stop: Option<oneshot::Sender<()>>, how: Shutdown) {
        inner.close(how).await;
        if let Some(stop) = stop {
            let _ = stop.send(());
        }
    }

    fn take_stop(&self) -> Option<oneshot::Sender<()>> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(stop) = self.take_stop() {
            self.inner.spawn(Self::stop(Arc::clone(&self.inner), Some(stop), Shutdown::Abort));
        }
    }
}

impl Engine {
    /// Starts the tasks of an engine; `stop` ends its thread.
    pub(crate) fn start(inner: Inner, stop: oneshot::Sender<()>) -> Self {
        let inner = Arc::new(inner);
        inner.spawn(accept(Arc::clone(&inner)));
        for data in &inner.data {
            inner.spawn(events(Arc::clone(&inner), Arc::clone(data)));
        }
        Self { owner: Arc::new(Owner { inner, stop: Mutex::new(Some(stop)) }) }
    }

    /// Starts to set up an engine of this role.
    pub fn builder(role: Role, authentication: Authentication) -> EngineBuilder {
        EngineBuilder::new(role, authentication)
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner().quic.local_addr()
    }

    /// This engine's role.
    pub fn role(&self) -> Role {
        self.inner().role()
    }

    /// The layout of its cache.
    pub fn layout(&self) -> &CacheLayout {
        &self.inner().metadata.layout
    }

    /// Connects to the engine that listens at `address`. With `expected`, only an engine with that key is accepted; without it,
    /// any that is trusted. Bounded by `EngineConfig::handshake_timeout`, `EngineConfig::transport_timeout` and
    /// `QuicConfig::connect_timeout`.
    ///
    /// # Errors
    /// [`ConnectError`]. What does not fit is found here, and the peer has the same error.
    ///
    /// # Cancel safety
    /// Once polled the handshake goes on by itself; a peer that it connects is found by [`Engine::peers`].
    pub async fn connect(&self, address: SocketAddr, expected: Option<PublicKey>) -> Result<Peer, ConnectError> {
        let inner = Arc::clone(self.inner());
        let task = self.inner().runtime.spawn(async move {
            // One after the other, so that of two the later one counts on both sides.
            let turn = inner.turn(address);
            let _turn = turn.lock().await;
            let channel = inner.quic.dial(address, expected.as_ref()).await?;
            inner.meet(channel).await
        });
        let session = task.await.map_err(|_| ConnectError::Closed)??;
        Ok(Peer::new(self.inner(), session))
    }

    /// The peers that are connected now, ordered by deployment and rank.
    pub fn peers(&self) -> Vec<Peer> {
        let mut sessions = self.inner().sessions();
        sessions.sort_by(|a, b| (&a.metadata.deployment, a.rank()).cmp(&(&b.metadata.deployment, b.rank())));
        sessions.into_iter().map(|session| Peer::new(self.inner(), session)).collect()
    }

    /// Waits until every rank of a prefill deployment that has something to send to this engine is connected.
    ///
    /// # Errors
    /// The ranks that are missing when `timeout` has passed; empty when no rank of the deployment is known.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait_for_senders<'a>(
        &self,
        origin: impl Into<Origin<'a>>,
        timeout: Duration,
    ) -> Result<(), Vec<Rank>> {
        let inner = Arc::clone(self.inner());
        let Origin { deployment, dp } = origin.into();
        let deployment = deployment.to_owned();
        let (done, result) = oneshot::channel();
        // On the engine's runtime, which has the timer.
        self.inner().spawn(async move {
            let mut changes = inner.changes.subscribe();
            let wait = async {
                let origin = Origin::from(deployment.as_str()).group(dp);
                while inner.senders(&origin).is_err() {
                    if changes.changed().await.is_err() {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(timeout, wait).await;
            let origin = Origin::from(deployment.as_str()).group(dp);
            let _ = done.send(inner.senders(&origin).map(|_| ()));
        });
        result.await.unwrap_or_else(|_| Err(Vec::new()))
    }

    /// Expects a request from the ranks of a prefill deployment ([`Origin`]: its name, and its data-parallel group if it has
    /// several): they will fill `pages`, which are pages of this engine's own cache, one list for all pools or
    /// [a list for each](Pages). Call it before the prefill side is told to push, and do not touch the pages until the outcome.
    ///
    /// # Errors
    /// [`ExpectError`]; nothing is expected then.
    pub fn expect<'a, 'b>(
        &self,
        request: impl Into<Request>,
        origin: impl Into<Origin<'b>>,
        pages: impl Into<Pages<'a>>,
    ) -> Result<Incoming, ExpectError> {
        let (inner, request, origin, pages) = (self.inner(), request.into(), origin.into(), pages.into());
        if inner.role() != Role::Decode {
            return Err(ExpectError::WrongRole { role: inner.role() });
        }
        inner.metadata.layout.check_pages(pages.clone()).map_err(|cause| ExpectError::Pages { request, cause })?;
        let deployment = origin.to_string();
        match inner.senders(&origin) {
            Ok(senders) => inner.incoming.expect(inner, request, &pages, senders),
            Err(missing) if missing.is_empty() => Err(ExpectError::UnknownDeployment { request, deployment }),
            Err(missing) => Err(ExpectError::MissingSenders { request, deployment, missing: names(missing) }),
        }
    }

    /// Commits and failures that named no expected request and were dropped: late words of requests that had failed.
    pub fn ignored_words(&self) -> u64 {
        self.inner().incoming.ignored()
    }

    /// Ends everything: with `Shutdown::Drain` what is in flight may end first, within its bounds.
    ///
    /// # Cancel safety
    /// Once polled the shutdown goes on by itself.
    pub async fn shutdown(&self, how: Shutdown) {
        let (inner, stop) = (Arc::clone(self.inner()), self.owner.take_stop());
        let _ = self.inner().runtime.spawn(Owner::stop(inner, stop, how)).await;
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.owner.inner
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("role", &self.role())
            .field("rank", &self.layout().rank())
            .field("address", &self.local_addr())
            .finish_non_exhaustive()
    }
}

/// What the engine's handles and tasks share.
pub(crate) struct Inner {
    pub(crate) config: EngineConfig,
    pub(crate) incoming: IncomingTable,
    /// The data transports, best first; the one of the control channels is the last.
    pub(crate) data: Vec<Arc<Data>>,
    hello: Hello,
    metadata: Metadata,
    quic: Arc<QuicTransport>,
    runtime: Handle,
    sessions: Mutex<HashMap<Link, Arc<Session>>>,
    /// Counts changes of `sessions`.
    changes: watch::Sender<u64>,
    /// Whose turn it is to dial an address.
    turns: Mutex<HashMap<SocketAddr, Weak<tokio::sync::Mutex<()>>>>,
}

impl Inner {
    pub(crate) fn new(
        config: EngineConfig,
        hello: Hello,
        metadata: Metadata,
        data: Vec<Arc<Data>>,
        quic: Arc<QuicTransport>,
        runtime: Handle,
    ) -> Self {
        Self {
            incoming: IncomingTable::new(config.max_early, config.max_aborted),
            config,
            data,
            hello,
            metadata,
            quic,
            runtime,
            sessions: Mutex::default(),
            changes: watch::Sender::new(0),
            turns: Mutex::default(),
        }
    }

    pub(crate) fn hello(&self) -> &Hello {
        &self.hello
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(crate) fn role(&self) -> Role {
        self.metadata.role
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The name of the transport that carries the control channels.
    pub(crate) fn control(&self) -> &'static str {
        self.quic.name()
    }

    pub(crate) fn is_connected(&self, link: Link) -> bool {
        self.lock().contains_key(&link)
    }

    /// What those who dial the same address wait for.
    fn turn(&self, address: SocketAddr) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(&address).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(address, Arc::downgrade(&turn));
        turn
    }

    /// Runs the handshake on a fresh channel and takes the peer in.
    async fn meet(self: &Arc<Self>, channel: Arc<dyn ControlChannel>) -> Result<Arc<Session>, ConnectError> {
        let session = handshake::run(self, channel).await?;
        tracing::info!(rank = %session.rank(), role = %session.metadata.role, deployment = session.metadata.deployment,
            address = session.channel.peer_address(), transport = session.path.data.name(),
            passed_over = PassedOver::list(&session.passed_over), "connected");
        let (inner, listened) = (Arc::clone(self), Arc::clone(&session));
        self.spawn(async move {
            let reason = session::listen(&inner, &listened).await;
            inner.lose(&listened, &reason).await;
        });
        Ok(session)
    }

    /// Takes a peer in, unless what is connected forbids it. Looked at and done under one lock, on both sides by the same rules:
    /// ranks of a deployment have one configuration; another node that claims a rank is refused; the same node that has
    /// restarted or connects again replaces its old connection; of two connections that both sides dialled at the same time, the
    /// one of the engine with the smaller id stays.
    pub(crate) async fn admit(self: &Arc<Self>, session: &Arc<Session>) -> Result<(), ConnectError> {
        let old = {
            let mut sessions = self.lock();
            let mut old = None;
            for other in sessions.values().filter(|other| other.is_of_deployment(session)) {
                if other.rank() == session.rank() {
                    self.check_successor(other, session)?;
                    old = Some(Arc::clone(other));
                } else if let Some(difference) = other.difference(session) {
                    let (rank, deployment) = (session.rank(), session.metadata.deployment.clone());
                    return Err(ConnectError::DeploymentDiffers { rank, other: other.rank(), deployment, difference });
                }
            }
            if let Some(old) = &old {
                sessions.remove(&old.link());
            }
            sessions.insert(session.link(), Arc::clone(session));
            old
        };
        self.changes.send_modify(|changes| *changes += 1);
        if let Some(old) = old {
            let same = old.hello.incarnation == session.hello.incarnation;
            self.lose(&old, if same { "it connected again" } else { "it was restarted" }).await;
        }
        Ok(())
    }

    /// Whether a session may take the place of an older one of the same rank.
    fn check_successor(&self, old: &Session, new: &Session) -> Result<(), ConnectError> {
        let (rank, address) = (new.rank(), old.channel.peer_address());
        if old.channel.peer_identity() != new.channel.peer_identity() {
            let (role, deployment) = (new.metadata.role, new.metadata.deployment.clone());
            return Err(ConnectError::RankTaken { rank, role, deployment, address });
        }
        let crossed =
            old.hello.incarnation == new.hello.incarnation && old.channel.is_initiator() != new.channel.is_initiator();
        let ours_stays = self.hello.engine < new.hello.engine;
        if crossed && new.channel.is_initiator() != ours_stays {
            return Err(ConnectError::AlreadyConnected { rank, address });
        }
        Ok(())
    }

    /// All connected peers.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.lock().values().cloned().collect()
    }

    /// Takes a peer out: fences it, then fails what waits for it. Doing it twice is harmless.
    pub(crate) async fn lose(self: &Arc<Self>, session: &Arc<Session>, reason: &str) {
        let reason = session.end.get_or_init(|| wire::reason(reason));
        session.channel.close(reason);
        session.pushes.close();
        session.path.cut().await;
        let known = self.lock().remove(&session.link()).is_some();
        if known {
            tracing::info!(rank = %session.rank(), deployment = session.metadata.deployment, reason, "disconnected");
            self.changes.send_modify(|changes| *changes += 1);
        }
        self.incoming.sender_lost(self, session.link(), reason);
    }

    /// The connected ranks of a prefill deployment that have something to send to this one, or those that are missing.
    fn senders(&self, origin: &Origin<'_>) -> Result<Vec<Arc<Session>>, Vec<Rank>> {
        let is_of =
            |session: &Session| session.metadata.deployment == origin.deployment && session.rank().dp == origin.dp;
        let sessions: Vec<_> = self.lock().values().filter(|session| is_of(session)).cloned().collect();
        let Some(any) = sessions.first() else { return Err(Vec::new()) };
        let (mut senders, mut missing) = (Vec::new(), Vec::new());
        for rank in any.senders.iter().copied() {
            match sessions.iter().find(|session| session.rank() == rank) {
                Some(session) => senders.push(Arc::clone(session)),
                None => missing.push(rank),
            }
        }
        if missing.is_empty() { Ok(senders) } else { Err(missing) }
    }

    async fn close(self: &Arc<Self>, how: Shutdown) {
        self.incoming.begin_close();
        transports::shut_down(&self.data, how).await;
        self.incoming.close();
        let sessions: Vec<_> = self.lock().drain().map(|(_, session)| session).collect();
        for session in sessions {
            session.pushes.close();
        }
        transports::release(&self.data, self.config.drain_timeout).await;
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Link, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Meets peers that dial.
async fn accept(inner: Arc<Inner>) {
    while let Some(channel) = inner.quic.accept().await {
        let inner_ = Arc::clone(&inner);
        inner.spawn(async move {
            let address = channel.peer_address();
            if let Err(error) = inner_.meet(channel).await {
                tracing::warn!(address, %error, "refused a peer");
            }
        });
    }
}

/// Takes what a transport tells.
async fn events(inner: Arc<Inner>, data: Arc<Data>) {
    while let Some(event) = next_event(&data.transport).await {
        let link = data.link(event.peer());
        let Some(session) = inner.lock().get(&link).cloned() else {
            // Of a connection that was never taken in, or has been taken out: nothing waits for what it says.
            tracing::debug!(%link, "an event of a connection that is not a peer's");
            continue;
        };
        match event {
            Event::Notification { payload, .. } => match Commit::decode(&payload) {
                Ok(commit) => {
                    inner.incoming.committed(&inner, link, commit);
                    // Lost meanwhile by another thread, which did not find the word that may wait now.
                    if !inner.is_connected(link) {
                        inner.incoming.sender_lost(&inner, link, "the connection ended");
                    }
                }
                Err(error) => tracing::warn!(%link, %error, "a notification that is not ours"),
            },
            Event::PeerLost { reason, .. } => inner.spawn(lost(Arc::clone(&inner), session, reason)),
            _ => {}
        }
    }
}

/// Loses a peer whose data path has ended. When that is because the peer has ended the connection as a whole, its words come on
/// the control channel, and may come later.
async fn lost(inner: Arc<Inner>, session: Arc<Session>, reason: String) {
    match tokio::time::timeout(LAST_WORDS, session.channel.closed()).await {
        Ok(end) => inner.lose(&session, &end.to_string()).await,
        Err(_) => inner.lose(&session, &reason).await,
    }
}
