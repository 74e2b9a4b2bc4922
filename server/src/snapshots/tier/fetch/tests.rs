//! Pages back from the archive: whole, parents first, and a miss of a known kind where the store or the snapshot is not as it
//! should be.

use super::*;
use crate::engine::archived::ArchivedSession;
use crate::engine::lookup::{Lookup, PagesOf};
use crate::snapshots::testing::{Rig, chain, files, open_of_tenant, session, snapshot_of};
use turnkv_archive::{Bookmark, ListedBookmark, PageMark, SessionName};

/// Two servers at one archive: the first one archived a session of these pages, the second one has nothing and has looked.
async fn archived(pages: &[BlockHash], tail_tokens: u32) -> (Rig, ListedBookmark) {
    let rig = Rig::new();
    rig.make("a", pages, tail_tokens).await;
    rig.archive("a").await;
    let rig = rig.another();
    rig.look().await;
    let listed = rig.directory.list_of(SessionName::of(&rig.namespace, "a")).await.unwrap();
    (rig, listed[0])
}

impl Rig {
    /// A lookup of these pages: so many are here, or will be.
    fn lookup(&self, hashes: &[BlockHash]) -> u32 {
        let pages = PagesOf::Hashes(hashes.to_vec());
        let ask = Lookup { namespace: self.namespace, pages, only_posts: false, only_here: false };
        self.engine.lookup(&ask).unwrap().present
    }

    /// What a lookup has asked for is brought, or not.
    async fn fetch_next(&self) {
        let fetch = self.engine.archived.next_fetch().expect("a lookup has asked for it");
        let under_way = UnderWay { tier: Arc::clone(&self.tier), fetch, is_avoided: true };
        Arc::clone(&self.tier).fetch(under_way).await;
    }

    fn is_trusted(&self) -> bool {
        self.engine.archived.is_trusted(self.engine.moment_after(Duration::ZERO))
    }
}

#[tokio::test]
async fn a_turn_of_another_server_finds_every_page_byte_for_byte() {
    let pages = chain(1, 9);
    let (rig, _) = archived(&pages, 5).await;
    assert_eq!((rig.here(&pages).await, rig.lookup(&pages)), (0, 9));
    rig.fetch_next().await;
    assert_eq!((rig.here(&pages).await, rig.engine.archived.next_fetch()), (9, None));
    assert_eq!(rig.lookup(&pages), 9);
    assert_eq!(rig.engine.archived.waiting_fetches(), 0, "what is here is not asked for");
}

#[tokio::test]
async fn only_what_is_not_here_travels_and_no_more_than_was_asked_for() {
    let pages = chain(1, 9);
    let (rig, _) = archived(&pages, 0).await;
    rig.store(&pages[..3], 0).await;
    assert_eq!(rig.lookup(&pages[..7]), 7);
    rig.fetch_next().await;
    assert_eq!(rig.here(&pages).await, 7, "the last two were not asked for");
    assert_eq!(rig.engine.stats().offloaded_pages, 7, "three were here, four came");
}

#[tokio::test]
async fn a_snapshot_whose_bytes_are_damaged_gives_no_wrong_page_and_is_left_alone_for_a_while() {
    let pages = chain(1, 6);
    let (rig, _) = archived(&pages, 0).await;
    let packs = files(&rig.place(), "pack");
    assert!(!packs.is_empty());
    for pack in packs {
        let mut bytes = std::fs::read(&pack).unwrap();
        let half = bytes.len() / 2;
        bytes.iter_mut().take(half).for_each(|byte| *byte ^= 0x5a);
        std::fs::write(&pack, bytes).unwrap();
    }
    assert_eq!(rig.lookup(&pages), 6);
    rig.fetch_next().await;
    let here = rig.here(&pages).await;
    assert_eq!(rig.lookup(&pages) as usize, here, "it is not told of again");
    assert!(here < 6 && rig.engine.archived.next_fetch().is_none() && rig.is_trusted());
}

