//! Snapshots that share: forks, two captures of the same pages at once, limits, memory, and anything beside collections.

use crate::shaky::{Rules, Shaky};
use crate::support::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turnkv_archive::{
    Archive, ArchiveSettings, CapturedPage, CollectLimits, Cut, Error, ObjectId, Place, Sequence, Split,
};
use turnkv_mutate::{Random, each_seed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_forks_of_ten_thousand_tokens_cost_less_than_a_hundredth() {
    let store = Shaky::new();
    let large = ArchiveSettings { pack_bytes: 4 << 20, ..settings() };
    let archive = Archive::open(&Place::Other(Arc::new(store.clone())), "tenant", large).await.unwrap();
    let header = header(1, 384 << 10, Split::by_layers(4, 384 << 10).unwrap());
    let tokens: Vec<u32> = (0..10_000).collect();
    let count = 10_000usize.div_ceil(16);
    let mut taken = archive.capture(header.clone()).await.unwrap();
    let mut random = Random::new(5);
    let mut first = None;
    for at in 0..count {
        let mut bytes = vec![0; 384 << 10];
        bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|chunk| *chunk = random.number().to_le_bytes());
        let shards = vec![bytes::Bytes::from(bytes)];
        let parent = at.checked_sub(1).map(|it| it as u32);
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(at as u64).to_le_bytes());
        let page = CapturedPage { hash: turnkv_proto::BlockHash(hash), parent, shards };
        first.get_or_insert(page.clone());
        taken.page(page).await.unwrap();
        // The pages ahead, and a pack: not the session.
        assert!(taken.held_bytes() < 12 << 20, "{}", taken.held_bytes());
    }
    taken.sequence(Sequence { tokens: Some(tokens.clone()), ..sequence(count, 16) });
    taken.sequence(Sequence { id: "other".to_owned(), ..sequence(3, 1) });
    let (session, counts) = taken.finish().await.unwrap();
    assert_eq!(counts.blobs_new, 2 * count as u64);
    let before: u64 = store.names().await.iter().map(|(_, bytes)| bytes).sum();
    let mut forks = Vec::new();
    for number in 0..10 {
        let cut = Cut::Tokens(10_000 - number * 7);
        forks.push(archive.fork(session.id, "session", cut, "fork").await.unwrap());
    }
    let after: u64 = store.names().await.iter().map(|(_, bytes)| bytes).sum();
    println!("ten forks: {} bytes beside {before}", after - before);
    assert!((after - before) * 100 < before, "{} bytes beside {before}", after - before);
    let last = &forks[9];
    assert_eq!(last.sequences[0].tokens.as_ref().unwrap(), &tokens[..10_000 - 63]);
    assert_eq!(last.sequences[0].last_page_tokens, (10_000 - 63) % 16);
    let whole = archive.fork(session.id, "session", Cut::Pages(count as u32), "fork").await.unwrap();
    assert_eq!(whole.sequences[0].last_page_tokens, session.sequences[0].last_page_tokens);
    let one = archive.fork(session.id, "session", Cut::Pages(1), "fork").await.unwrap();
    assert_restores(&archive, one.id, &[first.unwrap()]).await;
    for (sequence, cut) in
        [("session", Cut::Pages(0)), ("session", Cut::Tokens(10_001)), ("none", Cut::Pages(1))]
    {
        let refused = archive.fork(session.id, sequence, cut, "fork").await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    // The session goes, its forks stay.
    archive.delete(session.id).await.unwrap();
    for _ in 0..3 {
        store.pass(GRACE * 2);
        archive.collect(CollectLimits::default()).await.unwrap();
    }
    assert!(archive.verify(None, |_| {}).await.unwrap().faults.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_captures_of_the_same_pages_at_once_are_both_whole() {
    for seed in 0..8 {
        let store = Shaky::new();
        let header = plain_header();
        let pages = chain(&header, seed, 30);
        let archives = [open(&store).await.unwrap(), open(&store).await.unwrap()];
        let captures = archives.iter().map(|archive| capture(archive, &header, &pages));
        let done = futures_util::future::join_all(captures).await;
        for (archive, manifest) in archives.iter().zip(&done) {
            assert_restores(archive, manifest.as_ref().unwrap().id, &pages).await;
        }
        let both = store.bytes_with("/packs/").await;
        for _ in 0..3 {
            store.pass(GRACE * 2);
            archives[1].collect(CollectLimits::default()).await.unwrap();
        }
        let one = store.bytes_with("/packs/").await;
        assert!(one <= both && one < 130_000, "what was there twice went: {both}, then {one}");
        for (archive, manifest) in archives.iter().zip(&done) {
            assert_restores(archive, manifest.as_ref().unwrap().id, &pages).await;
        }
    }
}

#[tokio::test]
async fn a_capture_that_takes_too_long_does_not_finish() {
    let store = Shaky::new();
    let brief = ArchiveSettings { grace: Duration::from_secs(1), ..settings() };
    let archive = Archive::open(&Place::Other(Arc::new(store.clone())), "tenant", brief).await.unwrap();
    let mut slow = archive.capture(plain_header()).await.unwrap();
    for page in chain(&plain_header(), 1, 5) {
        slow.page(page).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(800)).await;
    let late = slow.finish().await;
    assert!(matches!(late, Err(Error::TooLate { .. })), "{late:?}");
    assert!(archive.list().await.unwrap().is_empty());
}

/// A store that is slower than pages come holds the capture up, whatever is behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_store_is_not_flooded() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    store.tell(Rules { delay: Some(Duration::from_millis(10)), ..Rules::default() });
    let mut slow = archive.capture(plain_header()).await.unwrap();
    let pages = chain(&plain_header(), 1, 300);
    for (at, page) in pages.iter().enumerate() {
        slow.page(page.clone()).await.unwrap();
        // Of what was taken all is written but two packs on their way, one being filled, one that waits, and the pages ahead.
        let held = (at as u64 + 1) * 4096 - store.bytes_with("/packs/").await.min((at as u64 + 1) * 4096);
        assert!(held < 5 * (16 << 10) + 5 * 4096, "{held} bytes at page {at}");
        assert!(slow.held_bytes() < 2 * (16 << 10) + 5 * 4096, "{}", slow.held_bytes());
    }
    assert!(store.writing_max() <= 2 * (17 << 10), "{} bytes in flight", store.writing_max());
    let (manifest, _) = slow.finish().await.unwrap();
    store.tell(Rules::default());
    assert_restores(&archive, manifest.id, &pages).await;
}

#[tokio::test]
async fn what_a_capture_reuses_is_named_first_and_kept() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let pages = chain(&plain_header(), 1, 12);
    let first = capture(&archive, &plain_header(), &pages).await.unwrap();
    store.pass(GRACE * 2);
    let mut second = archive.capture(plain_header()).await.unwrap();
    for page in &pages {
        second.page(page.clone()).await.unwrap();
    }
    assert_eq!(store.names_with("/intents/").await.len(), 1, "more pages than are hashed ahead");
    archive.delete(first.id).await.unwrap();
    let beside = archive.collect(CollectLimits::default()).await.unwrap();
    assert_eq!(beside.packs_deleted, 0);
    let named = store.read(&store.names_with("/intents/").await[0]).await;
    let kept = first.packs.iter().filter(|pack| String::from_utf8_lossy(&named).contains(&pack.to_string()));
    for pack in kept {
        assert!(store.names_with(&format!("condemned/{pack}")).await.is_empty(), "{pack} is intended");
    }
    second.sequence(sequence(12, 16));
    let (second, counts) = second.finish().await.unwrap();
    // The last pages were still being hashed: what the collection condemned of theirs is written anew.
    assert!(counts.blobs_new <= 8, "{counts:?}");
    for _ in 0..4 {
        assert_restores(&archive, second.id, &pages).await;
        store.pass(GRACE * 2);
        archive.collect(CollectLimits::default()).await.unwrap();
    }
    assert_restores(&open(&store).await.unwrap(), second.id, &pages).await;
}

