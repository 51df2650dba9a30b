//! Every plan against a model of the caches that knows nothing of planning.
//!
//! The model labels each byte of each rank's cache by what it is: part, role, layer, head, token of the request, byte. The plans of
//! all pairs are applied to the labels, and every byte of every receiver is compared with what it has to be: the right label,
//! written once; and outside of the request's pages nothing is touched.

mod draw;
mod faults;
mod world;

use proptest::prelude::*;

use self::draw::worlds;

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_moves_every_byte_to_its_place_once(world in worlds()) {
        let copies = world.copies();
        prop_assert_eq!(world.check(&copies), Ok(()));
        prop_assert_eq!(world.written_out(&copies), Ok(()));
        prop_assert_eq!(world.covered(), Ok(()));
    }
}
