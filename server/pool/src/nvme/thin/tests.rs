//! What is kept of too much, against a plain way to say it: whole prefixes, the latest written first.

use super::*;
use crate::ids::NvmePlace;
use proptest::prelude::*;
use std::collections::BTreeSet;
use turnkv_proto::BlockHash;

/// Page n hangs on page (n - 1) / 2 of its family, page 0 on nothing.
const PAGES: u8 = 24;

fn hash(page: u8) -> BlockHash {
    BlockHash([page + 1; 32])
}

fn extent(page: u8, shard: u16, shards: u16, sequence: u64, block: u32) -> Stranger {
    Stranger {
        hash: hash(page),
        parent: (page > 0).then(|| hash((page - 1) / 2)),
        shard,
        shards,
        tail_tokens: 0,
        bytes: 1,
        checksum: 0,
        place: NvmePlace { segment: 0, generation: 0, block },
        sequence,
        leaving: false,
    }
}

fn way(page: u8) -> Vec<u8> {
    let mut way = vec![page];
    while let Some(last) = way.last().copied().filter(|last| *last > 0) {
        way.push((last - 1) / 2);
    }
    way
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_kept_is_whole_prefixes_of_what_was_written_last(
        written in prop::collection::vec(prop::collection::vec((0..PAGES, 0u16..2, any::<u16>()), 0..90), 2),
        pages_max in 0usize..30,
    ) {
        let mut families: BTreeMap<NamespaceId, Vec<Stranger>> = BTreeMap::new();
        let mut block = 0;
        for (family, list) in (0u8..).zip(&written) {
            // The second family has two shards a page.
            let shards = u16::from(family) + 1;
            for (page, shard, sequence) in list {
                let one = extent(*page, shard % shards, shards, u64::from(*sequence) << 16 | u64::from(block), block);
                families.entry(NamespaceId([family; 32])).or_default().push(one);
                block += 1;
            }
        }
        let before = families.clone();
        let Thinned { extents, pages } = thin(&mut families, pages_max);
        let (mut kept, mut reached, mut left) = (0, 0, Vec::new());
        for (id, found) in &before {
            let shards = found[0].shards;
            let latest = |page: u8, shard: u16| {
                let of = found.iter().filter(|one| one.hash == hash(page) && one.shard == shard);
                of.max_by_key(|one| one.sequence)
            };
            let whole = |page: u8| (0..shards).all(|shard| latest(page, shard).is_some());
            let reachable: Vec<u8> = (0..PAGES).filter(|page| way(*page).into_iter().all(whole)).collect();
            // A page counts as written when the last that hangs on it was.
            let newest = |page: u8| {
                let below = (0..PAGES).filter(|other| whole(*other) && way(*other).contains(&page));
                // What hangs on a page that is not whole hangs on nothing.
                let below = below.filter(|other| way(*other).into_iter().take_while(|at| *at != page).all(whole));
                below.flat_map(|other| (0..shards).filter_map(move |shard| latest(other, shard))).map(|one| one.sequence).max()
            };
            let stays: BTreeSet<u32> = families[id].iter().map(|one| one.place.block).collect();
            for page in &reachable {
                let has = (0..shards).filter_map(|shard| latest(*page, shard)).filter(|one| stays.contains(&one.place.block));
                let has = has.count();
                prop_assert!(has == 0 || has == usize::from(shards), "a page is kept whole or not at all");
                if has > 0 {
                    kept += 1;
                    let up = way(*page);
                    let there = |page: &u8| latest(*page, 0).is_some_and(|one| stays.contains(&one.place.block));
                    prop_assert!(up.iter().all(there), "all that page {} hangs on is kept", page);
                }
                left.push((has > 0, newest(*page)));
            }
            reached += reachable.len();
            prop_assert!(stays.len() <= reachable.len() * usize::from(shards), "nothing else is kept");
        }
        prop_assert_eq!(kept, reached.min(pages_max));
        prop_assert_eq!(pages as usize, reached - kept);
        let all: usize = before.values().map(Vec::len).sum();
        prop_assert_eq!(extents.len() + families.values().map(Vec::len).sum::<usize>(), all, "none is forgotten untold");
        let oldest_kept = left.iter().filter(|(stays, _)| *stays).map(|(_, newest)| *newest).min();
        let newest_gone = left.iter().filter(|(stays, _)| !stays).map(|(_, newest)| *newest).max();
        if let (Some(kept), Some(gone)) = (oldest_kept, newest_gone) {
            prop_assert!(gone <= kept, "{:?} went, and {:?} is kept", gone, kept);
        }
    }
}
