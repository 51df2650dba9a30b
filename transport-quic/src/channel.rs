//! The control channel over a QUIC connection: a stream for each topic, messages with a length before them.
//!
//! The hazards: a peer that sends without end or never reads, which must cost it its connection and us nothing; a message
//! whose length is a lie; a caller's runtime that is not ours. Each topic has a writing and a reading task on the transport's
//! thread; callers hand messages over through queues of a few messages, so at any time a topic holds at most
//! [`QUEUED`] messages and one that is being read.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use quinn::{Connection, ConnectionError, ReadExactError, RecvStream, SendStream};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
    time::timeout,
};
use transport_core::{ChannelError, ConnectError, ControlChannel, Topic};

use crate::{
    frame::{Hello, StreamKind},
    node::{CLOSE, Node, dial_error},
    peer::Peer,
    receive,
};

/// Messages of a topic that wait to be received.
const QUEUED: usize = 4;

/// A control channel over a QUIC connection. Made by `QuicTransport::dial` and `QuicTransport::accept`.
pub struct QuicChannel {
    /// Itself: a transport that is given the channel as a trait object needs it as what it is.
    pub(crate) me: Weak<Self>,
    pub(crate) connection: Connection,
    pub(crate) node: Arc<Node>,
    /// The data path, once it is connected: batches that come before wait for it.
    pub(crate) data: watch::Sender<Option<Weak<Peer>>>,
    ended: Ended,
    identity: Vec<u8>,
    initiator: bool,
    engine: TopicQueues,
    transport: TopicQueues,
    _place: OwnedSemaphorePermit,
}

/// How a channel ended, where that was this side's finding.
type Ended = Arc<OnceLock<ChannelError>>;

struct TopicQueues {
    outgoing: mpsc::Sender<Outgoing>,
    incoming: tokio::sync::Mutex<mpsc::Receiver<Bytes>>,
}

struct Outgoing {
    message: Bytes,
    done: oneshot::Sender<Result<(), ChannelError>>,
}

impl QuicChannel {
    /// The dialling side: opens the streams of both topics and exchanges hellos.
    pub(crate) async fn initiate(
        node: &Arc<Node>,
        connection: Connection,
        identity: Vec<u8>,
        place: OwnedSemaphorePermit,
    ) -> Result<Arc<Self>, ConnectError> {
        let broken = |error| lost(node, &connection, error);
        let (mut send, mut receive) = connection.open_bi().await.map_err(broken)?;
        let ours = Hello { version: Hello::VERSION };
        let mut first = vec![StreamKind::Engine as u8];
        first.extend_from_slice(&ours.encode());
        // A failed write shows in the read, with its cause.
        let _ = send.write_all(&first).await;
        check_hello(node, &connection, &mut receive).await?;
        let (mut transport_send, transport_receive) = connection.open_bi().await.map_err(broken)?;
        let _ = transport_send.write_all(&[StreamKind::Transport as u8]).await;
        Ok(Self::run(node, connection, identity, true, place, [(send, receive), (transport_send, transport_receive)]))
    }

    /// The accepting side.
    pub(crate) async fn respond(
        node: &Arc<Node>,
        connection: Connection,
        identity: Vec<u8>,
        place: OwnedSemaphorePermit,
    ) -> Result<Arc<Self>, ConnectError> {
        let broken = |error| lost(node, &connection, error);
        let (mut send, mut receive) = connection.accept_bi().await.map_err(broken)?;
        expect_kind(&connection, &mut receive, StreamKind::Engine).await?;
        // Before theirs is looked at, so that a peer of another version learns ours.
        let _ = send.write_all(&Hello { version: Hello::VERSION }.encode()).await;
        if let Err(error) = check_hello(node, &connection, &mut receive).await {
            let _ = send.finish();
            let _ = timeout(Duration::from_millis(500), send.stopped()).await;
            connection.close(CLOSE, error.to_string().as_bytes());
            return Err(error);
        }
        let (transport_send, mut transport_receive) = connection.accept_bi().await.map_err(broken)?;
        expect_kind(&connection, &mut transport_receive, StreamKind::Transport).await?;
        Ok(Self::run(node, connection, identity, false, place, [(send, receive), (transport_send, transport_receive)]))
    }

