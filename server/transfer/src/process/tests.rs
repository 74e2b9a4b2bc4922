//! Processes that live, die, and never were.

use std::process::Command;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn the_peer_is_who_it_is() {
    let (one, other) = LocalSocket::pair().unwrap();
    let peer = one.peer().unwrap();
    assert_eq!(peer.pid, std::process::id().cast_signed());
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    assert!(!Process::of_peer(&other).unwrap().is_gone().unwrap());
}

#[test]
fn a_process_is_gone_once_it_has_ended() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process::open(child.id().cast_signed()).unwrap();
    assert!(!process.is_gone().unwrap());
    child.kill().unwrap();
    // Gone as soon as it ended, even before its parent has asked for its exit status.
    let begun = Instant::now();
    while !process.is_gone().unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(10), "a killed process ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait().unwrap();
    assert!(process.is_gone().unwrap());
    assert_eq!(open_pidfd(child.id().cast_signed()).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn numbers_that_name_no_process_are_not_found() {
    for pid in [0, -1, i32::MIN, i32::MAX] {
        assert_eq!(open_pidfd(pid).unwrap_err().kind(), io::ErrorKind::NotFound, "{pid}");
    }
}

#[test]
fn a_process_is_found_by_its_number_and_its_begin_only() {
    let own = std::process::id() as i32;
    let when = super::began(own).unwrap();
    assert!(Process::find(own, when).unwrap().is_some());
    assert!(Process::find(own, when.wrapping_add(1)).unwrap().is_none(), "another process had that number");
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id() as i32;
    let began = super::began(pid).unwrap();
    child.wait().unwrap();
    assert!(Process::find(pid, began).unwrap().is_none(), "it is gone");
}
