//! The walk that finds what was left behind: it is begun, goes on, and begins anew, and none is forgotten.

use super::*;

fn at(place: u32) -> Sweep {
    Sweep { at: place, ..Sweep::default() }
}

#[test]
fn what_is_left_behind_while_a_walk_runs_is_found_by_another_one() {
    let mut behind = LeftBehind::default();
    assert!(!behind.is_any() && behind.take_walk(true).is_none());
    behind.find_again();
    let walk = behind.take_walk(false).map(|walk| walk.at);
    assert_eq!((walk, behind.take_walk(false).is_none()), (Some(0), true), "one walk at a time");
    behind.put_walk(at(70), false);
    behind.find_again(); // before the place where it is, perhaps
    assert_eq!(behind.take_walk(false).map(|walk| walk.at), Some(70), "it goes on first");
    behind.put_walk(at(100), true);
    assert_eq!((behind.is_any(), behind.take_walk(false).map(|walk| walk.at)), (true, Some(0)), "then anew");
    behind.put_walk(at(100), true);
    assert!(!behind.is_any(), "that was all");
}

#[test]
fn what_nvme_let_go_of_waits_for_room_and_is_looked_for_once() {
    let mut behind = LeftBehind::default();
    behind.wait_for_room();
    assert!(behind.is_any() && behind.take_walk(false).is_none(), "there is none yet");
    assert_eq!(behind.take_walk(true).map(|walk| walk.at), Some(0));
    behind.put_walk(at(9), true);
    assert!(!behind.is_any() && behind.take_walk(true).is_none());
    // While another walk is on its way, that one ends first.
    behind.find_again();
    behind.put_walk(at(5), false);
    behind.wait_for_room();
    assert_eq!(behind.take_walk(true).map(|walk| walk.at), Some(5));
    behind.put_walk(at(9), true);
    assert_eq!(behind.take_walk(false).map(|walk| walk.at), Some(0), "and then it begins anew");
}
