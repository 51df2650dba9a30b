use crate::*;

fn side(spec: &str) -> Vec<CacheLayout> {
    let attention = Attention::Heads { kv_heads: 4, key_dim: 8, value_dim: 4 };
    let model = ModelShape::by_hand("small", attention, vec![LayerKind::Full; 7]).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, 16, Dtype::Bf16).unwrap()
}

#[test]
fn every_rank_tells_what_all_the_others_hold() {
    for spec in ["pp=1", "pp=3,tp=2", "pp=2,tp=8,draft=2", "pp=3,layers=1+2+4,order=hnd", "pp=2,layers=3+3"] {
        let layouts = side(spec);
        for layout in &layouts {
            let mut siblings = layout.siblings();
            siblings.iter_mut().for_each(|sibling| sibling.buffers.sort_unstable_by_key(|buffer| buffer.key));
            assert_eq!(siblings.len(), layouts.len());
            for (sibling, real) in siblings.iter().zip(&layouts) {
                sibling.validate().unwrap();
                assert_eq!(sibling.shard, real.shard);
                let told = |layout: &CacheLayout| {
                    let mut told: Vec<_> =
                        layout.buffers.iter().map(|b| (b.key, b.groups.clone(), b.token_bytes, b.page_bytes)).collect();
                    told.sort_unstable_by_key(|(key, ..)| *key);
                    told
                };
                assert_eq!(told(sibling), told(real), "{spec}: {} from {}", real.rank(), layout.rank());
            }
        }
    }
}

#[test]
fn coverage_of_siblings_is_that_of_the_ranks() {
    let (prefill, decode) = (side("pp=3,tp=2,draft=1"), side("pp=2,tp=2,draft=1"));
    for receiver in &decode {
        let of = |layouts: &[CacheLayout]| coverage(&layouts.iter().collect::<Vec<_>>(), receiver).unwrap();
        assert!(prefill.iter().all(|sender| of(&sender.siblings()) == of(&prefill)));
    }
}
