use super::*;
use crate::Role;

fn rank() -> Rank {
    Rank::new(1, 2)
}

fn twice(seen: &mut Seen, pages: &[i32]) -> Option<(i32, usize)> {
    match seen.check(PageId::list(pages), rank()) {
        Ok(()) => None,
        Err(PlanError::DuplicatePage { page, place, .. }) => Some((page.0, place)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_smallest_buffer_is_the_limit_and_is_named() {
    let buffers = [(9, BufferKey::main(Role::Key, 0)), (7, BufferKey::main(Role::Value, 3))];
    let limit = Limit::of(buffers.into_iter(), End::Prefill, rank());
    assert_eq!(limit.check(PageId(6), 0), Ok(6));
    assert_eq!(
        limit.check(PageId(7), 4).unwrap_err().to_string(),
        "page 7 of prefill pp1.tp2 (place 4 in its list) is out of range: its buffer for layer 3 (value) has 7 pages"
    );
    assert_eq!(
        limit.check(PageId(-1), 0).unwrap_err().to_string(),
        "page -1 of prefill pp1.tp2 (place 0 in its list) is out of range: its buffer for layer 3 (value) has 7 pages, and negative numbers mark absent pages"
    );
    let nothing = Limit::of(std::iter::empty(), End::Decode, rank());
    assert_eq!(
        nothing.check(PageId(0), 0).unwrap_err().to_string(),
        "page 0 of decode pp1.tp2 (place 0 in its list) is out of range: the rank has 0 pages"
    );
}

#[test]
fn the_second_place_of_a_page_is_named() {
    let mut seen = Seen::default();
    assert_eq!(twice(&mut seen, &[]), None);
    assert_eq!(twice(&mut seen, &[5]), None);
    assert_eq!(twice(&mut seen, &[1, 2, 3]), None);
    assert_eq!(twice(&mut seen, &[5, 5]), Some((5, 1)));
    assert_eq!(twice(&mut seen, &[64, 3, 128, 3, 64]), Some((3, 3)));
    assert_eq!(
        seen.check(PageId::list(&[7, 7]), rank()).unwrap_err().to_string(),
        "page 7 is twice in the list of decode pp1.tp2 (again at place 1); two pages of a request would overwrite each other"
    );
}

#[test]
fn a_list_leaves_nothing_behind_for_the_next() {
    let mut seen = Seen::default();
    for _ in 0..3 {
        assert_eq!(twice(&mut seen, &[9, 1, 4]), None);
        assert_eq!(twice(&mut seen, &[9, 1, 9]), Some((9, 2)));
    }
    assert!(seen.bits.iter().all(|word| *word == 0));
}

#[test]
fn large_page_numbers_cost_no_memory() {
    let mut seen = Seen::default();
    assert_eq!(twice(&mut seen, &[i32::MAX, 0, 1]), None);
    assert_eq!(twice(&mut seen, &[i32::MAX, 7, 0, 7]), Some((7, 3)));
    assert_eq!(twice(&mut seen, &[i32::MAX, 0, i32::MAX]), Some((i32::MAX, 2)));
    assert!(seen.bits.is_empty());
}