    fn run(
        node: &Arc<Node>,
        connection: Connection,
        identity: Vec<u8>,
        initiator: bool,
        place: OwnedSemaphorePermit,
        streams: [(SendStream, RecvStream); 2],
    ) -> Arc<Self> {
        let ended = Ended::default();
        let [engine, transport] = streams.map(|(send, receive)| {
            let (outgoing, messages) = mpsc::channel(QUEUED);
            tokio::spawn(write(connection.clone(), Arc::clone(&ended), node.config.stall_timeout, send, messages));
            let (incoming, received) = mpsc::channel(QUEUED);
            let max = node.config.max_control_message;
            tokio::spawn(read(connection.clone(), Arc::clone(&ended), max, receive, incoming));
            TopicQueues { outgoing, incoming: tokio::sync::Mutex::new(received) }
        });
        let data = watch::Sender::new(None);
        tokio::spawn(receive::accept(connection.clone(), data.subscribe(), node.config.connect_timeout));
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            connection,
            node: Arc::clone(node),
            data,
            ended,
            identity,
            initiator,
            engine,
            transport,
            _place: place,
        })
    }

    fn topic(&self, topic: Topic) -> Result<&TopicQueues, ChannelError> {
        match topic {
            Topic::Engine => Ok(&self.engine),
            Topic::Transport => Ok(&self.transport),
            _ => Err(ChannelError::Protocol { reason: format!("QUIC has no topic {topic:?}") }),
        }
    }
}

impl Drop for QuicChannel {
    fn drop(&mut self) {
        // Nobody can use the connection any more. Closing what is closed does nothing.
        self.connection.close(CLOSE, b"the channel was dropped");
    }
}

