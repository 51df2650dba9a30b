//! Peers that speak the control protocol by hand, and badly: nothing panics, hangs or grows, and the end says why.

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

#[test]
fn what_is_no_message_ends_the_attempt_and_is_named() {
    let cases: [(&[u8], &str); 5] = [
        (&[], "a message of 0 bytes does not decode"),
        (&[9, 1, 2, 3], "have version 9, ours 1"),
        (&[1, 0xff, 0xff], "a message of 3 bytes does not decode"),
        (&[1; 5000], "a message of 5000 bytes does not decode"),
        (&[1; 300], "a message of 300 bytes does not decode"),
    ];
    for listens in [true, false] {
        for (bytes, part) in cases {
            let victim = Victim::new();
            let (mouth, answer) = victim.connect(listens);
            mouth.raw(bytes);
            assert_says(&victim.refusal(answer), part);
        }
    }
}

#[test]
fn a_trailing_byte_is_no_message() {
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(true);
    let mut bytes = Message { attempt: 1, body: Body::Hello(side()) }.encode();
    bytes.push(0);
    mouth.raw(&bytes);
    assert_says(&victim.refusal(answer), "does not decode");
}

#[test]
fn impossible_sides_are_named() {
    let cases = [
        (Side { rails: vec![], ..side() }, "rails 0"),
        (Side { rails: vec![rail(); 9], ..side() }, "rails 9"),
        (Side { queue_pairs: 0, ..side() }, "queue pairs 0"),
        (Side { queue_pairs: u16::MAX, ..side() }, "queue pairs 65535"),
        (Side { credits: 0, ..side() }, "credits 0"),
        (Side { credits: u32::MAX, ..side() }, "credits 4294967295"),
    ];
    for (wrong, part) in cases {
        let victim = Victim::new();
        let (mouth, answer) = victim.connect(true);
        mouth.say(Body::Hello(wrong));
        assert_says(&victim.refusal(answer), part);
    }
}

#[test]
fn a_greeting_from_the_wrong_side_is_named() {
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(false);
    mouth.say(Body::Hello(side()));
    assert_says(&victim.refusal(answer), "and so did this side");
}

#[test]
fn offers_that_nobody_may_make_are_named() {
    // From the side that listens.
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(false);
    let attempt = mouth.hear().attempt;
    mouth.say_in(attempt, Body::Welcome(side()));
    mouth.say_in(attempt, Body::Offer(offer(0, 1)));
    assert_says(&victim.refusal(answer), "which is for the side that dialled");
    // For a lane that is not there.
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(true);
    mouth.say(Body::Hello(side()));
    mouth.say(Body::Offer(offer(u16::MAX, 1)));
    assert_says(&victim.refusal(answer), "a lane that there is not");
}

/// What belongs to another attempt is late and changes nothing; an attempt that nobody goes on with ends in time.
#[test]
fn messages_of_other_attempts_and_epochs_change_nothing() {
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(false);
    let attempt = mouth.hear().attempt;
    let late = attempt.wrapping_add(1);
    for body in [
        Body::Welcome(side()),
        Body::Goodbye { reason: "late".into() },
        Body::Credits { total: 0 },
        Body::Offer(offer(0, 1)),
    ] {
        mouth.say_in(late, body);
    }
    mouth.say_in(attempt, Body::Welcome(side()));
    let first = mouth.hear_one(|message| match message.body {
        Body::Offer(offer) => Some(offer),
        _ => None,
    });
    // Answers to queue pairs that it never offered, for lanes that are not there, and what is none of them.
    for wrong in [offer(0, first.epoch + 1), offer(0, 0), offer(9, first.epoch), offer(u16::MAX, u32::MAX)] {
        mouth.say_in(attempt, Body::Answer(wrong));
    }
    mouth.say_in(attempt, Body::Ready { lane: 0, epoch: first.epoch });
    mouth.say_in(attempt, Body::Ready { lane: 77, epoch: u32::MAX });
    mouth.say_in(attempt, Body::Down { lane: u16::MAX, epoch: u32::MAX, carried: true, reason: "x".repeat(2000) });
    mouth.say_in(attempt, Body::Revoked { serial: u64::MAX });
    let text = victim.refusal(answer);
    assert_says(&text, "does not go on with it in time");
}

