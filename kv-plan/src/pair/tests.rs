use crate::*;

fn side(spec: &str) -> Vec<CacheLayout> {
    let attention = Attention::Heads { kv_heads: 4, key_dim: 8, value_dim: 4 };
    let model = ModelShape::by_hand("small", attention, vec![LayerKind::Full; 6]).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, 16, Dtype::Bf16).unwrap()
}

#[test]
fn tables_say_where_each_buffer_lies_on_both_sides() {
    let (prefill, decode) = (side("pp=3,pages=5"), side("pp=1,pages=7"));
    let decode = decode[0].clone().packed(4096).unwrap();
    let pairing = pair(&prefill[1], &decode).unwrap();
    assert_eq!((pairing.prefill_rank(), pairing.decode_rank()), (prefill[1].rank(), decode.rank()));
    let keys: Vec<String> = pairing.tables().iter().map(|table| table.key.to_string()).collect();
    assert_eq!(keys, ["layer 2 (key)", "layer 2 (value)", "layer 3 (key)", "layer 3 (value)"]);
    for table in pairing.tables() {
        let (src, dst) = (prefill[1].buffer(table.key).unwrap(), decode.buffer(table.key).unwrap());
        assert_eq!((table.src_region, table.src_base, table.src_stride), (src.region, src.offset, src.token_bytes));
        assert_eq!((table.dst_region, table.dst_base, table.dst_stride), (0, dst.offset, dst.token_bytes));
        assert_eq!(table.len, src.token_bytes);
    }
}

#[test]
fn ranks_that_share_nothing_pair_to_nothing() {
    let (prefill, decode) = (side("pp=2,tp=2"), side("pp=2,tp=2"));
    // Another stage, and another tensor rank of the same stage.
    for (src, dst) in [(0, 2), (0, 1), (3, 0)] {
        let pairing = pair(&prefill[src], &decode[dst]).unwrap();
        assert_eq!((pairing.tables().len(), pairing.bytes_per_token()), (0, 0));
    }
}

#[test]
fn limits_are_those_of_paired_buffers_alone() {
    let (prefill, mut decode) = (side("pages=9"), side("draft=1,pages=9"));
    // The draft, which nothing is sent to, has fewer pages.
    for buffer in decode[0].buffers.iter_mut().filter(|buffer| buffer.key.part == Part::Draft) {
        buffer.page_count = 2;
    }
    let pairing = pair(&prefill[0], &decode[0]).unwrap();
    let pages = PageId::list(&[8]);
    assert_eq!(pairing.plan(pages, pages, &mut Plan::default()), Ok(()));
}

#[test]
fn the_last_stage_of_a_shorter_side_is_the_one_that_lacks_a_layer() {
    let (prefill, decode) = (side("pp=3,tp=2"), side("pp=2,tp=2,layers=3+2"));
    let found: Vec<String> = prefill
        .iter()
        .flat_map(|src| decode.iter().map(move |dst| pair(src, dst).unwrap_err()))
        .map(|error| error.to_string().replace("tp1", "tp0"))
        .collect();
    // Whichever two ranks meet first, they say the same, but for their tensor rank.
    assert!(found.iter().all(|text| *text == found[0]), "{found:#?}");
    assert_eq!(
        found[0],
        "layer 5 (key) of prefill pp2.tp0 is missing at decode pp1.tp0: the receiver has 2 key tables and the model 6 layers (prefill has 6 on all stages, decode 5); the model and the pipeline settings (pp, layers) of both sides have to agree"
    );
}
