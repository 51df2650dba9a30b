use crate::*;

fn side(spec: &str) -> Vec<CacheLayout> {
    let model = ModelShape::by_hand("small", Attention::Latent { dim: 8 }, vec![LayerKind::Full; 8]).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, 16, Dtype::Bf16).unwrap()
}

fn covered(prefill: &[CacheLayout], without: Option<usize>, decode: &CacheLayout) -> Result<Coverage, Mismatch> {
    let kept = (0..).zip(prefill).filter(|(number, _)| Some(*number) != without);
    coverage(&kept.map(|(_, layout)| layout).collect::<Vec<_>>(), decode)
}

#[test]
fn every_buffer_is_written_by_one_sender() {
    let (prefill, decode) = (side("pp=4,tp=2"), side("pp=2,tp=2"));
    let of = covered(&prefill, None, &decode[3]).unwrap();
    assert_eq!((of.written, of.left_alone.len()), (4, 0));
    // Latents are the same on both tensor ranks: the equal one sends, the other one is no second claim.
    assert_eq!(of.senders, [Rank::new(2, 1), Rank::new(3, 1)]);
}

#[test]
fn a_sender_that_is_missing_is_named_by_its_layers() {
    let (prefill, decode) = (side("pp=4"), side("pp=1"));
    let error = covered(&prefill, Some(2), &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "uncovered_layer");
    assert!(error.to_string().starts_with("layer 4 (latent) of decode pp0.tp0 is never written"), "{error}");
    let error = coverage(&[], &decode[0]).unwrap_err();
    assert!(error.to_string().contains("prefill has 0 layers on all stages, decode 8, the model 8"), "{error}");
}

#[test]
fn a_rank_that_is_listed_twice_is_a_second_claim() {
    let (prefill, decode) = (side("pp=2"), side("pp=1"));
    let error = coverage(&[&prefill[0], &prefill[1], &prefill[0]], &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "duplicate_layer");
    assert!(error.to_string().contains("by prefill pp0.tp0 and by prefill pp0.tp0"), "{error}");
}

#[test]
fn a_draft_is_covered_where_prefill_has_one() {
    let (with, without) = (side("pp=2,draft=1"), side("pp=1,draft=1"));
    assert_eq!(covered(&with, None, &without[0]).unwrap().written, 9);
    let error = covered(&with, Some(1), &without[0]).unwrap_err();
    assert_eq!(error.kind(), "uncovered_layer");
    let alone = covered(&side("pp=2"), None, &without[0]).unwrap();
    assert_eq!((alone.written, alone.left_alone), (8, vec![BufferKey::draft(Role::Latent, 0)]));
}

#[test]
fn a_component_that_a_sender_lacks_is_named() {
    let decode = side("pp=1");
    let mut prefill = side("pp=2");
    prefill[1].buffers.remove(1);
    let error = covered(&prefill, None, &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "uncovered_layer");
    let lacks =
        "layer 5 (latent) is missing at pp1.tp0: it has 3 latent tables where its stage has 4 layers that need one";
    assert!(error.to_string().contains(lacks), "{error}");
    // And one that the receiver lacks, though its stage has the layer.
    let mut decode = side("pp=1");
    decode[0].buffers.remove(6);
    let error = covered(&side("pp=2"), None, &decode[0]).unwrap_err();
    assert_eq!(error.kind(), "missing_layer");
    assert!(
        error
            .to_string()
            .contains("layer 6 (latent) is missing at pp0.tp0: it has 7 latent tables where its stage has 8 layers"),
        "{error}"
    );
}
