//! Requests whose pages differ on the two sides: by size, by pool, by token, by data-parallel group.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use kvferry::{
    ExpectError, Origin, Role,
    kv_plan::{Attention, CacheLayout, Dtype, LayerKind, LinearState, ModelShape, PageList, Pages, Pool, Side},
};
use support::{Keys, LONG, Node, layout, layouts, pages};

/// Every token of each layer of a cache gets bytes that name it; `pages` are a request's, in order.
fn fill_tokens(node: &Node, pages: &[i32]) {
    for buffer in &node.layout.buffers {
        for token in 0..pages.len() as u64 * u64::from(buffer.page_tokens) {
            let at = token_offset(node, buffer.key.layer, pages, token);
            node.memories[buffer.region as usize].fill(at, buffer.token_bytes, mark(buffer.key.layer, token)).unwrap();
        }
    }
}

/// The tokens of a request that hold what `fill_tokens` wrote in every layer; the others must be zero.
fn tokens_that_came(node: &Node, pages: &[i32]) -> Vec<u64> {
    let count = pages.len() as u64 * u64::from(node.layout.page_tokens);
    let came = |token: &u64| {
        let states: Vec<bool> = node
            .layout
            .buffers
            .iter()
            .map(|buffer| {
                let mut bytes = vec![0; buffer.token_bytes as usize];
                let at = token_offset(node, buffer.key.layer, pages, *token);
                node.memories[buffer.region as usize].read_at(at, &mut bytes).unwrap();
                let is = |value: u8| bytes.iter().all(|byte| *byte == value);
                assert!(is(0) || is(mark(buffer.key.layer, *token)), "{} token {token}", buffer.key);
                !is(0)
            })
            .collect();
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "token {token} came in some layers only");
        states[0]
    };
    (0..count).filter(came).collect()
}

fn token_offset(node: &Node, layer: u32, pages: &[i32], token: u64) -> u64 {
    let buffer = node.layout.buffers.iter().find(|buffer| buffer.key.layer == layer).unwrap();
    let page_tokens = u64::from(buffer.page_tokens);
    let page = pages[(token / page_tokens) as usize] as u64;
    buffer.offset + page * buffer.page_bytes + token % page_tokens * buffer.token_bytes
}

fn mark(layer: u32, token: u64) -> u8 {
    (1 + (u64::from(layer) * 37 + token * 11) % 255) as u8
}

async fn meet(prefill: &Node, decode: &Node) -> kvferry::Peer {
    let peer = prefill.engine.connect(decode.engine.local_addr(), None).await.unwrap();
    decode.engine.wait_for_senders("default", LONG).await.unwrap();
    peer
}

