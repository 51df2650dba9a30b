//! Attempts to connect that a peer spoils.

use super::*;

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