#[test]
fn queue_pairs_with_impossible_numbers_fail_their_lane() {
    for listens in [true, false] {
        let victim = Victim::new();
        let (mouth, answer) = victim.connect(listens);
        let wrong = Offer { lane: 0, epoch: 1, number: u32::MAX, psn: u32::MAX, received: 0 };
        if listens {
            mouth.say(Body::Hello(side()));
            mouth.say(Body::Offer(wrong));
        } else {
            let attempt = mouth.hear().attempt;
            mouth.say_in(attempt, Body::Welcome(side()));
            let first = mouth.hear_one(|message| match message.body {
                Body::Offer(offer) => Some(offer),
                _ => None,
            });
            mouth.say_in(attempt, Body::Answer(Offer { epoch: first.epoch, ..wrong }));
        }
        assert_says(&victim.refusal(answer), "cannot reach the peer's liar0");
    }
}

#[test]
fn more_received_than_was_sent_is_named() {
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(true);
    mouth.say(Body::Hello(side()));
    mouth.say(Body::Offer(Offer { received: 1, ..offer(0, 1) }));
    assert_says(&victim.refusal(answer), "received more notifications than were sent");
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(false);
    let attempt = mouth.hear().attempt;
    mouth.say_in(attempt, Body::Welcome(side()));
    let first = mouth.hear_one(|message| match message.body {
        Body::Offer(offer) => Some(offer),
        _ => None,
    });
    mouth.say_in(attempt, Body::Answer(Offer { received: u64::MAX, ..offer(0, first.epoch) }));
    assert_says(&victim.refusal(answer), "received more notifications than were sent");
}

#[test]
fn a_peer_that_says_that_it_is_up_and_has_no_lane_is_not_connected() {
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(true);
    mouth.say(Body::Hello(side()));
    mouth.say(Body::Up);
    mouth.say(Body::Down { lane: 0, epoch: 0, carried: false, reason: "no lane".into() });
    mouth.say(Body::Up);
    let text = victim.refusal(answer);
    assert_says(&text, "the peer says: no lane");
    assert_says(&mouth.goodbye(), "no lane");
}

/// Greets for ever: the attempt is not prolonged by it, and others are served meanwhile.
#[test]
fn a_flood_of_greetings_comes_to_an_end() {
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(true);
    let begin = Instant::now();
    let mut attempt = 0;
    while !answer.is_finished() {
        assert!(begin.elapsed() < PATIENCE, "the attempt goes on and on");
        attempt += 1;
        mouth.say_in(attempt, Body::Hello(Side { queue_pairs: 32, ..side() }));
        // The answers are not read, so most of these wait for ever; the channel bounds them.
        if attempt > 6000 {
            break;
        }
    }
    let text = victim.refusal(answer);
    assert!(text.contains("does not read the answers") || text.contains("again and again"), "{text}");
}

#[test]
fn a_flood_of_offers_comes_to_an_end() {
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(true);
    mouth.say(Body::Hello(side()));
    let begin = Instant::now();
    let mut epoch = 0;
    while !answer.is_finished() {
        assert!(begin.elapsed() < PATIENCE, "the attempt goes on and on");
        epoch += 1;
        mouth.say(Body::Offer(offer(0, epoch)));
    }
    victim.refusal(answer);
}

#[test]
fn late_and_senseless_messages_do_not_prolong_an_attempt() {
    for listens in [true, false] {
        let victim = Victim::new();
        let (mouth, answer) = victim.connect(listens);
        let attempt = if listens { ATTEMPT } else { mouth.hear().attempt };
        let begin = Instant::now();
        while !answer.is_finished() {
            assert!(begin.elapsed() < PATIENCE, "the attempt goes on and on");
            for other in [attempt, attempt ^ 1] {
                mouth.say_in(other, Body::Revoked { serial: 3 });
                mouth.say_in(other, Body::Down { lane: 0, epoch: u32::MAX, carried: false, reason: String::new() });
            }
        }
        let text = victim.refusal(answer);
        assert_says(&text, "did not answer within");
    }
}

