//! Stores that are slow, full, down, closed, or lie: each has an answer that says what to do, and costs nothing that was there.

use crate::shaky::{Rules, Shaky};
use crate::support::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_archive::{Archive, ArchiveSettings, CollectLimits, Error, Place, StoreSettings};

/// A snapshot, and pages that are not in it.
async fn prepared() -> (Shaky, Archive, turnkv_archive::Manifest, Vec<turnkv_archive::CapturedPage>) {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let pages = chain(&plain_header(), 1, 20);
    let manifest = capture(&archive, &plain_header(), &pages[..10]).await.unwrap();
    (store, archive, manifest, pages)
}

#[tokio::test]
async fn each_fault_has_its_kind_and_harms_nothing() {
    let (store, archive, manifest, pages) = prepared().await;
    let header = plain_header();
    store.tell(Rules { full: true, ..Rules::default() });
    let full = capture(&archive, &header, &pages).await;
    assert!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    assert_restores(&archive, manifest.id, &pages[..10]).await;
    store.tell(Rules { down: true, ..Rules::default() });
    let down = capture(&archive, &header, &pages).await;
    assert!(matches!(&down, Err(fault @ Error::Unreachable { .. }) if fault.may_pass()), "{down:?}");
    assert!(restore(&archive, manifest.id).await.is_err_and(|fault| fault.may_pass()));
    assert!(archive.collect(CollectLimits::default()).await.is_err_and(|fault| fault.may_pass()));
    assert!(archive.verify(None, |_| {}).await.is_err_and(|fault| fault.may_pass()));
    store.tell(Rules { denied: true, ..Rules::default() });
    let denied = restore(&archive, manifest.id).await;
    assert!(matches!(denied, Err(Error::CredentialsRefused { .. })), "{denied:?}");
    store.tell(Rules::default());
    let absent = archive.describe(turnkv_archive::ObjectId::new()).await;
    assert!(matches!(absent, Err(Error::NotFound { .. })), "{absent:?}");
    let second = capture(&archive, &header, &pages).await.unwrap();
    assert_restores(&archive, second.id, &pages).await;
}

/// Whoever goes on after an error is not given a snapshot with a hole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_that_failed_does_not_finish() {
    for fails_at in [3, 8, 15] {
        let (store, archive, _, pages) = prepared().await;
        let mut failing = archive.capture(plain_header()).await.unwrap();
        let mut failed = false;
        for (at, page) in pages.iter().enumerate() {
            store.tell(Rules { full: at == fails_at || at == fails_at + 1, ..Rules::default() });
            failed |= failing.page(page.clone()).await.is_err();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        store.tell(Rules::default());
        match failing.finish().await {
            Ok((manifest, _)) => {
                assert!(!failed);
                assert_restores(&archive, manifest.id, &pages).await;
            }
            Err(_) => assert_eq!(archive.list().await.unwrap().len(), 1),
        }
    }
}

/// Some stores fail where a range is longer than the object, and small packs are shorter than what is read of a pack's end.
#[tokio::test]
async fn a_store_that_fails_ranges_longer_than_an_object_has_all_that_was_archived() {
    let (store, _, manifest, pages) = prepared().await;
    let packs = store.names_with("/packs/").await;
    store.tell(Rules { short_sighted: true, ..Rules::default() });
    // What is known of packs is of the process; another one has to ask.
    let archive = open(&store).await.unwrap();
    assert_restores(&archive, manifest.id, &pages[..10]).await;
    assert_eq!(archive.verify(None, |_| {}).await.unwrap().faults.len(), 0);
    let asked = |what: &str| {
        let pack =
            |one: &&String| one.starts_with(what) && packs.iter().any(|pack| one.ends_with(pack.as_str()));
        store.requests().iter().filter(pack).count()
    };
    assert!(
        asked("head") > 0,
        "no pack here was shorter than what is read of its end: {:?}",
        store.requests()
    );
    let second = capture(&archive, &plain_header(), &pages).await.unwrap();
    assert_restores(&open(&store).await.unwrap(), second.id, &pages).await;
    // One that is not there is not there, whatever a store says of ranges.
    for pack in &packs {
        store.delete(pack).await;
    }
    let gone = restore(&open(&store).await.unwrap(), manifest.id).await;
    assert!(gone.as_ref().is_err_and(|fault| !fault.may_pass()), "{gone:?}");
}