impl fmt::Debug for QuicChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicChannel")
            .field("peer", &self.connection.remote_address())
            .field("initiator", &self.initiator)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ControlChannel for QuicChannel {
    fn peer_identity(&self) -> &[u8] {
        &self.identity
    }

    fn peer_address(&self) -> String {
        self.connection.remote_address().to_string()
    }

    fn is_initiator(&self) -> bool {
        self.initiator
    }

    fn max_message(&self) -> usize {
        self.node.config.max_control_message
    }

    async fn send(&self, topic: Topic, message: &[u8]) -> Result<(), ChannelError> {
        let (len, max) = (message.len(), self.max_message());
        if len > max {
            return Err(ChannelError::TooLong { len, max });
        }
        let (done, result) = oneshot::channel();
        let outgoing = Outgoing { message: Bytes::copy_from_slice(message), done };
        if self.topic(topic)?.outgoing.send(outgoing).await.is_ok()
            && let Ok(result) = result.await
        {
            return result;
        }
        Err(self.closed().await)
    }

    async fn receive(&self, topic: Topic) -> Result<Bytes, ChannelError> {
        match self.topic(topic)?.incoming.lock().await.recv().await {
            Some(message) => Ok(message),
            None => Err(self.closed().await),
        }
    }

    async fn closed(&self) -> ChannelError {
        let error = self.connection.closed().await;
        self.ended.get().cloned().unwrap_or_else(|| channel_error(&error))
    }

    fn close(&self, reason: &str) {
        // Closing a connection that has ended would hide how.
        if self.connection.close_reason().is_none() {
            self.connection.close(CLOSE, reason.as_bytes());
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What the end of a connection means for its channel.
pub(crate) fn channel_error(error: &ConnectionError) -> ChannelError {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ChannelError::ClosedByPeer { reason: String::from_utf8_lossy(&close.reason).into_owned() }
        }
        ConnectionError::LocallyClosed => ChannelError::Closed,
        ConnectionError::TimedOut => {
            ChannelError::Lost { reason: "it did not answer within the bound on peer loss".into() }
        }
        ConnectionError::Reset => {
            ChannelError::Lost { reason: "it was restarted and does not know the connection".into() }
        }
        error => ChannelError::Lost { reason: error.to_string() },
    }
}

fn lost(node: &Node, connection: &Connection, error: ConnectionError) -> ConnectError {
    dial_error(connection.remote_address(), node.config.connect_timeout, error)
}

fn protocol(connection: &Connection, reason: impl Into<String>) -> ConnectError {
    let reason = reason.into();
    connection.close(CLOSE, reason.as_bytes());
    ConnectError::Protocol { address: connection.remote_address().to_string(), reason }
}

async fn expect_kind(connection: &Connection, stream: &mut RecvStream, kind: StreamKind) -> Result<(), ConnectError> {
    let mut byte = [0];
    let read = stream.read_exact(&mut byte).await;
    let [byte] = byte;
    match (read, StreamKind::decode(byte)) {
        (Ok(()), Some(found)) if found == kind => Ok(()),
        (Ok(()), _) => Err(protocol(connection, format!("a stream begins with {byte}, not with {}", kind as u8))),
        (Err(error), _) => Err(protocol(connection, format!("a stream of the control channel broke: {error}"))),
    }
}

async fn check_hello(node: &Node, connection: &Connection, stream: &mut RecvStream) -> Result<(), ConnectError> {
    let mut bytes = [0; Hello::LEN];
    match stream.read_exact(&mut bytes).await {
        Ok(()) => {}
        Err(ReadExactError::ReadError(quinn::ReadError::ConnectionLost(error))) => {
            return Err(lost(node, connection, error));
        }
        Err(error) => return Err(protocol(connection, format!("no hello: {error}"))),
    }
    match Hello::decode(&bytes) {
        Some(hello) if hello.version == Hello::VERSION => Ok(()),
        Some(hello) => Err(ConnectError::Version {
            address: connection.remote_address().to_string(),
            ours: Hello::VERSION,
            theirs: hello.version,
        }),
        None => Err(protocol(connection, "its first bytes are not a hello")),
    }
}

/// Ends the connection because of something that this side found.
fn end(connection: &Connection, ended: &Ended, error: ChannelError) {
    let reason = error.to_string();
    let _ = ended.set(error);
    connection.close(CLOSE, reason.as_bytes());
}

/// Writes the messages of a topic.
async fn write(
    connection: Connection,
    ended: Ended,
    stall: Duration,
    mut stream: SendStream,
    mut messages: mpsc::Receiver<Outgoing>,
) {
    while let Some(Outgoing { message, done }) = messages.recv().await {
        // The configuration has bounded the length well below 4 GiB.
        let len = u32::try_from(message.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut parts = [Bytes::copy_from_slice(&len), message];
        match timeout(stall, stream.write_all_chunks(&mut parts)).await {
            Ok(Ok(())) => drop(done.send(Ok(()))),
            Ok(Err(_)) => {
                let error = ended.get().cloned().unwrap_or_else(|| match connection.close_reason() {
                    Some(error) => channel_error(&error),
                    None => {
                        ChannelError::Protocol { reason: "the peer stopped a stream of the control channel".into() }
                    }
                });
                end(&connection, &ended, error.clone());
                let _ = done.send(Err(error));
                return;
            }
            Err(_) => {
                let error = ChannelError::Stalled { timeout: stall };
                end(&connection, &ended, error.clone());
                let _ = done.send(Err(error));
                return;
            }
        }
    }
    // The channel was dropped, and with it the connection ends.
}

/// Reads the messages of a topic.
async fn read(connection: Connection, ended: Ended, max: usize, mut stream: RecvStream, messages: mpsc::Sender<Bytes>) {
    loop {
        let mut len = [0; 4];
        let broken = match stream.read_exact(&mut len).await {
            Ok(()) => {
                let len = u32::from_le_bytes(len) as usize;
                if len > max {
                    format!("a control message of {len} bytes is longer than the limit of {max}")
                } else {
                    match message(&mut stream, len).await {
                        Ok(message) => match messages.send(message).await {
                            Ok(()) => continue,
                            // The channel was dropped.
                            Err(_) => return,
                        },
                        Err(error) => format!("a control message broke off: {error}"),
                    }
                }
            }
            Err(ReadExactError::ReadError(quinn::ReadError::ConnectionLost(_))) => return,
            Err(error) => format!("a stream of the control channel ended: {error}"),
        };
        if connection.close_reason().is_none() {
            end(&connection, &ended, ChannelError::Protocol { reason: broken });
        }
        return;
    }
}

/// Reads one message. Its buffer grows with the bytes that really come, not with the length that was claimed.
async fn message(stream: &mut RecvStream, len: usize) -> Result<Bytes, String> {
    let mut message = Vec::new();
    while message.len() < len {
        match stream.read_chunk(len - message.len(), true).await {
            Ok(Some(chunk)) => message.extend_from_slice(&chunk.bytes),
            Ok(None) => return Err(format!("{} of {len} bytes came", message.len())),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(message.into())
}

/// Waits until the data path of a channel is connected, or will not be.
pub(crate) async fn connected(data: &mut watch::Receiver<Option<Weak<Peer>>>) -> Option<Arc<Peer>> {
    data.wait_for(Option::is_some).await.ok()?.as_ref().and_then(Weak::upgrade)
}