/// A connection of which the test holds the peer's end of the channel: what an honest transport says is passed on, and the test may add to it.
struct Between {
    victim: Victim,
    liar: Arc<RdmaTransport>,
    peer: PeerId,
    liars_peer: PeerId,
    attempt: u64,
    /// To the victim.
    mouth: Arc<Mouth>,
}

impl Between {
    fn new(config: RdmaConfig) -> Self {
        let victim = Victim::with(config);
        let liar = Arc::new(
            RdmaTransport::open(victim.network.host(), RdmaConfig::default().with_events_per_peer(4)).unwrap(),
        );
        // The liar dials a channel whose other end is carried on by hand.
        let (dialling, relay) = victim.fabric.channel_pair(&victim.there, &victim.here);
        let (mouth, answer) = victim.connect(true);
        let mouth = Arc::new(mouth);
        let (send, receive) = std::sync::mpsc::channel();
        thread::spawn({
            let (relay, mouth) = (Arc::clone(&relay), Arc::clone(&mouth));
            move || {
                while let Some(Ok(bytes)) = wait_until(Instant::now() + PATIENCE, relay.receive(Topic::Transport)) {
                    if let Ok(message) = Message::decode(&bytes) {
                        let _ = send.send(message.attempt);
                    }
                    mouth.raw(&bytes);
                }
            }
        });
        thread::spawn({
            let mouth = Arc::clone(&mouth);
            move || {
                while let Some(Ok(bytes)) = wait_until(Instant::now() + PATIENCE, mouth.0.receive(Topic::Transport)) {
                    let _ = wait_until(Instant::now() + PATIENCE, relay.send(Topic::Transport, &bytes));
                }
            }
        });
        let liars_peer = wait("connecting", liar.connect(dialling)).unwrap();
        let peer = answer.join().unwrap().unwrap();
        let attempt = receive.recv().unwrap();
        Self { victim, liar: liar, peer, liars_peer, attempt, mouth }
    }

    fn say(&self, body: Body) {
        self.mouth.say_in(self.attempt, body);
    }
}

fn quick() -> RdmaConfig {
    RdmaConfig::default().with_events_per_peer(4).with_loss_bound(Duration::from_secs(1))
}

#[test]
fn a_connected_peer_that_breaks_the_protocol_is_lost_by_name() {
    let cases: [(fn(&Between), &str); 5] = [
        (|between| between.mouth.raw(&[1, 2]), "does not decode"),
        (|between| between.say(Body::Credits { total: 0 }), "takes room for notifications back"),
        (|between| between.say(Body::Offer(offer(9, 9))), "a lane that there is not"),
        (|between| between.say(Body::Hello(side())), "connected again over the same channel"),
        (|between| between.say(Body::Goodbye { reason: "enough".into() }), "enough"),
    ];
    for (act, part) in cases {
        let between = Between::new(quick());
        act(&between);
        assert_says(&between.victim.lost(between.peer), part);
        between.victim.is_well();
    }
}

#[test]
fn a_peer_that_says_it_received_more_is_lost_by_name() {
    let between = Between::new(quick());
    between.say(Body::Offer(Offer { received: u64::MAX, ..offer(0, 100) }));
    assert_says(&between.victim.lost(between.peer), "received more notifications than were sent");
}

