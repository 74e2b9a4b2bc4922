//! Which pages are found, against a plain list of the sessions that are archived: whatever was put, replaced and forgotten.

use super::*;

fn session(name: &str, snapshot: u8, pages: std::ops::Range<u8>) -> ArchivedSession {
    ArchivedSession {
        namespace: NamespaceId([1; 32]),
        session: SessionId::parse(name).unwrap(),
        snapshot: SnapshotName([snapshot; 16]),
        pages: pages.map(|at| mark_of(&BlockHash([at; 32]))).collect(),
    }
}

fn find(index: &ArchivedIndex, page: u8) -> Option<(u8, u32)> {
    let found = index.find(&NamespaceId([1; 32]), &BlockHash([page; 32]))?;
    Some((found.snapshot.0[0], found.at))
}

#[test]
fn pages_are_found_while_any_session_has_them() {
    let mut index = ArchivedIndex::default();
    assert!(index.put(session("a", 1, 0..4)) && index.put(session("b", 2, 0..2)));
    assert_eq!((find(&index, 0), find(&index, 3), find(&index, 4)), (Some((2, 0)), Some((1, 3)), None));
    assert!(index.find(&NamespaceId([2; 32]), &BlockHash([0; 32])).is_none());
    assert!(index.put(session("a", 3, 0..6)), "a newer snapshot of the same");
    assert!(!index.put(session("a", 1, 0..4)), "not an older one");
    assert_eq!((find(&index, 5), index.sessions(), index.pages()), (Some((3, 5)), 2, 8));
    let known = index.session(&NamespaceId([1; 32]), &SessionId::parse("a").unwrap()).unwrap();
    assert!(known.has(6, &BlockHash([5; 32])) && known.has(3, &BlockHash([2; 32])));
    assert!(!known.has(7, &BlockHash([6; 32])) && !known.has(6, &BlockHash([4; 32])));
    assert!(index.forget(SnapshotName([3; 16])) && !index.forget(SnapshotName([3; 16])));
    let map = index.map_pages();
    assert!(index.take_pages(map.clone()));
    assert!(index.put(session("c", 7, 9..10)) && !index.take_pages(map) && find(&index, 9).is_some());
    assert!(index.forget(SnapshotName([7; 16])));
    assert_eq!((find(&index, 0), find(&index, 2), index.pages()), (Some((2, 0)), None, 2));
    assert!(index.forget(SnapshotName([2; 16])) && index.by_page.is_empty() && index.by_name.is_empty());
}

/// What the index should know, as a list of sessions.
#[derive(Default)]
struct Plain(Vec<ArchivedSession>);

impl Plain {
    /// The same rules in plain words: of one name the newest snapshot counts.
    fn put(&mut self, session: &ArchivedSession) -> bool {
        let is_same = |one: &ArchivedSession| one.session == session.session;
        if self.0.iter().any(|one| is_same(one) && one.snapshot >= session.snapshot) {
            return false;
        }
        self.0.retain(|one| !is_same(one));
        self.0.push(session.clone());
        true
    }

    fn forget(&mut self, snapshot: SnapshotName) -> bool {
        let before = self.0.len();
        self.0.retain(|one| one.snapshot != snapshot);
        self.0.len() < before
    }

    fn has(&self, page: u8) -> bool {
        self.0.iter().any(|one| one.pages.contains(&mark_of(&BlockHash([page; 32]))))
    }
}

#[test]
fn a_page_is_found_where_it_is_whenever_some_session_has_it_whatever_came_and_went() {
    let mut replaced = 0;
    turnkv_mutate::each_seed(300, |random| {
        let (mut index, mut plain, mut next) = (ArchivedIndex::default(), Plain::default(), 1_u8);
        for _ in 0..40 {
            match random.below(3) {
                0 => {
                    let gone = SnapshotName([random.below(usize::from(next)) as u8; 16]);
                    assert_eq!(index.forget(gone), plain.forget(gone));
                    let map = index.map_pages();
                    assert!(index.take_pages(map) && !index.has_gaps(), "nothing changed meanwhile");
                }
                _ => {
                    let name = ["a", "b", "c", "d"][random.below(4)];
                    // Now and then one that was listed late: an older snapshot of a session that is known by a newer one.
                    let snapshot =
                        if random.one_in(4) { 1 + random.below(usize::from(next)) as u8 } else { next };
                    if plain.0.iter().any(|one| one.snapshot.0[0] == snapshot) {
                        continue;
                    }
                    next += 1;
                    let from = random.below(6) as u8;
                    let new = session(name, snapshot, from..from + 1 + random.below(6) as u8);
                    replaced += u32::from(plain.0.iter().any(|one| one.session == new.session));
                    assert_eq!(index.put(new.clone()), plain.put(&new));
                }
            }
            if index.has_gaps() {
                let map = index.map_pages();
                assert!(index.take_pages(map));
            }
            let pages: usize = plain.0.iter().map(|one| one.pages.len()).sum();
            assert_eq!((index.sessions(), index.pages()), (plain.0.len(), pages));
            for page in 0..14 {
                let found = find(&index, page);
                assert_eq!(found.is_some(), plain.has(page), "page {page}");
                let is_there = |(snapshot, at): (u8, u32)| {
                    let one = plain.0.iter().find(|one| one.snapshot.0[0] == snapshot);
                    one.is_some_and(|one| {
                        one.pages.get(at as usize) == Some(&mark_of(&BlockHash([page; 32])))
                    })
                };
                assert!(found.is_none_or(is_there), "page {page} is said to be where it is not: {found:?}");
            }
        }
    });
    assert!(replaced > 500, "only {replaced} were replaced: this proves little");
}

#[test]
fn a_full_index_takes_a_newer_snapshot_of_what_it_knows_and_no_more_than_may_be_known() {
    let mut index = ArchivedIndex::default();
    // One page over and over: it is the count that is bounded.
    let of = |name: &str, snapshot: u8, pages: usize| ArchivedSession {
        pages: vec![7; pages].into(),
        ..session(name, snapshot, 0..0)
    };
    index.fill_but(10);
    assert!(!index.has_room(11) && index.has_room(10));
    assert!(!index.put(of("a", 1, 11)), "one page more than there is room for");
    assert!(index.put(of("a", 1, 10)), "exactly as many");
    assert!(!index.put(of("b", 2, 1)));
    assert!(index.put(of("a", 3, 10)), "what it replaces makes room");
    assert_eq!((index.pages(), index.sessions()), (ARCHIVED_PAGES_MAX, 1));
    assert!(!index.put(of("a", 4, 11)), "it has grown by one: there is no room any more");
    let known = index.session(&NamespaceId([1; 32]), &SessionId::parse("a").unwrap());
    assert_eq!((known, index.pages()), (None, ARCHIVED_PAGES_MAX - 10), "an older one would be a lie");
}

#[test]
fn a_session_that_only_grew_leaves_no_gap_to_be_looked_for() {
    let mut index = ArchivedIndex::default();
    assert!(index.put(session("a", 1, 0..4)) && index.put(session("b", 2, 0..4)));
    assert!(index.put(session("a", 3, 0..6)) && !index.has_gaps(), "its pages are all there still");
    assert!(index.put(session("a", 4, 0..2)) && index.has_gaps(), "it is shorter");
    assert!(index.put(session("b", 5, 0..5)) && index.has_gaps(), "what was open stays open");
    let map = index.map_pages();
    assert!(index.take_pages(map) && !index.has_gaps());
    assert!((0..5).all(|page| find(&index, page).is_some()) && find(&index, 5).is_none());
}
