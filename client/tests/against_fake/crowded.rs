//! As many operations and ended leases as a client may have, and one more.

use crate::fake::{Fake, chain, eventually_async, open};
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_client::limits::{CONNECTIONS_MAX, ENDS_MAX};
use turnkv_client::{
    BreakerState, Client, ClientConfig, DataPlane, ErrorKind, OffloadOptions, PageSource, ReloadOptions,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_more_than_may_be_waits_for_its_deadline_and_says_nothing_of_the_pool() {
    let fake = Fake::start();
    let mut config = ClientConfig { data_plane: DataPlane::Shm, ..fake.config() };
    config.breaker.failures = 1;
    let client = Client::new(config).unwrap();
    let namespace = client.open_namespace(crate::fake::spec()).await.unwrap();
    let (hashes, _) = chain(2, 1);
    // Connections first: each says Hello.
    fake.core.script.delay_us.store(2_000, Ordering::SeqCst);
    let ask = || {
        let (namespace, hashes) = (namespace.clone(), hashes.clone());
        tokio::spawn(async move { namespace.lookup(&hashes).await })
    };
    fake.core.script.stalled.store(true, Ordering::SeqCst);
    let running: Vec<_> = (0..CONNECTIONS_MAX).map(|_| ask()).collect();
    eventually_async("all are under way", || {
        fake.core.accepted.load(Ordering::SeqCst) == CONNECTIONS_MAX as u32
    })
    .await;
    let options = ReloadOptions { deadline: Some(Duration::from_millis(30)), ..ReloadOptions::default() };
    let error = namespace.lease(&options, &hashes).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy { retry_after_ms: 0 }, "{error}");
    assert_eq!(client.state().breaker, BreakerState::Closed, "it is not the pool's fault");
    let waiting = ask();
    fake.core.script.stalled.store(false, Ordering::SeqCst);
    for call in running.into_iter().chain([waiting]) {
        assert_eq!(call.await.unwrap().unwrap(), 0, "whoever waited is served");
    }
    assert_eq!(fake.core.accepted.load(Ordering::SeqCst), CONNECTIONS_MAX as u32);
}

/// On one thread: while the leases are dropped, the operation under way does not tell their ends on a connection of its own.
#[tokio::test]
async fn ends_of_leases_wait_for_a_connection_and_beyond_the_bound_the_oldest_ends_by_time() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(1, 1);
    let sources = [PageSource::Bytes(&pages[0])];
    namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    let mut leases = Vec::new();
    for _ in 0..ENDS_MAX + 1 {
        leases.push(namespace.lease(&ReloadOptions::default(), &hashes).await.unwrap());
    }
    let oldest = *fake.core.pool.lock().unwrap().reads.keys().min().unwrap();
    fake.core.script.stalled.store(true, Ordering::SeqCst);
    let running = tokio::spawn({
        let (namespace, hashes) = (namespace.clone(), hashes.clone());
        async move { namespace.lookup(&hashes).await }
    });
    eventually_async("no connection is at rest", || _client.state().idle_connections == 0).await;
    drop(leases);
    assert_eq!(fake.leases(), ENDS_MAX + 1, "nobody can be told");
    fake.core.script.stalled.store(false, Ordering::SeqCst);
    assert_eq!(running.await.unwrap().unwrap(), 1);
    eventually_async("all but one are ended", || fake.leases() == 1).await;
    let left: Vec<u64> = fake.core.pool.lock().unwrap().reads.keys().copied().collect();
    assert_eq!(left, [oldest], "it waited longest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lease_found_damaged_is_told_once_with_its_end() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(3, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    let lease = namespace.lease(&ReloadOptions::default(), &hashes).await.unwrap();
    fake.core.slot(fake.core.pool.lock().unwrap().pages[&hashes[1]].0).claim().unwrap().fill_at(5, b"x");
    for _ in 0..3 {
        assert!(lease.verify(0) && !lease.verify(1) && lease.verify(2));
    }
    assert!(!lease.verify(3), "a position that it has not");
    assert!(fake.core.pool.lock().unwrap().corrupt.is_empty(), "not before the lease ends");
    lease.finish().unwrap();
    eventually_async("the lease ends", || fake.leases() == 0).await;
    assert_eq!(fake.core.pool.lock().unwrap().corrupt, [1]);
}
