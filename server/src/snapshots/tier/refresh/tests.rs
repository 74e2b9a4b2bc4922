//! What is known of the archive's directory, as bookmarks come, go, are damaged, are another tenant's, and find no room.

use super::*;
use crate::engine::lookup::{Lookup, PagesOf};
use crate::limits::ARCHIVE_TENANTS_MAX;
use crate::snapshots::testing::{Rig, chain, open_of_tenant, snapshot_of};
use turnkv_archive::{ObjectId, PageMark};
use turnkv_proto::BlockHash;

impl Rig {
    /// The directory is looked at.
    pub(in crate::snapshots::tier) async fn look(&self) {
        self.tier.refresh("").await.unwrap();
    }

    /// How many sessions of the tenant without a name were found to have no room.
    async fn unlisted(&self) -> usize {
        self.tier.known.lock().await.tenants.get("").map_or(0, |one| one.unlisted.len())
    }

    /// What is written while the store is away fails, and is the store's fault.
    async fn bookmark_fails(&self, name: &str) {
        let pages = chain(9, 1).iter().map(PageMark::of).collect();
        let bookmark = Bookmark { namespace: self.namespace, session: name.to_owned(), pages };
        assert!(self.directory.write(ObjectId::new(), &bookmark).await.is_err());
    }
}

#[tokio::test]
async fn what_other_servers_archive_is_known_after_a_look_and_what_they_delete_is_not() {
    let (rig, shared) = (Rig::new(), chain(1, 6));
    let (one, other) = (rig.bookmark("a", &shared[..4]).await, rig.bookmark("b", &shared).await);
    assert!(rig.known("a").is_none(), "nobody has looked");
    rig.look().await;
    assert_eq!(rig.known("a").unwrap().snapshot, snapshot_of(one));
    assert_eq!(rig.find(&shared[5]).map(|page| (page.snapshot, page.at)), Some((snapshot_of(other), 5)));
    rig.directory.retire(other).await.unwrap();
    rig.look().await;
    assert!(rig.known("b").is_none() && rig.find(&shared[5]).is_none());
    for (at, page) in shared[..4].iter().enumerate() {
        let found = rig.find(page).map(|page| (page.snapshot, page.at as usize));
        assert_eq!(found, Some((snapshot_of(one), at)), "the other session has it as well");
    }
    rig.directory.retire(one).await.unwrap();
    rig.look().await;
    assert!(rig.known("a").is_none() && shared.iter().all(|page| rig.find(page).is_none()));
}

#[tokio::test]
async fn a_session_that_went_on_from_other_pages_leaves_those_that_others_share_to_be_found() {
    let (rig, shared) = (Rig::new(), chain(1, 4));
    rig.bookmark("b", &shared).await;
    rig.bookmark("a", &shared).await;
    rig.look().await;
    // Both are told of once more, from other pages: first the one, then the other.
    for (name, seed) in [("b", 2), ("a", 3)] {
        let other = chain(seed, 3);
        let newer = rig.bookmark(name, &other).await;
        rig.look().await;
        assert_eq!(rig.known(name).unwrap().snapshot, snapshot_of(newer));
        assert!(other.iter().all(|page| rig.find(page).is_some()));
        let found = shared.iter().filter(|page| rig.find(page).is_some()).count();
        assert_eq!(found, if name == "b" { 4 } else { 0 }, "after {name} went on elsewhere");
    }
}

#[tokio::test]
async fn of_two_bookmarks_of_a_session_the_newest_counts_in_whichever_order_they_are_seen() {
    let (rig, older_pages, newer_pages) = (Rig::new(), chain(1, 2), chain(1, 5));
    let older = rig.bookmark("a", &older_pages).await;
    // Ids sort by their milliseconds: the newer one is of a later one.
    let newer_id = ObjectId([0xff; 16]);
    let marks = newer_pages.iter().map(PageMark::of).collect();
    let bookmark = Bookmark { namespace: rig.namespace, session: "a".to_owned(), pages: marks };
    let newer = ListedBookmark { name: bookmark.name(), snapshot: newer_id };
    assert!(rig.tier.learn(newer, bookmark), "there is room for it");
    rig.look().await;
    assert_eq!(rig.known("a").unwrap().snapshot, snapshot_of(newer), "the older one changes nothing");
    assert_eq!(rig.unlisted().await, 0, "what a newer one replaces lacks no room");
    rig.tier.look_again(snapshot_of(newer)).await;
    assert!(rig.known("a").is_none());
    rig.tier.look_again(snapshot_of(older)).await;
    rig.look().await;
    assert_eq!(rig.known("a").unwrap().snapshot, snapshot_of(older), "its manifest was not there after all");
}

