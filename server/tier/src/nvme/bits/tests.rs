//! A set of blocks comes back from its bytes.

use super::Bits;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn a_set_comes_back_from_its_bytes_and_nothing_beyond_the_segment_does() {
    let mut bits = Bits::default();
    for block in [1, 7, 8, 63, 64, 200] {
        assert!(bits.insert(block) && !bits.insert(block));
    }
    assert!(bits.remove(63) && !bits.remove(63) && !bits.remove(9000));
    assert_eq!(bits.to_bytes().len(), 26, "up to the last one");
    let back = Bits::from_bytes(&bits.to_bytes(), 201);
    assert_eq!(back.blocks().collect::<Vec<u32>>(), [1, 7, 8, 64, 200]);
    let short = Bits::from_bytes(&bits.to_bytes(), 200);
    assert_eq!(short.blocks().collect::<Vec<u32>>(), [1, 7, 8, 64]);
    assert!(Bits::default().is_empty() && Bits::default().to_bytes().is_empty() && !short.is_empty());
}

proptest! {
    #[test]
    fn a_set_has_what_a_plain_set_has(
        steps in proptest::collection::vec((any::<bool>(), 0u32..300), 0..200), blocks in 0u32..310, more in 0usize..9
    ) {
        let (mut bits, mut set) = (Bits::default(), BTreeSet::new());
        for (add, block) in steps {
            if add {
                prop_assert_eq!(bits.insert(block), set.insert(block));
            } else {
                prop_assert_eq!(bits.remove(block), set.remove(&block));
            }
        }
        prop_assert!(bits.blocks().eq(set.iter().copied()));
        prop_assert_eq!(bits.is_empty(), set.is_empty());
        prop_assert!((0..310).all(|block| bits.has(block) == set.contains(&block)));
        // Zeros behind, as another writer may leave them, say nothing.
        let mut bytes = bits.to_bytes();
        prop_assert_eq!(bytes.len(), set.last().map_or(0, |last| *last as usize / 8 + 1));
        bytes.resize(bytes.len() + more, 0);
        prop_assert!(Bits::from_bytes(&bytes, blocks).blocks().eq(set.range(..blocks).copied()));
    }
}
