//! Leases whose slots are being filled for long: an example and its end. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::*;

#[test]
fn a_writer_that_goes_on_is_not_late() {
    let (mut pool, ns) = pool(true);
    let plan = pool.begin_offload(ask(ns, None, &hashes(0..16)), 0).unwrap();
    let lease = plan.lease.unwrap();
    for now in [60, 155, 250] {
        assert!(pool.keep_filling(CLIENT, lease, now) && !pool.keep_filling(OTHER, lease, now));
        pool.expire(now + 90);
        assert_eq!(pool.stats().leases_quarantined, 0);
    }
    pool.check().unwrap();
    pool.expire(351);
    assert_eq!(pool.stats().leases_quarantined, 1, "it stopped");
    assert!(!pool.keep_filling(CLIENT, lease, 352), "a quarantine is not taken back");
    pool.abort_offload(lease, CLIENT).unwrap();
    assert_eq!((pool.stats().leases, pool.stats().dram.used_bytes), (0, 0));
    pool.check().unwrap();
}
