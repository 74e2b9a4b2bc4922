//! Tips: lists that end together, and where they end when pages go.

use super::*;

fn end(page: u32) -> PathEnd {
    PathEnd { page, pages: page + 1 }
}

/// Pages 0, 1, 2 .. hang on one another; the last one goes.
fn lift(tips: &mut Tips, page: u32) {
    tips.lift(page, if page == 0 { NONE } else { page - 1 });
}

#[test]
fn lists_that_end_at_one_page_share_a_tip() {
    let mut tips = Tips::default();
    let all: Vec<TipId> = (0..1_000).map(|_| tips.add(end(5), TipKeeper::Session)).collect();
    assert_eq!((tips.len(), tips.sessions_at(5)), (1, 1_000));
    all.into_iter().for_each(|tip| tips.drop(tip, TipKeeper::Session));
    assert_eq!((tips.len(), tips.sessions_at(5)), (0, 0));
}

#[test]
fn a_list_ends_at_the_page_before_one_that_goes() {
    let mut tips = Tips::default();
    let (long, short) = (tips.add(end(3), TipKeeper::Session), tips.add(end(1), TipKeeper::Protection));
    lift(&mut tips, 3);
    assert_eq!((tips.end(long), tips.sessions_at(2)), (end(2), 1));
    lift(&mut tips, 2);
    assert_eq!((tips.end(long), tips.end(short)), (end(1), end(1)));
    assert_eq!(tips.sessions_at(1), 1, "a protection is no session");
    tips.check(2).unwrap();
    lift(&mut tips, 1);
    lift(&mut tips, 0);
    assert_eq!((tips.end(long), tips.end(short)), (PathEnd::EMPTY, PathEnd::EMPTY));
    tips.drop(long, TipKeeper::Session);
    tips.drop(short, TipKeeper::Protection);
    assert_eq!(tips.len(), 0);
    tips.check(0).unwrap();
}

#[test]
fn a_list_is_few_steps_from_its_end_however_many_joined() {
    let mut tips = Tips::default();
    let lists: Vec<TipId> = (0..10_000).map(|page| tips.add(end(page), TipKeeper::Session)).collect();
    (1..10_000).rev().for_each(|page| lift(&mut tips, page));
    tips.check(lists.len()).unwrap();
    assert_eq!(tips.sessions_at(0), 10_000);
    for tip in &lists {
        let (mut steps, mut at) = (0, tip.0);
        while tips.table[at as usize].joined != NONE {
            (steps, at) = (steps + 1, tips.table[at as usize].joined);
        }
        assert!(steps <= 14, "{steps} steps");
    }
    lists.into_iter().for_each(|tip| tips.drop(tip, TipKeeper::Session));
    assert_eq!((tips.len(), tips.by_page.len()), (0, 0));
}
