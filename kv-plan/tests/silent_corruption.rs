//! The known ways to corrupt a cache without anybody noticing, as far as planning is concerned. Each is either done right or
//! refused by name.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use kv_plan::{BufferKey, Mismatch, PageId, Part, Plan, PlanError, Role, coverage, pair};
use support::{heads, latents, places, refs, side, slices, usual_order};

#[test]
fn pairing_by_position() {
    // The receiver holds its own stage only: layer 30 of the model is the first in its list.
    let model = latents(61);
    let (prefill, decode) = (side("pp=4", &model, 64), side("pp=2", &model, 64));
    let pairing = pair(&prefill[2], &decode[1]).unwrap();
    let layers: Vec<u32> = pairing.tables().iter().map(|table| table.key.layer).collect();
    assert_eq!(layers, (30..45).collect::<Vec<_>>());
    for table in pairing.tables() {
        assert_eq!(decode[1].buffer(table.key).unwrap().region, table.dst_region);
        assert_eq!(table.dst_region, table.key.layer - 30);
    }
    // The order of either list decides nothing.
    let mut shuffled = decode[1].clone();
    shuffled.buffers.reverse();
    assert_eq!(pair(&prefill[2], &shuffled).unwrap(), pairing);
}

#[test]
fn guessing_a_draft_from_counts() {
    // 15 layers in stages of 7 and 8: values of stage 1 begin at 22 in the receiver's list, not at 15.
    let model = heads(15, 4, 64, 64);
    let (prefill, decode) = (side("pp=2,layers=7+8", &model, 16), side("pp=1", &model, 16));
    let stage1 = pair(&prefill[1], &decode[0]).unwrap();
    assert_eq!(places(&stage1, &usual_order(15, 0), Role::Value), (22..30).collect::<Vec<_>>());

    // 80 layers in 26, 27, 27 with a draft layer at the receiver: values begin at 80, 106 and 133.
    let model = heads(80, 8, 128, 128);
    let (prefill, decode) = (side("pp=3", &model, 16), side("pp=1,draft=1", &model, 16));
    let firsts: Vec<usize> = prefill
        .iter()
        .map(|stage| places(&pair(stage, &decode[0]).unwrap(), &usual_order(80, 1), Role::Value)[0])
        .collect();
    assert_eq!(firsts, [80, 106, 133]);
}

#[test]
fn hybrid_attention_is_refused() {
    let layer = |sliding: bool| if sliding { r#""sliding_attention""# } else { r#""full_attention""# };
    let kinds: Vec<_> = (0..36).map(|number| layer(number % 2 == 0)).collect();
    let config = format!(
        r#"{{"model_type": "gpt_oss", "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
            "head_dim": 64, "sliding_window": 128, "layer_types": [{}]}}"#,
        kinds.join(",")
    );
    let model = kv_plan::ModelShape::from_config_json(&config).unwrap();
    assert_eq!(model.covered_layers().collect::<Vec<_>>(), (0..36).filter(|layer| layer % 2 == 1).collect::<Vec<_>>());
    let error = kv_plan::Side::default().layouts(&model, 64, kv_plan::Dtype::Bf16).unwrap_err();
    assert_eq!(error.kind(), "config");
    assert!(error.to_string().contains("18 of 36 layers (0, 2, 4"), "{error}");
}

#[test]
fn a_stage_that_registers_a_layer_of_another() {
    let model = latents(4);
    let (mut prefill, decode) = (side("pp=2", &model, 64), side("pp=1", &model, 64));
    // In a layout by itself …
    prefill[1].buffers[0].key.layer = 1;
    let error = pair(&prefill[1], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "duplicate_layer");
    assert_eq!(
        error.to_string(),
        "the layout of prefill pp1.tp0 is not valid: pp1.tp0 has a buffer for layer 1 (latent), but its stage has the layers 2 to 4 (exclusive); register only layers of the own stage"
    );
    // … and where two stages each say that it is theirs.
    prefill[1] = side("pp=2,layers=1+3", &model, 64).remove(1);
    let error = coverage(&refs(&prefill), &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "duplicate_layer");
    assert_eq!(
        error.to_string(),
        "layer 1 (latent) of decode pp0.tp0 is claimed by prefill pp0.tp0 and by prefill pp1.tp0; each layer belongs to one stage, so give each stage only its own layers and list each rank once"
    );
}

#[test]
fn page_bytes_of_keys_used_for_values() {
    let model = heads(2, 4, 192, 128);
    let (prefill, decode) = (side("pp=1", &model, 64), side("pp=1", &model, 64));
    let found = slices(&pair(&prefill[0], &decode[0]).unwrap(), &[3], &[5]);
    for layer in 0..2 {
        assert!(found.contains(&(BufferKey::main(Role::Key, layer), 3 * 98_304, 5 * 98_304, 98_304)));
        assert!(found.contains(&(BufferKey::main(Role::Value, layer), 3 * 65_536, 5 * 65_536, 65_536)));
    }
}

