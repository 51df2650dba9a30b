//! What two engines say to each other when they meet, so that what does not fit is refused before a byte moves.
//!
//! The hazard is a configuration that is found not to fit in the middle of a transfer, or never. Both sides get the other's
//! layout, both run the same checks on the same pair, and so both come to the same verdict in the same words.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use kv_plan::{CacheLayout, Mismatch, Pairing, Rank, coverage, pair};
use transport_core::{ChannelError, ControlChannel, GrantError, RegionGrant, Topic};

use crate::{
    choose::{self, Chosen},
    config::Role,
    engine::Inner,
    error::ConnectError,
    session::{self, Pushes, Session},
    transports::Path,
    wire::{self, Grant, Hello, Message, Metadata, WireError},
};

/// How long a side that refuses waits for the peer to find the same.
const LINGER: Duration = Duration::from_millis(300);

/// Runs the handshake over a fresh channel and connects the data path. On failure the channel is closed with the reason.
pub(crate) async fn run(inner: &Arc<Inner>, channel: Arc<dyn ControlChannel>) -> Result<Arc<Session>, ConnectError> {
    let preferred = u32::try_from(inner.data.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let attempts = inner.config.transport_timeout.saturating_mul(preferred);
    let timeout = inner.config.handshake_timeout.saturating_add(attempts);
    let address = channel.peer_address();
    // A data path that is connected, also when the timeout drops the steps.
    let mut open = None;
    let result = match tokio::time::timeout(timeout, steps(inner, &channel, &mut open)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::TimedOut { address, timeout }),
    };
    if let Err(error) = &result {
        let reason = wire::reason(&error.to_string());
        channel.close(&reason);
        // However late it failed, also by the timeout: a session that was admitted has nobody who listens to it.
        let admitted = inner.sessions().into_iter().find(|session| Arc::ptr_eq(&session.channel, &channel));
        if let Some(session) = admitted {
            inner.lose(&session, &reason).await;
        }
        // After the channel, so that the peer learns why.
        if let Some(path) = open {
            path.cut().await;
        }
    }
    result
}

async fn steps(
    inner: &Arc<Inner>,
    channel: &Arc<dyn ControlChannel>,
    open: &mut Option<Path>,
) -> Result<Arc<Session>, ConnectError> {
    let talk = Talk { channel };
    talk.send_bytes(&inner.hello().encode()).await?;
    let hello = Hello::decode(&talk.receive_bytes().await?).map_err(|error| talk.protocol(error))?;
    if hello.major != Hello::MAJOR {
        // The peer finds the same in our hello, which a close at once could take with it.
        let _ = tokio::time::timeout(LINGER, channel.closed()).await;
        return Err(ConnectError::Version {
            address: channel.peer_address(),
            ours: format!("{}.{}", Hello::MAJOR, Hello::MINOR),
            theirs: format!("{}.{}", hello.major, hello.minor),
        });
    }

    let ours = inner.metadata();
    talk.send_bytes(&wire::encode(ours).map_err(|error| talk.protocol(error))?).await?;
    let theirs: Metadata = wire::decode(&talk.receive_bytes().await?).map_err(|error| talk.protocol(error))?;
    theirs.check().map_err(|error| talk.protocol(error))?;

    let judged = judge(ours, &theirs);
    let verdict = judged.as_ref().err().map(|error| {
        let kind = error.mismatch_kind().unwrap_or("config");
        (kind.to_owned(), wire::reason(&error.to_string()))
    });
    let sent = talk.send(&Message::Verdict(verdict)).await;
    // Also for whoever refuses: a connection that is closed at once could take with it what the peer needs to come to the same
    // verdict by itself.
    let answer = talk.receive().await;
    let fit = judged?;
    sent?;
    match answer? {
        Message::Verdict(None) => {}
        Message::Verdict(Some((kind, message))) => {
            return Err(ConnectError::RefusedByPeer { kind: wire::reason(&kind), message: wire::reason(&message) });
        }
        _ => return Err(talk.protocol(WireError::new("a verdict was expected"))),
    }
    let chosen = choose::connect(inner, &talk, &theirs, open).await?;
    finish(inner, &talk, chosen, hello, theirs, fit).await
}

/// Exchanges the grants over the connected data path.
async fn finish(
    inner: &Arc<Inner>,
    talk: &Talk<'_>,
    Chosen { path, passed_over }: Chosen,
    hello: Hello,
    metadata: Metadata,
    Fit { pairing, senders }: Fit,
) -> Result<Arc<Session>, ConnectError> {
    talk.send(&Message::Grants(grants(inner, &path, &pairing)?)).await?;
    let Message::Grants(granted) = talk.receive().await? else {
        return Err(talk.protocol(WireError::new("grants were expected")));
    };
    let mut regions = HashMap::with_capacity(granted.len());
    for granted in granted {
        let grant =
            RegionGrant::decode(&granted.grant).map_err(|error| talk.protocol(WireError::new(error.to_string())))?;
        let expected = metadata.layout.region_len(granted.region);
        if expected != Some(grant.len) {
            return Err(talk.protocol(WireError::new(format!(
                "region {} was granted with {} bytes, its layout says {expected:?}",
                granted.region, grant.len
            ))));
        }
        match path.data.transport.import(path.peer, &grant) {
            Ok(()) => {}
            Err(GrantError::NotConnected { reason, .. }) => return Err(talk.lost(&path, reason).await),
            Err(error) => return Err(talk.protocol(WireError::new(error.to_string()))),
        }
        regions.insert(granted.region, grant.region);
    }
    let tables = match inner.role() {
        Role::Prefill => session::resolve(&pairing, &path.data.regions, &regions)
            .ok_or_else(|| talk.protocol(WireError::new("a region of its layout was not granted")))?,
        Role::Decode => Vec::new(),
    };
    let session = Arc::new(Session {
        path,
        passed_over,
        channel: Arc::clone(talk.channel),
        hello,
        metadata,
        pairing,
        senders,
        tables,
        pushes: Pushes::new(inner.config.max_aborted),
        end: OnceLock::new(),
    });
    // Before the peer hears that we are ready, so that it does not take for a connection what another one has made void.
    inner.admit(&session).await?;
    // What was lost before that had nobody to hear of it; what is lost from here on finds the session.
    if let Some(error) = session.path.ended() {
        return Err(talk.lost(&session.path, error.to_string()).await);
    }
    let ready = async {
        talk.send(&Message::Ready(inner.incoming.failed())).await?;
        loop {
            match talk.receive().await? {
                Message::Ready(failed) => return Ok(failed),
                // The peer has admitted us, and something failed there just now.
                Message::Abort { request, .. } => {
                    session.pushes.refuse(request);
                    talk.send(&Message::Drained { request }).await?;
                }
                Message::Drained { .. } => {}
                _ => return Err(talk.protocol(WireError::new("the end of the handshake was expected"))),
            }
        }
    };
    ready.await?.into_iter().for_each(|request| session.pushes.refuse(request));
    Ok(session)
}

