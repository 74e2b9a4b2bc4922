//! Parts of snapshots: where forks may end, pages in any order, and what an archive settles when it is made.

use crate::shaky::Shaky;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use turnkv_archive::{
    Archive, ArchiveSettings, CapturedPage, CollectLimits, Cut, Error, Manifest, ObjectId, Place, Sequence,
};
use turnkv_mutate::{Random, each_seed};
use turnkv_proto::BlockHash;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A snapshot of pages that branch, with one of its branches as a sequence.
async fn branched(archive: &Archive, random: &mut Random) -> (Manifest, Vec<CapturedPage>) {
    let mut pages = chain(&plain_header(), random.number(), 1 + random.below(9));
    for (at, page) in pages.iter_mut().enumerate() {
        page.parent = if at == 0 || random.one_in(6) { None } else { Some(random.below(at) as u32) };
    }
    let mut branch = vec![random.below(pages.len()) as u32];
    while let Some(parent) = pages[branch[0] as usize].parent {
        branch.insert(0, parent);
    }
    let last_page_tokens = 1 + random.below(16) as u32;
    let count = (branch.len() as u32 - 1) * 16 + last_page_tokens;
    let tokens = random.one_in(2).then(|| (0..count).map(|token| token * 3).collect());
    let taken: Vec<CapturedPage> = branch.iter().map(|page| pages[*page as usize].clone()).collect();
    let mut capture = archive.capture(plain_header()).await.unwrap();
    for page in pages {
        capture.page(page).await.unwrap();
    }
    capture.sequence(Sequence { id: "branch".to_owned(), pages: branch, last_page_tokens, tokens });
    (capture.finish().await.unwrap().0, taken)
}

/// How many tokens a fork has that ends there; none: it ends nowhere.
fn tokens_until(cut: Cut, pages: u64, whole: u64) -> Option<u64> {
    let tokens = match cut {
        Cut::Pages(wanted) if u64::from(wanted) == pages => whole,
        Cut::Pages(wanted) => u64::from(wanted) * 16,
        Cut::Tokens(wanted) => wanted,
    };
    (1..=whole).contains(&tokens).then_some(tokens)
}

async fn check_cut(archive: &Archive, source: &Manifest, branch: &[CapturedPage], cut: Cut) {
    let from = &source.sequences[0];
    let whole = (branch.len() as u64 - 1) * 16 + u64::from(from.last_page_tokens);
    let forked = archive.fork(source.id, &from.id, cut, "fork").await;
    let Some(tokens) = tokens_until(cut, branch.len() as u64, whole) else {
        assert!(
            matches!(&forked, Err(Error::Invalid { field, .. }) if field == "cut"),
            "{cut:?}: {forked:?}"
        );
        return;
    };
    let fork = forked.unwrap_or_else(|fault| panic!("{cut:?} of {whole} tokens: {fault}"));
    let kept = tokens.div_ceil(16) as usize;
    let one = &fork.sequences[0];
    assert_eq!((fork.pages.len(), one.pages.len(), &*one.id), (kept, kept, "fork"), "{cut:?}");
    assert_eq!((one.pages.len() as u64 - 1) * 16 + u64::from(one.last_page_tokens), tokens, "{cut:?}");
    let ids = from.tokens.as_ref().map(|ids| &ids[..tokens as usize]);
    assert_eq!(one.tokens.as_deref(), ids, "{cut:?}");
    // It is a prompt of its own: each page follows the one before.
    let mut wanted = branch[..kept].to_vec();
    (0..kept).for_each(|at| wanted[at].parent = at.checked_sub(1).map(|before| before as u32));
    assert_restores(archive, fork.id, &wanted).await;
    assert_eq!(archive.describe(fork.id).await.unwrap(), fork);
    archive.delete(fork.id).await.unwrap();
}