#[tokio::test]
async fn sessions_that_find_no_room_are_counted_once_each_and_as_long_as_they_are_there() {
    let rig = Rig::new();
    rig.engine.archived.index.write().fill_but(5);
    let (first, second) = (rig.bookmark("a", &chain(1, 4)).await, rig.bookmark("b", &chain(2, 4)).await);
    for _ in 0..3 {
        rig.look().await;
        assert_eq!(rig.unlisted().await, 1, "one of two is known");
    }
    let unknown = if rig.known("a").is_none() { first } else { second };
    rig.tier.look_again(snapshot_of(unknown)).await;
    rig.look().await;
    assert_eq!(rig.unlisted().await, 1, "it is read again, and is the same one");
    rig.directory.retire(unknown).await.unwrap();
    rig.look().await;
    assert_eq!(rig.unlisted().await, 0, "it is not archived any more");
}

#[tokio::test]
async fn a_session_that_found_no_room_is_found_when_another_one_left() {
    let rig = Rig::new();
    rig.engine.archived.index.write().fill_but(5);
    let first = rig.bookmark("first", &chain(1, 4)).await;
    rig.look().await;
    rig.bookmark("waits", &chain(2, 4)).await;
    for _ in 0..2 {
        rig.look().await;
        assert!(rig.known("first").is_some() && rig.known("waits").is_none());
        assert_eq!(rig.unlisted().await, 1);
    }
    rig.directory.retire(first).await.unwrap();
    rig.look().await;
    assert!(rig.known("first").is_none() && rig.known("waits").is_some());
    assert_eq!(rig.unlisted().await, 0);
}

#[tokio::test]
async fn what_was_read_before_the_store_failed_is_found() {
    const SESSIONS: u32 = 20;
    let rig = Rig::new();
    let oldest = rig.bookmark("s0", &chain(0, 2)).await;
    for at in 1..SESSIONS {
        rig.bookmark(&format!("s{at}"), &chain(at, 2)).await;
    }
    // The newest are read first: when this one's turn comes, the store does not answer.
    let file = rig.snapshot_file(oldest);
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(file.file_name().unwrap(), &file).unwrap();
    let looked = rig.tier.refresh("").await;
    assert!(looked.is_err_and(|fault| is_of_store(&fault)), "it was away before the last was read");
    let known: Vec<u32> = (0..SESSIONS).filter(|at| rig.known(&format!("s{at}")).is_some()).collect();
    assert_eq!(known, (1..SESSIONS).collect::<Vec<_>>());
    for at in known {
        let pages = PagesOf::Hashes(chain(at, 2));
        let ask = Lookup { namespace: rig.namespace, pages, only_posts: false, only_here: false };
        assert_eq!(rig.engine.lookup(&ask).unwrap().present, 2, "turns find what is known");
    }
}

#[tokio::test]
async fn a_newer_snapshot_of_a_session_that_is_known_needs_no_more_room_than_it_takes() {
    let (rig, pages) = (Rig::new(), chain(1, 4));
    rig.engine.archived.index.write().fill_but(4);
    rig.bookmark("a", &pages).await;
    rig.look().await;
    assert!(rig.known("a").is_some());
    let marks = pages.iter().map(PageMark::of).collect();
    let bookmark = Bookmark { namespace: rig.namespace, session: "a".to_owned(), pages: marks };
    let newer = rig.directory.write(ObjectId([0xff; 16]), &bookmark).await.unwrap();
    rig.put_snapshot(newer);
    rig.look().await;
    assert_eq!(rig.known("a").unwrap().snapshot, snapshot_of(newer));
    assert_eq!(rig.unlisted().await, 0, "turns find it: it is not one that lacks room");
}

