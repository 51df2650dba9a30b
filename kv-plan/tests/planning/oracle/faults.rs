//! Planted faults: a wrong plan is caught, whatever is wrong with it.

use kv_plan::{Attention, Dtype, Order};
use proptest::{prelude::*, sample::Index};

use super::{
    draw::worlds,
    world::{Copy, Parts, Setup, World},
};

/// Two heads on each of two ranks, two stages to one, a request of four pages in two runs.
fn world() -> World {
    let setup =
        |stages: &[u32], shuffle| Setup { stages: stages.to_vec(), draft: 1, page_count: 9, packed: Some(8), shuffle };
    World {
        attention: Attention::Heads { kv_heads: 4, key_dim: 3, value_dim: 2 },
        dtype: Dtype::Bf16,
        order: Order::TokenMajor,
        page_tokens: 2,
        layers: 5,
        tp: 2,
        prefill: setup(&[2, 3], 7),
        decode: setup(&[5], 8),
        src_pages: vec![4, 5, 6, 1],
        dst_pages: vec![1, 2, 3, 7],
        parts: Parts::Whole,
    }
}

fn caught(what: &str, plant: impl FnOnce(&mut Vec<Copy>)) {
    let world = world();
    let mut copies = world.copies();
    assert_eq!(world.check(&copies), Ok(()));
    plant(&mut copies);
    assert!(world.check(&copies).is_err(), "{what} is not caught");
}

#[test]
fn planted_faults_are_caught() {
    caught("a copy that is left out", |copies| {
        copies.pop();
    });
    caught("a copy that is made twice", |copies| copies.push(copies[3]));
    caught("a run that is one page short", |copies| copies[0].run.count -= 1);
    caught("a run that is one page long", |copies| copies[0].run.count += 1);
    caught("a page beside the right one at the receiver", |copies| copies[0].run.dst += 1);
    caught("a page beside the right one at the sender", |copies| copies[0].run.src -= 1);
    caught("the wrong sender", |copies| copies[0].from ^= 1);
    caught("the wrong receiver", |copies| copies[0].to ^= 1);
    caught("a page without its last byte", |copies| copies[0].table.len -= 1);
    caught("values in the place of keys", |copies| {
        let (key, value) = (copies[0].table, copies[2].table);
        assert_ne!(key.key.role, value.key.role);
        (copies[0].table.dst_base, copies[0].table.dst_region) = (value.dst_base, value.dst_region);
    });
    caught("the next layer's table", |copies| {
        let next = copies.iter().find(|copy| copy.table.key.layer == 1).unwrap().table;
        (copies[0].table.dst_base, copies[0].table.dst_region) = (next.dst_base, next.dst_region);
    });
    caught("the stride of keys for values", |copies| {
        let stride = copies[0].table.dst_stride;
        copies[2].table.dst_stride = stride;
    });
    caught("two copies that changed places", |copies| {
        let (first, second) = (copies[0].run, copies[1].run);
        (copies[0].run.dst, copies[1].run.dst) = (second.dst, first.dst);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_fault_anywhere_is_caught(world in worlds(), place in any::<Index>(), fault in 0..6) {
        let mut copies = world.copies();
        prop_assume!(!copies.is_empty());
        let place = place.index(copies.len());
        let copy = &mut copies[place];
        match fault {
            0 => {
                copies.remove(place);
            }
            1 => copies.push(copies[place]),
            2 => copy.run.count += 1,
            3 => copy.run.dst += 1,
            4 => copy.table.src_base += 1,
            _ => copy.table.dst_base += copy.table.len,
        }
        prop_assert!(world.check(&copies).is_err());
    }
}
