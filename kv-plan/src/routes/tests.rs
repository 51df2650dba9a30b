use crate::*;

fn side(spec: &str) -> Vec<CacheLayout> {
    let model = ModelShape::by_hand("small", Attention::Latent { dim: 8 }, vec![LayerKind::Full; 8]).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, 16, Dtype::Bf16).unwrap()
}

#[test]
fn who_sends_to_whom_and_how_much() {
    let routes = routes(&side("pp=4"), &side("pp=2")).unwrap();
    let rank = |pp| Rank::new(pp, 0);
    let pairs: Vec<_> =
        routes.pairings().iter().map(|p| (p.prefill_rank().pp, p.decode_rank().pp, p.bytes_per_token())).collect();
    assert_eq!(pairs, [(0, 0, 32), (1, 0, 32), (2, 1, 32), (3, 1, 32)]);
    assert_eq!(routes.senders(rank(1)).collect::<Vec<_>>(), [rank(2), rank(3)]);
    assert_eq!(routes.receivers(rank(1)).collect::<Vec<_>>(), [rank(0)]);
    assert!(routes.between(rank(0), rank(1)).is_none());
    assert_eq!(routes.between(rank(3), rank(1)).unwrap().tables().len(), 2);
    assert_eq!(routes.bytes_per_token(), 8 * 16);
}

#[test]
fn a_cluster_that_does_not_fit_has_no_routes() {
    assert_eq!(routes(&side("pp=4"), &side("layers=7")).unwrap_err().kind(), "missing_layer");
    assert_eq!(routes(&side("pp=4")[..3], &side("pp=1")).unwrap_err().kind(), "uncovered_layer");
    assert_eq!(routes(&[], &side("pp=1")).unwrap_err().kind(), "uncovered_layer");
    assert!(routes(&side("pp=4"), &[]).unwrap().pairings().is_empty());
}
