//! Peers that speak the control protocol by hand, and badly: nothing panics, hangs or grows, and the end says why. And threads
//! that wait for transfers, and take turns with the transport's thread.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod attempts;
mod connected;
mod waiting;

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use transport_core::{
    Access, ConnectError, ControlChannel, Event, Memory, PeerId, Topic, Transport,
    mem::{MemConfig, MemFabric, MemTransport},
    next_event,
};

use crate::{
    RdmaConfig, RdmaTransport,
    message::{Body, Message, Offer, RailAddress, Side},
    sim::{SimHost, SimNetwork},
    verbs::{LinkLayer, Mtu},
};

const PATIENCE: Duration = Duration::from_secs(20);
const ATTEMPT: u64 = 77;

struct Parker(Thread);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait_until<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Parker(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

fn wait<F: Future>(what: &str, future: F) -> F::Output {
    wait_until(Instant::now() + PATIENCE, future).unwrap_or_else(|| panic!("{what} takes more than {PATIENCE:?}"))
}

/// An honest node, and the other end of its control channel in the hands of the test.
struct Victim {
    network: SimNetwork,
    _host: Arc<SimHost>,
    transport: Arc<RdmaTransport>,
    fabric: MemFabric,
    here: Arc<MemTransport>,
    there: Arc<MemTransport>,
}

type Answer = Result<PeerId, ConnectError>;

impl Victim {
    fn new() -> Self {
        let config = RdmaConfig::default()
            .with_connect_timeout(Duration::from_secs(2))
            .with_loss_bound(Duration::from_secs(1))
            .with_events_per_peer(4);
        Self::with(config)
    }

    fn with(config: RdmaConfig) -> Self {
        let network = SimNetwork::new();
        let host = network.host();
        let transport = RdmaTransport::open(Arc::<SimHost>::clone(&host), config).unwrap();
        let fabric = MemFabric::new();
        let (here, there) = (fabric.transport(MemConfig::default()), fabric.transport(MemConfig::default()));
        Self { network, _host: host, transport: Arc::new(transport), fabric, here, there }
    }

    /// The victim listens (or dials), and the mouth is the other end.
    fn connect(&self, listens: bool) -> (Mouth, thread::JoinHandle<Answer>) {
        let (mouth, channel) = if listens {
            self.fabric.channel_pair(&self.there, &self.here)
        } else {
            let (dialling, listening) = self.fabric.channel_pair(&self.here, &self.there);
            (listening, dialling)
        };
        let transport = Arc::clone(&self.transport);
        let victim = thread::spawn(move || wait("connecting", transport.connect(channel)));
        (Mouth(mouth), victim)
    }

    /// The end of an attempt in words.
    fn refusal(&self, answer: thread::JoinHandle<Answer>) -> String {
        let error = answer.join().unwrap().unwrap_err();
        // And the transport still is what it was.
        self.is_well();
        error.to_string()
    }

    /// Another peer, which is honest, is served.
    fn is_well(&self) {
        let host = self.network.host();
        let other = RdmaTransport::open(host, RdmaConfig::default()).unwrap();
        let (dialling, listening) = self.fabric.channel_pair(&self.there, &self.here);
        let both = futures_util::future::join(other.connect(dialling), self.transport.connect(listening));
        let (there, here) = wait("connecting an honest peer", both);
        there.unwrap();
        wait("disconnecting", self.transport.disconnect(here.unwrap()));
    }

    fn lost(&self, peer: PeerId) -> String {
        loop {
            match wait("the loss", next_event(&*self.transport)) {
                Some(Event::PeerLost { peer: lost, reason }) if lost == peer => return reason,
                Some(_) => {}
                None => panic!("the transport is closed"),
            }
        }
    }
}

/// The end of a control channel that says what a transport would not.
struct Mouth(Arc<dyn ControlChannel>);

impl Mouth {
    fn raw(&self, bytes: &[u8]) {
        // The other end may have gone already.
        let _ = wait("sending", self.0.send(Topic::Transport, bytes));
    }

    fn say(&self, body: Body) {
        self.raw(&Message { attempt: ATTEMPT, body }.encode());
    }

    fn say_in(&self, attempt: u64, body: Body) {
        self.raw(&Message { attempt, body }.encode());
    }

    fn hear(&self) -> Message {
        let bytes = wait("a message", self.0.receive(Topic::Transport)).unwrap();
        Message::decode(&bytes).unwrap()
    }

    /// The first message that is picked, passing over others.
    fn hear_one<T>(&self, pick: impl Fn(&Message) -> Option<T>) -> T {
        loop {
            if let Some(found) = pick(&self.hear()) {
                return found;
            }
        }
    }

    fn goodbye(&self) -> String {
        self.hear_one(|message| match &message.body {
            Body::Goodbye { reason } => Some(reason.clone()),
            _ => None,
        })
    }
}

fn rail() -> RailAddress {
    RailAddress {
        device: "liar0".into(),
        link_layer: LinkLayer::Ethernet,
        gid: Some("::ffff:10.66.66.66".parse::<std::net::Ipv6Addr>().unwrap().octets()),
        lid: 0,
        mtu: Mtu::B4096,
    }
}

fn side() -> Side {
    Side { rails: vec![rail()], queue_pairs: 1, credits: 4 }
}

fn offer(lane: u16, epoch: u32) -> Offer {
    Offer { lane, epoch, number: 5, psn: 6, received: 0 }
}

fn assert_says(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in: {text}");
}