#[test]
fn senseless_messages_of_a_connected_peer_change_nothing() {
    let between = Between::new(quick());
    for body in [
        Body::Welcome(side()),
        Body::Answer(offer(0, 1)),
        Body::Answer(offer(u16::MAX, u32::MAX)),
        Body::Ready { lane: 0, epoch: 1 },
        Body::Up,
        Body::Down { lane: 0, epoch: 0, carried: false, reason: String::new() },
        Body::Down { lane: 1000, epoch: u32::MAX, carried: false, reason: String::new() },
        Body::Revoked { serial: 0 },
        Body::Revoked { serial: u64::MAX },
        Body::Revoke { serial: 1, index: u32::MAX, generation: u32::MAX },
        Body::Credits { total: u64::MAX },
        Body::Credits { total: u64::MAX },
    ] {
        between.say(body);
    }
    let notification = transport_core::BatchOptions::new().with_notification(b"still here");
    for _ in 0..4 {
        let batch = transport_core::Batch::Slices(&[]);
        let transfer = between.victim.transport.batch_write(between.peer, batch, &notification).unwrap();
        assert!(matches!(transfer.wait_timeout(PATIENCE), transport_core::Waited::Finished(Ok(_))));
    }
}

/// It asks and asks and does not listen: the answers do not pile up for ever.
#[test]
fn revocations_without_end_are_cut_off() {
    let victim = Victim::new();
    let (mouth, answer) = victim.connect(true);
    mouth.say(Body::Hello(side()));
    let mut serial = 0;
    while !answer.is_finished() && serial < 20_000 {
        serial += 1;
        mouth.say(Body::Revoke { serial, index: serial as u32, generation: 1 });
    }
    assert_says(&victim.refusal(answer), "does not read the answers");
}

/// A peer that does not let go of a region holds it up for the bound on peer loss, and no longer.
#[test]
fn a_peer_that_never_answers_a_revocation_holds_nothing_up() {
    let victim = Victim::with(quick());
    let other = RdmaTransport::open(victim.network.host(), quick()).unwrap();
    let (dialling, relay) = victim.fabric.channel_pair(&victim.there, &victim.here);
    let (mouth, answer) = victim.connect(true);
    // What the victim says is passed on except for revocations; the rest is passed on both ways.
    let mouth = Arc::new(mouth);
    thread::spawn({
        let (relay, mouth) = (Arc::clone(&relay), Arc::clone(&mouth));
        move || {
            while let Some(Ok(bytes)) = wait_until(Instant::now() + PATIENCE, relay.receive(Topic::Transport)) {
                mouth.raw(&bytes);
            }
        }
    });
    thread::spawn(move || {
        while let Some(Ok(bytes)) = wait_until(Instant::now() + PATIENCE, mouth.0.receive(Topic::Transport)) {
            if !matches!(Message::decode(&bytes), Ok(Message { body: Body::Revoke { .. }, .. })) {
                let _ = wait_until(Instant::now() + PATIENCE, relay.send(Topic::Transport, &bytes));
            }
        }
    });
    let _there = wait("connecting", other.connect(dialling)).unwrap();
    let peer = answer.join().unwrap().unwrap();
    let memory = Memory::host(4096).unwrap();
    let region = victim.transport.register(memory.clone(), Access::REMOTE_WRITE).unwrap();
    victim.transport.grant(peer, region).unwrap();
    let begin = Instant::now();
    drop(wait("deregistering", victim.transport.deregister(region)).unwrap());
    assert!(begin.elapsed() >= Duration::from_millis(900), "the peer was not asked: {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(memory.holders(), 1);
}

/// More notifications than there is room for: the flood ends with the connection, and the honest end hears why.
#[test]
fn notifications_beyond_the_room_end_the_connection() {
    let between = Between::new(quick());
    // The liar is told that there is room without end.
    let liar = Arc::clone(&between.liar);
    let peer = liar.host_for_tests().peer(between.liars_peer).unwrap();
    assert!(peer.outbound().sender.grant(u64::MAX));
    let notification = transport_core::BatchOptions::new().with_notification(b"flood");
    let transfers: Vec<_> = (0..20)
        .map_while(|_| liar.batch_write(between.liars_peer, transport_core::Batch::Slices(&[]), &notification).ok())
        .collect();
    // The program does not look meanwhile, so there is no room.
    for transfer in &transfers {
        assert!(matches!(transfer.wait_timeout(PATIENCE), transport_core::Waited::Finished(_)));
    }
    assert_says(&between.victim.lost(between.peer), "more notifications than it has room for");
}
