//! Tests of paths and keys, against a tree in which every page knows its whole way.

use crate::ids::{NONE, PageKey};
use crate::index::arena::Pages;
use crate::index::path_end::PathEnd;
use hashbrown::HashMap;
use proptest::prelude::*;
use turnkv_proto::BlockHash;

fn hash(number: u32) -> BlockHash {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    BlockHash(hash)
}

/// Pages of one namespace, and for each what leads to it, itself included.
struct World {
    pages: Pages,
    ways: HashMap<u32, Vec<u32>>,
    /// Pages that are there, in the order in which they came.
    live: Vec<u32>,
    /// Keys of pages that are gone.
    stale: Vec<PageKey>,
    made: u32,
}

impl World {
    fn new() -> World {
        let mut pages = Pages::new();
        pages.add_namespace(1);
        World { pages, ways: HashMap::new(), live: Vec::new(), stale: Vec::new(), made: 0 }
    }

    fn pick(&self, which: u16) -> u32 {
        if self.live.is_empty() { NONE } else { self.live[usize::from(which) % self.live.len()] }
    }

    fn way(&self, index: u32) -> Vec<u32> {
        self.ways.get(&index).cloned().unwrap_or_default()
    }

    fn add(&mut self, parent: u32) -> u32 {
        let index = self.pages.insert(0, hash(self.made), parent);
        self.made += 1;
        let mut way = self.way(parent);
        way.push(index);
        self.ways.insert(index, way);
        self.live.push(index);
        index
    }

    /// Removes a page that nothing hangs on.
    fn remove(&mut self, index: u32) {
        if index == NONE || !self.pages[index].is_leaf() {
            return;
        }
        self.stale.push(self.pages.key(index));
        self.pages.detach(index);
        self.pages.release(index);
        self.ways.remove(&index);
        self.live.retain(|other| *other != index);
    }

    fn end(&self, index: u32) -> PathEnd {
        PathEnd { page: index, pages: self.way(index).len() as u32 }
    }

    /// All that is asked of two pages and a number.
    fn check(&self, one: u32, two: u32, number: u16) {
        let (first, second) = (self.way(one), self.way(two));
        let (depth, pages) = (first.len() as u32, &self.pages);
        assert_eq!(pages.depth(one), depth);
        assert!(pages.upward(one).eq(first.iter().rev().copied()), "the way up");
        let keep = if depth == 0 { 0 } else { u32::from(number) % (depth + 1) };
        let kept = keep.checked_sub(1).map_or(NONE, |at| first[at as usize]);
        assert_eq!(pages.ancestor(one, keep), kept);
        assert_eq!(pages.cut(self.end(one), keep), self.end(kept));
        assert_eq!(pages.between(self.end(one), keep), first[keep as usize..]);
        let shared = first.iter().zip(&second).take_while(|(one, two)| one == two).count();
        let last = shared.checked_sub(1).map_or(NONE, |at| first[at]);
        assert_eq!(pages.common(one, two), last);
        assert_eq!(pages.shared(self.end(one), self.end(two)), shared as u32);
        let within = one == NONE || second.contains(&one);
        assert_eq!(pages.end_within(self.end(two), one), within.then(|| self.end(one)));
        if one != NONE {
            assert_eq!(pages.leads_to(one, two), second.contains(&one));
        }
        let until = first.get(keep as usize).copied();
        let found =
            pages.last_that(one, |entry| until.is_none_or(|page| entry.depth < self.pages[page].depth));
        assert_eq!(found, if until.is_some() { kept } else { one });
        let hashes: Vec<BlockHash> = first[keep as usize..].iter().map(|page| pages[*page].hash).collect();
        assert_eq!(pages.follow(0, self.end(kept), &hashes), self.end(one));
        assert_eq!(pages.hashes_between(self.end(kept), self.end(one)), hashes);
    }
}

#[test]
fn a_long_way_is_gone_up_in_few_links() {
    const PAGES: u32 = 100_000;
    let mut world = Pages::new();
    world.add_namespace(1);
    let mut last = NONE;
    for number in 0..PAGES {
        last = world.insert(0, hash(number), last);
    }
    let links = |to: u32| {
        let (mut index, mut links) = (last, 0);
        while world.depth(index) > to {
            let jump = world[index].jump;
            index = if world.depth(jump) >= to { jump } else { world[index].parent };
            links += 1;
        }
        links
    };
    let most = (0..PAGES).step_by(97).map(links).max().unwrap();
    assert!(most <= 3 * PAGES.ilog2(), "{most} links");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_question_is_answered_as_by_the_whole_way(
        steps in prop::collection::vec((0..8u8, any::<u16>(), any::<u16>(), any::<u16>()), 1..300),
    ) {
        let mut world = World::new();
        for (what, one, two, number) in steps {
            match what {
                // Mostly on what came last, so that ways become long.
                0..=3 => { world.add(world.live.last().copied().unwrap_or(NONE)); }
                4 => { world.add(world.pick(one)); }
                5 => { world.add(NONE); }
                _ => world.remove(world.pick(one)),
            }
            world.check(world.pick(one), world.pick(two), number);
            world.check(world.pick(two), world.pick(two), number);
            world.check(NONE, world.pick(one), number);
            for key in &world.stale {
                prop_assert!(world.pages.resolve(*key).is_none(), "a stale key names nothing, ever");
            }
            for index in &world.live {
                prop_assert_eq!(world.pages.resolve(world.pages.key(*index)), Some(*index));
                prop_assert_eq!(world.pages.find(0, &world.pages[*index].hash), Some(*index));
            }
            prop_assert_eq!(world.pages.len() as usize, world.live.len());
            prop_assert_eq!(world.pages.table_len(), world.live.len());
        }
    }
}
