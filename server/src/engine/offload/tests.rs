//! What becomes of pages of several shards is counted by page.

use super::*;
use turnkv_pool::SlotKey;

fn counts(outcomes: &Outcomes, shards: Shards) -> [u64; 4] {
    let PageCounts { pages, present, granted, outranked } = outcomes.count_pages(shards);
    [pages, present, granted, outranked]
}

#[test]
fn a_page_is_present_where_all_its_shards_are_and_declined_as_a_whole() {
    let granted = Outcome::Granted(SlotKey { slab: 0, slot: 0 });
    let two = Shards::new(0, 2).unwrap();
    let each = Outcomes::Each(vec![
        Outcome::Present,
        Outcome::Present,
        Outcome::Present,
        granted,
        granted,
        granted,
        Outcome::Outranked,
        Outcome::Outranked,
        Outcome::NoSpace,
        Outcome::NoSpace,
    ]);
    assert_eq!(counts(&each, two), [5, 1, 2, 1], "the last one is declined");
    assert_eq!(each.granted().collect::<Vec<u32>>(), [3, 4, 5]);
    assert_eq!(counts(&Outcomes::AllPresent(6), two), [3, 3, 0, 0]);
    assert_eq!(counts(&Outcomes::AllDraining(6), two), [3, 0, 0, 0]);
    assert!(Outcomes::AllPresent(6).granted().next().is_none());
}
