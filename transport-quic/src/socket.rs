//! The UDP socket under quinn.
//!
//! The hazards, each seen: a segmented send that is longer than a datagram may be is refused by the kernel, reported as sent, and
//! then taken for a path that carries less; a path on which segmentation fails; a receive buffer that is too small and
//! drops what the peer sends; receive buffers of 128 MiB when segments and datagrams are both taken at their largest.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket as StdSocket},
    pin::Pin,
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit, UdpSocketState},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;

/// The most bytes that one send may carry, all segments together: the longest UDP payload over IPv4.
const MAX_SEND: usize = 65_507;

/// Binds a socket with large buffers; answers with the receive buffer that the kernel granted, as it counts it.
pub(crate) fn bind(address: SocketAddr, buffer: usize) -> io::Result<(StdSocket, usize)> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // An IPv6 wildcard also takes IPv4.
        socket.set_only_v6(false)?;
    }
    // The kernel grants less without an error, and doubles what it grants, for its own overhead.
    let _ = socket.set_recv_buffer_size(buffer);
    let _ = socket.set_send_buffer_size(buffer);
    let received = socket.recv_buffer_size()?;
    if received < buffer.saturating_mul(2) {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!(
                asked = buffer,
                granted = received / 2,
                "the UDP receive buffer is smaller than asked for, which costs throughput; \
                 set net.core.rmem_max (and net.core.wmem_max) to {buffer} or more"
            );
        });
    }
    socket.bind(&address.into())?;
    Ok((socket.into(), received))
}

/// A socket that never sends more at once than a datagram carries.
pub(crate) struct CappedSocket {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
    /// The largest segment that was sent: with it the next send of several is cut to what fits.
    segment: AtomicUsize,
}

impl CappedSocket {
    pub(crate) fn new(socket: StdSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { io: tokio::net::UdpSocket::from_std(socket)?, state, segment: AtomicUsize::new(1200) })
    }

    fn send_part(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.io.try_io(Interest::WRITABLE, || self.state.send((&self.io).into(), transmit))
    }
}

impl fmt::Debug for CappedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CappedSocket").field("address", &self.io.local_addr().ok()).finish_non_exhaustive()
    }
}

/// How many segments of this length one send may carry.
fn segments_that_fit(segment: usize) -> usize {
    (MAX_SEND / segment.max(1)).max(1)
}

impl AsyncUdpSocket for CappedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        if segment > self.segment.load(Ordering::Relaxed) {
            self.segment.store(segment, Ordering::Relaxed);
        }
        // The kernel refuses a send of several segments where GSO was found not to work, and more than a datagram carries.
        let at_once = segments_that_fit(segment).min(self.state.max_gso_segments());
        if transmit.contents.len() <= at_once.saturating_mul(segment) {
            return self.send_part(transmit);
        }
        let mut parts = transmit.contents.chunks(at_once.saturating_mul(segment).max(1));
        let mut first = true;
        parts.try_for_each(|contents| {
            let part = Transmit {
                destination: transmit.destination,
                ecn: transmit.ecn,
                contents,
                segment_size: (contents.len() > segment).then_some(segment),
                src_ip: transmit.src_ip,
            };
            match self.send_part(&part) {
                // What was sent cannot be taken back: the rest counts as lost and is sent again by QUIC. This happens at
                // most once for each growth of the datagrams, since the next sends are cut beforehand.
                Err(error) if !first && error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                result => {
                    first = false;
                    result
                }
            }
        })
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(context))?;
            if let Ok(count) = self.io.try_io(Interest::READABLE, || self.state.recv((&self.io).into(), buffers, meta))
            {
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        segments_that_fit(self.segment.load(Ordering::Relaxed)).min(self.state.max_gso_segments())
    }

    fn max_receive_segments(&self) -> usize {
        // Each receive buffer has 64 KiB, which is as much as the kernel coalesces, so one counts for all segments.
        1
    }
}

/// Waits until the socket takes datagrams again.
struct Writable {
    socket: Arc<CappedSocket>,
    waiting: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let waiting = this.waiting.get_or_insert_with(|| {
            let socket = Arc::clone(&this.socket);
            Box::pin(async move { socket.io.writable().await })
        });
        let result = ready!(waiting.as_mut().poll(context));
        this.waiting = None;
        Poll::Ready(result)
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A send of ten segments of 60,000 bytes arrives whole: one datagram after the other, none lost.
    #[tokio::test]
    async fn a_send_that_no_datagram_carries_is_split() {
        let (sender, _) = bind("127.0.0.1:0".parse().unwrap(), 4 << 20).unwrap();
        let sender = CappedSocket::new(sender).unwrap();
        let receiver = StdSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        sender.io.writable().await.unwrap();
        for (segment, count) in [(60_000, 3), (1200, 10), (20_000, 7)] {
            let contents: Vec<u8> = (0..segment * count).map(|i| (i / segment) as u8).collect();
            let transmit = Transmit {
                destination: receiver.local_addr().unwrap(),
                ecn: None,
                contents: &contents,
                segment_size: Some(segment),
                src_ip: None,
            };
            sender.try_send(&transmit).unwrap();
            let mut buffer = vec![0; 65_536];
            for part in 0..count {
                let (len, _) = receiver.recv_from(&mut buffer).unwrap();
                assert_eq!(len, segment);
                assert!(buffer[..len].iter().all(|byte| *byte == part as u8));
            }
            assert!(sender.max_transmit_segments() * 60_000 <= MAX_SEND.max(60_000));
        }
    }

    #[test]
    fn the_granted_buffer_is_read_back() {
        let (_, small) = bind("127.0.0.1:0".parse().unwrap(), 1 << 16).unwrap();
        let (_, huge) = bind("127.0.0.1:0".parse().unwrap(), 1 << 30).unwrap();
        assert!(small >= 1 << 16 && huge > small, "{small} {huge}");
        assert!(huge < 1 << 31, "the kernel's limit is below what was asked for, and that is what counts: {huge}");
    }
}
