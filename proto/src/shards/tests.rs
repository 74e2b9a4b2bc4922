//! Tests of positions: every shard of every page has one, and old calls mean what they meant.

use super::*;

#[test]
fn positions_go_page_after_page_and_shard_after_shard() {
    let shards = Shards::new(4, 3).unwrap();
    assert_eq!((shards.count(), shards.end(), shards.positions(5)), (3, 7, 15));
    let named: Vec<(usize, u16)> = (0..7).map(|at| (shards.page(at), shards.shard(at))).collect();
    assert_eq!(named, [(0, 4), (0, 5), (0, 6), (1, 4), (1, 5), (1, 6), (2, 4)]);
    assert_eq!((0..8).map(|at| shards.whole_pages(at)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2, 2]);
    assert!(shards.iter().eq([4, 5, 6]));
}

#[test]
fn no_count_is_one_shard_whose_positions_are_pages() {
    assert_eq!(Shards::new(2, 0), Some(Shards::one(2)));
    assert_eq!(Shards::new(2, 1), Some(Shards::one(2)));
    let one = Shards::one(2);
    assert!((0..9).all(|at| (one.page(at), one.shard(at), one.whole_pages(at)) == (at, 2, at)));
}

#[test]
fn numbers_that_no_page_has_are_refused() {
    for (first, count) in [(70_000, 1), (0, 70_000), (65_535, 1), (40_000, 40_000), (u32::MAX, u32::MAX)] {
        assert_eq!(Shards::new(first, count), None, "{first}, {count}");
    }
    assert_eq!(Shards::new(0, 8).unwrap().positions(usize::MAX), usize::MAX, "no overflow");
}
