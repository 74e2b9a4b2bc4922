//! The index against a plain list of pages that is searched from end to end.

use super::*;
use proptest::prelude::*;

const PLACES: u32 = 6;

/// A page as the list has it; when it was used last is the moment of the last use of any page that hangs on it.
#[derive(Debug, Clone)]
struct Listed {
    hash: BlockHash,
    parent: Option<BlockHash>,
    pins: u32,
    used: u64,
}

/// What the index should be.
#[derive(Default)]
struct List {
    pages: Vec<Listed>,
    uses: u64,
}

impl List {
    fn find(&self, hash: &BlockHash) -> Option<usize> {
        self.pages.iter().position(|page| page.hash == *hash)
    }

    fn is_leaf(&self, page: &Listed) -> bool {
        page.pins == 0 && !self.pages.iter().any(|other| other.parent == Some(page.hash))
    }

    fn touch(&mut self, hash: &BlockHash) {
        self.uses += 1;
        let mut at = self.find(hash);
        while let Some(page) = at {
            self.pages[page].used = self.uses;
            at = self.pages[page].parent.and_then(|parent| self.find(&parent));
        }
    }

    /// Those that may give way next: with one use they are equals.
    fn next_to_go(&self) -> Vec<BlockHash> {
        let leaves: Vec<&Listed> = self.pages.iter().filter(|page| self.is_leaf(page)).collect();
        let least = leaves.iter().map(|page| page.used).min();
        leaves.iter().filter(|page| Some(page.used) == least).map(|page| page.hash).collect()
    }

    fn retire(&mut self, hash: &BlockHash) {
        let mut at = self.find(hash);
        let mut children_max = 0;
        while let Some(page) = at {
            let own = self.pages[page].hash;
            let children = self.pages.iter().filter(|other| other.parent == Some(own)).count();
            if children > children_max {
                return;
            }
            children_max = 1;
            self.pages[page].used = 0;
            at = self.pages[page].parent.and_then(|parent| self.find(&parent));
        }
    }
}

/// Page `page` of conversation `of`; the first one is everybody's.
fn name(of: u32, page: u32) -> BlockHash {
    let mut hash = BlockHash::chain(None, &[0]);
    for at in 1..=page {
        hash = BlockHash::chain(Some(&hash), &[of, at]);
    }
    hash
}

#[derive(Debug, Clone, Copy)]
enum Use {
    Put(u32, u32),
    Touch(u32, u32),
    Retire(u32, u32),
    Pin(u32, u32),
    Unpin(usize),
    Rename(u32, u32),
}

fn uses() -> impl Strategy<Value = Vec<Use>> {
    let page = || (1..4u32, 0..4u32);
    let one = prop_oneof![
        4 => page().prop_map(|(of, page)| Use::Put(of, page)),
        2 => page().prop_map(|(of, page)| Use::Touch(of, page)),
        1 => page().prop_map(|(of, page)| Use::Retire(of, page)),
        1 => page().prop_map(|(of, page)| Use::Pin(of, page)),
        1 => (0..4usize).prop_map(Use::Unpin),
        1 => page().prop_map(|(of, page)| Use::Rename(of, page)),
    ];
    prop::collection::vec(one, 1..60)
}

/// Puts a page where it belongs, if one may give way for it.
fn put(index: &mut Index, list: &mut List, of: u32, page: u32) {
    let (hash, parent) = (name(of, page), page.checked_sub(1).map(|before| name(of, before)));
    let (full, next) = (list.pages.len() == PLACES as usize, list.next_to_go());
    let before: Vec<BlockHash> = list.pages.iter().map(|page| page.hash).collect();
    let Some(place) = index.reserve() else {
        assert!(full && next.is_empty(), "a page could have given way");
        return;
    };
    let gone: Vec<BlockHash> = before.into_iter().filter(|hash| index.find(hash).is_none()).collect();
    assert_eq!(gone.len(), usize::from(full), "one makes room for one");
    for hash in gone {
        assert!(next.contains(&hash), "another one was due");
        list.pages.remove(list.find(&hash).unwrap());
    }
    let is_new = list.find(&hash).is_none();
    assert_eq!(index.insert(place, hash, parent.as_ref(), None), is_new);
    if is_new {
        list.uses += 1;
        let parent = parent.filter(|parent| list.find(parent).is_some());
        list.pages.push(Listed { hash, parent, pins: 0, used: list.uses });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_used_the_index_says_what_a_plain_list_does(uses in uses()) {
        let (mut index, mut list) = (Index::new(PLACES), List::default());
        let (mut pinned, mut renamed) = (Vec::new(), 100);
        for one in uses {
            match one {
                Use::Put(of, page) => put(&mut index, &mut list, of, page),
                Use::Touch(of, page) => {
                    if let Some(place) = index.find(&name(of, page)) {
                        index.touch(place);
                        list.touch(&name(of, page));
                    }
                }
                Use::Retire(of, page) => {
                    if let Some(place) = index.find(&name(of, page)) {
                        index.retire(place);
                        list.retire(&name(of, page));
                    }
                }
                Use::Pin(of, page) => {
                    if let Some(place) = index.find(&name(of, page)) {
                        index.pin(place);
                        let at = list.find(&name(of, page)).unwrap();
                        list.pages[at].pins += 1;
                        pinned.push((place, name(of, page)));
                    }
                }
                Use::Unpin(which) if which < pinned.len() => {
                    let (place, hash) = pinned.swap_remove(which);
                    index.unpin(place);
                    let at = list.find(&hash).expect("a pinned page stays");
                    list.pages[at].pins -= 1;
                }
                Use::Unpin(_) => {}
                Use::Rename(of, page) => {
                    let hash = name(of, page);
                    let place = index.find(&hash).filter(|place| !index.is_used(*place));
                    if let Some(place) = place {
                        renamed += 1;
                        let at = list.find(&hash).unwrap();
                        list.pages[at].hash = name(renamed, 1);
                        index.rename(place, name(renamed, 1), None);
                        list.touch(&name(renamed, 1));
                    }
                }
            }
            index.check();
            prop_assert_eq!(index.len(), list.pages.len());
            prop_assert_eq!(index.pinned(), list.pages.iter().filter(|page| page.pins > 0).count());
            for page in &list.pages {
                let place = index.find(&page.hash);
                prop_assert!(place.is_some(), "a page is gone: {:?}", page);
                let parent = page.parent.filter(|parent| list.find(parent).is_some());
                prop_assert_eq!(index.parent(place.unwrap()), parent);
                let used = index.places[place.unwrap() as usize].as_ref().map(|entry| entry.used);
                prop_assert_eq!(used, Some(page.used), "what decides who gives way: {:?}", page);
            }
        }
    }
}

#[test]
fn a_full_index_of_pages_in_use_gives_no_place_until_one_is_let_go() {
    let mut index = Index::new(3);
    for page in 0..3 {
        let place = index.reserve().unwrap();
        index.insert(place, name(1, page), page.checked_sub(1).map(|before| name(1, before)).as_ref(), None);
    }
    let tip = index.find(&name(1, 2)).unwrap();
    index.pin(tip);
    index.pin(tip);
    assert_eq!((index.reserve(), index.evicted), (None, 0), "all hang on one that is looked at");
    index.unpin(tip);
    assert_eq!(index.reserve(), None, "somebody else still looks at it");
    index.unpin(tip);
    assert_eq!((index.reserve(), index.evicted, index.len()), (Some(tip), 1, 2));
    index.give_back(tip);
    assert_eq!((index.reserve(), index.evicted), (Some(tip), 1), "a free place comes before a page");
    index.check();
}
