//! One connected peer: what it is, what moves between the two, and the messages after the handshake.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use kv_plan::{Pairing, Rank};
use transport_core::{ChannelError, ControlChannel, RegionId, TablePair, Topic};

use crate::{
    engine::Inner,
    error::PushError,
    push::PushState,
    request::Request,
    transports::{Link, PassedOver, Path},
    wire::{self, Hello, Message, Metadata},
};

/// A connected peer.
pub(crate) struct Session {
    /// What carries the pages.
    pub(crate) path: Path,
    /// What does not, and why.
    pub(crate) passed_over: Vec<PassedOver>,
    pub(crate) channel: Arc<dyn ControlChannel>,
    pub(crate) hello: Hello,
    pub(crate) metadata: Metadata,
    /// What moves from the prefill side of the two to the decode side.
    pub(crate) pairing: Pairing,
    /// The prefill ranks that send something to the decode rank of the two.
    pub(crate) senders: Vec<Rank>,
    /// The pairing's tables with the regions of the transport; empty on the receiving side.
    pub(crate) tables: Vec<TablePair>,
    pub(crate) pushes: Pushes,
    /// Why the connection ended: the first reason counts, the others follow from it.
    pub(crate) end: OnceLock<String>,
}

impl Session {
    /// The session's name in the engine's tables.
    pub(crate) fn link(&self) -> Link {
        self.path.link()
    }

    pub(crate) fn rank(&self) -> Rank {
        self.metadata.layout.rank()
    }

    /// Whether two peers are ranks of one deployment.
    pub(crate) fn is_of_deployment(&self, other: &Self) -> bool {
        self.metadata.role == other.metadata.role && self.metadata.deployment == other.metadata.deployment
    }

    /// In what two ranks of one deployment are configured differently, if they are.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let show = |session: &Self| {
            let layout = &session.metadata.layout;
            let stages: Vec<String> = layout.shard.stages.iter().map(u32::to_string).collect();
            let (shard, page, dtype, order) = (&layout.shard, layout.page_tokens, layout.dtype, layout.order);
            let (tp, cp, dp, draft) = (shard.tp, shard.cp, shard.dp, shard.draft_layers);
            let layers = stages.join("+");
            format!("layers={layers},tp={tp},cp={cp},dp={dp},draft={draft},page={page},dtype={dtype},order={order}")
        };
        let (ours, theirs) = (show(self), show(other));
        (ours != theirs).then(|| format!("{} has {ours}, {} has {theirs}", self.rank(), other.rank()))
    }

    /// The tables of the pairing, as the transport takes them.
    pub(crate) fn table_pairs(&self, tables: Range<usize>) -> &[TablePair] {
        self.tables.get(tables).unwrap_or_default()
    }

    pub(crate) async fn send(&self, message: &Message) -> Result<(), ChannelError> {
        let bytes = wire::encode(message).map_err(|error| ChannelError::Protocol { reason: error.to_string() })?;
        self.channel.send(Topic::Engine, &bytes).await
    }
}

/// The transport's form of a pairing's tables.
pub(crate) fn resolve(pairing: &Pairing, src: &[RegionId], dst: &HashMap<u32, RegionId>) -> Option<Vec<TablePair>> {
    pairing
        .tables()
        .iter()
        .map(|table| {
            Some(TablePair {
                src: *src.get(usize::try_from(table.src_region).ok()?)?,
                src_base: table.src_base,
                src_row_stride: table.src_row_stride,
                src_stride: table.src_stride,
                dst: *dst.get(&table.dst_region)?,
                dst_base: table.dst_base,
                dst_row_stride: table.dst_row_stride,
                dst_stride: table.dst_stride,
                len: table.len,
            })
        })
        .collect()
}

/// The pushes of this side to one peer.
pub(crate) struct Pushes {
    max_aborted: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    active: HashMap<Request, Arc<PushState>>,
    /// What failed here or was aborted by the receiver, so that a push that comes late is refused: the receiver may have used the
    /// pages again. The oldest is forgotten first.
    aborted: HashSet<Request>,
    aborted_order: VecDeque<Request>,
}

impl Pushes {
    pub(crate) fn new(max_aborted: usize) -> Self {
        Self { max_aborted, state: Mutex::default() }
    }

    /// Takes a push in, unless the receiver has aborted its request or another one is active.
    pub(crate) fn insert(&self, push: &Arc<PushState>) -> Result<(), PushError> {
        let mut state = self.lock();
        let (request, rank) = (push.request, push.rank());
        if state.closed {
            return Err(PushError::NotConnected { request, rank });
        }
        if state.aborted.contains(&request) {
            let reason = "this attempt has failed or was aborted before; push another attempt".into();
            return Err(PushError::AbortedByReceiver { request, rank, reason });
        }
        if state.active.contains_key(&request) {
            return Err(PushError::Duplicate { request, rank });
        }
        state.active.insert(request, Arc::clone(push));
        Ok(())
    }

    pub(crate) fn remove(&self, push: &Arc<PushState>) {
        let mut state = self.lock();
        if state.active.get(&push.request).is_some_and(|active| Arc::ptr_eq(active, push)) {
            state.active.remove(&push.request);
        }
    }

    /// Refuses pushes of a request from now on.
    pub(crate) fn refuse(&self, request: Request) {
        let mut state = self.lock();
        if state.aborted.insert(request) {
            state.aborted_order.push_back(request);
            if state.aborted_order.len() > self.max_aborted
                && let Some(oldest) = state.aborted_order.pop_front()
            {
                state.aborted.remove(&oldest);
            }
        }
    }

    /// Aborts a request for its receiver. Answers true when nothing of it is in flight; else its push answers by itself.
    fn abort(&self, request: Request, reason: &str) -> bool {
        self.refuse(request);
        let active = self.lock().active.get(&request).cloned();
        !active.is_some_and(|push| push.abort(reason))
    }

    /// Refuses further pushes: the peer is gone. Those that are active end by their transfers.
    pub(crate) fn close(&self) {
        let active: Vec<_> = {
            let mut state = self.lock();
            state.closed = true;
            state.active.values().cloned().collect()
        };
        active.iter().for_each(|push| push.lost());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the messages of a peer until its channel ends; answers with how it ended.
pub(crate) async fn listen(inner: &Arc<Inner>, session: &Arc<Session>) -> String {
    loop {
        let bytes = match session.channel.receive(Topic::Engine).await {
            Ok(bytes) => bytes,
            Err(error) => return error.to_string(),
        };
        match wire::decode(&bytes) {
            Ok(Message::Failed { request, reason }) => {
                inner.incoming.failed_by_sender(inner, session.link(), request, wire::reason(&reason))
            }
            Ok(Message::Drained { request }) => inner.incoming.drained(session.link(), request),
            Ok(Message::Abort { request, reason }) => {
                if session.pushes.abort(request, &wire::reason(&reason))
                    && let Err(error) = session.send(&Message::Drained { request }).await
                {
                    return error.to_string();
                }
            }
            Ok(_) => return "it repeated a message of the handshake".into(),
            Err(error) => return error.to_string(),
        }
    }
}
