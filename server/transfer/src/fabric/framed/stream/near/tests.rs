//! What the system says of connections over the loopback.

use std::time::Duration;

use rustix::net::sockopt::socket_send_buffer_size;

use super::{hold_little_if_near, is_near, round_trip};
use crate::fabric::framed::tests::pair::tcp;
use crate::limits::{NEAR_ROUND_TRIP, NEAR_UNREAD_BYTES};

#[test]
fn the_round_trip_of_a_connection_is_known_once_it_stands() {
    let (here, there) = tcp();
    for end in [&here, &there] {
        let trip = round_trip(end).expect("the handshake measured it");
        assert!(trip < Duration::from_secs(10), "{trip:?} on the loopback");
    }
}

#[test]
fn what_a_socket_holds_is_bounded_for_a_near_end() {
    let before = socket_send_buffer_size(&tcp().0).unwrap();
    // A loaded machine may answer a handshake late: of so many, some are near.
    let ends: Vec<_> = (0..100).map(|_| tcp()).collect();
    let trips = ends.iter().map(|(here, _)| round_trip(here).is_some_and(is_near));
    let (mut near, mut far) = (0, 0);
    for ((here, _), is_near) in ends.iter().zip(trips) {
        hold_little_if_near(here).unwrap();
        let held = socket_send_buffer_size(here).unwrap();
        if is_near {
            near += 1;
            assert!((NEAR_UNREAD_BYTES / 4..=NEAR_UNREAD_BYTES).contains(&held), "{held} bytes");
        } else {
            far += 1;
            assert_eq!(held, before, "left to the system");
        }
    }
    assert!(near > 0, "{far} of {far} are far, over the loopback");
    assert!(is_near(NEAR_ROUND_TRIP) && !is_near(NEAR_ROUND_TRIP + Duration::from_micros(1)));
}