#[tokio::test]
async fn a_slow_store_is_given_up_in_bounded_time() {
    let (store, _, manifest, _) = prepared().await;
    let timed = ArchiveSettings {
        store: StoreSettings { request_timeout: Duration::from_millis(100), retries_max: 2, requests_max: 4 },
        ..settings()
    };
    let place = Place::Other(Arc::new(store.clone()));
    let archive = Archive::open(&place, "tenant", timed).await.unwrap();
    store.tell(Rules { delay: Some(Duration::from_secs(30)), ..Rules::default() });
    let began = Instant::now();
    let slow = restore(&archive, manifest.id).await;
    assert!(matches!(slow, Err(Error::Unreachable { .. })), "{slow:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(store.requests().len(), 3, "one try and two more");
    store.tell(Rules { delay: Some(Duration::from_millis(20)), ..Rules::default() });
    assert!(restore(&archive, manifest.id).await.is_ok());
}

#[tokio::test]
async fn a_store_that_says_it_wrote_what_it_did_not_is_caught_before_the_manifest() {
    let (store, archive, _, pages) = prepared().await;
    store.tell(Rules { forgets: Some("/packs/"), ..Rules::default() });
    let lied = capture(&archive, &plain_header(), &pages).await;
    assert!(matches!(lied, Err(Error::NotFound { .. })), "{lied:?}");
    store.tell(Rules::default());
    assert_eq!(archive.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_store_that_is_not_sure_whether_a_name_is_taken_is_asked_again() {
    let (store, _, _, pages) = prepared().await;
    let patient =
        ArchiveSettings { store: StoreSettings { retries_max: 3, ..settings().store }, ..settings() };
    let place = Place::Other(Arc::new(store.clone()));
    let archive = Archive::open(&place, "tenant", patient).await.unwrap();
    store.tell(Rules { pretends: 2, ..Rules::default() });
    let manifest = capture(&archive, &plain_header(), &pages).await.unwrap();
    assert_restores(&archive, manifest.id, &pages).await;
    store.tell(Rules { pretends: 100, ..Rules::default() });
    let refused = capture(&archive, &plain_header(), &chain(&plain_header(), 9, 9)).await;
    assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
}

/// An answer that is damaged says nothing of the object: it is read again, and only what is so twice counts as damaged.
#[tokio::test]
async fn an_answer_that_is_damaged_once_costs_nothing() {
    for what in ["/packs/", "/manifests/"] {
        let (store, _, manifest, pages) = prepared().await;
        store.tell(Rules { garbles: Some((what, 1)), ..Rules::default() });
        let archive = open(&store).await.unwrap();
        assert_restores(&archive, manifest.id, &pages[..10]).await;
        store.tell(Rules { garbles: Some((what, 1)), ..Rules::default() });
        assert_restores(&archive, manifest.id, &pages[..10]).await;
        store.tell(Rules { garbles: Some((what, 1)), ..Rules::default() });
        assert_eq!(archive.verify(None, |_| {}).await.unwrap().faults_found, 0, "{what}");
    }
}

/// Nor is an archive spoiled until its process ends when a store tells nonsense for a while.
#[tokio::test]
async fn a_pack_whose_index_was_damaged_is_found_when_it_is_good_again() {
    let (store, _, manifest, pages) = prepared().await;
    store.tell(Rules { garbles: Some(("/packs/", u32::MAX)), ..Rules::default() });
    let archive = open(&store).await.unwrap();
    let damaged = restore(&archive, manifest.id).await;
    assert!(matches!(damaged, Err(Error::Damaged { .. })), "{damaged:?}");
    store.tell(Rules::default());
    assert_restores(&archive, manifest.id, &pages[..10]).await;
}

/// A list that leaves a manifest out once makes its blobs look useless: they survive, because nothing goes that was not looked at
/// again a grace time later.
#[tokio::test]
async fn a_list_that_lies_once_costs_nothing() {
    for lie_at in 0..3 {
        let (store, archive, manifest, pages) = prepared().await;
        for round in 0..6 {
            store.pass(GRACE * 2);
            let hides = (round == lie_at).then_some("/manifests/");
            store.tell(Rules { hides, ..Rules::default() });
            archive.collect(CollectLimits::default()).await.unwrap();
            store.tell(Rules::default());
            assert_restores(&archive, manifest.id, &pages[..10]).await;
        }
        assert_restores(&open(&store).await.unwrap(), manifest.id, &pages[..10]).await;
        assert!(store.names_with("/condemned/").await.is_empty());
    }
}

/// Packs that are condemned and needed after all are moved for a fork, too.
#[tokio::test]
async fn a_fork_needs_nothing_that_is_condemned() {
    let (store, archive, manifest, pages) = prepared().await;
    store.pass(GRACE * 2);
    store.tell(Rules { hides: Some("/manifests/"), ..Rules::default() });
    let condemned = archive.collect(CollectLimits::default()).await.unwrap().packs_condemned;
    assert!(condemned > 0);
    store.tell(Rules::default());
    let fork = archive.fork(manifest.id, "session", turnkv_archive::Cut::Pages(7), "fork").await.unwrap();
    assert!(!fork.packs.is_empty() && fork.packs.iter().all(|pack| !manifest.packs.contains(pack)));
    assert_restores(&archive, fork.id, &pages[..7]).await;
    // Nor does a capture reuse it.
    let again = capture(&archive, &plain_header(), &pages[..10]).await.unwrap();
    assert!(again.packs.iter().all(|pack| !manifest.packs.contains(pack)));
    archive.delete(manifest.id).await.unwrap();
    for _ in 0..3 {
        store.pass(GRACE * 2);
        archive.collect(CollectLimits::default()).await.unwrap();
    }
    assert_restores(&archive, fork.id, &pages[..7]).await;
    assert_restores(&archive, again.id, &pages[..10]).await;
}

#[tokio::test]
async fn bad_settings_are_refused() {
    let place = Place::Other(Arc::new(Shaky::new()));
    let cases = [
        ArchiveSettings { pack_bytes: 1, ..settings() },
        ArchiveSettings { pack_bytes: 65 << 20, ..settings() },
        ArchiveSettings { grace: Duration::ZERO, ..settings() },
        ArchiveSettings { compression: Some(turnkv_archive::Compression::Zstd(23)), ..settings() },
        ArchiveSettings { store: StoreSettings { requests_max: 0, ..settings().store }, ..settings() },
        ArchiveSettings { store: StoreSettings { retries_max: 99, ..settings().store }, ..settings() },
    ];
    for case in cases {
        let refused = Archive::open(&place, "tenant", case.clone()).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{case:?}");
    }
}

#[tokio::test]
async fn s3_opens_with_an_endpoint_of_ones_own() {
    let place = Place::S3 {
        bucket: "bucket".to_owned(),
        prefix: "some/where".to_owned(),
        endpoint: Some("http://127.0.0.1:9".to_owned()),
        region: Some("eu-central-1".to_owned()),
        conditional_puts: true,
    };
    let hurried = ArchiveSettings {
        store: StoreSettings { request_timeout: Duration::from_secs(3), retries_max: 1, requests_max: 2 },
        ..settings()
    };
    // Nobody listens there: the store is unreachable, in bounded time, and says where.
    let refused = Archive::open(&place, "tenant", hurried).await;
    let Err(fault) = refused else { panic!("nobody is there") };
    assert!(matches!(fault, Error::Unreachable { .. } | Error::CredentialsRefused { .. }), "{fault:?}");
}