#[tokio::test]
async fn limits_delete_the_oldest_first() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let mut ids = Vec::new();
    for seed in 0..5 {
        ids.push(capture(&archive, &plain_header(), &chain(&plain_header(), seed, 10)).await.unwrap().id);
        store.pass(GRACE);
    }
    let listed = || async { archive.list().await.unwrap().iter().map(|one| one.id).collect::<Vec<_>>() };
    let aged = CollectLimits { snapshot_age_max: Some(GRACE * 4 + GRACE / 2), ..CollectLimits::default() };
    assert_eq!(archive.collect(aged).await.unwrap().snapshots_deleted, 1);
    assert_eq!(listed().await, ids[1..]);
    let bytes = CollectLimits { stored_bytes_max: Some(3 * 40_960 + 100), ..CollectLimits::default() };
    let report = archive.collect(bytes).await.unwrap();
    assert_eq!((report.snapshots_deleted, report.snapshots), (1, 3));
    assert_eq!(listed().await, ids[2..]);
}

/// Places of blobs that there is no memory for are looked up when they are needed.
#[tokio::test]
async fn an_index_that_is_too_small_costs_no_page() {
    let store = Shaky::new();
    let tiny = ArchiveSettings { index_blobs_max: 10, ..settings() };
    let place = Place::Other(Arc::new(store.clone()));
    let pages = chain(&plain_header(), 1, 40);
    let first = capture(&open(&store).await.unwrap(), &plain_header(), &pages).await.unwrap();
    let archive = Archive::open(&place, "tenant", tiny).await.unwrap();
    assert_restores(&archive, first.id, &pages).await;
    let before = store.bytes_with("/packs/").await;
    let fork = archive.fork(first.id, "session", Cut::Pages(30), "fork").await.unwrap();
    assert_eq!(store.bytes_with("/packs/").await, before, "a fork moves nothing");
    assert_restores(&archive, fork.id, &pages[..30]).await;
}

