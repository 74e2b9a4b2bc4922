//! A connection that is lost in the middle of a call: the call is made again where somebody listens, a few times and no oftener.

use crate::fake::{Fake, chain, eventually_async, open};
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_client::{
    BreakerConfig, BreakerState, Client, ClientConfig, DataPlane, ErrorKind, Namespace, OffloadOptions,
    PageSource, PageTarget, ReloadOptions,
};

/// One of each verb that moves pages or asks for them, with what it says of how many pages there were.
async fn verb(namespace: &Namespace, which: &str, seed: u32) -> turnkv_client::Result<usize> {
    let (hashes, pages) = chain(3, seed);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    match which {
        "lookup" => namespace.lookup(&hashes).await,
        "offload" => {
            let report = namespace.offload(&OffloadOptions::default(), &hashes, &sources).await?;
            Ok(report.stored + report.present)
        }
        "reload" => {
            let mut back = vec![vec![0; pages[0].len()]; 3];
            let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
            let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await?;
            assert_eq!(back[..report.pages], pages[..report.pages], "what was reported is right");
            Ok(report.pages)
        }
        _ => Ok(namespace.lease(&ReloadOptions::default(), &hashes).await?.len()),
    }
}

const VERBS: [&str; 4] = ["offload", "lookup", "reload", "lease"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lost_connection_is_not_noticed() {
    let fake = Fake::start();
    let (client, namespace) = open(&fake, DataPlane::Shm).await;
    for (seed, which) in (0..).zip(VERBS) {
        verb(&namespace, "offload", seed).await.unwrap();
        fake.core.script.cuts.store(1, Ordering::SeqCst);
        assert_eq!(verb(&namespace, which, seed).await.unwrap(), 3, "{which}");
        assert_eq!(fake.core.script.cuts.load(Ordering::SeqCst), 0, "{which}: it was cut");
    }
    assert_eq!(client.state().breaker, BreakerState::Closed);
    eventually_async("nothing stays leased", || fake.leases() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_made_a_few_times_more_and_no_oftener() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    for which in ["lookup", "reload", "lease"] {
        verb(&namespace, "offload", 1).await.unwrap();
        let accepted = fake.core.accepted.load(Ordering::SeqCst);
        fake.core.script.cuts.store(100, Ordering::SeqCst);
        let error = verb(&namespace, which, 1).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{which}: {error}");
        let cut = 100 - fake.core.script.cuts.swap(0, Ordering::SeqCst);
        let connected = fake.core.accepted.load(Ordering::SeqCst) - accepted;
        assert!((1..=6).contains(&cut) && connected <= 6, "{which}: {cut} cuts, {connected} connections");
        assert_eq!(verb(&namespace, which, 1).await.unwrap(), 3, "{which}: the next call works");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_listens_it_is_not_made_again() {
    let mut fake = Fake::start();
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let (_client, namespace) = open(&fake, plane).await;
        verb(&namespace, "offload", 1).await.unwrap();
        let lookups = fake.core.lookups.load(Ordering::SeqCst);
        fake.kill();
        let error = verb(&namespace, "lookup", 1).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Deadline), "{plane:?}: {error}");
        assert_eq!(fake.core.lookups.load(Ordering::SeqCst), lookups, "{plane:?}");
        fake.restart(true);
        assert_eq!(verb(&namespace, "lookup", 1).await.unwrap(), 3, "{plane:?}: the next call works");
    }
}

/// A pool that was sick is asked by one call while all others fail at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_of_many_finds_out_whether_a_sick_pool_is_well() {
    let fake = Fake::start();
    let config = ClientConfig {
        data_plane: DataPlane::Shm,
        call_ms: 100,
        breaker: BreakerConfig { failures: 1, cooldown_ms: 50 },
        ..fake.config()
    };
    let client = Client::new(config).unwrap();
    let namespace = client.open_namespace(crate::fake::spec()).await.unwrap();
    let (hashes, _) = chain(2, 1);
    fake.core.script.stalled.store(true, Ordering::SeqCst);
    assert_eq!(namespace.lookup(&hashes).await.unwrap_err().kind, ErrorKind::Deadline);
    assert_eq!(client.state().breaker, BreakerState::Open);
    tokio::time::sleep(Duration::from_millis(60)).await;
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let (namespace, hashes) = (namespace.clone(), hashes.clone());
            tokio::spawn(async move { namespace.lookup(&hashes).await })
        })
        .collect();
    let (mut probes, mut refused) = (0, 0);
    for call in calls {
        match call.await.unwrap().unwrap_err().kind {
            ErrorKind::Deadline => probes += 1,
            ErrorKind::BreakerOpen => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    // A task that ran late, after the probe had failed and its cool-down was over, was another probe.
    assert!(probes >= 1 && refused >= 1 && refused + probes == 20, "{probes} probes, {refused} refused");
    fake.core.script.stalled.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 0);
    assert_eq!(client.state().breaker, BreakerState::Closed);
}
