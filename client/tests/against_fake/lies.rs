//! Answers that no server gives: whatever is wrong with them, what is reported is right, and the next call works.

use crate::fake::{Fake, PAGE_BYTES, chain, open, spec};
use std::sync::atomic::Ordering;
use turnkv_client::{
    Client, ClientConfig, DataPlane, Decline, ErrorKind, MissCause, Namespace, OffloadOptions, OffloadReport,
    PageSource, PageTarget, ReloadOptions, ReloadReport,
};
use turnkv_proto::wire;

const PAGES: usize = 3;

/// A client whose breaker stays closed, whatever comes.
async fn patient(fake: &Fake, data_plane: DataPlane) -> (Client, Namespace) {
    let mut config = ClientConfig { data_plane, ..fake.config() };
    config.breaker.failures = 1_000;
    let client = Client::new(config).unwrap();
    let namespace = client.open_namespace(spec()).await.unwrap();
    (client, namespace)
}

async fn offload(namespace: &Namespace, seed: u32) -> turnkv_client::Result<OffloadReport> {
    let (hashes, pages) = chain(PAGES, seed);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&OffloadOptions::default(), &hashes, &sources).await
}

/// A reload, of which all that is reported is right.
async fn reload(namespace: &Namespace, seed: u32) -> turnkv_client::Result<ReloadReport> {
    let (hashes, pages) = chain(PAGES, seed);
    let mut back = vec![vec![0xEE; PAGE_BYTES]; PAGES];
    let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await?;
    assert_eq!(back[..report.pages], pages[..report.pages], "WRONG BYTES: {report:?}");
    Ok(report)
}

/// How many pages came and why no more, or that none did.
type Came = Result<(usize, Option<MissCause>), ErrorKind>;