#[tokio::test]
async fn a_snapshot_that_is_gone_is_forgotten_and_its_bookmark_looked_at_again() {
    let pages = chain(1, 3);
    let (rig, at) = archived(&pages, 0).await;
    let manifest = files(&rig.place(), &at.snapshot.to_string());
    let manifest = manifest.iter().find(|path| path.to_string_lossy().contains("manifest")).unwrap();
    let away = rig.place().join("away");
    std::fs::rename(manifest, &away).unwrap();
    assert_eq!(rig.lookup(&pages), 3);
    rig.fetch_next().await;
    assert!(rig.known("a").is_none() && rig.lookup(&pages) == 0 && rig.is_trusted());
    // It was one that was about to be written.
    std::fs::rename(&away, manifest).unwrap();
    rig.look().await;
    assert_eq!(rig.known("a").unwrap().snapshot, snapshot_of(at));
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_told_of_for_a_while_and_the_snapshot_is_not_blamed() {
    let pages = chain(1, 3);
    let (rig, at) = archived(&pages, 0).await;
    assert_eq!(rig.lookup(&pages), 3);
    let fetch = rig.engine.archived.next_fetch().unwrap();
    rig.lose_store();
    let under_way = UnderWay { tier: Arc::clone(&rig.tier), fetch, is_avoided: true };
    Arc::clone(&rig.tier).fetch(under_way).await;
    assert!(!rig.is_trusted() && rig.lookup(&pages) == 0, "turns go on without it");
    assert_eq!(rig.known("a").map(|one| one.snapshot), Some(snapshot_of(at)), "it is there for all that");
    rig.find_store();
    rig.engine.archived.distrust(0);
    assert_eq!(rig.lookup(&pages), 3, "nobody avoids it");
    rig.fetch_next().await;
    assert_eq!(rig.here(&pages).await, 3);
}

#[tokio::test]
async fn a_bookmark_that_names_a_snapshot_of_another_namespace_brings_nothing_into_this_one() {
    let pages = chain(1, 3);
    let (rig, at) = archived(&pages, 0).await;
    let other = crate::engine::testing::open(&rig.engine, "another model", 4096);
    let one = ArchivedSession {
        namespace: other,
        session: session("b"),
        snapshot: snapshot_of(at),
        pages: pages.iter().map(|page| PageMark::of(page).0).collect(),
    };
    rig.engine.archived.index.write().forget(snapshot_of(at));
    assert!(rig.engine.archived.index.write().put(one));
    let asks = |namespace| Lookup {
        namespace,
        pages: PagesOf::Hashes(pages.clone()),
        only_posts: false,
        only_here: false,
    };
    assert_eq!(rig.engine.lookup(&asks(other)).unwrap().present, 3);
    rig.fetch_next().await;
    assert_eq!(rig.engine.lookup(&asks(other)).unwrap().present, 0, "it is avoided");
    assert_eq!(rig.engine.present_pages(&other, &pages).unwrap(), 0);
    let foreign = open_of_tenant(&rig.engine, "other");
    let fetch = Fetch { namespace: foreign, snapshot: snapshot_of(at), pages: 3 };
    assert!(rig.tier.fetch_pages(&fetch).await.is_err(), "nor has another tenant's archive the snapshot");
}

#[tokio::test]
async fn a_fetch_that_is_dropped_half_way_is_over_and_may_be_asked_for_again_later() {
    let pages = chain(1, 3);
    let (rig, _) = archived(&pages, 0).await;
    assert_eq!(rig.lookup(&pages), 3);
    let fetch = rig.engine.archived.next_fetch().unwrap();
    assert_eq!((rig.lookup(&pages), rig.engine.archived.waiting_fetches()), (3, 0), "it is under way");
    drop(UnderWay { tier: Arc::clone(&rig.tier), fetch, is_avoided: false });
    assert_eq!((rig.lookup(&pages), rig.engine.archived.waiting_fetches()), (3, 1), "it is asked for again");
}

#[tokio::test]
async fn a_session_whose_snapshot_has_fewer_pages_than_its_bookmark_says_comes_as_far_as_it_is_there() {
    let pages = chain(1, 5);
    let (rig, at) = archived(&pages[..3], 0).await;
    let marks: Vec<PageMark> = pages.iter().map(PageMark::of).collect();
    let longer = Bookmark { namespace: rig.namespace, session: "a".to_owned(), pages: marks };
    rig.tier.look_again(snapshot_of(at)).await;
    assert!(rig.tier.learn(at, longer));
    rig.tier.index_changed();
    assert_eq!(rig.lookup(&pages), 5);
    rig.fetch_next().await;
    assert_eq!(rig.here(&pages).await, 3);
}
