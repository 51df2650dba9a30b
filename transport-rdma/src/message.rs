//! What two transports say to each other over the control channel.
//!
//! A connection has a number that the initiator draws; whatever carries another number belongs to an earlier attempt and is
//! ignored. A queue pair of a lane has an epoch within the connection, which fences it in the same way.

use serde::{Deserialize, Serialize};

use crate::verbs::{LinkLayer, Mtu};

/// Version of the messages; another one is refused by name.
pub(crate) const VERSION: u8 = 1;
/// Longest encoded message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 4096;
/// Most rails of a side.
pub(crate) const MAX_RAILS: usize = 8;
/// Most queue pairs of a connection.
pub(crate) const MAX_LANES: usize = 32;
/// Longest reason in words, in bytes.
const MAX_REASON: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// The connection's number.
    pub(crate) attempt: u64,
    pub(crate) body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// The initiator's first word.
    Hello(Side),
    /// The other side's answer. Lanes follow.
    Welcome(Side),
    /// The initiator has a queue pair for a lane.
    Offer(Offer),
    /// The other side has one too, and it is ready to receive.
    Answer(Offer),
    /// The initiator's is ready as well: both may send.
    Ready { lane: u16, epoch: u32 },
    /// A lane has failed here.
    Down {
        lane: u16,
        epoch: u32,
        /// Whether the path worked: bytes went over it, or the other side answered.
        carried: bool,
        reason: String,
    },
    /// All lanes have come up here, or have failed.
    Up,
    /// The program has taken notifications: there is room for so many in all, from the start of the connection.
    Credits { total: u64 },
    /// A region is being deregistered: nothing must be posted to it any more.
    Revoke { serial: u64, index: u32, generation: u32 },
    /// Nothing is on its way to it any more.
    Revoked { serial: u64 },
    /// The end of the connection.
    Goodbye { reason: String },
}

/// What a side is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(crate) rails: Vec<RailAddress>,
    /// Queue pairs on each pair of rails.
    pub(crate) queue_pairs: u16,
    /// Notifications that there is room for.
    pub(crate) credits: u32,
}

/// Where a rail is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RailAddress {
    pub(crate) device: String,
    pub(crate) link_layer: LinkLayer,
    pub(crate) gid: Option<[u8; 16]>,
    pub(crate) lid: u16,
    /// The port's active MTU; the smaller one of both sides is used.
    pub(crate) mtu: Mtu,
}

/// A queue pair for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) lane: u16,
    pub(crate) epoch: u32,
    /// The queue pair's number.
    pub(crate) number: u32,
    /// The packet sequence number that it begins with.
    pub(crate) psn: u32,
    /// Notifications that came over this lane's earlier queue pairs.
    pub(crate) received: u64,
}

/// A message that is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("its messages have version {0}, ours {VERSION}; upgrade the older side")]
    Version(u8),
    #[error("a message of {0} bytes does not decode")]
    Decode(usize),
    #[error("a message says {what} {value}, and at most {max} are allowed")]
    TooMany { what: &'static str, value: usize, max: usize },
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // A vector grows, and nothing in a message refuses to be encoded.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some((version, rest)) = bytes.split_first() else { return Err(Malformed::Decode(0)) };
        if *version != VERSION {
            return Err(Malformed::Version(*version));
        }
        if bytes.len() > MAX_MESSAGE {
            return Err(Malformed::Decode(bytes.len()));
        }
        let (message, rest): (Self, _) = postcard::take_from_bytes(rest).map_err(|_| Malformed::Decode(bytes.len()))?;
        if !rest.is_empty() {
            return Err(Malformed::Decode(bytes.len()));
        }
        if let Body::Hello(side) | Body::Welcome(side) = &message.body {
            side.check()?;
        }
        Ok(message)
    }
}

impl Side {
    fn check(&self) -> Result<(), Malformed> {
        let at_most = |what, value: usize, max| {
            if value == 0 || value > max { Err(Malformed::TooMany { what, value, max }) } else { Ok(()) }
        };
        at_most("rails", self.rails.len(), MAX_RAILS)?;
        at_most("queue pairs", usize::from(self.queue_pairs), MAX_LANES)?;
        at_most("credits", self.credits as usize, 1 << 20)
    }
}

/// Cuts a reason to what a message carries.
pub(crate) fn reason(text: &str) -> String {
    let end = (0..=text.len().min(MAX_REASON)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let rail = RailAddress {
            device: "mlx5_0".into(),
            link_layer: LinkLayer::Ethernet,
            gid: Some([7; 16]),
            lid: 0,
            mtu: Mtu::B4096,
        };
        let side = Side { rails: vec![rail], queue_pairs: 2, credits: 64 };
        let offer = Offer { lane: 1, epoch: 2, number: 3, psn: 4, received: 5 };
        for body in [Body::Hello(side), Body::Offer(offer), Body::Goodbye { reason: "why".into() }] {
            let message = Message { attempt: u64::MAX, body };
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn another_version_is_named() {
        assert_eq!(Message::decode(&[9, 0, 0]), Err(Malformed::Version(9)));
        assert_eq!(Malformed::Version(9).to_string(), "its messages have version 9, ours 1; upgrade the older side");
    }

    #[test]
    fn reasons_are_cut_at_a_character() {
        assert_eq!(reason("short"), "short");
        assert!(reason(&"ä".repeat(2000)).len() <= MAX_REASON);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), honest: bool) {
            if honest && let Some(version) = bytes.first_mut() {
                *version = VERSION;
            }
            if let Ok(message) = Message::decode(&bytes)
                && let Body::Hello(side) | Body::Welcome(side) = message.body
            {
                prop_assert!((1..=MAX_RAILS).contains(&side.rails.len()));
            }
        }
    }
}