#[test]
fn a_fork_ends_where_it_is_told_to_or_is_refused() {
    let runtime = runtime();
    each_seed(25, |random| {
        runtime.block_on(async {
            let archive = open(&Shaky::new()).await.unwrap();
            let (source, branch) = branched(&archive, random).await;
            let count = branch.len() as u32;
            let whole = u64::from((count - 1) * 16 + source.sequences[0].last_page_tokens);
            for pages in [0, 1, count - 1, count, count + 1, u32::MAX] {
                check_cut(&archive, &source, &branch, Cut::Pages(pages)).await;
            }
            let chance = random.below(200) as u64;
            for tokens in [0, 1, 15, 16, 17, whole - 1, whole, whole + 1, u64::MAX, chance] {
                check_cut(&archive, &source, &branch, Cut::Tokens(tokens)).await;
            }
        });
    });
}

/// What is behind a page that can not be read can still be read, and each page is the one that was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_come_in_the_order_asked_for_and_one_that_is_damaged_costs_itself_only() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    let pages = chain(&plain_header(), 4, 12);
    let manifest = Arc::new(capture(&archive, &plain_header(), &pages).await.unwrap());
    let asked = vec![11, 0, 5, 5, 12, usize::MAX, 3];
    let mut restore = archive.restore_pages(Arc::clone(&manifest), asked.clone()).await.unwrap();
    for wanted in asked.into_iter().filter(|ix| *ix < pages.len()) {
        let read = restore.next().await.unwrap().unwrap();
        assert!(read.ix as usize == wanted && read.shards == pages[wanted].shards, "page {wanted}");
    }
    assert!(restore.next().await.is_none());
    // The first blob of the first pack.
    let name = &store.names_with(&format!("packs/{}", manifest.packs[0])).await[0];
    let mut bytes = store.read(name).await;
    bytes[7] ^= 1;
    store.write(name, bytes).await;
    let mut restore = archive.restore(manifest.id).await.unwrap();
    let mut damaged = Vec::new();
    for (ix, page) in pages.iter().enumerate() {
        match restore.next().await.expect("one answer for each page") {
            Ok(read) => assert!(read.ix as usize == ix && read.shards == page.shards, "page {ix}"),
            Err(Error::Damaged { object, fault }) => {
                assert!(object.contains(&manifest.packs[0].to_string()), "{object}");
                assert!(fault.starts_with(&format!("page {ix}, shard 0, ")), "{fault}");
                damaged.push(ix);
            }
            Err(fault) => panic!("page {ix}: {fault}"),
        }
    }
    assert!(restore.next().await.is_none());
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    let report = archive.verify(Some(manifest.id), |_| {}).await.unwrap();
    assert_eq!((report.faults_found, report.faults[0].page), (1, Some(damaged[0] as u32)));
}

#[tokio::test]
async fn one_snapshot_that_is_not_there_is_a_fault_of_a_verification_of_it() {
    let archive = open(&Shaky::new()).await.unwrap();
    let id = ObjectId::new();
    let report = archive.verify(Some(id), |_| {}).await.unwrap();
    assert_eq!((report.snapshots, report.faults_found), (0, 1));
    assert!(report.faults[0].snapshot == id && matches!(report.faults[0].error, Error::NotFound { .. }));
}

async fn open_with(store: &Shaky, grace: Duration) -> Result<Archive, Error> {
    let settings = ArchiveSettings { grace, ..settings() };
    Archive::open(&Place::Other(Arc::new(store.clone())), "tenant", settings).await
}

/// Collections rest on all captures having the same time.
#[tokio::test]
async fn the_grace_time_is_the_one_that_the_archive_was_made_with() {
    let (store, hour) = (Shaky::new(), Duration::from_secs(3600));
    let (first, second) = (open_with(&store, GRACE).await.unwrap(), open_with(&store, hour).await.unwrap());
    assert_eq!((first.grace(), second.grace()), (GRACE, hour), "nobody made it yet");
    let pages = chain(&plain_header(), 1, 2);
    capture(&first, &plain_header(), &pages).await.unwrap();
    capture(&second, &plain_header(), &pages).await.unwrap();
    assert_eq!(second.grace(), GRACE, "who comes later has that of who was first");
    let third = open_with(&store, hour).await.unwrap();
    assert_eq!(third.grace(), GRACE);
    store.pass(GRACE + Duration::from_secs(1));
    for one in archive_ids(&third).await {
        third.delete(one).await.unwrap();
    }
    third.collect(CollectLimits::default()).await.unwrap();
    assert!(!store.names_with("/condemned/").await.is_empty(), "old by the archive's time, not by its own");
}

