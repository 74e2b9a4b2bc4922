//! The directory of archived sessions: what is written is found by others, and collections keep it in order.

use crate::shaky::Shaky;
use crate::support::*;
use std::sync::Arc;
use turnkv_archive::{
    Archive, Bookmark, CapturedPage, CollectLimits, Cut, Directory, Error, ListedBookmark, Manifest,
    ObjectId, PageMark, Place, Sequence, SessionName, StoreSettings,
};
use turnkv_proto::NamespaceId;

fn directory(store: &Shaky) -> Directory {
    let place = Place::Other(Arc::new(store.clone()));
    let settings = StoreSettings { retries_max: 0, ..StoreSettings::default() };
    Directory::open(&place, "tenant", settings).unwrap()
}

fn bookmark(session: &str, pages: &[CapturedPage]) -> Bookmark {
    let pages = pages.iter().map(|page| PageMark::of(&page.hash)).collect();
    Bookmark { namespace: NamespaceId([7; 32]), session: session.to_owned(), pages }
}

/// A session archived as a server does it: the bookmark, then the manifest.
async fn keep(store: &Shaky, archive: &Archive, session: &str, pages: &[CapturedPage]) -> Manifest {
    let mut taken = archive.capture(plain_header()).await.unwrap();
    for page in pages {
        taken.page(page.clone()).await.unwrap();
    }
    directory(store).write(taken.id(), &bookmark(session, pages)).await.unwrap();
    taken.mark_bookmarked();
    taken.sequence(Sequence { id: session.to_owned(), ..sequence(pages.len(), 16) });
    taken.finish().await.unwrap().0
}

#[tokio::test]
async fn a_session_is_found_by_its_name_and_only_there() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let pages = chain(&plain_header(), 1, 10);
    let (one, other) =
        (keep(&store, &archive, "one", &pages).await, keep(&store, &archive, "other", &pages[..4]).await);
    let directory = directory(&store);
    let name = SessionName::of(&NamespaceId([7; 32]), "one");
    let found = directory.list_of(name).await.unwrap();
    assert_eq!(found, [ListedBookmark { name, snapshot: one.id }]);
    assert_eq!(directory.read(found[0]).await.unwrap(), bookmark("one", &pages));
    assert_eq!(directory.list().await.unwrap().len(), 2);
    let elsewhere = SessionName::of(&NamespaceId([8; 32]), "one");
    assert!(directory.list_of(elsewhere).await.unwrap().is_empty());
    // One that stands in another session's folder is not believed.
    let wrong = ListedBookmark { name: SessionName::of(&NamespaceId([7; 32]), "other"), snapshot: one.id };
    assert!(matches!(directory.read(wrong).await, Err(Error::NotFound { .. })));
    directory.retire(found[0]).await.unwrap();
    assert!(directory.list_of(name).await.unwrap().is_empty());
    assert!(matches!(archive.describe(one.id).await, Err(Error::NotFound { .. })));
    assert_restores(&archive, other.id, &pages[..4]).await;
}

/// A session whose bookmark does not say what its snapshot has is a miss: whoever verifies is told.
#[tokio::test]
async fn verify_names_bookmarks_that_are_not_what_was_written() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let pages = chain(&plain_header(), 1, 10);
    let one = keep(&store, &archive, "one", &pages).await;
    let other = keep(&store, &archive, "other", &pages[..4]).await;
    capture(&archive, &plain_header(), &pages[..2]).await.unwrap();
    assert_eq!(archive.verify(None, |_| {}).await.unwrap().faults_found, 0);
    let of = |manifest: &Manifest| format!("{}.json", manifest.id);
    let bookmarks = store.names_with("/sessions/").await;
    let place = bookmarks.iter().find(|name| name.ends_with(&of(&one))).unwrap();
    let elsewhere = bookmarks.iter().find(|name| name.ends_with(&of(&other))).unwrap();
    let whole = store.read(place).await;
    let mut wrong =
        vec![b"garbage".to_vec(), Vec::new(), whole[..whole.len() / 2].to_vec(), store.read(elsewhere).await];
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        wrong.push(flipped);
    }
    for text in wrong {
        store.write(place, text.clone()).await;
        let report = archive.verify(None, |_| {}).await.unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert_eq!((report.faults_found, report.snapshots), (1, 3), "{text}");
        let fault = &report.faults[0];
        assert!(fault.snapshot == one.id && fault.page.is_none(), "{text}: {fault:?}");
        assert!(fault.error.to_string().contains("bookmark"), "{text}: {fault:?}");
    }
    store.write(place, whole).await;
    assert_eq!(archive.verify(Some(one.id), |_| {}).await.unwrap().faults_found, 0);
}