/// What a model knows of snapshots, and who is at work since when.
#[derive(Default)]
struct Model {
    kept: HashMap<ObjectId, Vec<CapturedPage>>,
    working: HashMap<u64, Duration>,
    passed: Duration,
    next: u64,
}

type Shared = Arc<Mutex<Model>>;

fn begin(model: &Shared) -> u64 {
    let mut model = model.lock().unwrap();
    model.next += 1;
    let (next, passed) = (model.next, model.passed);
    model.working.insert(next, passed);
    next
}

fn end(model: &Shared, at: u64) {
    model.lock().unwrap().working.remove(&at);
}

/// Time passes, but nobody at work is later than it may be.
fn pass_time(model: &Shared, store: &Shaky, random: &mut Random) {
    let mut model = model.lock().unwrap();
    let oldest = model.working.values().min().copied().unwrap_or(model.passed);
    let most = (oldest + GRACE * 3 / 4).saturating_sub(model.passed);
    let step = most * random.below(101) as u32 / 100;
    model.passed += step;
    store.pass(step);
}

async fn capture_much(store: Shaky, model: Shared, mut random: Random) {
    let archive = open(&store).await.unwrap();
    let header = plain_header();
    for _ in 0..6 {
        // Few different pages: nearly everything was captured, deleted, or is condemned.
        let mut pages = chain(&header, random.below(3) as u64, 12);
        pages.truncate(1 + random.below(12));
        let at = begin(&model);
        let manifest = if random.one_in(3) && !model.lock().unwrap().kept.is_empty() {
            let known: Vec<_> =
                model.lock().unwrap().kept.iter().map(|(id, pages)| (*id, pages.clone())).collect();
            let (id, whole) = random.pick(&known).unwrap().clone();
            pages = whole[..1 + random.below(whole.len())].to_vec();
            let forked = archive.fork(id, "session", Cut::Pages(pages.len() as u32), "session").await;
            end(&model, at);
            match forked {
                Ok(manifest) => manifest,
                // Deleted meanwhile, and perhaps collected.
                Err(Error::NotFound { .. } | Error::Damaged { .. })
                    if !model.lock().unwrap().kept.contains_key(&id) =>
                {
                    continue;
                }
                Err(fault) => panic!("fork: {fault}"),
            }
        } else {
            let captured = capture(&archive, &header, &pages).await.unwrap();
            end(&model, at);
            captured
        };
        assert_restores(&archive, manifest.id, &pages).await;
        model.lock().unwrap().kept.insert(manifest.id, pages);
        if random.one_in(2) {
            let gone = model.lock().unwrap().kept.keys().next().copied();
            if let Some(gone) = gone {
                model.lock().unwrap().kept.remove(&gone);
                match archive.delete(gone).await {
                    Ok(()) | Err(Error::NotFound { .. }) => {}
                    Err(fault) => panic!("{fault}"),
                }
            }
        }
    }
}

async fn collect_much(store: Shaky, model: Shared, mut random: Random) {
    let archive = open(&store).await.unwrap();
    for _ in 0..10 {
        let at = begin(&model);
        let report = archive.collect(CollectLimits::default()).await.unwrap();
        end(&model, at);
        assert!(report.packs_damaged.is_empty(), "{report:?}");
        for _ in 0..3 {
            pass_time(&model, &store, &mut random);
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn captures_and_forks_beside_two_collections() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    each_seed(40, |random| {
        let (store, model) = (Shaky::new(), Shared::default());
        store.tell(Rules { dawdles: true, ..Rules::default() });
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..3 {
                tasks.spawn(capture_much(store.clone(), model.clone(), Random::new(random.number())));
            }
            for _ in 0..2 {
                tasks.spawn(collect_much(store.clone(), model.clone(), Random::new(random.number())));
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
            let archive = open(&store).await.unwrap();
            let kept = model.lock().unwrap().kept.clone();
            for (id, pages) in &kept {
                assert_restores(&archive, *id, pages).await;
            }
            for _ in 0..4 {
                store.pass(GRACE * 2);
                assert_eq!(archive.collect(CollectLimits::default()).await.unwrap().blobs_missing, 0);
            }
            let idle = archive.collect(CollectLimits::default()).await.unwrap();
            assert_eq!(idle.packs_condemned + idle.packs_deleted, 0, "{idle:?}");
            for (id, pages) in &kept {
                assert_restores(&archive, *id, pages).await;
            }
        });
    });
}
