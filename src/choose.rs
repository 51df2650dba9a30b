//! Which data transport carries the pages between two engines.
//!
//! The hazard: the two sides come to different answers, or one waits for the other in an attempt that the other has given up.
//! So both go through the same list in the same order, both say how each attempt went before either goes on, and whoever hears
//! that the other has failed stops waiting.

use std::{pin::pin, sync::Arc, time::Duration};

use transport_core::{ControlChannel, PeerId};

use crate::{
    attempt::AttemptChannel,
    engine::Inner,
    error::ConnectError,
    handshake::Talk,
    transports::{Data, PassedOver, Path},
    wire::{self, Message, Metadata, Tried, WireError},
};

/// The data path that was chosen, and what was passed over for it.
pub(crate) struct Chosen {
    pub(crate) path: Path,
    pub(crate) passed_over: Vec<PassedOver>,
}

/// Connects the best transport that both sides can connect. `open` holds a path that is connected for as long as nobody else
/// takes care of it.
pub(crate) async fn connect(
    inner: &Arc<Inner>,
    talk: &Talk<'_>,
    theirs: &Metadata,
    open: &mut Option<Path>,
) -> Result<Chosen, ConnectError> {
    let ours = inner.metadata();
    let mut failed = Vec::new();
    let names = common(inner.control(), ours, theirs, talk.channel.is_initiator());
    for (number, name) in (0..).zip(names) {
        // It is there: the name is one of ours.
        let Some(data) = inner.data.iter().find(|data| data.name() == name) else { continue };
        match attempt(inner, talk, number, data, open).await? {
            Ok(path) => {
                let mut passed_over = absent(ours, theirs, Some(name));
                passed_over.append(&mut failed);
                return Ok(Chosen { path, passed_over });
            }
            Err(reason) => failed.push(PassedOver::new(name, reason)),
        }
    }
    failed.extend(absent(ours, theirs, None));
    Err(ConnectError::NothingConnected { address: talk.channel.peer_address(), tried: PassedOver::list(&failed) })
}

/// The transports that both have, in the order in which both try them: as the side that dialled prefers, QUIC at the end. That
/// comes after all others on its topic of the channel, because it does not number its messages.
fn common<'a>(control: &str, ours: &'a Metadata, theirs: &'a Metadata, initiator: bool) -> Vec<&'a str> {
    let (first, second) = if initiator { (ours, theirs) } else { (theirs, ours) };
    let mut names: Vec<&str> = Vec::new();
    for name in &first.transports {
        if second.transports.contains(name) && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort_by_key(|name| *name == control);
    names
}

/// The transports that one side lacks and that somebody would prefer to the chosen one, or all of those that one side lacks.
fn absent(ours: &Metadata, theirs: &Metadata, chosen: Option<&str>) -> Vec<PassedOver> {
    let better = |side: &Metadata| -> Vec<String> {
        side.transports.iter().take_while(|name| Some(name.as_str()) != chosen).cloned().collect()
    };
    let mut all = Vec::new();
    for (name, reason) in &ours.unavailable {
        all.push(PassedOver::new(name, format!("not available here: {reason}")));
    }
    for name in better(ours).iter().filter(|name| !theirs.transports.contains(name)) {
        let reason = match theirs.unavailable.iter().find(|(theirs, _)| theirs == name) {
            Some((_, reason)) => format!("the peer does not have it: {}", wire::reason(reason)),
            None => "the peer does not have it".into(),
        };
        all.push(PassedOver::new(name, reason));
    }
    let unknown = |name: &&String| !ours.transports.contains(name) && ours.unavailable.iter().all(|(n, _)| n != *name);
    for name in better(theirs).iter().filter(unknown) {
        all.push(PassedOver::new(name, "this side does not have it"));
    }
    all
}

/// Tries one transport, on both sides. Answers with the path, or with why there is none; the inner error means that the next
/// one can be tried.
async fn attempt(
    inner: &Arc<Inner>,
    talk: &Talk<'_>,
    number: u8,
    data: &Arc<Data>,
    open: &mut Option<Path>,
) -> Result<Result<Path, String>, ConnectError> {
    // QUIC's data path needs QUIC's own channel, and no attempt follows it.
    let (own, limit) = if data.name() == inner.control() {
        (None, None)
    } else {
        let own = AttemptChannel::new(talk.channel, number, inner.runtime());
        (Some(own), Some(inner.config.transport_timeout))
    };
    let channel =
        own.as_ref().map_or_else(|| Arc::clone(talk.channel), |own| Arc::clone(own) as Arc<dyn ControlChannel>);

    let (ours, heard) = both_connect(talk, number, data, channel, limit).await?;
    if let Ours::Connected(peer) = ours {
        *open = Some(data.path(peer));
    }
    talk.send(&Message::Tried { number, tried: ours.tell() }).await?;
    let theirs = match heard {
        Some(theirs) => theirs,
        None => answer(talk, number).await?,
    };
    let reason = match (ours, theirs) {
        (Ours::Connected(peer), Tried::Connected) => return Ok(Ok(data.path(peer))),
        (Ours::Failed(ours), Tried::Failed(theirs)) => format!("connecting failed: {ours}; at the peer: {theirs}"),
        (Ours::Failed(ours), _) => format!("connecting failed: {ours}"),
        (_, Tried::Failed(theirs)) => format!("connecting failed at the peer: {theirs}"),
        (_, _) => "connecting failed at the peer".into(),
    };
    tracing::info!(
        address = talk.channel.peer_address(),
        transport = data.name(),
        reason,
        "a transport is passed over"
    );
    if let Some(path) = open {
        path.cut().await;
        *open = None;
    }
    if let Some(own) = own {
        own.end().await.map_err(|error| talk.broken(error))?;
    }
    Ok(Err(reason))
}

/// How this side's part of an attempt went.
enum Ours {
    Connected(PeerId),
    Failed(String),
    /// The peer had failed before this side knew.
    GivenUp,
}

impl Ours {
    fn tell(&self) -> Tried {
        match self {
            Self::Connected(_) => Tried::Connected,
            Self::Failed(reason) => Tried::Failed(reason.clone()),
            Self::GivenUp => Tried::GivenUp,
        }
    }
}

/// Connects this side, and listens to the peer meanwhile. The second part is the peer's word, where it has come already.
async fn both_connect(
    talk: &Talk<'_>,
    number: u8,
    data: &Data,
    channel: Arc<dyn ControlChannel>,
    limit: Option<Duration>,
) -> Result<(Ours, Option<Tried>), ConnectError> {
    let mut heard = None;
    // Given up by dropping it, which takes down what it has made so far.
    let mut connecting = pin!(async {
        let connecting = data.transport.connect(channel);
        let Some(limit) = limit else { return connecting.await.map_err(|error| error.to_string()) };
        match tokio::time::timeout(limit, connecting).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err(format!("it was not connected within {limit:?}; raise transport_timeout if it needs longer")),
        }
    });
    loop {
        tokio::select! {
            biased;
            result = &mut connecting => {
                let ours = match result {
                    Ok(peer) => Ours::Connected(peer),
                    Err(reason) => Ours::Failed(wire::reason(&reason)),
                };
                return Ok((ours, heard));
            }
            theirs = answer(talk, number), if heard.is_none() => match theirs? {
                Tried::Connected => heard = Some(Tried::Connected),
                failed => return Ok((Ours::GivenUp, Some(failed))),
            },
        }
    }
}

