//! What requests may take that are not finished: by connection, by peer, by all; and that all of it comes back.

use super::{Budget, RequestShare, Total};
use crate::config::parse;
use crate::connections::caps::Caps;
use crate::connections::peers::share_of;
use crate::connections::{Connections, Door, Peer};
use crate::limits::{LITTLE_BYTES, UNFINISHED_CONNECTION_BYTES_MAX};
use metrics::Gauge;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn one_peer_cannot_use_up_what_all_share() {
    let all = 8 * LITTLE_BYTES;
    let total = Total::new(all, 1, Gauge::noop());
    let (greedy, other) = (AtomicU64::new(0), AtomicU64::new(0));
    let taken = (0..all).step_by(1 << 20).take_while(|_| total.take(1 << 20, 2, &greedy).is_ok()).count();
    assert_eq!(taken as u64, share_of(all) >> 20);
    assert_eq!(total.take(1 << 20, 2, &greedy).unwrap_err().bytes_max, share_of(all));
    assert!(total.take(LITTLE_BYTES / 2, 2, &other).is_ok(), "another one is served");
    let rest = all - LITTLE_BYTES;
    assert_eq!(total.take(LITTLE_BYTES, 2, &other).unwrap_err().bytes_max, rest, "what is for little ones");
    assert!(total.take(LITTLE_BYTES, 1, &other).is_ok());
    total.give_back(share_of(all), &greedy);
    assert_eq!(greedy.load(Ordering::Relaxed), 0);
    assert!(total.take(1 << 20, 2, &greedy).is_ok());
}

#[test]
fn what_one_request_took_comes_back_when_it_ends_however_it_ends() {
    let settings = parse(Path::new("test"), "").unwrap();
    let connections = Connections::new(Caps::of_settings(&settings, 40).unwrap());
    let place = connections.admit(Door::Unix, Peer::User(1), |_| {}).unwrap();
    let (watch, budget) = (place.watch(), Budget::new());
    let taken = || {
        let of_peer = watch.of_peer.unfinished_bytes.load(Ordering::Relaxed);
        let all = budget.total.bytes.load(Ordering::Relaxed);
        assert_eq!((of_peer, all), (watch.unfinished_bytes.load(Ordering::Relaxed), of_peer));
        all
    };
    let (one, other) = (RequestShare::new(&budget, watch), RequestShare::new(&budget, watch));
    one.take(UNFINISHED_CONNECTION_BYTES_MAX - 10, 1).unwrap();
    other.take(10, 1).unwrap();
    assert!(other.take(1, 1).is_err(), "one connection has its bound");
    assert_eq!(taken(), UNFINISHED_CONNECTION_BYTES_MAX, "what was refused is not counted");
    one.give_back();
    assert_eq!(taken(), 10, "a message of a stream is whole");
    one.take(5, 1).unwrap();
    drop(one);
    assert_eq!(taken(), 10);
    drop(other);
    assert_eq!(taken(), 0);
}