#[test]
fn page_bytes_of_the_sender_used_at_the_receiver() {
    // Packed latents of 656 bytes against plain ones of 576, of the same declared type.
    let model = latents(1);
    let (prefill, mut decode) = (side("pp=1,dtype=fp8", &model, 64), side("pp=1,dtype=fp8", &model, 64));
    let buffer = &mut decode[0].buffers[0];
    (buffer.token_bytes, buffer.page_bytes) = (656, 656 * 64);
    decode[0].regions[0] = 656 * 64 * 65_536;
    let error = pair(&prefill[0], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "head_geometry");
    assert_eq!(
        error.to_string(),
        "layer 0 (latent): a token has 576 bytes at prefill pp0.tp0 and 656 bytes at decode pp0.tp0; nothing converts between them, so set the same form of the cache (dtype, packing) on both sides"
    );
    let decode = side("pp=1", &model, 64);
    assert_eq!(pair(&prefill[0], &decode[0]).unwrap_err().kind(), "dtype");
}

#[test]
fn unequal_lists_are_never_cut() {
    let model = latents(1);
    let layouts = side("pp=1", &model, 64);
    let pairing = pair(&layouts[0], &layouts[0]).unwrap();
    let mut plan = Plan::default();
    for (src, dst) in [(3, 2), (2, 3), (0, 1), (1, 0)] {
        let pages = [1, 2, 3];
        let error = pairing.plan(PageId::list(&pages[..src]), PageId::list(&pages[..dst]), &mut plan).unwrap_err();
        assert_eq!(error, PlanError::PageCount { prefill: src, decode: dst });
        assert!(plan.is_empty() && plan.bytes() == 0);
    }
}

#[test]
fn pages_out_of_range_absent_or_twice() {
    let model = latents(1);
    let (prefill, decode) = (side("pp=1,pages=10", &model, 64), side("pp=1,pages=20", &model, 64));
    let pairing = pair(&prefill[0], &decode[0]).unwrap();
    let mut plan = Plan::default();
    let mut kind = |src: &[i32], dst: &[i32]| {
        pairing.plan(PageId::list(src), PageId::list(dst), &mut plan).map_err(|error| error.kind())
    };
    assert_eq!(kind(&[9, 0], &[19, 0]), Ok(()));
    assert_eq!(kind(&[10], &[0]), Err("page_range"));
    assert_eq!(kind(&[0], &[20]), Err("page_range"));
    assert_eq!(kind(&[-1], &[0]), Err("page_range"));
    assert_eq!(kind(&[0], &[-1]), Err("page_range"));
    assert_eq!(kind(&[0], &[i32::MIN]), Err("page_range"));
    assert_eq!(kind(&[0], &[i32::MAX]), Err("page_range"));
    assert_eq!(kind(&[1, 2, 3], &[7, 8, 7]), Err("duplicate_page"));
    // Two pages may be copied from the same one: nothing is lost by that.
    assert_eq!(kind(&[1, 1], &[7, 8]), Ok(()));
}

#[test]
fn ranks_that_do_not_divide() {
    let model = latents(1);
    let (prefill, decode) = (side("tp=3", &model, 64), side("tp=2", &model, 64));
    let error = pair(&prefill[0], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "split");
    assert_eq!(
        error.to_string(),
        "the tensor splits differ: prefill pp0.tp0 is one of tp=3, decode pp0.tp0 is one of tp=2; neither divides the other, so set the same tp on both sides"
    );
}

#[test]
fn token_major_against_head_major() {
    let model = heads(1, 4, 64, 64);
    let (prefill, decode) = (side("tp=2", &model, 16), side("tp=2,order=hnd", &model, 16));
    let error = pair(&prefill[1], &decode[1]).unwrap_err();
    assert_eq!(error.kind(), "head_geometry");
    assert_eq!(
        error.to_string(),
        "the order of heads and tokens differs: prefill pp0.tp1 has nhd, decode pp0.tp1 has hnd; this is not supported yet, so set the same order on both sides"
    );
}

#[test]
fn a_rank_with_nothing_to_send_is_no_sender() {
    let model = latents(4);
    let (prefill, decode) = (side("pp=2", &model, 64), side("pp=2", &model, 64));
    let pairing = pair(&prefill[0], &decode[1]).unwrap();
    assert!(pairing.tables().is_empty());
    assert_eq!(pairing.bytes_per_token(), 0);
    let covered = coverage(&refs(&prefill), &decode[1]).unwrap();
    assert_eq!(covered.senders, [prefill[1].rank()]);
}

#[test]
fn a_receiver_with_more_layers_than_all_senders() {
    let model = latents(61);
    let (prefill, decode) = (side("pp=4,layers=15+15+15+15", &model, 64), side("pp=1", &model, 64));
    // Found by the first two ranks that meet, whichever they are.
    for stage in &prefill {
        let error = pair(stage, &decode[0]).unwrap_err();
        assert_eq!(error.kind(), "uncovered_layer");
        assert_eq!(
            error.to_string(),
            "layer 60 (latent) of decode pp0.tp0 is never written: no prefill rank has it (prefill has 60 layers on all stages, decode 61, the model 61); the model and the pipeline settings (pp, layers) of both sides have to agree"
        );
    }
    // A stage that is missing altogether.
    let prefill = side("pp=4", &model, 64);
    let error = coverage(&refs(&prefill[..3]), &decode[0]).unwrap_err();
    let layer = BufferKey { part: Part::Main, layer: 45, role: Role::Latent };
    assert!(matches!(error, Mismatch::UncoveredLayer { key, .. } if key == layer), "{error}");
    assert_eq!(coverage(&[], &decode[0]).unwrap_err().kind(), "uncovered_layer");
}
