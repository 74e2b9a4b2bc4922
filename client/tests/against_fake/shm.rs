//! Offload, reload, lease and lookup through shared memory.

use crate::fake::{Fake, PAGE_BYTES, SLOTS, chain, eventually_async, open, spec};
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_client::{
    Client, DataPlane, Decline, ErrorKind, MissCause, NamespaceSpec, OffloadOptions, PageSource, PageTarget,
    ReloadOptions,
};

fn sources(pages: &[Vec<u8>]) -> Vec<PageSource<'_>> {
    pages.iter().map(|page| PageSource::Bytes(page)).collect()
}

fn targets(pages: &mut [Vec<u8>]) -> Vec<PageTarget<'_>> {
    pages.iter_mut().map(|page| PageTarget::Bytes(page)).collect()
}

fn blank(count: usize) -> Vec<Vec<u8>> {
    vec![vec![0xee; PAGE_BYTES]; count]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_in_comes_out() {
    let fake = Fake::start();
    let (client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(20, 1);
    let report = namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
    assert_eq!((report.stored, report.present, report.declined), (20, 0, 0));
    let again = namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
    assert_eq!((again.stored, again.present, again.first_decline), (0, 20, None));
    let mut back = blank(20);
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets(&mut back)).await.unwrap();
    assert_eq!((report.pages, report.from_dram, report.from_nvme, report.miss), (20, 10, 10, None));
    assert_eq!(back, pages);
    eventually_async("leases end", || fake.leases() == 0).await;
    assert_eq!(client.state().mapped_slabs, 1);
    assert!(fake.connections() <= 2, "one for operations, one for attaching");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_ends_at_the_first_absent_page() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(9, 1);
    namespace.offload(&OffloadOptions::default(), &hashes[..4], &sources(&pages[..4])).await.unwrap();
    let mut back = blank(9);
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets(&mut back)).await.unwrap();
    assert_eq!((report.pages, report.miss), (4, Some(MissCause::Absent)));
    assert_eq!(back[..4], pages[..4]);
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 4);
    assert_eq!(namespace.lookup(&[]).await.unwrap(), 0);
    let nothing = namespace.reload(&ReloadOptions::default(), &[], &mut []).await.unwrap();
    assert_eq!((nothing.pages, nothing.miss), (0, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_that_the_server_covers_add_up() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    fake.core.script.granted_max.store(3, Ordering::SeqCst);
    fake.core.script.covered_max.store(4, Ordering::SeqCst);
    let (hashes, pages) = chain(11, 5);
    let report = namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
    assert_eq!(
        (report.stored, report.declined),
        (11, 0),
        "each commit frees the leases that the next grant needs"
    );
    let mut back = blank(11);
    fake.core.script.page_frames.store(true, Ordering::SeqCst);
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets(&mut back)).await.unwrap();
    assert_eq!((report.pages, report.miss), (11, None));
    assert_eq!(back, pages);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_space_is_retried_within_the_wait_only() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(3, 1);
    fake.core.script.no_space.store(2, Ordering::SeqCst);
    let report = namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
    assert_eq!((report.stored, report.declined, report.first_decline), (0, 3, Some(Decline::NoSpace)));
    let patient = OffloadOptions { wait: Duration::from_secs(2), durable: true, ..OffloadOptions::default() };
    let report = namespace.offload(&patient, &hashes, &sources(&pages)).await.unwrap();
    assert_eq!((report.stored, report.first_decline, report.durable), (3, None, true));
    // Full: the wait ends, the answer is a decline.
    let (more, bytes) = chain(SLOTS, 2);
    let short = OffloadOptions { wait: Duration::from_millis(30), ..OffloadOptions::default() };
    let report = namespace.offload(&short, &more, &sources(&bytes)).await.unwrap();
    assert_eq!((report.stored, report.declined), (SLOTS - 3, 3));
    assert_eq!(report.first_decline, Some(Decline::NoSpace));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_without_its_parent_is_declined() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(3, 1);
    let options = OffloadOptions { parent: Some(hashes[0]), ..OffloadOptions::default() };
    let report = namespace.offload(&options, &hashes[1..], &sources(&pages[1..])).await.unwrap();
    assert_eq!((report.declined, report.first_decline), (2, Some(Decline::NoParent)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_does_not_verify_is_a_reported_miss() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(3, 1);
    namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
    fake.core.slot(fake.core.pool.lock().unwrap().pages[&hashes[1]].0).claim().unwrap().fill_at(77, b"x");
    let mut back = blank(3);
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets(&mut back)).await.unwrap();
    assert_eq!((report.pages, report.miss), (1, Some(MissCause::Checksum)));
    eventually_async("the pool hears of it", || fake.core.pool.lock().unwrap().corrupt == [1]).await;
    assert_eq!(fake.leases(), 0);
    fake.core.script.wrong_checksums.store(true, Ordering::SeqCst);
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets(&mut back)).await.unwrap();
    assert_eq!((report.pages, report.miss), (0, Some(MissCause::Checksum)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_copied_after_the_lease_is_discarded() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(3, 1);
    namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
    fake.core.script.lease_ms.store(20, Ordering::SeqCst);
    fake.core.script.delay_us.store(25_000, Ordering::SeqCst);
    let mut back = blank(3);
    let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets(&mut back)).await.unwrap();
    assert_eq!((report.pages, report.miss), (0, Some(MissCause::LeaseExpired)));
    let (late, bytes) = chain(1, 2);
    let report = namespace.offload(&OffloadOptions::default(), &late, &sources(&bytes)).await.unwrap();
    assert_eq!((report.stored, report.first_decline), (0, Some(Decline::LeaseExpired)));
    eventually_async("leases end", || fake.leases() == 0).await;
    assert_eq!(fake.core.pool.lock().unwrap().aborted, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_can_be_read_in_place() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(5, 1);
    namespace.offload(&OffloadOptions::default(), &hashes[..4], &sources(&pages[..4])).await.unwrap();
    let lease = namespace.lease(&ReloadOptions::default(), &hashes).await.unwrap();
    assert_eq!((lease.len(), lease.miss()), (4, Some(MissCause::Absent)));
    for (position, page) in pages[..4].iter().enumerate() {
        assert_eq!(lease.page(position).map(|page| page.to_vec()).as_deref(), Some(&page[..]));
        assert!(lease.verify(position));
    }
    assert!(lease.page(4).is_none());
    let (page, mut part) = (lease.page(1).unwrap(), [0; 16]);
    page.copy_to(page.len() - 16, &mut part).unwrap();
    assert_eq!(part, pages[1][page.len() - 16..]);
    assert_eq!(page.copy_to(page.len() - 15, &mut part).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(fake.leases(), 1);
    lease.finish().unwrap();
    eventually_async("the lease ends", || fake.leases() == 0).await;
    fake.core.script.lease_ms.store(15, Ordering::SeqCst);
    let lease = namespace.lease(&ReloadOptions::default(), &hashes[..1]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(lease.finish().is_err(), "what was read so late does not count");
    eventually_async("the lease ends", || fake.leases() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_the_connection_that_began_it() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(2, 1);
    namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
    let one = namespace.lease(&ReloadOptions::default(), &hashes).await.unwrap();
    fake.core.script.garbage.store(true, Ordering::SeqCst);
    assert_eq!(namespace.lookup(&hashes).await.unwrap_err().kind, ErrorKind::Internal);
    fake.core.script.garbage.store(false, Ordering::SeqCst);
    drop(one); // no connection is at rest: the end waits for the next one
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 2);
    eventually_async("the lease ends", || fake.leases() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_prompts_are_looked_up_in_two_rounds() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, _) = chain(8900, 1);
    fake.core.pool.lock().unwrap().pages = hashes[..5123].iter().map(|hash| (*hash, (0, 0))).collect();
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 5123);
    assert_eq!(fake.core.lookups.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_make_no_sense_are_refused_here() {
    let fake = Fake::start();
    let (client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(2, 1);
    let invalid = |result: turnkv_client::Result<turnkv_client::OffloadReport>| {
        assert_eq!(result.unwrap_err().kind, ErrorKind::Invalid);
    };
    let options = OffloadOptions::default();
    invalid(namespace.offload(&options, &hashes, &sources(&pages[..1])).await);
    invalid(namespace.offload(&options, &hashes[..1], &[PageSource::Bytes(&pages[0][1..])]).await);
    invalid(
        namespace.offload(&OffloadOptions { shard: 1, ..options.clone() }, &hashes, &sources(&pages)).await,
    );
    invalid(
        namespace
            .offload(&OffloadOptions { tail_tokens: 16, ..options.clone() }, &hashes, &sources(&pages))
            .await,
    );
    invalid(
        namespace
            .offload(&OffloadOptions { session: Some(String::new()), ..options }, &hashes, &sources(&pages))
            .await,
    );
    let error = client.open_namespace(NamespaceSpec::opaque("", 16, 4096)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert_eq!(fake.core.pool.lock().unwrap().committed, 0);
}

#[test]
fn a_client_works_in_one_runtime_after_another() {
    let fake = Fake::start();
    let client = Client::new(fake.config()).unwrap();
    let (hashes, pages) = chain(2, 1);
    for round in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let namespace = client.open_namespace(spec()).await.unwrap();
            let report =
                namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
            assert_eq!(report.stored + report.present, 2, "round {round}");
            assert_eq!(namespace.lookup(&hashes).await.unwrap(), 2);
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_operations_at_once_share_few_connections() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(4, 1);
    namespace.offload(&OffloadOptions::default(), &hashes, &sources(&pages)).await.unwrap();
    fake.core.script.delay_us.store(500, Ordering::SeqCst);
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (namespace, hashes, pages) = (namespace.clone(), hashes.clone(), pages.clone());
            tokio::spawn(async move {
                let mut back = blank(4);
                let report = namespace
                    .reload(&ReloadOptions::default(), &hashes, &mut targets(&mut back))
                    .await
                    .unwrap();
                assert_eq!((report.pages, &back), (4, &pages));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let most = turnkv_client::limits::CONNECTIONS_MAX as u32 + 1;
    assert!(fake.core.accepted.load(Ordering::SeqCst) <= most);
    eventually_async("leases end", || fake.leases() == 0).await;
}

#[test]
fn every_future_can_run_on_any_thread() {
    fn check<T: Send>(_: T) {}
    let client = Client::new(turnkv_client::ClientConfig::at("unix:/nowhere")).unwrap();
    check(client.stats());
    check(client.open_namespace(spec()));
    let held = async {
        let namespace = client.open_namespace(spec()).await.unwrap();
        namespace.lookup(&[]).await.unwrap();
        namespace.offload(&OffloadOptions::default(), &[], &[]).await.unwrap();
        namespace.reload(&ReloadOptions::default(), &[], &mut []).await.unwrap();
        namespace.lease(&ReloadOptions::default(), &[]).await.unwrap();
        namespace.begin_turn("a").await.unwrap();
    };
    check(held);
}