#[tokio::test]
async fn what_was_never_archived_to_its_end_is_not_found_and_hides_nothing_that_was() {
    let (rig, pages) = (Rig::new(), chain(1, 6));
    let older = rig.bookmark("a", &pages[..4]).await;
    let begun = rig.begin_to_archive("a", &pages).await;
    rig.look().await;
    assert_eq!(rig.known("a").unwrap().snapshot, snapshot_of(older));
    assert!(rig.find(&pages[5]).is_none(), "no lookup counts it");
    // It was only slow.
    rig.put_snapshot(begun);
    rig.look().await;
    assert_eq!(rig.known("a").unwrap().snapshot, snapshot_of(begun));
    assert!(rig.find(&pages[5]).is_some());
}

#[tokio::test]
async fn a_damaged_bookmark_hides_no_other_and_is_not_read_again_and_again() {
    let rig = Rig::new();
    let damaged = rig.bookmark("damaged", &chain(1, 3)).await;
    let file = rig.bookmark_file(damaged);
    std::fs::write(&file, b"{\"version\":1").unwrap();
    rig.bookmark("whole", &chain(2, 3)).await;
    rig.look().await;
    assert!(rig.known("damaged").is_none() && rig.known("whole").is_some());
    // Mended under its name, it would be found if it were read: it is, once somebody has it looked at again.
    let whole: Vec<BlockHash> = chain(1, 3);
    std::fs::remove_file(&file).unwrap();
    let marks = whole.iter().map(PageMark::of).collect();
    let bookmark = Bookmark { namespace: rig.namespace, session: "damaged".to_owned(), pages: marks };
    rig.directory.write(damaged.snapshot, &bookmark).await.unwrap();
    rig.look().await;
    assert!(rig.known("damaged").is_none(), "each is read once");
    rig.tier.look_again(snapshot_of(damaged)).await;
    rig.look().await;
    assert!(rig.known("damaged").is_some());
}

#[tokio::test]
async fn a_bookmark_that_names_another_tenants_session_is_left_alone() {
    let rig = Rig::new();
    let foreign = open_of_tenant(&rig.engine, "other");
    let pages = chain(1, 2);
    let marks = pages.iter().map(PageMark::of).collect();
    let bookmark = Bookmark { namespace: foreign, session: "a".to_owned(), pages: marks };
    rig.put_snapshot(rig.directory.write(ObjectId::new(), &bookmark).await.unwrap());
    rig.look().await;
    assert_eq!(rig.engine.archived.index.read().sessions(), 0);
    assert!(rig.engine.archived.index.read().find(&foreign, &pages[0]).is_none());
}

#[tokio::test]
async fn a_store_that_does_not_answer_takes_nothing_back_of_what_is_known() {
    let (rig, pages) = (Rig::new(), chain(1, 3));
    rig.bookmark("a", &pages).await;
    rig.look().await;
    rig.lose_store();
    rig.bookmark_fails("b").await;
    assert!(rig.tier.refresh("").await.is_err_and(|fault| is_of_store(&fault)));
    assert!(rig.known("a").is_some() && pages.iter().all(|page| rig.find(page).is_some()));
    rig.find_store();
    rig.look().await;
    assert!(rig.known("a").is_some() && pages.iter().all(|page| rig.find(page).is_some()));
}

#[tokio::test]
async fn no_more_tenants_are_looked_at_than_may_be_and_those_that_are_stay() {
    let rig = Rig::new();
    for at in 0..ARCHIVE_TENANTS_MAX + 3 {
        rig.tier.refresh(&format!("tenant-{at}")).await.unwrap();
    }
    let known = rig.tier.known.lock().await;
    assert_eq!(known.tenants.len(), ARCHIVE_TENANTS_MAX);
    assert!(known.tenants.contains_key("tenant-0"), "nobody makes way for another");
}
