//! Errors of the engine, one enum for each phase.

use std::time::Duration;

use kv_plan::{LayoutError, Mismatch, PageId, PlanError, Rank};
use transport_core::{RegisterError, SubmitError, TransferError};
use transport_quic::BindError;

use crate::{config::Role, request::Request};

/// Why an engine could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The cache's layout contradicts itself.
    #[error("the cache layout is invalid: {0}")]
    Layout(#[from] LayoutError),
    /// The memory given is not what the layout describes.
    #[error("the layout has {expected} regions, {given} were given; give one memory for each region of the layout")]
    RegionCount {
        /// Regions of the layout.
        expected: usize,
        /// Memories that were given.
        given: usize,
    },
    /// One region's memory has another length than the layout says.
    #[error("region {region} has {given} bytes of memory, the layout says {expected}")]
    RegionLen {
        /// Index of the region.
        region: usize,
        /// Bytes in the layout.
        expected: u64,
        /// Bytes of the memory.
        given: u64,
    },
    /// No cache was given.
    #[error("the engine has no cache; call EngineBuilder::cache before build")]
    NoCache,
    /// The transport could not listen.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The memory could not be registered.
    #[error("region {region} could not be registered: {cause}")]
    Register {
        /// Index of the region.
        region: usize,
        /// Why.
        cause: RegisterError,
    },
    /// The transports' names cannot be told apart, or peers would not take them.
    #[error("the engine's transports cannot be used: {reason}")]
    Transports {
        /// Which, and what to change.
        reason: String,
    },
    /// The engine's thread could not be started.
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why two engines did not come together. Nothing was transferred, and both sides know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The network, authentication or the transport.
    #[error(transparent)]
    Transport(#[from] transport_core::ConnectError),
    /// The two caches do not fit. Both sides have the same error.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// The peer found that the two caches do not fit, though this side did not: the versions of the two differ.
    #[error("the peer refused ({kind}): {message}")]
    RefusedByPeer {
        /// The kind of the mismatch.
        kind: String,
        /// The peer's words.
        message: String,
    },
    /// The peer speaks another major version.
    #[error("the peer at {address} speaks wire version {theirs}, this side {ours}; upgrade the older side")]
    Version {
        /// The peer's address.
        address: String,
        /// Our version, major and minor.
        ours: String,
        /// Its version, major and minor.
        theirs: String,
    },
    /// Both sides have the same role.
    #[error("both sides are {role}; a prefill engine connects to a decode engine")]
    SameRole {
        /// The role of both.
        role: Role,
    },
    /// Another engine already is this rank.
    #[error(
        "{rank} of the {role} deployment {deployment:?} is already connected from {address} with another identity; two engines claim one rank"
    )]
    RankTaken {
        /// The rank.
        rank: Rank,
        /// Its role.
        role: Role,
        /// Its deployment.
        deployment: String,
        /// Where the engine that has it is.
        address: String,
    },
    /// The two sides dialled each other at the same time, and the other connection stays.
    #[error(
        "{rank} is already connected from {address}: both sides dialled; use the connection that Engine::peers shows"
    )]
    AlreadyConnected {
        /// The peer's rank.
        rank: Rank,
        /// Where it is.
        address: String,
    },
    /// A rank is configured differently from another one of its deployment that is connected.
    #[error(
        "{rank} does not belong to the deployment {deployment:?} that {other} is of: {difference}; restart all ranks of a deployment with one configuration, or name another deployment"
    )]
    DeploymentDiffers {
        /// The rank that was refused.
        rank: Rank,
        /// The rank that is connected.
        other: Rank,
        /// The deployment.
        deployment: String,
        /// What each has.
        difference: String,
    },
    /// The peer broke the protocol.
    #[error("the peer at {address} broke the protocol of the handshake: {reason}")]
    Protocol {
        /// The peer's address.
        address: String,
        /// What it did.
        reason: String,
    },
    /// The handshake took too long.
    #[error(
        "the handshake with {address} was not done within {timeout:?}; the peer is stuck, or raise handshake_timeout"
    )]
    TimedOut {
        /// The peer's address.
        address: String,
        /// The configured limit.
        timeout: Duration,
    },
    /// The two have no transport in common.
    #[error("no transport in common: this side has {ours}, the peer {theirs}")]
    NoTransport {
        /// Ours.
        ours: String,
        /// Its.
        theirs: String,
    },
    /// The two have transports in common, and none of them connects.
    #[error("no transport carries pages to {address}: {tried}")]
    NothingConnected {
        /// The peer's address.
        address: String,
        /// Each transport that one of the two has or wants, with the reason, separated by commas.
        tried: String,
    },
    /// The engine was shut down.
    #[error("the engine is closed")]
    Closed,
}

impl ConnectError {
    /// The kind of a configuration mismatch, as the plan tool names it (`missing_layer`, `dtype`, …); `None` for all else.
    pub fn mismatch_kind(&self) -> Option<&str> {
        match self {
            Self::Mismatch(mismatch) => Some(mismatch.kind()),
            Self::RefusedByPeer { kind, .. } => Some(kind),
            _ => None,
        }
    }
}