async fn archive_ids(archive: &Archive) -> Vec<ObjectId> {
    archive.list().await.unwrap().iter().map(|one| one.id).collect()
}

#[tokio::test]
async fn an_archive_whose_settled_words_are_damaged_is_not_opened() {
    let store = Shaky::new();
    let archive = open(&store).await.unwrap();
    capture(&archive, &plain_header(), &chain(&plain_header(), 1, 2)).await.unwrap();
    let name = &store.names_with("archive.json").await[0];
    let whole = String::from_utf8(store.read(name).await).unwrap();
    let grace = GRACE.as_millis().to_string();
    for (from, to) in [
        ("\"version\":1", "\"version\":2"),
        ("\"version\":1", "\"version\":1,\"more\":1"),
        (&*grace, "999"),
        (&*grace, "2592000001"),
        (&*grace, "18446744073709551615"),
        (&*grace, "-1"),
        ("}", ""),
        (&*whole, ""),
    ] {
        let changed = whole.replacen(from, to, 1);
        assert_ne!(changed, whole);
        store.write(name, changed.clone().into_bytes()).await;
        let refused = open(&store).await.err();
        let named = matches!(&refused, Some(Error::Damaged { object, .. }) if object == "archive.json");
        assert!(named, "{changed}: {refused:?}");
    }
    for allowed in ["1000", "2592000000"] {
        store.write(name, whole.replacen(&grace, allowed, 1).into_bytes()).await;
        assert_eq!(open(&store).await.unwrap().grace().as_millis().to_string(), allowed);
    }
}

/// What stays by a limit on bytes: the newest snapshots, as long as all their blobs together, each once, are within it.
fn within(bytes_max: u64, newest_first: &[(ObjectId, u64, usize)]) -> Vec<ObjectId> {
    let mut longest = std::collections::HashMap::new();
    let mut kept = Vec::new();
    for (id, seed, count) in newest_first {
        let before = longest.insert(*seed, *count).unwrap_or(0);
        longest.insert(*seed, before.max(*count));
        if longest.values().sum::<usize>() as u64 * 4096 > bytes_max {
            break;
        }
        kept.push(*id);
    }
    kept.sort();
    kept
}

#[test]
fn a_limit_on_bytes_counts_what_snapshots_share_once() {
    let runtime = runtime();
    each_seed(30, |random| {
        runtime.block_on(async {
            let store = Shaky::new();
            let archive = open(&store).await.unwrap();
            let mut snapshots = Vec::new();
            for _ in 0..6 {
                let (seed, count) = (random.below(2) as u64, 1 + random.below(5));
                let mut pages = chain(&plain_header(), seed, count);
                // The bytes of the first page come once more, under another name.
                let again = CapturedPage { hash: BlockHash([9; 32]), ..pages[0].clone() };
                pages.push(CapturedPage { parent: Some(count as u32 - 1), ..again });
                let id = capture(&archive, &plain_header(), &pages).await.unwrap().id;
                snapshots.insert(0, (id, seed, count));
                store.pass(Duration::from_secs(1));
            }
            // At a whole number of pages, or one byte less.
            let bytes_max = random.below(12) as u64 * 4096 + 4096 - random.below(2) as u64;
            let wanted = within(bytes_max, &snapshots);
            let limits = CollectLimits { stored_bytes_max: Some(bytes_max), ..CollectLimits::default() };
            let report = archive.collect(limits).await.unwrap();
            assert_eq!(archive_ids(&archive).await, wanted, "{bytes_max} bytes for {snapshots:?}");
            assert_eq!(report.snapshots_deleted as usize, snapshots.len() - wanted.len());
            assert_eq!(report.snapshots as usize, wanted.len());
            for (id, seed, count) in snapshots.iter().filter(|(id, ..)| wanted.contains(id)) {
                let read = restore(&archive, *id).await.unwrap();
                let pages = chain(&plain_header(), *seed, *count);
                assert!(read.iter().zip(&pages).all(|(read, page)| read.shards == page.shards));
                assert!(read.len() == count + 1 && read[*count].shards == pages[0].shards);
            }
        });
    });
}
