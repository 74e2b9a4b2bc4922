//! Streams and threads.

use super::*;

#[test]
fn jobs_come_back_in_order_whatever_the_threads() {
    for threads in [0, 1, 3, 50] {
        assert_eq!(
            in_parallel(20, threads, |job| job * job),
            (0..20).map(|job| job * job).collect::<Vec<_>>()
        );
    }
    assert!(in_parallel(0, 4, |job| job).is_empty());
}