/// Why a push was not started, or failed. The receiver knows as soon as this side does, unless it is the one that is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The page lists do not fit. Nothing was sent.
    #[error("{request}: {cause}")]
    Plan {
        /// The request.
        request: Request,
        /// What is wrong with the lists.
        cause: PlanError,
    },
    /// The transport did not take a part. Nothing of the part was sent; a full queue can be waited for with `Peer::room`.
    #[error("{request}: {cause}")]
    Submit {
        /// The request.
        request: Request,
        /// Why not.
        cause: SubmitError,
    },
    /// A part failed on the way.
    #[error("{request} to {rank}: {cause}")]
    Transfer {
        /// The request.
        request: Request,
        /// The receiver's rank.
        rank: Rank,
        /// How.
        cause: TransferError,
    },
    /// The receiver does not want the request any more.
    #[error("{request} was aborted by the receiver {rank}: {reason}")]
    AbortedByReceiver {
        /// The request.
        request: Request,
        /// The receiver's rank.
        rank: Rank,
        /// Its reason.
        reason: String,
    },
    /// This side cancelled the push, or dropped it before its commit.
    #[error("{request} was given up by the sender: {reason}")]
    GivenUp {
        /// The request.
        request: Request,
        /// Why.
        reason: String,
    },
    /// The same request is being pushed to this peer already.
    #[error("{request} is already being pushed to {rank}; a retry is another attempt")]
    Duplicate {
        /// The request.
        request: Request,
        /// The receiver's rank.
        rank: Rank,
    },
    /// The peer is not one that receives.
    #[error("only a prefill engine pushes, and this one is {role}")]
    WrongRole {
        /// This engine's role.
        role: Role,
    },
    /// The connection to the peer is gone.
    #[error("{request}: {rank} is not connected any more")]
    NotConnected {
        /// The request.
        request: Request,
        /// The receiver's rank.
        rank: Rank,
    },
    /// The engine was shut down.
    #[error("the engine is closed")]
    Closed,
}

/// Why a request cannot be expected. Nothing is expected then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpectError {
    /// The page list is wrong.
    #[error("{request}: {cause}")]
    Pages {
        /// The request.
        request: Request,
        /// What is wrong with it.
        cause: PlanError,
    },
    /// The request is expected already.
    #[error("{request} is already expected; a retry is another attempt")]
    Duplicate {
        /// The request.
        request: Request,
    },
    /// A page is where another request is expected, and the two would overwrite each other.
    #[error("{request}: page {page} is expected by {other} already; a page belongs to one request at a time")]
    PageInUse {
        /// The request.
        request: Request,
        /// The page.
        page: PageId,
        /// The request that has it.
        other: Request,
    },
    /// This attempt has failed before, and what it sent must not be taken for a new one.
    #[error("{request} has failed before; expect another attempt")]
    Failed {
        /// The request.
        request: Request,
    },
    /// Ranks that have something to send are not connected.
    #[error(
        "{request}: these ranks of the prefill deployment {deployment:?} have pages to send and are not connected: {missing}"
    )]
    MissingSenders {
        /// The request.
        request: Request,
        /// The deployment.
        deployment: String,
        /// The ranks, separated by commas.
        missing: String,
    },
    /// No rank of the deployment is connected.
    #[error("{request}: no rank of the prefill deployment {deployment:?} is connected")]
    UnknownDeployment {
        /// The request.
        request: Request,
        /// The deployment.
        deployment: String,
    },
    /// This engine does not receive.
    #[error("only a decode engine expects requests, and this one is {role}")]
    WrongRole {
        /// This engine's role.
        role: Role,
    },
    /// The engine was shut down.
    #[error("the engine is closed")]
    Closed,
}

/// Why an expected request failed. When this is reported, all senders are fenced: no byte of the request lands any more,
/// and its pages may be used again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// A sender said that it failed.
    #[error("{request} failed at its sender {rank}: {reason}")]
    SenderFailed {
        /// The request.
        request: Request,
        /// The sender.
        rank: Rank,
        /// Its words.
        reason: String,
    },
    /// The connection to a sender was lost before it had committed.
    #[error("{request} lost its sender {rank}: {reason}")]
    SenderLost {
        /// The request.
        request: Request,
        /// The sender.
        rank: Rank,
        /// What was noticed.
        reason: String,
    },
    /// A sender committed something else than what was expected.
    #[error(
        "{request}: {rank} committed {got} bytes where {expected} were expected{}; the page lists of the two sides differ, or a part was left out or sent twice",
        if got == expected { ", but for other pages or layers" } else { "" }
    )]
    Incomplete {
        /// The request.
        request: Request,
        /// The sender.
        rank: Rank,
        /// Bytes that its part has.
        expected: u64,
        /// Bytes that it committed.
        got: u64,
    },
    /// It was not complete in time.
    #[error("{request} was not complete within {timeout:?}; missing: {missing}")]
    TimedOut {
        /// The request.
        request: Request,
        /// The configured limit.
        timeout: Duration,
        /// The senders that had not committed, separated by commas.
        missing: String,
    },
    /// This side aborted it.
    #[error("{request} was aborted: {reason}")]
    Aborted {
        /// The request.
        request: Request,
        /// Why.
        reason: String,
    },
    /// The engine was shut down.
    #[error("the engine is closed")]
    Closed,
}