/// Whether two ranks, and the whole sides that they belong to, fit. Both sides of a connection judge the same two layouts.
fn judge(ours: &Metadata, theirs: &Metadata) -> Result<Fit, ConnectError> {
    let (prefill, decode) = match (ours.role, theirs.role) {
        (Role::Prefill, Role::Decode) => (&ours.layout, &theirs.layout),
        (Role::Decode, Role::Prefill) => (&theirs.layout, &ours.layout),
        (role, _) => return Err(ConnectError::SameRole { role }),
    };
    if !theirs.transports.iter().any(|name| ours.transports.contains(name)) {
        return Err(ConnectError::NoTransport {
            ours: ours.transports.join(", "),
            theirs: theirs.transports.join(", "),
        });
    }
    fit(prefill, decode).map_err(|mismatch| ConnectError::Mismatch(Box::new(mismatch)))
}

/// What two ranks that fit have to do with each other.
struct Fit {
    pairing: Pairing,
    /// The prefill ranks that send something to the decode rank of the two.
    senders: Vec<Rank>,
}

fn fit(prefill: &CacheLayout, decode: &CacheLayout) -> Result<Fit, Mismatch> {
    let pairing = pair(prefill, decode)?;
    let siblings = prefill.siblings();
    let siblings: Vec<&CacheLayout> = siblings.iter().collect();
    let senders = coverage(&siblings, decode)?.senders;
    Ok(Fit { pairing, senders })
}

/// The regions that the peer gets: those of the receiving side that the pairing names.
fn grants(inner: &Inner, path: &Path, pairing: &Pairing) -> Result<Vec<Grant>, ConnectError> {
    if inner.role() != Role::Decode {
        return Ok(Vec::new());
    }
    let mut regions: Vec<u32> = pairing.tables().iter().map(|table| table.dst_region).collect();
    regions.sort_unstable();
    regions.dedup();
    regions
        .into_iter()
        .map(|region| {
            let id = usize::try_from(region).ok().and_then(|region| path.data.regions.get(region)).copied();
            let local = |reason: String| ConnectError::Transport(transport_core::ConnectError::Local { reason });
            let id = id.ok_or_else(|| local(format!("the layout has no region {region}")))?;
            let grant = path.data.transport.grant(path.peer, id).map_err(|error| local(error.to_string()))?;
            Ok(Grant { region, grant: grant.encode() })
        })
        .collect()
}

/// The messages of a handshake, with errors that name the peer.
pub(crate) struct Talk<'a> {
    pub(crate) channel: &'a Arc<dyn ControlChannel>,
}

impl Talk<'_> {
    pub(crate) async fn send(&self, message: &Message) -> Result<(), ConnectError> {
        self.send_bytes(&wire::encode(message).map_err(|error| self.protocol(error))?).await
    }

    async fn send_bytes(&self, bytes: &[u8]) -> Result<(), ConnectError> {
        self.channel.send(Topic::Engine, bytes).await.map_err(|error| self.broken(error))
    }

    pub(crate) async fn receive(&self) -> Result<Message, ConnectError> {
        wire::decode(&self.receive_bytes().await?).map_err(|error| self.protocol(error))
    }

    async fn receive_bytes(&self) -> Result<bytes::Bytes, ConnectError> {
        self.channel.receive(Topic::Engine).await.map_err(|error| self.broken(error))
    }

    pub(crate) fn broken(&self, error: ChannelError) -> ConnectError {
        let address = self.channel.peer_address();
        ConnectError::Transport(match error {
            ChannelError::ClosedByPeer { reason } => transport_core::ConnectError::Refused { address, reason },
            error => transport_core::ConnectError::Broken { address, reason: error.to_string() },
        })
    }

    /// The data path is gone. When the peer has closed the connection as a whole, its reason says more.
    async fn lost(&self, path: &Path, reason: String) -> ConnectError {
        match tokio::time::timeout(LINGER, self.channel.closed()).await {
            Ok(error) => self.broken(error),
            Err(_) => ConnectError::Transport(transport_core::ConnectError::Broken {
                address: self.channel.peer_address(),
                reason: format!("{} was lost in the handshake: {reason}", path.data.name()),
            }),
        }
    }

    pub(crate) fn protocol(&self, error: WireError) -> ConnectError {
        ConnectError::Protocol { address: self.channel.peer_address(), reason: error.to_string() }
    }
}