/// How the peer's part of an attempt went.
async fn answer(talk: &Talk<'_>, number: u8) -> Result<Tried, ConnectError> {
    match talk.receive().await? {
        Message::Tried { number: theirs, tried } if theirs == number => Ok(match tried {
            Tried::Failed(reason) => Tried::Failed(wire::reason(&reason)),
            tried => tried,
        }),
        _ => Err(talk.protocol(WireError::new(format!("the outcome of attempt {number} at a transport was expected")))),
    }
}

#[cfg(test)]
mod tests {
    use kv_plan::{CacheLayout, Dtype, ModelShape, Side};
    use proptest::prelude::*;

    use super::*;
    use crate::config::Role;

    fn layout() -> CacheLayout {
        let model = ModelShape::from_config_json(
            r#"{"model_type": "deepseek_v3", "num_hidden_layers": 2, "kv_lora_rank": 48, "qk_rope_head_dim": 16}"#,
        );
        "pages=4".parse::<Side>().unwrap().layouts(&model.unwrap(), 16, Dtype::Bf16).unwrap().remove(0)
    }

    fn metadata(transports: &[&str], unavailable: &[(&str, &str)]) -> Metadata {
        Metadata {
            role: Role::Decode,
            deployment: String::new(),
            layout: layout(),
            transports: transports.iter().map(|name| (*name).to_owned()).collect(),
            unavailable: unavailable.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())).collect(),
        }
    }

    #[test]
    fn only_what_is_better_than_the_chosen_one_is_passed_over() {
        let ours = metadata(&["a", "b", "c", "quic"], &[("gone", "no device")]);
        let theirs = metadata(&["theirs", "b", "worse", "quic"], &[("a", "no driver")]);
        let list = |chosen| absent(&ours, &theirs, chosen).iter().map(ToString::to_string).collect::<Vec<_>>();
        let better = [
            "gone (not available here: no device)",
            "a (the peer does not have it: no driver)",
            "theirs (this side does not have it)",
        ];
        assert_eq!(list(Some("b")), better);
        let all = list(Some("quic"));
        assert_eq!(all, list(None));
        assert!(all.contains(&"c (the peer does not have it)".into()), "{all:?}");
        assert!(all.contains(&"worse (this side does not have it)".into()), "{all:?}");
        assert_eq!(all.len(), 5);
    }

    proptest! {
        /// Whatever a peer claims, in whatever order and however often.
        #[test]
        fn both_sides_try_the_same_in_the_same_order(
            ours in prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "d", "quic"]), 0..16),
            theirs in prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "e", "quic"]), 0..16),
        ) {
            let (ours, theirs) = (metadata(&ours, &[]), metadata(&theirs, &[]));
            for initiator in [true, false] {
                let here = common("quic", &ours, &theirs, initiator);
                prop_assert_eq!(&here, &common("quic", &theirs, &ours, !initiator));
                let unique: std::collections::HashSet<_> = here.iter().collect();
                prop_assert_eq!(unique.len(), here.len());
                prop_assert!(here.iter().rev().skip(1).all(|name| *name != "quic"));
                prop_assert!(here.iter().all(|name| ours.transports.iter().any(|our| our == name)));
            }
        }
    }
}
