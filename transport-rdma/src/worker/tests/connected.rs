//! Peers that are connected and then break the protocol.

use super::*;

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
        Self { victim, liar, peer, liars_peer, attempt, mouth }
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
    type Act = fn(&Between);
    let cases: [(Act, &str); 5] = [
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
