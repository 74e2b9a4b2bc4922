//! Objects that must be new, in a store that refuses to overwrite and in one that does not know how to.

use super::*;
use crate::error::Error;
use crate::id::ObjectId;
use bytes::Bytes;
use object_store::memory::InMemory;
use std::sync::Arc;

fn stores() -> [Store; 2] {
    let place = Place::Other(Arc::new(InMemory::new()));
    [true, false].map(|creates_only| {
        let mut store = Store::open(&place, StoreSettings::default(), "tenants/one").unwrap();
        store.set_creates_only(creates_only);
        store
    })
}

#[tokio::test]
async fn a_new_object_is_written_once() {
    for store in stores() {
        let key = Key::Of(Kind::Pack, ObjectId::new());
        let pieces = [Bytes::from_static(b"one "), Bytes::from_static(b"two")];
        store.put_new(key, &pieces).await.unwrap();
        assert_eq!(store.get(key, 100).await.unwrap(), "one two");
        // The same again is an earlier try that reached the store.
        store.put_new(key, &[Bytes::from_static(b"one two")]).await.unwrap();
        for other in ["one tw", "one two three", "two one", ""] {
            let refused = store.put_new(key, &[Bytes::from(other)]).await;
            assert!(matches!(refused, Err(Error::Exists { .. })), "{other}: {refused:?}");
        }
        assert_eq!(store.get(key, 100).await.unwrap(), "one two");
        let large = store.get(key, 6).await;
        assert!(matches!(large, Err(Error::TooLarge { got: 7, max: 6, .. })), "{large:?}");
        store.delete(key).await.unwrap();
        store.delete(key).await.unwrap();
        assert!(matches!(store.get(key, 100).await, Err(Error::NotFound { .. })));
    }
}

#[tokio::test]
async fn ranges_end_where_the_object_does() {
    let [store, _] = stores();
    let key = Key::Of(Kind::Pack, ObjectId::new());
    store.put(key, Bytes::from_static(b"0123456789")).await.unwrap();
    assert_eq!(store.get_range(key, 3..6).await.unwrap(), "345");
    for range in [8..11, 10..12, 50..60] {
        let refused = store.get_range(key, range.clone()).await;
        assert!(
            matches!(&refused, Err(Error::Damaged { fault, .. }) if fault.contains("10")),
            "{range:?}: {refused:?}"
        );
    }
    assert_eq!(store.get_tail(key, 4).await.unwrap(), (Bytes::from_static(b"6789"), 10));
    assert_eq!(store.get_tail(key, 40).await.unwrap().0.len(), 10);
}

#[tokio::test]
async fn lists_have_what_is_ours_in_the_order_of_ids() {
    let place = Place::Other(Arc::new(InMemory::new()));
    let store = Store::open(&place, StoreSettings::default(), "tenants/one").unwrap();
    let mut ids: Vec<ObjectId> = (0..20).map(|_| ObjectId::new()).collect();
    for id in ids.iter().rev() {
        store.put(Key::Of(Kind::Pack, *id), Bytes::from_static(b"x")).await.unwrap();
    }
    store.put(Key::Of(Kind::Manifest, ids[0]), Bytes::from_static(b"x")).await.unwrap();
    let Place::Other(inner) = &place else { panic!("it is") };
    for stray in ["tenants/one/packs/readme.txt", "tenants/one/packs/00.pack", "tenants/two/packs/0.pack"] {
        object_store::ObjectStoreExt::put(&**inner, &stray.into(), "x".into()).await.unwrap();
    }
    ids.sort();
    let listed = store.list(Kind::Pack).await.unwrap();
    assert_eq!(listed.iter().map(|one| one.id).collect::<Vec<_>>(), ids);
    assert!(store.list(Kind::Intent).await.unwrap().is_empty());
}

#[tokio::test]
async fn litter_goes_when_it_is_old_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::Directory(dir.path().to_owned());
    let store = Store::open(&place, StoreSettings::default(), "tenants/one").unwrap();
    let id = ObjectId::new();
    store.put(Key::Of(Kind::Pack, id), Bytes::from_static(b"x")).await.unwrap();
    let packs = dir.path().join("tenants/one/packs");
    for name in ["a.pack#1", "b.pack#22", "b.pack#x", "c.pack#"] {
        std::fs::write(packs.join(name), "half").unwrap();
    }
    assert_eq!(store.sweep_litter(0).await.unwrap(), 0, "nothing is so old");
    assert_eq!(store.sweep_litter(i64::MAX).await.unwrap(), 2);
    assert!(packs.join("b.pack#x").exists() && packs.join("c.pack#").exists());
    assert_eq!(store.list(Kind::Pack).await.unwrap().len(), 1);
}

/// Bookmarks are in folders of their own, one for each session.
#[tokio::test]
async fn litter_goes_from_the_folders_of_sessions_too() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        Store::open(&Place::Directory(dir.path().to_owned()), StoreSettings::default(), "tenants/one");
    let store = store.unwrap();
    let (name, id) = (crate::id::SessionName([7; 16]), ObjectId::new());
    let key = Key::Bookmark(name, id);
    store.put_new(key, &[Bytes::from_static(b"whole")]).await.unwrap();
    let folder = dir.path().join(format!("tenants/one/sessions/{name}"));
    let half = folder.join(format!("{}.json#1", ObjectId::new()));
    std::fs::write(&half, "ha").unwrap();
    assert_eq!(store.list_bookmarks(None).await.unwrap().len(), 1, "it is no bookmark yet");
    assert_eq!(store.sweep_litter(0).await.unwrap(), 0, "its writer may be at work");
    assert_eq!(store.sweep_litter(i64::MAX).await.unwrap(), 1);
    assert!(!half.exists() && store.get(key, 100).await.unwrap() == "whole");
}

#[tokio::test]
async fn a_place_that_names_nothing_plain_is_refused_and_nothing_is_read_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        Store::open(&Place::Directory(dir.path().to_owned()), StoreSettings::default(), "tenants/one");
    let (store, key) = (store.unwrap(), Key::Of(Kind::Pack, ObjectId::new()));
    store.put(key, Bytes::from_static(b"0123456789")).await.unwrap();
    let Key::Of(_, id) = key else { panic!("it is") };
    let file = dir.path().join(format!("tenants/one/packs/{id}.pack"));
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let answers = [
        store.get(key, 100).await.err(),
        store.get_range(key, 2..5).await.err(),
        store.get_tail(key, 4).await.err(),
        store.head(key).await.err(),
    ];
    for answer in answers {
        assert!(matches!(answer, Some(Error::Damaged { .. })), "{answer:?}");
    }
    // It is not written over either: whoever put it there may want it.
    let refused = store.put_new(key, &[Bytes::from_static(b"new")]).await;
    assert!(refused.is_err() && file.is_dir(), "{refused:?}");
}
