//! Both sides find the same: what one accepts, the other accepts, and both print the same error.

use kv_plan::{CacheLayout, Mismatch, Pairing, coverage, pair};

use crate::common::{deepseek, heads, latents, llama, side};

/// A layout as it comes from the wire.
fn received(layout: &CacheLayout) -> CacheLayout {
    serde_json::from_str(&serde_json::to_string(layout).unwrap()).unwrap()
}

fn said(paired: &Result<Pairing, Mismatch>) -> String {
    match paired {
        Ok(pairing) => format!("{pairing:?}"),
        Err(error) => format!("{}: {error}", error.kind()),
    }
}

/// Sides that fit and sides that do not, of each kind.
fn sides() -> Vec<(&'static str, Vec<CacheLayout>, Vec<CacheLayout>)> {
    let (mla, gqa) = (deepseek(), llama());
    let two = |name, prefill: &str, decode: &str| (name, side(&mla, prefill, 64), side(&mla, decode, 64));
    vec![
        two("fits", "pp=4", "pp=2"),
        two("fits", "pp=4", "pp=1,draft=1"),
        two("fits", "pp=4,draft=1", "pp=1"),
        two("missing_layer", "pp=4", "pp=1,layers=60"),
        two("uncovered_layer", "pp=4,layers=15+15+15+15", "pp=2"),
        two("missing_layer", "pp=2,draft=2", "pp=1,draft=1"),
        two("uncovered_layer", "pp=2,draft=1", "pp=1,draft=2"),
        two("dtype", "pp=2", "pp=1,dtype=fp8"),
        two("fits", "pp=2,page=32", "pp=1"),
        two("config", "pp=1,layers=60", "pp=1,layers=60"),
        two("fits", "tp=2", "tp=4"),
        two("fits", "tp=2", "tp=3"),
        ("model", side(&mla, "pp=1", 64), side(&gqa, "pp=1", 64)),
        ("fits", side(&gqa, "pp=1", 64), side(&gqa, "pp=1,order=hnd", 64)),
        ("model", side(&latents(3, 8), "pp=1", 4), side(&heads(3, 1, 4, 4), "pp=1", 4)),
    ]
}

#[test]
fn both_sides_come_to_the_same_result() {
    for (kind, prefill, decode) in sides() {
        for sender in &prefill {
            for receiver in &decode {
                // Prefill has its own layout and received the other; decode the other way around.
                let at_prefill = pair(sender, &received(receiver));
                let at_decode = pair(&received(sender), receiver);
                assert_eq!(said(&at_prefill), said(&at_decode));
                let found = at_prefill.as_ref().map_or_else(Mismatch::kind, |_| "fits");
                assert_eq!(found, kind, "{}", said(&at_prefill));
            }
        }
    }
}

#[test]
fn the_first_two_ranks_that_meet_find_what_any_two_would() {
    let mut seed = side(&deepseek(), "pp=4", 64).into_iter().map(|sender| {
        let receivers = side(&deepseek(), "pp=1,layers=60", 64);
        pair(&sender, &receivers[0]).unwrap_err().to_string()
    });
    let first = seed.next().unwrap();
    assert!(seed.all(|other| other == first));
}

#[test]
fn errors_say_prefill_and_decode_and_which_rank_has_what() {
    for (kind, prefill, decode) in sides().into_iter().filter(|(kind, ..)| *kind != "fits") {
        let error = pair(&prefill[0], &decode[0]).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("prefill") && said.contains("decode"), "{kind}: {said}");
        assert!(said.contains("prefill pp") || said.contains("decode pp"), "{kind}: {said}");
        // The other way around the roles change, and so does the text: nothing is "ours" or "theirs".
        assert!([" our ", " ours", " theirs", "peer"].iter().all(|word| !said.contains(word)), "{kind}: {said}");
        let reversed = pair(&decode[0], &prefill[0]).unwrap_err();
        let expected = match kind {
            "missing_layer" => "uncovered_layer",
            "uncovered_layer" => "missing_layer",
            other => other,
        };
        assert_eq!(reversed.kind(), expected, "{said} / {reversed}");
    }
}

#[test]
fn what_pairs_in_one_direction_pairs_in_the_other() {
    for (kind, prefill, decode) in sides() {
        for (sender, receiver) in prefill.iter().flat_map(|p| decode.iter().map(move |d| (p, d))) {
            let forth = pair(sender, receiver);
            let back = pair(receiver, sender);
            assert_eq!(forth.is_ok(), back.is_ok(), "{kind}");
            // Of replicated bytes another of those who hold them may be the sender.
            if let (Ok(forth), Ok(back)) = (forth, back)
                && sender.shard.tp == receiver.shard.tp
            {
                let keys = |pairing: &Pairing| pairing.tables().iter().map(|table| table.key).collect::<Vec<_>>();
                assert_eq!(keys(&forth), keys(&back));
            }
        }
    }
}

#[test]
fn coverage_is_the_same_from_derived_layouts() {
    for (kind, prefill, decode) in sides() {
        let own: Vec<&CacheLayout> = prefill.iter().collect();
        let derived = received(&prefill[prefill.len() - 1]).siblings();
        let derived: Vec<&CacheLayout> = derived.iter().collect();
        let (a, b) = (coverage(&own, &decode[0]), coverage(&derived, &decode[0]));
        assert_eq!(a.map_err(|e| e.to_string()), b.map_err(|e| e.to_string()), "{kind}");
    }
}
