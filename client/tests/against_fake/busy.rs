//! A server that is busy for now: every call that it refuses so is tried again, within the call's deadline and no longer.

use crate::fake::{Fake, chain, open};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, ErrorKind, OffloadOptions, PageSource, PageTarget, ReloadOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_busy_server_refuses_is_asked_again() {
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let fake = Fake::start();
        let (_client, namespace) = open(&fake, plane).await;
        let (hashes, pages) = chain(4, 1);
        let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
        let busy = &fake.core.script.busy;
        busy.store(3, Ordering::SeqCst);
        let report = namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
        assert_eq!((report.stored, busy.load(Ordering::SeqCst)), (4, 0), "{plane:?}");
        busy.store(3, Ordering::SeqCst);
        let mut back = vec![vec![0; pages[0].len()]; 4];
        let mut targets: Vec<PageTarget> = back.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
        let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await.unwrap();
        assert_eq!((report.pages, busy.load(Ordering::SeqCst)), (4, 0), "{plane:?}");
        assert_eq!(back, pages);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_attach_costs_no_connection() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(1, 1);
    let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
    fake.core.script.delay_us.store(20_000, Ordering::SeqCst);
    let options = OffloadOptions::default();
    let offload = namespace.offload(&options, &hashes, &sources);
    let refuse = async {
        crate::fake::eventually_async("slots are granted", || fake.leases() == 1).await;
        fake.core.script.busy.store(3, Ordering::SeqCst);
    };
    let (report, ()) = tokio::join!(offload, refuse);
    assert_eq!(report.unwrap().stored, 1);
    assert_eq!(fake.core.script.busy.load(Ordering::SeqCst), 0, "the slab was refused");
    assert!(fake.core.accepted.load(Ordering::SeqCst) <= 2, "one to work by, one to attach by");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stays_busy_costs_no_more_than_the_deadline() {
    let fake = Fake::start();
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let (_client, namespace) = open(&fake, plane).await;
        let (hashes, pages) = chain(1, 1);
        let sources: Vec<PageSource> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
        fake.core.script.busy.store(u32::MAX, Ordering::SeqCst);
        let deadline = Duration::from_millis(300);
        let options = OffloadOptions { deadline: Some(deadline), ..OffloadOptions::default() };
        let begun = Instant::now();
        let error = namespace.offload(&options, &hashes, &sources).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Busy { .. } | ErrorKind::Deadline), "{error:?}");
        let asked = u32::MAX - fake.core.script.busy.load(Ordering::SeqCst);
        assert!((2..100).contains(&asked), "{asked} attempts: pauses grow");
        assert!(begun.elapsed() < deadline + Duration::from_secs(2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_is_heard() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    fake.core.script.no_room.store(true, Ordering::SeqCst);
    let (hashes, _) = chain(1, 1);
    // Whether it hangs up before or after Hello is sent.
    for _ in 0..50 {
        let error = namespace.lookup(&hashes).await.unwrap_err();
        assert!(error.kind == ErrorKind::Limit && error.message.contains("no room here"), "{error:?}");
    }
    assert_eq!(fake.core.refused.load(Ordering::SeqCst), 50);
}
