//! The messages after the hello.

use kv_plan::CacheLayout;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::MAX_MESSAGE;
use crate::{config::Role, request::Request};

/// A message that does not say what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct WireError {
    reason: String,
}

impl WireError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// What an engine says about itself. Later minor versions may append fields; decoding skips what it does not know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) role: Role,
    /// The deployment that the rank belongs to: ranks of one deployment complete each other.
    pub(crate) deployment: String,
    /// What the rank holds.
    pub(crate) layout: CacheLayout,
    /// Names of the transports that it has, best first.
    pub(crate) transports: Vec<String>,
    /// Names of those that it wants and could not get, with the reasons.
    pub(crate) unavailable: Vec<(String, String)>,
}

impl Metadata {
    pub(crate) const MAX_NAME: usize = 128;
    /// Of both lists together.
    pub(crate) const MAX_TRANSPORTS: usize = 16;

    /// Checks everything that the type does not.
    pub(crate) fn check(&self) -> Result<(), WireError> {
        if self.deployment.len() > Self::MAX_NAME {
            return Err(WireError::new(format!(
                "the name of the peer's deployment has {} bytes, more than {}",
                self.deployment.len(),
                Self::MAX_NAME
            )));
        }
        let count = self.transports.len().saturating_add(self.unavailable.len());
        let names = self.transports.iter().chain(self.unavailable.iter().map(|(name, _)| name));
        let longest = names.map(String::len).max().unwrap_or_default();
        if count > Self::MAX_TRANSPORTS || longest > Self::MAX_NAME {
            return Err(WireError::new(format!(
                "the peer names {count} transports (at most {}), the longest name has {longest} bytes (at most {})",
                Self::MAX_TRANSPORTS,
                Self::MAX_NAME
            )));
        }
        if let Some((name, reason)) = self.unavailable.iter().find(|(_, reason)| reason.len() > MAX_CUT_REASON) {
            return Err(WireError::new(format!(
                "the peer's reason why it has no {name:?} has {} bytes, more than {MAX_CUT_REASON}",
                reason.len()
            )));
        }
        self.layout.validate().map_err(|error| WireError::new(format!("the peer's cache layout is invalid: {error}")))
    }
}

/// A region of the receiver's cache and the right to write it, as `RegionGrant::encode` writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// Index in the regions of the layout.
    pub(crate) region: u32,
    pub(crate) grant: Vec<u8>,
}

/// What engines say after the metadata. New kinds go at the end: the number of a kind is its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The sender's judgement of the two layouts: `None`, or why they do not fit, by kind and text.
    Verdict(Option<(String, String)>),
    /// The regions that the peer may write; empty from the side that writes.
    Grants(Vec<Grant>),
    /// The handshake is done on this side. From the receiving side with the requests that have failed there: what an earlier
    /// connection left behind must not be pushed over this one.
    Ready(Vec<Request>),
    /// From the writing side: its part of the request has failed, and nothing of it is in flight any more.
    Failed { request: Request, reason: String },
    /// From the receiving side: stop the request, drain, and answer `Drained`.
    Abort { request: Request, reason: String },
    /// The answer: nothing of the request is in flight, and nothing of it will be sent any more.
    Drained { request: Request },
    /// How connecting a transport went at the sender, in the handshake's attempt of this number.
    Tried { number: u8, tried: Tried },
}

/// How one side's part of an attempt at a transport went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Tried {
    Connected,
    /// It failed, with the reason.
    Failed(String),
    /// It was given up because the other side had said that it had failed.
    GivenUp,
}

/// Longest reason that is sent or kept, in bytes.
const MAX_REASON: usize = 512;

/// The same with the mark of the cut.
const MAX_CUT_REASON: usize = MAX_REASON + "…".len();

/// A reason, cut to a length that always fits a message and that a peer cannot make us keep more than.
pub(crate) fn reason(text: &str) -> String {
    match text.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_REASON).last() {
        Some(end) if text.len() > MAX_REASON => format!("{}…", text.get(..end).unwrap_or_default()),
        _ => text.to_owned(),
    }
}

pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, WireError> {
    let bytes = postcard::to_stdvec(message).map_err(|error| WireError::new(format!("cannot encode: {error}")))?;
    if bytes.len() > MAX_MESSAGE {
        return Err(WireError::new(format!("a message of {} bytes is longer than {MAX_MESSAGE}", bytes.len())));
    }
    Ok(bytes)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > MAX_MESSAGE {
        return Err(WireError::new(format!("a message of {} bytes is longer than {MAX_MESSAGE}", bytes.len())));
    }
    // What is left over belongs to a later minor version.
    postcard::take_from_bytes(bytes)
        .map(|(message, _)| message)
        .map_err(|error| WireError::new(format!("a message of {} bytes does not decode: {error}", bytes.len())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_round_trip() {
        for message in [
            Message::Verdict(Some(("missing_layer".into(), "layer 60".into()))),
            Message::Grants(vec![Grant { region: 3, grant: vec![1; 16] }]),
            Message::Ready(vec![Request::new(1, 2)]),
            Message::Failed { request: Request::new(u64::MAX, 7), reason: "why".into() },
            Message::Tried { number: 15, tried: Tried::Failed("no route".into()) },
        ] {
            assert_eq!(decode::<Message>(&encode(&message).unwrap()).unwrap(), message);
        }
    }

    #[test]
    fn reasons_are_cut_between_characters() {
        assert_eq!(reason("short"), "short");
        let long = reason(&"é".repeat(10_000));
        assert!(long.len() <= MAX_CUT_REASON && long.ends_with("é…"), "{}", long.len());
    }

    #[test]
    fn lists_of_transports_are_bounded() {
        let model =
            r#"{"model_type": "deepseek_v3", "num_hidden_layers": 1, "kv_lora_rank": 48, "qk_rope_head_dim": 16}"#;
        let model = kv_plan::ModelShape::from_config_json(model).unwrap();
        let side: kv_plan::Side = "pages=1".parse().unwrap();
        let layout = side.layouts(&model, 16, kv_plan::Dtype::Bf16).unwrap().remove(0);
        let names = |count| (0..count).map(|at: usize| at.to_string()).collect::<Vec<_>>();
        let check = |transports: Vec<String>, unavailable: Vec<(String, String)>| {
            let (role, deployment, layout) = (Role::Decode, String::new(), layout.clone());
            Metadata { role, deployment, layout, transports, unavailable }.check().map_err(|error| error.to_string())
        };
        let why = |len| vec![("rdma".to_owned(), "n".repeat(len))];
        assert_eq!(check(names(15), why(MAX_CUT_REASON)), Ok(()));
        assert_eq!(check(vec![], vec![("rdma".into(), reason(&"é".repeat(1000)))]), Ok(()));
        assert!(check(names(16), why(1)).unwrap_err().contains("names 17 transports (at most 16)"));
        assert!(check(vec!["n".repeat(129)], vec![]).unwrap_err().contains("has 129 bytes (at most 128)"));
        assert!(check(vec![], vec![("n".repeat(129), String::new())]).unwrap_err().contains("has 129 bytes"));
        assert!(check(vec![], why(MAX_CUT_REASON + 1)).unwrap_err().contains("has 516 bytes, more than 515"));
    }

    #[test]
    fn a_claimed_billion_of_grants_ends_with_the_bytes() {
        // Kind 1 (grants), then a length of 2^32 - 1 as a varint, then nothing.
        let bytes = [1, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(decode::<Message>(&bytes).unwrap_err().to_string().contains("does not decode"));
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode::<Message>(&bytes);
            if let Ok(metadata) = decode::<Metadata>(&bytes) {
                let _ = metadata.check();
            }
        }

        /// What decodes after a few bytes were changed is refused or used, and nothing panics on the way.
        #[test]
        fn changed_metadata_is_refused_or_used(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let own = metadata();
            let mut bytes = encode(&own).unwrap();
            for (at, to) in changes {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(other) = decode::<Metadata>(&bytes)
                && other.check().is_ok()
            {
                let siblings = other.layout.siblings();
                let siblings: Vec<&CacheLayout> = siblings.iter().collect();
                let _ = (kv_plan::pair(&other.layout, &own.layout), kv_plan::pair(&own.layout, &other.layout));
                let _ = (kv_plan::coverage(&siblings, &own.layout), kv_plan::explain(&own.layout, &other.layout).to_string());
            }
        }
    }

    /// Of a model with every kind of layer, a draft of another kind, and two tensor ranks.
    fn metadata() -> Metadata {
        let kinds = [
            kv_plan::LayerKind::Full,
            kv_plan::LayerKind::SlidingWindow { window: 8 },
            kv_plan::LayerKind::Linear,
            kv_plan::LayerKind::Indexed { dim: 4 },
        ];
        let attention = kv_plan::Attention::Heads { kv_heads: 2, key_dim: 3, value_dim: 2 };
        let model = kv_plan::ModelShape::by_hand("all", attention, kinds.to_vec()).unwrap();
        let model = model.with_linear(kv_plan::LinearState::gated_delta(2, 2, 2, 2, 4)).unwrap();
        let draft = kv_plan::Attention::Latent { dim: 5 };
        let mut side: kv_plan::Side = "pp=2,tp=2,draft=1,pages=3,slots=2".parse().unwrap();
        side.draft_model = Some(kv_plan::ModelShape::by_hand("draft", draft, vec![kv_plan::LayerKind::Full]).unwrap());
        let layout = side.layouts(&model, 4, kv_plan::Dtype::Bf16).unwrap().pop().unwrap();
        let unavailable = vec![("rdma".to_owned(), "no device".to_owned())];
        Metadata { role: Role::Decode, deployment: "d".into(), layout, transports: vec!["quic".into()], unavailable }
    }
}
