//! What a refused peer reads, and how long a listener rests that the system has nothing for.

use super::*;
use crate::connections::cause::Cause;
use crate::connections::outgoing::Outgoing;

#[test]
fn a_refusal_is_an_answer_in_the_doors_own_protocol() {
    let why = "no room for another connection";
    for door in [Door::Unix, Door::Tcp] {
        let bytes = refusal(door, why);
        let (settings, goaway) = bytes.split_at(9);
        assert_eq!(settings, [0, 0, 0, 4, 0, 0, 0, 0, 0], "an HTTP/2 server begins with its settings");
        let length = u32::from_be_bytes([0, goaway[0], goaway[1], goaway[2]]) as usize;
        assert_eq!(goaway.len(), 9 + length, "the frame is as long as it says");
        assert!(goaway.ends_with(why.as_bytes()));
        assert_eq!(Outgoing::default().pass(&bytes), Some(Cause::Flood), "it asks the peer to come later");
    }
    let text = String::from_utf8(refusal(Door::Http, why)).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("retry-after: 1"));
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    assert_eq!(body.trim_end(), why);
}

#[test]
fn a_listener_rests_longer_each_time_within_a_bound_and_anew_after_a_success() {
    let (mut backoff, error) = (Backoff::new(), io::Error::from(io::ErrorKind::OutOfMemory));
    let pauses: Vec<Duration> = (0..20).map(|_| backoff.failed(Door::Tcp, &error)).collect();
    assert_eq!(pauses[0], ACCEPT_PAUSE_MIN);
    assert!(pauses.is_sorted() && pauses[19] == ACCEPT_PAUSE_MAX);
    backoff.reset();
    assert_eq!(backoff.failed(Door::Tcp, &error), ACCEPT_PAUSE_MIN);
}

#[test]
fn a_peer_that_left_before_it_was_accepted_is_no_reason_to_rest() {
    for kind in
        [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset, io::ErrorKind::NotConnected]
    {
        assert!(gone(&kind.into()));
    }
    assert!(!gone(&io::ErrorKind::OutOfMemory.into()));
    assert!(!gone(&io::Error::from(rustix::io::Errno::MFILE)));
}