/// It is found by its bookmark alone: whoever verifies is told that it is gone, and of no snapshot that never had one.
#[tokio::test]
async fn verify_misses_the_bookmark_of_an_archived_session_and_of_nothing_else() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let pages = chain(&plain_header(), 1, 10);
    let one = keep(&store, &archive, "one", &pages).await;
    capture(&archive, &plain_header(), &pages[..2]).await.unwrap();
    archive.fork(one.id, "one", Cut::Pages(3), "fork").await.unwrap();
    assert_eq!(archive.verify(None, |_| {}).await.unwrap().faults_found, 0);
    let bookmarks = store.names_with("/sessions/").await;
    store.delete(&bookmarks[0]).await;
    for which in [None, Some(one.id)] {
        let report = archive.verify(which, |_| {}).await.unwrap();
        assert_eq!((report.faults_found, report.faults[0].snapshot), (1, one.id));
        let text = report.faults[0].error.to_string();
        assert!(text.contains("bookmark of snapshot") && text.contains("it is gone"), "{text}");
    }
    assert_restores(&archive, one.id, &pages).await;
    // What is taken back as a whole is no fault.
    let other = keep(&store, &archive, "other", &pages).await;
    let at = ListedBookmark { name: bookmark("other", &pages).name(), snapshot: other.id };
    directory(&store).retire(at).await.unwrap();
    assert_eq!(archive.verify(None, |_| {}).await.unwrap().faults_found, 1, "the one that was gone");
}

#[tokio::test]
async fn collections_end_what_was_left_half_way_or_is_superseded() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let pages = chain(&plain_header(), 2, 20);
    let old = keep(&store, &archive, "talk", &pages[..8]).await;
    let new = keep(&store, &archive, "talk", &pages).await;
    let by_hand = capture(&archive, &plain_header(), &pages[..3]).await.unwrap();
    // A capture that never ended.
    directory(&store).write(ObjectId::new(), &bookmark("lost", &pages)).await.unwrap();
    let report = archive.collect(CollectLimits::default()).await.unwrap();
    assert_eq!((report.snapshots, report.snapshots_deleted), (2, 1), "the later turn counts");
    assert!(matches!(archive.describe(old.id).await, Err(Error::NotFound { .. })));
    assert_eq!(directory(&store).list().await.unwrap().len(), 2, "the lost one may be under way");
    store.pass(GRACE * 2);
    archive.collect(CollectLimits::default()).await.unwrap();
    let left = directory(&store).list().await.unwrap();
    assert_eq!(left.iter().map(|one| one.snapshot).collect::<Vec<_>>(), [new.id]);
    assert_restores(&archive, new.id, &pages).await;
    // Deleted by hand, its bookmark goes as well.
    archive.delete(new.id).await.unwrap();
    store.pass(GRACE * 2);
    archive.collect(CollectLimits::default()).await.unwrap();
    assert!(directory(&store).list().await.unwrap().is_empty());
    assert_restores(&archive, by_hand.id, &pages[..3]).await;
}

#[tokio::test]
async fn limits_on_sessions_let_other_snapshots_be() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let by_hand = capture(&archive, &plain_header(), &chain(&plain_header(), 1, 10)).await.unwrap();
    store.pass(GRACE);
    let mut kept = Vec::new();
    for seed in 2..6 {
        let pages = chain(&plain_header(), seed, 10);
        kept.push(keep(&store, &archive, &format!("talk {seed}"), &pages).await.id);
        store.pass(GRACE);
    }
    let left = async || {
        let mut ids: Vec<ObjectId> = archive.list().await.unwrap().iter().map(|one| one.id).collect();
        ids.retain(|id| *id != by_hand.id);
        ids
    };
    let sessions = CollectLimits { sessions_only: true, ..CollectLimits::default() };
    let aged = CollectLimits { snapshot_age_max: Some(GRACE * 3 + GRACE / 2), ..sessions };
    assert_eq!(archive.collect(aged).await.unwrap().snapshots_deleted, 1);
    assert_eq!(left().await, kept[1..]);
    // Room for two beside the one that stays.
    let bytes = CollectLimits { stored_bytes_max: Some(3 * 40_960 + 100), ..sessions };
    assert_eq!(archive.collect(bytes).await.unwrap().snapshots_deleted, 1);
    assert_eq!(left().await, kept[2..]);
    let none = CollectLimits { stored_bytes_max: Some(1), ..sessions };
    archive.collect(none).await.unwrap();
    assert!(left().await.is_empty() && directory(&store).list().await.unwrap().is_empty());
    assert_restores(&archive, by_hand.id, &chain(&plain_header(), 1, 10)).await;
}