#[tokio::test]
async fn chunks_that_end_inside_pages_of_other_sizes_share_one_commit() {
    let keys = Keys::new();
    let (prefill, decode) = (
        keys.node(Role::Prefill, layout("pages=64,page=16", 0)),
        keys.node(Role::Decode, layout("pages=64,page=24", 0)),
    );
    let (src, dst) = ([5, 9, 2, 30, 31, 7], [3, 20, 21, 8]);
    fill_tokens(&prefill, &src);
    let peer = meet(&prefill, &decode).await;
    let incoming = decode.engine.expect(1, "default", Pages::from(pages(&dst)).tokens(0..90)).unwrap();
    let mut push = peer.begin(1).unwrap();
    for tokens in [0..20_u64, 20..49, 49..90] {
        push.send(None, Pages::from(pages(&src)).tokens(tokens), pages(&dst)).unwrap();
    }
    push.commit().unwrap().await.unwrap();
    assert_eq!(incoming.await.unwrap().bytes, 90 * 6 * 128);
    assert_eq!(tokens_that_came(&decode, &dst), (0..90).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_prefix_that_decode_holds_is_left_as_it_is() {
    let keys = Keys::new();
    let (prefill, decode) = (
        keys.node(Role::Prefill, layout("pages=64,page=16", 0)),
        keys.node(Role::Decode, layout("pages=64,page=8", 0)),
    );
    let (src, dst) = ([5, 9, 2, 30], [3, 20, 21, 8, 1, 2, 50, 51]);
    fill_tokens(&prefill, &src);
    let peer = meet(&prefill, &decode).await;
    let wanted = || Pages::from(pages(&dst)).tokens(19..64);
    let incoming = decode.engine.expect(1, "default", wanted()).unwrap();
    peer.push(1, pages(&src), wanted()).unwrap().await.unwrap();
    incoming.await.unwrap();
    assert_eq!(tokens_that_came(&decode, &dst), (19..64).collect::<Vec<_>>());
}

#[tokio::test]
async fn tokens_that_were_not_expected_fail_the_request() {
    let keys = Keys::new();
    let (prefill, decode) =
        (keys.node(Role::Prefill, layout("pages=64", 0)), keys.node(Role::Decode, layout("pages=64", 0)));
    let peer = meet(&prefill, &decode).await;
    for (id, sent) in (1..).zip([0..31, 1..32, 16..32]) {
        let incoming = decode.engine.expect(id, "default", pages(&[4, 5])).unwrap();
        peer.push(id, pages(&[1, 2]), Pages::from(pages(&[4, 5])).tokens(sent)).unwrap().await.unwrap();
        let error = incoming.await.unwrap_err();
        assert!(matches!(error, kvferry::ReceiveError::Incomplete { .. }), "{error}");
    }
}

/// Two layers of full attention and two of linear attention, pages of 16 tokens.
fn with_states(spec: &str) -> Vec<CacheLayout> {
    let kinds = vec![LayerKind::Linear, LayerKind::Full, LayerKind::Linear, LayerKind::Full];
    let attention = Attention::Heads { kv_heads: 2, key_dim: 8, value_dim: 4 };
    let states = LinearState::gated_delta(2, 4, 4, 4, 4);
    let model = ModelShape::by_hand("hybrid", attention, kinds).unwrap().with_linear(states).unwrap();
    spec.parse::<Side>().unwrap().layouts(&model, 16, Dtype::Bf16).unwrap()
}

#[tokio::test]
async fn a_pool_that_the_receiver_forgets_is_named_before_anything_moves() {
    let keys = Keys::new();
    let spec = "pages=16,slots=4";
    let (prefill, decode) =
        (keys.node(Role::Prefill, with_states(spec).remove(0)), keys.node(Role::Decode, with_states(spec).remove(0)));
    let peer = meet(&prefill, &decode).await;
    // One list is for pages, and states have slots.
    let error = decode.engine.expect(1, "default", pages(&[1, 2])).unwrap_err();
    assert!(matches!(error, ExpectError::Pages { .. }) && error.to_string().contains("pool state"), "{error}");
    let lists = [PageList::new(Pool::FULL, pages(&[1, 2])), PageList::new(Pool::STATE, pages(&[3]))];
    let incoming = decode.engine.expect(1, "default", &lists[..]).unwrap();
    let error = peer.push(1, pages(&[6, 7]), &lists[..]).unwrap_err();
    assert!(error.to_string().contains("prefill pp0.tp0 lists no pages of the pool state"), "{error}");
    // Pages first, and the states with the commit.
    let mut push = peer.begin(1).unwrap();
    push.send(None, pages(&[6, 7]), pages(&[1, 2])).unwrap();
    let (from, to) = ([PageList::new(Pool::STATE, pages(&[0]))], [PageList::new(Pool::STATE, pages(&[3]))]);
    push.send_and_commit(None, &from[..], &to[..]).unwrap().await.unwrap();
    incoming.await.unwrap();
    // A slot is one request's at a time, and a page of the same number is another thing.
    let held = decode.engine.expect(2, "default", &lists[..]).unwrap();
    let slot = [PageList::new(Pool::FULL, pages(&[3])), PageList::new(Pool::STATE, pages(&[3]))];
    let error = decode.engine.expect(3, "default", &slot[..]).unwrap_err();
    assert!(matches!(error, ExpectError::PageInUse { .. }), "{error}");
    drop(held);
}

#[tokio::test]
async fn a_request_comes_from_one_data_parallel_group() {
    let keys = Keys::new();
    let decode = keys.node(Role::Decode, layout("pages=64", 0));
    let mut groups = Vec::new();
    for layout in layouts("dp=2,pages=64") {
        let node = keys.node(Role::Prefill, layout);
        fill_tokens(&node, &[1]);
        groups.push((node.engine.connect(decode.engine.local_addr(), None).await.unwrap(), node));
    }
    for (id, dp) in [(1, 0), (2, 1)] {
        let origin = Origin::from("default").group(dp);
        decode.engine.wait_for_senders(origin, LONG).await.unwrap();
        let page = 10 + id;
        let incoming = decode.engine.expect(id as u64, origin, pages(&[page])).unwrap();
        groups[dp as usize].0.push(id as u64, pages(&[1]), pages(&[page])).unwrap().await.unwrap();
        let received = incoming.await.unwrap();
        assert_eq!(received.senders.len(), 1);
        assert_eq!(received.senders[0].0.dp, dp);
        assert_eq!(tokens_that_came(&decode, &[page]).len(), 16);
    }
    // A group that does not exist.
    let error = decode.engine.expect(3, Origin::from("default").group(7), pages(&[30])).unwrap_err();
    assert!(error.to_string().contains("default (group dp7)"), "{error}");
}
