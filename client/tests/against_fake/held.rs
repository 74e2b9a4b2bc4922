//! Leases of mapped slots are renewed in time, however slow the server's door is.

use crate::fake::{Fake, open};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, PageSpan};

/// What the server allows, a quarter of which is the pause between renewals.
const LEASE_MS: u32 = 8_000;
const DELAY: Duration = Duration::from_millis(1_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_so_long_after_it_was_asked_for_not_after_the_answer() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    fake.core.script.holds.store(true, Ordering::SeqCst);
    fake.core.script.lease_ms.store(LEASE_MS, Ordering::SeqCst);
    let mut span = PageSpan::new(&namespace, 1, 1, 1).unwrap();
    fake.core.script.delay_us.store(DELAY.as_micros() as u64, Ordering::SeqCst);
    assert_eq!(span.reserve(0, 0, 1, Some(Duration::from_secs(30))).await.unwrap(), 1);
    let end = Instant::now() + Duration::from_secs(60);
    while fake.core.renewals.lock().unwrap().len() < 3 {
        assert!(Instant::now() < end, "it is renewed twice");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let renewals = fake.core.renewals.lock().unwrap().clone();
    let pause = Duration::from_millis(u64::from(LEASE_MS) / 4);
    for (before, after) in renewals.iter().zip(&renewals[1..]).take(2) {
        let between = *after - *before;
        assert!(between < pause + DELAY * 3 / 4, "{between:?}: the door's delay was added to the pause");
    }
    fake.core.script.delay_us.store(0, Ordering::SeqCst);
}
