//! Strangers against a plain set: which are there, what they add up to, and that what is doomed goes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FAMILIES: u8 = 3;

fn id(family: u8) -> NamespaceId {
    NamespaceId([family; 32])
}

fn stranger(block: u32, bytes: u32) -> Stranger {
    Stranger {
        hash: BlockHash([7; 32]),
        parent: None,
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        bytes,
        checksum: 0,
        place: NvmePlace { segment: 0, generation: 0, block },
        sequence: 0,
        leaving: false,
    }
}

#[derive(Clone, Debug)]
enum Op {
    TakeAt(u8, u32),
    Take(u8, usize),
    Doom(u8),
    DoomAll,
    Forget(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..FAMILIES + 1, 0u32..80).prop_map(|(family, block)| Op::TakeAt(family, block)),
        4 => (0..FAMILIES + 1, 0usize..80).prop_map(|(family, at)| Op::Take(family, at)),
        1 => (0..FAMILIES + 1).prop_map(Op::Doom),
        1 => Just(Op::DoomAll),
        3 => (1usize..30).prop_map(Op::Forget),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn each_stranger_is_there_until_it_is_taken_or_forgotten_and_then_never_again(
        blocks in prop::collection::vec(prop::collection::vec((0u32..80, 1u32..9000), 0..70), FAMILIES as usize),
        ops in prop::collection::vec(op(), 0..60),
    ) {
        let mut strangers = Strangers::default();
        // By family and block; of several extents said to be at one place there is one.
        let mut plain: BTreeMap<(u8, u32), u64> = BTreeMap::new();
        let mut doomed = [false; FAMILIES as usize + 1];
        for (family, blocks) in (0..).zip(&blocks) {
            let mut extents: Vec<Stranger> = Vec::new();
            for (block, bytes) in blocks {
                if !extents.iter().any(|other| other.place.block == *block) {
                    plain.insert((family, *block), (*bytes).into());
                    extents.push(stranger(*block, *bytes));
                }
            }
            let again = extents.first().copied();
            extents.extend(again);
            strangers.keep(id(family), extents);
        }
        for op in ops {
            match op {
                Op::TakeAt(family, block) => {
                    let taken = strangers.take_at(&id(family), stranger(block, 0).place);
                    let known = plain.remove(&(family, block));
                    prop_assert_eq!(taken.map(|one| u64::from(one.bytes)), known);
                }
                Op::Take(family, at) => {
                    let there = strangers.is_alive(&id(family), at);
                    let taken = strangers.take(&id(family), at);
                    prop_assert_eq!(taken.is_some(), there);
                    let known = taken.and_then(|one| plain.remove(&(family, one.place.block)));
                    prop_assert_eq!(taken.map(|one| u64::from(one.bytes)), known);
                }
                Op::Doom(family) => {
                    strangers.doom(&id(family));
                    doomed[usize::from(family)] = true;
                }
                Op::DoomAll => {
                    strangers.doom_all();
                    doomed = [true; FAMILIES as usize + 1];
                }
                Op::Forget(looks) => {
                    let Forgotten { dead, gone, .. } = strangers.forget_some(looks);
                    prop_assert!(dead.len() <= looks);
                    for one in dead {
                        let of = |family: &u8| plain.get(&(*family, one.place.block)) == Some(&one.bytes.into());
                        let family = (0..FAMILIES).filter(|family| doomed[usize::from(*family)]).find(of);
                        prop_assert!(family.and_then(|family| plain.remove(&(family, one.place.block))).is_some());
                    }
                    for family in (0..FAMILIES).filter(|family| gone.contains(&id(*family))) {
                        prop_assert!(plain.range((family, 0)..(family + 1, 0)).next().is_none());
                    }
                }
            }
            prop_assert_eq!(strangers.sums(), (plain.len() as u64, plain.values().sum()));
            prop_assert_eq!(strangers.sums(), strangers.recount());
            for family in 0..FAMILIES {
                let some = plain.range((family, 0)..(family + 1, 0)).next().is_some();
                let waits = some && !doomed[usize::from(family)];
                prop_assert_eq!(strangers.wait_for(&id(family)), waits, "family {}", family);
            }
        }
        // All that is doomed goes in bounded parts, and each of it is told once.
        strangers.doom_all();
        let mut told = 0;
        loop {
            let part = strangers.forget_some(7);
            told += part.dead.len();
            if !part.more {
                break;
            }
        }
        prop_assert_eq!((told, strangers.families(), strangers.sums()), (plain.len(), 0, (0, 0)));
    }
}
