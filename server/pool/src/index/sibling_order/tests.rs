//! Tests of the order of siblings, against lists of them.

use crate::ids::NONE;
use crate::index::arena::Pages;
use proptest::prelude::*;
use turnkv_proto::BlockHash;

/// Pages that pages may hang on.
const PARENTS: usize = 3;

fn hash(number: u32) -> BlockHash {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    BlockHash(hash)
}

/// The children of a page as the links say, in both directions.
fn children(pages: &Pages, parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let first = pages[parent].first_child;
    let mut child = first;
    while child != NONE {
        if let Some(before) = found.last() {
            assert_eq!(pages.prev_sibling(child), *before);
        }
        found.push(child);
        child = pages.next_sibling(child);
    }
    if let Some(last) = found.last() {
        assert_eq!(pages.prev_sibling(first), *last, "the first knows the last");
    }
    found
}

/// Entries that have a row of links.
fn with_links(pages: &Pages) -> usize {
    (0..pages.end()).filter(|index| pages[*index].is_used() && pages[*index].siblings != NONE).count()
}

#[test]
fn a_chain_has_no_links() {
    let mut pages = Pages::new();
    pages.add_namespace(1);
    let mut parent = NONE;
    for number in 0..100 {
        parent = pages.insert(0, hash(number), parent);
    }
    assert_eq!((with_links(&pages), pages.siblings_bytes()), (0, 0));
}

#[test]
fn links_are_used_again() {
    let mut pages = Pages::new();
    pages.add_namespace(1);
    let root = pages.insert(0, hash(0), NONE);
    let fill =
        |pages: &mut Pages| -> Vec<u32> { (1..200).map(|at| pages.insert(0, hash(at), root)).collect() };
    let first = fill(&mut pages);
    let bytes = pages.siblings_bytes();
    assert_eq!(with_links(&pages), first.len());
    for round in 0..10 {
        for index in children(&pages, root) {
            pages.detach(index);
            pages.release(index);
        }
        assert_eq!(with_links(&pages), 0, "round {round}");
        fill(&mut pages);
        assert_eq!((with_links(&pages), pages.siblings_bytes()), (first.len(), bytes), "round {round}");
    }
}

#[test]
fn what_hung_on_a_page_that_goes_is_by_itself() {
    let mut pages = Pages::new();
    pages.add_namespace(1);
    let root = pages.insert(0, hash(0), NONE);
    let below: Vec<u32> = (1..4).map(|at| pages.insert(0, hash(at), root)).collect();
    pages.detach(root);
    assert_eq!(with_links(&pages), 0);
    for index in below {
        assert_eq!((pages[index].parent, pages.next_sibling(index)), (NONE, NONE));
    }
}

proptest! {
    #[test]
    fn the_order_is_that_of_a_list(steps in prop::collection::vec((0..4u8, any::<u16>(), 0..PARENTS), 1..200)) {
        let mut pages = Pages::new();
        pages.add_namespace(1);
        let parents: Vec<u32> = (0..PARENTS as u32).map(|at| pages.insert(0, hash(at), NONE)).collect();
        let mut plain = vec![Vec::new(); PARENTS];
        for (number, (what, which, of)) in (PARENTS as u32..).zip(steps) {
            let list: &mut Vec<u32> = &mut plain[of];
            let at = usize::from(which) % list.len().max(1);
            match what {
                0 => list.insert(0, pages.insert(0, hash(number), parents[of])),
                _ if list.is_empty() => {}
                1 => {
                    let index = list.remove(at);
                    pages.detach(index);
                    pages.release(index);
                }
                2 => {
                    let index = list.remove(at);
                    list.insert(0, index);
                    pages.move_first(index);
                }
                _ => {
                    let index = list.remove(at);
                    list.push(index);
                    pages.move_last(index);
                }
            }
            for (parent, list) in parents.iter().zip(&plain) {
                prop_assert_eq!(&children(&pages, *parent), list);
            }
            let linked: usize = plain.iter().map(Vec::len).filter(|len| *len > 1).sum();
            prop_assert_eq!(with_links(&pages), linked);
        }
    }
}
