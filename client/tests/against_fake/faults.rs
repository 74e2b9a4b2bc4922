//! A server that stalls, dies, restarts or lies: every call returns by its deadline, and the next ones work
//! again.

use crate::fake::{Fake, chain, eventually_async, open};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use turnkv_client::{
    BreakerConfig, BreakerState, Client, ClientConfig, ConfigError, DataPlane, Decline, ErrorKind, MissCause,
    OffloadOptions, PageSource, PageTarget, ReloadOptions,
};

const CALL: Duration = Duration::from_millis(150);
/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_millis(400);

fn quick(fake: &Fake, data_plane: DataPlane) -> ClientConfig {
    ClientConfig {
        data_plane,
        connect_ms: 20,
        call_ms: CALL.as_millis() as u64,
        breaker: BreakerConfig { failures: 3, cooldown_ms: 200 },
        ..fake.config()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_costs_a_deadline_then_nothing() {
    let fake = Fake::start();
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let client = Client::new(quick(&fake, plane)).unwrap();
        let namespace = client.open_namespace(crate::fake::spec()).await.unwrap();
        let (hashes, pages) = chain(2, plane as u32);
        let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
        namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
        fake.core.script.stalled.store(true, Ordering::SeqCst);
        let mut back = pages.clone();
        let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
        let begun = Instant::now();
        assert_eq!(namespace.lookup(&hashes).await.unwrap_err().kind, ErrorKind::Deadline);
        let error = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Deadline);
        let error = namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Deadline);
        assert!(begun.elapsed() < CALL * 3 + SLACK);
        assert_eq!(client.state().breaker, BreakerState::Open);
        let begun = Instant::now();
        for _ in 0..100 {
            assert_eq!(namespace.lookup(&hashes).await.unwrap_err().kind, ErrorKind::BreakerOpen);
        }
        assert!(begun.elapsed() < CALL, "nothing is sent while it is open");
        fake.core.script.stalled.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(210)).await;
        assert_eq!(namespace.lookup(&hashes).await.unwrap(), 2, "the next call after recovery works");
        assert_eq!(client.state().breaker, BreakerState::Closed);
        eventually_async("what was abandoned is settled", || fake.leases() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_unavailable_until_it_is_back() {
    let mut fake = Fake::start();
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let client = Client::new(quick(&fake, plane)).unwrap();
        let namespace = client.open_namespace(crate::fake::spec()).await.unwrap();
        let (hashes, pages) = chain(2, 1);
        let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
        namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
        fake.kill();
        let begun = Instant::now();
        for _ in 0..3 {
            let error = namespace.lookup(&hashes).await.unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Deadline), "{error:?}");
        }
        assert!(begun.elapsed() < CALL * 3 + SLACK);
        assert_eq!(namespace.lookup(&hashes).await.unwrap_err().kind, ErrorKind::BreakerOpen);
        fake.restart(true);
        tokio::time::sleep(Duration::from_millis(210)).await;
        assert_eq!(namespace.lookup(&hashes).await.unwrap(), 2, "{plane:?}: opened again by itself");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_between_calls_is_not_noticed() {
    let mut fake = Fake::start();
    let (client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(4, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&OffloadOptions::default(), &hashes[..2], &sources[..2]).await.unwrap();
    let lease = namespace.lease(&ReloadOptions::default(), &hashes[..1]).await.unwrap();
    assert_eq!((client.state().instance, client.state().mapped_slabs), (1, 1));
    fake.restart(true);
    let report = namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    assert_eq!((report.present, report.stored), (2, 2));
    assert_eq!((client.state().instance, client.state().mapped_slabs), (2, 1));
    assert_eq!(
        lease.page(0).map(|page| page.to_vec()).as_deref(),
        Some(&pages[0][..]),
        "the old mapping lives as long as its lease"
    );
    drop(lease);
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 4);
    assert_eq!(fake.core.pool.lock().unwrap().ended, 0, "an old lease is not ended at a new server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_are_errors_and_cost_one_connection() {
    let fake = Fake::start();
    let mut config = quick(&fake, DataPlane::Shm);
    config.breaker.failures = 100;
    let client = Client::new(config).unwrap();
    let namespace = client.open_namespace(crate::fake::spec()).await.unwrap();
    let (hashes, pages) = chain(2, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    let script = &fake.core.script;
    for lie in [&script.garbage, &script.wrong_verb, &script.wild_slots] {
        lie.store(true, Ordering::SeqCst);
        let mut back = pages.clone();
        let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
        let error = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "{error}");
        lie.store(false, Ordering::SeqCst);
        let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
        let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await.unwrap();
        assert_eq!(report.pages, 2);
    }
    assert!(fake.connections() <= 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_after_some_pages_reports_what_was_kept() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    fake.core.script.granted_max.store(2, Ordering::SeqCst);
    fake.core.script.covered_max.store(2, Ordering::SeqCst);
    let (hashes, pages) = chain(6, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    // Begin, (attach,) commit, begin: the cut hits the second commit.
    namespace.offload(&OffloadOptions::default(), &hashes[..1], &sources[..1]).await.unwrap();
    let options = OffloadOptions::default();
    let run = namespace.offload(&options, &hashes, &sources);
    let cut = async {
        eventually_async("the first window is committed", || fake.core.pool.lock().unwrap().committed == 2)
            .await;
        // As many as the attempts on other connections that a call has, and more.
        fake.core.script.cuts.store(100, Ordering::SeqCst);
    };
    fake.core.script.delay_us.store(20_000, Ordering::SeqCst);
    let (report, ()) = tokio::join!(run, cut);
    let report = report.unwrap();
    assert_eq!(report.first_decline, Some(Decline::Unavailable));
    assert!(report.stored >= 2 && report.present == 1 && report.declined > 0, "{report:?}");
    assert_eq!(report.stored + report.present + report.declined, 6);
    fake.core.script.delay_us.store(0, Ordering::SeqCst);
    fake.core.script.cuts.store(0, Ordering::SeqCst);
    let kept = namespace.lookup(&hashes).await.unwrap();
    assert!(kept >= report.stored + report.present, "what was acknowledged is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_cut_by_its_deadline_keeps_its_leading_pages() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(10, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    fake.core.script.page_frames.store(true, Ordering::SeqCst);
    fake.core.script.delay_us.store(40_000, Ordering::SeqCst);
    let mut back = vec![vec![0; pages[0].len()]; 10];
    let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let options = ReloadOptions { deadline: Some(Duration::from_millis(220)), ..ReloadOptions::default() };
    let begun = Instant::now();
    let report = namespace.reload(&options, &hashes, &mut targets).await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(220) + SLACK);
    assert!((1..10).contains(&report.pages), "{report:?}");
    assert_eq!(report.miss, Some(MissCause::Deadline));
    assert_eq!(back[..report.pages], pages[..report.pages]);
    eventually_async("the lease ends once the answer is through", || fake.leases() == 0).await;
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refused = |config: ClientConfig| Client::new(config).unwrap_err();
    assert!(matches!(refused(ClientConfig::at("tcp://x")), ConfigError::BadAddress(_)));
    assert!(matches!(refused(ClientConfig::at("unix:relative")), ConfigError::BadAddress(_)));
    assert!(matches!(
        refused(ClientConfig::at(format!("unix:/{}", "x".repeat(108)))),
        ConfigError::LongPath { .. }
    ));
    let remote = ClientConfig { data_plane: DataPlane::Shm, ..ClientConfig::at("http://a:1") };
    assert!(matches!(refused(remote), ConfigError::ShmNeedsUnix(_)));
    assert!(matches!(
        refused(ClientConfig { call_ms: 0, ..ClientConfig::default() }),
        ConfigError::OutOfRange { .. }
    ));
}
