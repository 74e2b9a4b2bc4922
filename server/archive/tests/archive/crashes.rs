//! A process or its store dies at any request of any verb: no complete snapshot is lost, none is there that is not complete, and what
//! is left over goes.

use crate::shaky::{Death, Rules, Shaky};
use crate::support::*;
use std::collections::HashMap;
use std::path::PathBuf;
use turnkv_archive::{Archive, CapturedPage, CollectLimits, Cut, Error, ObjectId};

/// A store with snapshots in it, and what each must give back.
struct Scene {
    store: Shaky,
    kept: HashMap<ObjectId, Vec<CapturedPage>>,
    /// The first of them.
    first: ObjectId,
    pages: Vec<CapturedPage>,
}

/// Three snapshots that share a beginning; the second was deleted, and the packs are old.
async fn scene() -> Scene {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let header = plain_header();
    let pages = chain(&header, 1, 12);
    let others = chain(&header, 2, 11);
    let first = capture(&archive, &header, &pages[..6]).await.unwrap().id;
    let mixed = [&pages[..2], &others[2..]].concat();
    let second = capture(&archive, &header, &mixed).await.unwrap().id;
    // Of the second's packs a little is needed still.
    let mut third_pages = mixed[..3].to_vec();
    third_pages.extend_from_slice(&chain(&header, 3, 7)[3..]);
    let third = capture(&archive, &header, &third_pages).await.unwrap().id;
    archive.delete(second).await.unwrap();
    store.pass(GRACE * 2);
    let kept = HashMap::from([(first, pages[..6].to_vec()), (third, third_pages)]);
    Scene { store, kept, first, pages }
}

impl Scene {
    fn copy(&self) -> Scene {
        let (kept, pages) = (self.kept.clone(), self.pages.clone());
        Scene { store: self.store.copy(), kept, first: self.first, pages }
    }

    /// After a death: everything that is there is whole, and what must be there is.
    async fn check(&self, what: &str) -> Archive {
        self.store.tell(Rules::default());
        let archive = open(&self.store).await.unwrap();
        let report = archive.verify(None, |_| {}).await.unwrap();
        for fault in &report.faults {
            // A manifest of which half is there is refused, and can be deleted. Stores that write whole objects never have one.
            assert!(fault.page.is_none() && what.contains("Half"), "{what}: {fault:?}");
            archive.delete(fault.snapshot).await.unwrap();
        }
        for (id, pages) in &self.kept {
            assert_restores(&archive, *id, pages).await;
        }
        archive
    }

    /// Two grace times later nothing is there but what is needed.
    async fn check_collected(&self, archive: &Archive, what: &str) {
        for _ in 0..4 {
            self.store.pass(GRACE * 2);
            let report =
                archive.collect(CollectLimits::default()).await.unwrap_or_else(|it| panic!("{what}: {it}"));
            assert_eq!(report.blobs_missing, 0, "{what}");
        }
        let idle = archive.collect(CollectLimits::default()).await.unwrap();
        assert_eq!(idle.packs_condemned + idle.packs_deleted + idle.litter_deleted, 0, "{what}: {idle:?}");
        assert!(idle.packs_damaged.is_empty(), "{what}: {idle:?}");
        for word in ["/intents/", "/condemned/", "/collections/"] {
            assert_eq!(self.store.names_with(word).await, Vec::<String>::new(), "{what}");
        }
        // Not less than half of each pack is needed, beside its index.
        let bytes = self.store.bytes_with("/packs/").await;
        assert!(bytes <= 2 * idle.bytes_needed + 20_000, "{what}: {bytes} bytes for {}", idle.bytes_needed);
        self.check(&format!("{what}, collected")).await;
    }
}

/// Runs a verb that dies at its first, second, ... request, in every way, until it lives.
async fn die_everywhere<F: Future<Output = Result<(), Error>>>(
    verb: &str,
    scene: &Scene,
    act: impl Fn(Archive, Scene) -> F,
) {
    for death in [Death::Before, Death::After, Death::Half] {
        let mut lived = false;
        for at in 1..400 {
            let one = scene.copy();
            let archive = open(&one.store).await.unwrap();
            one.store.tell(Rules { dies_at: Some((at, death)), ..Rules::default() });
            let done = act(archive, one.copy_of_handles()).await;
            let died = one.store.requests().len() as u64 >= at;
            let what = format!("{verb}, {death:?} request {at}");
            let archive = one.check(&what).await;
            if at % 3 == 0 || !died {
                one.check_collected(&archive, &what).await;
            }
            if !died {
                done.unwrap_or_else(|fault| panic!("{what}: {fault}"));
                lived = true;
                break;
            }
        }
        assert!(lived, "{verb} has more requests than were tried");
    }
}

impl Scene {
    /// The same store, for the one who acts on it.
    fn copy_of_handles(&self) -> Scene {
        let (store, kept, pages) = (self.store.clone(), self.kept.clone(), self.pages.clone());
        Scene { store, kept, first: self.first, pages }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_dies_anywhere() {
    let scene = scene().await;
    die_everywhere("capture", &scene, |archive, scene| async move {
        capture(&archive, &plain_header(), &scene.pages).await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_dies_anywhere() {
    let scene = scene().await;
    die_everywhere("first collection", &scene, |archive, _| async move {
        let report = archive.collect(CollectLimits::default()).await?;
        assert!(report.packs_condemned > report.packs_rewritten && report.packs_rewritten > 0, "{report:?}");
        Ok(())
    })
    .await;
    let archive = open(&scene.store).await.unwrap();
    archive.collect(CollectLimits::default()).await.unwrap();
    scene.store.pass(GRACE * 2);
    die_everywhere("second collection", &scene, |archive, _| async move {
        let report = archive.collect(CollectLimits::default()).await?;
        assert!(report.packs_deleted > 0, "{report:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_dies_anywhere() {
    let scene = scene().await;
    die_everywhere("fork", &scene, |archive, scene| async move {
        archive.fork(scene.first, "session", Cut::Pages(3), "fork").await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_dies_anywhere() {
    let scene = scene().await;
    let elsewhere = Shaky::new();
    let archive = open(&elsewhere).await.unwrap();
    let manifest = capture(&archive, &plain_header(), &scene.pages).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let directory: PathBuf = dir.path().join("export");
    archive.export(manifest.id, &directory, 1).await.unwrap();
    die_everywhere("import", &scene, |archive, _| {
        let directory = directory.clone();
        async move { import(&archive, &directory).await.map(drop) }
    })
    .await;
}

#[tokio::test]
async fn an_archive_that_died_when_it_was_made_can_be_made() {
    for (at, death) in (1..8).flat_map(|at| [(at, Death::Before), (at, Death::After)]) {
        let store = Shaky::new();
        store.tell(Rules { dies_at: Some((at, death)), ..Rules::default() });
        drop(open(&store).await);
        store.tell(Rules::default());
        let archive = open(&store).await.unwrap();
        assert_eq!(archive.grace(), GRACE);
    }
}
