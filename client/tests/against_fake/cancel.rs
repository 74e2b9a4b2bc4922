//! Futures dropped at any await point: no lease stays behind, no connection is out of step, the next call works.

use crate::fake::{Fake, PAGE_BYTES, chain, eventually_async, open};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use turnkv_client::{DataPlane, Namespace, OffloadOptions, PageSource, PageTarget, ReloadOptions};

/// Polls a future at most so often, then drops it. True: it was done before.
pub async fn drop_after<F: Future>(polls: usize, future: F) -> bool {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        left -= 1;
        if left == 0 { Poll::Ready(false) } else { Poll::Pending }
    })
    .await
}

/// Slow enough that every answer is awaited in the reactor.
const DELAY_US: u64 = 400;
/// Delays to try one after another: on a busy machine two answers may be there before the client runs again.
const DELAYS_US: [u64; 4] = [DELAY_US, 4_000, 20_000, 100_000];

async fn settled(fake: &Fake, namespace: &Namespace) {
    eventually_async("every lease ends", || fake.leases() == 0).await;
    let (hashes, _) = chain(1, 999);
    assert_eq!(namespace.lookup(&hashes).await.unwrap(), 0, "the connection is in step");
    assert!(fake.connections() <= 4, "{} connections", fake.connections());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offloads() {
    let fake = Fake::start();
    let (client, namespace) = open(&fake, DataPlane::Shm).await;
    fake.core.script.granted_max.store(2, Ordering::SeqCst);
    let mut most = 0;
    for delay_us in DELAYS_US {
        fake.core.script.delay_us.store(delay_us, Ordering::SeqCst);
        for polls in 1.. {
            let (hashes, pages) = chain(5, polls as u32);
            let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
            let done =
                drop_after(polls, namespace.offload(&OffloadOptions::default(), &hashes, &sources)).await;
            settled(&fake, &namespace).await;
            fake.core.pool.lock().unwrap().pages.clear();
            if done {
                most = polls;
                break;
            }
        }
        if most > 4 {
            break;
        }
    }
    assert!(most > 4, "begin, commit, begin, commit are awaited: {most}");
    assert!(client.state().idle_connections >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(6, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    fake.core.script.page_frames.store(true, Ordering::SeqCst);
    let mut most = 0;
    for delay_us in DELAYS_US {
        fake.core.script.delay_us.store(delay_us, Ordering::SeqCst);
        for polls in 1.. {
            let mut back = vec![vec![0; PAGE_BYTES]; 6];
            let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
            let done =
                drop_after(polls, namespace.reload(&ReloadOptions::default(), &hashes, &mut targets)).await;
            settled(&fake, &namespace).await;
            if done {
                assert_eq!(back, pages);
                most = polls;
                break;
            }
        }
        if most > 3 {
            break;
        }
    }
    assert!(most > 3, "its pages are awaited one by one: {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_lookups() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(3, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
    fake.core.script.delay_us.store(DELAY_US, Ordering::SeqCst);
    fake.core.script.page_frames.store(true, Ordering::SeqCst);
    for polls in 1.. {
        let leased = drop_after(polls, namespace.lease(&ReloadOptions::default(), &hashes)).await;
        let found = drop_after(polls, namespace.lookup(&hashes)).await;
        settled(&fake, &namespace).await;
        if leased && found {
            break;
        }
    }
}

#[test]
fn a_future_dropped_outside_a_runtime_closes_its_connection() {
    let fake = Fake::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_client, namespace) = runtime.block_on(open(&fake, DataPlane::Shm));
    let (hashes, _) = chain(1, 1);
    fake.core.script.delay_us.store(20_000, Ordering::SeqCst);
    let mut future = Box::pin(namespace.lookup(&hashes));
    runtime.block_on(std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        Poll::Ready(())
    }));
    drop(future);
    crate::fake::eventually("its connection is closed", || fake.connections() == 0);
    runtime.block_on(async { assert_eq!(namespace.lookup(&hashes).await.unwrap(), 0) });
}

/// A runtime that ends drops the tasks that settle, and each that would be begun while it does.
#[test]
fn a_runtime_that_ends_takes_with_it_what_settles() {
    for threads in 1..=2 {
        let fake = Fake::start();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
        let (_client, namespace) = runtime.block_on(open(&fake, DataPlane::Shm));
        let (hashes, _) = chain(1, 1);
        fake.core.script.delay_us.store(200_000, Ordering::SeqCst);
        for _ in 0..4 {
            assert!(!runtime.block_on(drop_after(1, namespace.lookup(&hashes))));
        }
        drop(runtime);
        crate::fake::eventually("their connections are closed", || fake.connections() == 0);
    }
}
