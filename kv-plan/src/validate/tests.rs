use crate::*;

/// Stage 1 of two with two tensor ranks, a draft, one region a buffer.
fn valid() -> CacheLayout {
    let model = named("small");
    let side: Side = "pp=2,tp=2,draft=1,pages=10".parse().unwrap();
    side.layouts(&model, 16, Dtype::Bf16).unwrap().pop().unwrap()
}

fn named(name: &str) -> ModelShape {
    let attention = Attention::Heads { kv_heads: 4, key_dim: 8, value_dim: 4 };
    ModelShape::by_hand(name, attention, vec![LayerKind::Full; 5]).unwrap()
}

#[track_caller]
fn refused(change: impl FnOnce(&mut CacheLayout), message: &str) {
    let mut layout = valid();
    layout.validate().unwrap();
    change(&mut layout);
    let error = layout.validate().unwrap_err();
    assert_eq!(error.to_string(), message);
    // Pairing refuses it too, in the same words.
    let paired = pair(&valid(), &layout).unwrap_err();
    assert_eq!(paired.to_string(), format!("the layout of decode {} is not valid: {message}", layout.rank()));
    assert_eq!(paired.kind(), error.kind());
}

#[test]
fn more_of_anything_than_a_limit() {
    refused(|l| l.buffers = vec![l.buffers[0].clone(); 65_537], "65537 buffers, more than the limit of 65536");
    refused(|l| l.regions = vec![1; 65_537], "65537 regions, more than the limit of 65536");
    refused(|l| l.model = named(&"x".repeat(257)), "257 bytes in the model's name, more than the limit of 256");
    refused(|l| l.shard.stages = vec![1; 513], "513 stages, more than the limit of 512");
    refused(|l| l.shard.tp = 2049, "4098 ranks, more than the limit of 4096");
    refused(|l| l.shard.tp = u32::MAX, "8589934590 ranks, more than the limit of 4096");
    refused(|l| l.shard.stages[0] = u32::MAX, "4294967299 layers on all stages, more than the limit of 4096");
    refused(|l| l.shard.draft_layers = 4096, "4101 layers on all stages, more than the limit of 4096");
    refused(
        |l| (l.shard.stages, l.shard.tp) = (vec![3000, 1000], 2000),
        "16004000 buffers on all ranks, more than the limit of 262144",
    );
}

#[test]
fn sizes_of_zero() {
    refused(|l| l.page_tokens = 0, "the number of tokens of a page must not be zero");
    refused(|l| l.shard.stages.clear(), "the number of stages must not be zero");
    refused(|l| l.shard.tp = 0, "the number of tensor ranks must not be zero");
    refused(|l| l.shard.stages[0] = 0, "the number of layers of a stage must not be zero");
    let of_buffer = "the number of bytes of a token, or of pages of a buffer, or of tokens of a page, must not be zero";
    refused(|l| l.buffers[0].token_bytes = 0, of_buffer);
    refused(|l| l.buffers[0].page_count = 0, of_buffer);
}

#[test]
fn ranks_and_names() {
    refused(|l| l.shard.rank.pp = 2, "pp2.tp1 is not one of 2 stages with 2 tensor ranks each");
    refused(|l| l.shard.rank.tp = 2, "pp1.tp2 is not one of 2 stages with 2 tensor ranks each");
    refused(|l| l.model = named("a\u{1b}[31m"), r#"the model's name "a\u{1b}[31m" has control characters"#);
    refused(|l| l.buffers.retain(|b| b.key.part == Part::Draft), "pp1.tp1 has no buffers of the main model");
}

#[test]
fn sizes_that_do_not_follow_from_each_other() {
    refused(|l| l.buffers[0].page_bytes += 1, "layer 2 (key): a page of 513 bytes is not 16 tokens of 32 bytes");
    refused(
        |l| l.buffers[0].token_bytes = u64::MAX,
        "layer 2 (key): a page of 512 bytes is not 16 tokens of 18446744073709551615 bytes",
    );
    refused(
        |l| l.buffers[0].groups[0].heads = Heads { first: 2, count: 3, total: 4 },
        "layer 2 (key): heads 2..5 of 4 in 32 bytes a token is not possible",
    );
    refused(
        |l| l.buffers[0].groups[0].heads = Heads { first: u32::MAX, count: 2, total: u32::MAX },
        "layer 2 (key): heads 4294967295..4294967297 of 4294967295 in 32 bytes a token is not possible",
    );
    refused(
        |l| l.buffers[0].groups[0].head_bytes = 15,
        "layer 2 (key): heads 2..4 of 4 in 32 bytes a token is not possible",
    );
    refused(
        |l| l.buffers[0].groups[0].heads = Heads { first: 0, count: 0, total: 4 },
        "layer 2 (key): heads 0..0 of 4 in 32 bytes a token is not possible",
    );
    refused(
        |l| l.buffers[0].groups.clear(),
        "layer 2 (key): keys and values have heads, and this buffer does not say which",
    );
}

#[test]
fn places_outside_of_their_region_or_over_another() {
    refused(|l| l.buffers[0].region = 99, "layer 2 (key) lies in region 99, but there are 8");
    refused(
        |l| l.buffers[0].offset = 1,
        "layer 2 (key): 10 pages of 512 bytes at offset 1 do not lie inside a region of 5120 bytes",
    );
    refused(
        |l| l.buffers[0].offset = u64::MAX,
        "layer 2 (key): 10 pages of 512 bytes at offset 18446744073709551615 do not lie inside a region of 5120 bytes",
    );
    let overlap = |l: &mut CacheLayout| {
        *l = l.clone().packed(1).unwrap();
        l.buffers[1].offset -= 1;
    };
    refused(overlap, "layer 2 (key) and layer 3 (key) overlap in region 0");
    // One that lies inside another, with one that does not between them in the list.
    let inside = |l: &mut CacheLayout| {
        *l = l.clone().packed(1).unwrap();
        l.buffers[2].offset = 512;
        l.buffers[2].page_count = 1;
    };
    refused(inside, "layer 2 (key) and layer 4 (key) overlap in region 0");
}

#[test]
fn two_claims_of_the_same_layer() {
    refused(
        |l| l.buffers[1].key = l.buffers[0].key,
        "pp1.tp1 has two buffers for layer 2 (key); each part, layer and role has one",
    );
    refused(
        |l| l.buffers[0].key.layer = 1,
        "pp1.tp1 has a buffer for layer 1 (key), but its stage has the layers 2 to 5 (exclusive); register only layers of the own stage",
    );
    let mut layout = valid();
    layout.buffers[0].key.layer = 1;
    assert_eq!(layout.validate().unwrap_err().kind(), "duplicate_layer");
    layout.buffers[0].page_bytes = 0;
    assert_eq!(layout.validate().unwrap_err().kind(), "config");
}
