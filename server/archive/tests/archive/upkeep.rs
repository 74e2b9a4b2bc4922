//! Collections and what they meet: damaged packs, small packs, captures that were dropped.

use crate::shaky::Shaky;
use crate::support::*;
use turnkv_archive::{Archive, CollectLimits, CollectReport, Error};

async fn collect(store: &Shaky, archive: &Archive) -> CollectReport {
    store.pass(GRACE * 2);
    archive.collect(CollectLimits::default()).await.unwrap()
}

#[tokio::test]
async fn a_pack_that_can_not_be_moved_stays_where_it_is() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let header = plain_header();
    let pages = chain(&header, 1, 12);
    let first = capture(&archive, &header, &pages[..8]).await.unwrap();
    let whole = capture(&archive, &header, &pages).await.unwrap();
    // One page of the last pack is needed, and damaged.
    let part = capture(&archive, &header, &pages[..9]).await.unwrap();
    archive.delete(whole.id).await.unwrap();
    let last = whole.packs.iter().find(|pack| !first.packs.contains(pack)).unwrap();
    let name = &store.names_with(&format!("packs/{last}")).await[0];
    let mut bytes = store.read(name).await;
    for at in (0..16 << 10).step_by(512) {
        bytes[at] ^= 1;
    }
    store.write(name, bytes).await;
    for _ in 0..4 {
        let report = collect(&store, &archive).await;
        assert_eq!(report.packs_damaged, [*last]);
        assert_eq!((report.packs_condemned, report.packs_deleted), (0, 0));
    }
    let read = restore(&archive, part.id).await;
    assert!(
        matches!(&read, Err(Error::Damaged { object, .. }) if object.contains(&last.to_string())),
        "{read:?}"
    );
    archive.delete(part.id).await.unwrap();
    archive.delete(first.id).await.unwrap();
    collect(&store, &archive).await;
    let report = collect(&store, &archive).await;
    assert!(report.packs_damaged.is_empty() && store.names_with("/packs/").await.is_empty(), "{report:?}");
}

#[tokio::test]
async fn a_pack_without_an_index_stays_while_a_blob_is_missing() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let manifest = capture(&archive, &plain_header(), &chain(&plain_header(), 1, 10)).await.unwrap();
    let name = &store.names_with(&format!("packs/{}", manifest.packs[0])).await[0];
    let whole = store.read(name).await;
    store.write(name, whole[..whole.len() - 10].to_vec()).await;
    let archive = open(&store).await.unwrap();
    for _ in 0..3 {
        let report = collect(&store, &archive).await;
        assert!(report.blobs_missing > 0 && report.packs_damaged == manifest.packs[..1], "{report:?}");
    }
    assert_eq!(store.names_with("/packs/").await.len(), manifest.packs.len());
    archive.delete(manifest.id).await.unwrap();
    collect(&store, &archive).await;
    collect(&store, &archive).await;
    assert!(store.names_with("/packs/").await.is_empty());
}

#[tokio::test]
async fn small_packs_are_merged_once() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let header = header(1, 1000, turnkv_archive::Split::Whole);
    let pages = chain(&header, 1, 40);
    let mut ids = Vec::new();
    // Each turn of a session leaves a pack of one page.
    for turn in 1..=pages.len() {
        ids.push(capture(&archive, &header, &pages[..turn]).await.unwrap().id);
    }
    assert_eq!(store.names_with("/packs/").await.len(), 40);
    let merged = collect(&store, &archive).await;
    assert_eq!(merged.packs_rewritten, 40);
    let after = collect(&store, &archive).await;
    assert_eq!((after.packs_rewritten, after.packs_deleted), (0, 40));
    assert!(store.names_with("/packs/").await.len() <= 3);
    let again = open(&store).await.unwrap();
    for (turn, id) in ids.iter().enumerate() {
        assert_restores(&archive, *id, &pages[..=turn]).await;
        assert_restores(&again, *id, &pages[..=turn]).await;
    }
    let idle = collect(&store, &archive).await;
    assert_eq!((idle.packs_condemned, idle.bytes_moved), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_that_is_dropped_leaves_nothing_in_the_end() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let pages = chain(&plain_header(), 1, 30);
    let kept = capture(&archive, &plain_header(), &pages[..8]).await.unwrap();
    for end in [1, 5, 9, 30] {
        let mut dropped = archive.capture(plain_header()).await.unwrap();
        for page in &pages[..end] {
            dropped.page(page.clone()).await.unwrap();
        }
    }
    assert_eq!(archive.list().await.unwrap().len(), 1);
    for _ in 0..3 {
        collect(&store, &archive).await;
    }
    let names: Vec<String> = store.names().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 2 + kept.packs.len(), "the archive, a manifest, and its packs: {names:?}");
    assert_restores(&archive, kept.id, &pages[..8]).await;
}

#[tokio::test]
async fn bad_pages_are_refused_by_their_number() {
    let archive = open(&Shaky::new()).await.unwrap();
    let pages = chain(&plain_header(), 1, 3);
    let mut capture = archive.capture(plain_header()).await.unwrap();
    let refused = |refusal: Result<u32, Error>, wanted: &str| match refusal {
        Err(Error::Invalid { field, .. }) => assert_eq!(field, wanted),
        other => panic!("{other:?}"),
    };
    let mut short = pages[0].clone();
    short.shards[0] = short.shards[0].slice(1..);
    refused(capture.page(short).await, "pages[0].shards");
    let mut two = pages[0].clone();
    two.shards.push(two.shards[0].clone());
    refused(capture.page(two).await, "pages[0].shards");
    refused(capture.page(pages[1].clone()).await, "pages[0].parent");
    capture.page(pages[0].clone()).await.unwrap();
    capture.sequence(sequence(2, 16));
    let unfinished = capture.finish().await;
    assert!(
        matches!(&unfinished, Err(Error::Invalid { field, .. }) if field.contains("page_ixs")),
        "{unfinished:?}"
    );
    let none = archive.capture(plain_header()).await.unwrap().finish().await;
    assert!(matches!(none, Err(Error::Invalid { .. })), "{none:?}");
    assert!(archive.list().await.unwrap().is_empty());
}