fn came(report: turnkv_client::Result<ReloadReport>) -> Came {
    report.map(|report| (report.pages, report.miss)).map_err(|error| error.kind)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_counts_the_pages_before_an_answer_that_makes_no_sense() {
    let none = Err(ErrorKind::Internal);
    let one = Ok((1, Some(MissCause::Unavailable)));
    type Change = fn(&mut wire::BeginReloadReply);
    let table: [(&str, Change, Came); 12] = [
        ("pages in another order", |reply| reply.pages.swap(0, 1), none),
        ("a page twice", |reply| reply.pages.insert(1, reply.pages[0].clone()), one),
        ("a page beyond those asked for", |reply| reply.pages[1].index = 3, one),
        ("more covered than asked for", |reply| reply.covered = 4, none),
        ("a page without a slot", |reply| reply.pages[1].slot = None, one),
        ("a page of a cause that nobody knows", |reply| reply.pages[1].miss = 99, one),
        (
            "a slot that reaches past its slab",
            |reply| reply.pages[1].slot.as_mut().unwrap().offset += (64 - 1) * PAGE_BYTES as u64,
            one,
        ),
        (
            "pages of one another",
            |reply| (reply.pages[0].slot, reply.pages[1].slot) = (reply.pages[1].slot, reply.pages[0].slot),
            Ok((0, Some(MissCause::Checksum))),
        ),
        (
            "a miss, and a page behind it",
            |reply| reply.pages[1].miss = wire::MissCause::Io.into(),
            Ok((1, Some(MissCause::Io))),
        ),
        ("no time to copy", |reply| reply.lease_ms = 0, Ok((0, Some(MissCause::LeaseExpired)))),
        (
            "fewer than it covers",
            |reply| reply.pages.truncate(reply.pages.len() - 1),
            Ok((2, Some(MissCause::Busy))),
        ),
        ("nothing", |reply| reply.pages.clear(), Ok((0, Some(MissCause::Busy)))),
    ];
    let fake = Fake::start();
    let (_client, namespace) = patient(&fake, DataPlane::Shm).await;
    offload(&namespace, 1).await.unwrap();
    for (what, lie, expected) in table {
        *fake.core.script.lies.begin_reload.lock().unwrap() = Some(lie);
        assert_eq!(came(reload(&namespace, 1).await), expected, "{what}");
        *fake.core.script.lies.begin_reload.lock().unwrap() = None;
        assert_eq!(came(reload(&namespace, 1).await), Ok((3, None)), "after {what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_that_do_not_belong_end_a_reload_and_those_before_count() {
    let none = Err(ErrorKind::Internal);
    let late = Some(MissCause::Unavailable);
    let one = Ok((1, late));
    type Change = fn(&mut Vec<wire::ReloadReply>);
    // A page of the fake's comes in three pieces.
    let table: [(&str, Change, Came); 11] = [
        ("pieces in another order", |pieces| pieces.swap(0, 1), none),
        ("a piece twice", |pieces| pieces.insert(4, pieces[3].clone()), one),
        ("a piece that is missing", |pieces| drop(pieces.remove(4)), one),
        ("a piece of no bytes", |pieces| pieces[4].payload.clear(), one),
        ("a piece that is too long", |pieces| pieces[5].payload = vec![0; 1500].into(), one),
        ("the next page within a page", |pieces| pieces[1].index = 1, none),
        ("a page that was not asked for", |pieces| pieces[8].index = 3, Ok((2, late))),
        ("an end within a page", |pieces| pieces.truncate(5), one),
        ("another checksum", |pieces| pieces[3].checksum ^= 1, Ok((1, Some(MissCause::Checksum)))),
        (
            "an end after a page, and nothing of the rest",
            |pieces| pieces.truncate(if pieces.len() > 6 { 6 } else { 0 }),
            Ok((2, Some(MissCause::Busy))),
        ),
        (
            "more than was asked for",
            |pieces| pieces.push(wire::ReloadReply { index: 3, ..pieces[0].clone() }),
            Ok((3, late)),
        ),
    ];
    let fake = Fake::start();
    let (_client, namespace) = patient(&fake, DataPlane::Inline).await;
    offload(&namespace, 1).await.unwrap();
    for (what, lie, expected) in table {
        *fake.core.script.lies.pieces.lock().unwrap() = Some(lie);
        let found = reload(&namespace, 1).await;
        assert_eq!(came(found), expected, "{what}");
        *fake.core.script.lies.pieces.lock().unwrap() = None;
        assert_eq!(came(reload(&namespace, 1).await), Ok((3, None)), "after {what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offload_reports_no_page_as_kept_that_an_answer_leaves_in_doubt() {
    let none = Err(ErrorKind::Internal);
    type Change = fn(&mut wire::BeginOffloadReply);
    type Ended = Result<(usize, Option<Decline>), ErrorKind>;
    let table: [(&str, Change, Ended); 7] = [
        ("fewer outcomes", |reply| reply.outcomes.truncate(2), none),
        ("more outcomes", |reply| reply.outcomes.push(1), none),
        ("an outcome that nobody knows", |reply| reply.outcomes[1] = 99, none),
        ("an outcome of another call", |reply| reply.outcomes[1] = wire::OffloadOutcome::Stored.into(), none),
        ("fewer slots than granted", |reply| reply.slots.truncate(2), none),
        ("no lease", |reply| reply.lease = 0, none),
        ("no time to copy", |reply| reply.lease_ms = 0, Ok((0, Some(Decline::LeaseExpired)))),
    ];
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let fake = Fake::start();
        let (_client, namespace) = patient(&fake, plane).await;
        for (seed, (what, lie, expected)) in (0..).zip(table) {
            // Inline neither slots nor leases are the client's.
            if plane == DataPlane::Inline && seed > 3 {
                continue;
            }
            *fake.core.script.lies.begin_offload.lock().unwrap() = Some(lie);
            let report = offload(&namespace, seed).await;
            let found =
                report.map(|report| (report.stored, report.first_decline)).map_err(|error| error.kind);
            assert_eq!(found, expected, "{plane:?}: {what}");
            *fake.core.script.lies.begin_offload.lock().unwrap() = None;
            fake.core.pool.lock().unwrap().writes.clear(); // as time would, where the lease was not told
            assert_eq!(offload(&namespace, seed).await.unwrap().stored, PAGES, "{plane:?}: after {what}");
            assert_eq!(came(reload(&namespace, seed).await), Ok((3, None)), "{plane:?}: after {what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_the_commit_dropped_and_all_behind_it_are_declined() {
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let fake = Fake::start();
        let (_client, namespace) = patient(&fake, plane).await;
        *fake.core.script.lies.commit.lock().unwrap() = Some(|reply| reply.dropped = vec![2, 1]);
        let report = offload(&namespace, 1).await.unwrap();
        let expected = (1, 0, 2, Some(Decline::NoParent));
        assert_eq!((report.stored, report.present, report.declined, report.first_decline), expected);
        *fake.core.script.lies.commit.lock().unwrap() = Some(|reply| reply.dropped = vec![9]);
        let error = offload(&namespace, 2).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "{plane:?}: a page that was not offered");
        *fake.core.script.lies.commit.lock().unwrap() = Some(|reply| reply.durable = true);
        let report = offload(&namespace, 3).await.unwrap();
        assert!(!report.durable, "{plane:?}: it was not asked for");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_and_a_namespace_of_other_numbers_are_refused() {
    let fake = Fake::start();
    let (client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, _) = chain(5, 1);
    *fake.core.script.lies.lookup.lock().unwrap() = Some(|reply| reply.present = 6);
    assert_eq!(namespace.lookup(&hashes).await.unwrap_err().kind, ErrorKind::Internal);
    *fake.core.script.lies.lookup.lock().unwrap() = None;
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 0);
    type Change = fn(&mut wire::OpenNamespaceReply);
    let lies: [Change; 2] = [|reply| reply.shard_bytes += 1, |reply| reply.namespace = vec![1; 32].into()];
    for lie in lies {
        *fake.core.script.lies.namespace.lock().unwrap() = Some(lie);
        assert_eq!(client.open_namespace(spec()).await.unwrap_err().kind, ErrorKind::Internal);
    }
}

/// A pool of a large cluster asks for signposts once, and what it says of them changes nothing of the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signposts_are_told_once_and_the_answer_is_the_same() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, _) = chain(1000, 1);
    *fake.core.script.lies.lookup.lock().unwrap() = Some(|reply| reply.wants_posts = true);
    let posts = &fake.core.script.member.posts;
    for (present, told) in [(0, 1), (1, 1), (63, 1), (64, 1), (500, 1), (959, 1), (999, 0), (1000, 0)] {
        fake.core.pool.lock().unwrap().pages = hashes[..present].iter().map(|hash| (*hash, (0, 0))).collect();
        let before = fake.core.lookups.load(Ordering::SeqCst);
        assert_eq!(namespace.lookup(&hashes).await.unwrap(), present);
        assert_eq!(posts.swap(0, Ordering::SeqCst), told, "{present} of 1000");
        let rounds = fake.core.lookups.load(Ordering::SeqCst) - before;
        assert!(rounds <= 4, "{rounds} rounds for {present}");
    }
}
