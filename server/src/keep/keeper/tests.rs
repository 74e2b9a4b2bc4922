//! What is given to a keeper comes back, to its own user's next server only, and for a time.

use super::*;
use crate::keep::custody::{Custody, Kept};
use crate::keep::link::Keeper as KeeperLink;
use std::io::{Read, Seek, Write};
use std::thread::JoinHandle;

const LONG: Duration = Duration::from_secs(60);

fn keeper(socket: &Path, without_server: Duration) -> JoinHandle<io::Result<()>> {
    let path = socket.to_owned();
    let keeper = std::thread::Builder::new().name("a-test-keeper".to_owned());
    let thread = keeper.spawn(move || run(&path, without_server)).unwrap();
    while !socket.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    thread
}

fn memory(text: &str) -> OwnedFd {
    let mut file =
        std::fs::File::from(rustix::fs::memfd_create("kept", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

fn text(fd: OwnedFd) -> String {
    let (mut file, mut text) = (std::fs::File::from(fd), String::new());
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

fn find(socket: std::path::PathBuf, without_server: Duration) -> std::io::Result<Kept> {
    let custody = Custody::new(Box::new(KeeperLink::new(socket, without_server)));
    let descriptors = custody.find()?;
    Ok(Kept { custody, descriptors })
}

#[test]
fn the_next_server_gets_what_the_last_one_gave_and_a_keeper_without_one_ends() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("k");
    let thread = keeper(&socket, LONG);
    let first = find(socket.clone(), LONG).unwrap();
    assert!(first.descriptors.is_empty());
    for name in ["a", "b", "c"] {
        first.custody.keep(&[(name.to_owned(), memory(name).as_fd())]).unwrap();
    }
    first.custody.keep(&[("b".to_owned(), memory("another b").as_fd())]).unwrap();
    first.custody.drop_kept("c").unwrap();
    assert_eq!(first.custody.count(), 2);
    drop(first);
    let short = Duration::from_millis(50);
    let next = find(socket.clone(), short).unwrap();
    let found: Vec<(String, String)> =
        next.descriptors.into_iter().map(|(name, fd)| (name, text(fd))).collect();
    assert_eq!(found, [("a".into(), "a".into()), ("b".into(), "another b".into())]);
    assert!(!next.custody.is_gone());
    drop(next.custody);
    thread.join().unwrap().unwrap();
    assert!(!socket.exists(), "its socket goes with it");
}

#[test]
fn a_keeper_that_ends_is_noticed_and_one_that_hears_nonsense_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("k");
    let thread = keeper(&socket, LONG);
    let first = find(socket.clone(), LONG).unwrap();
    first.custody.keep(&[("a".to_owned(), memory("kept").as_fd())]).unwrap();
    drop(first);
    for (verb, body) in [(KEEP, &b""[..]), (KEEP, b"name"), (DROP, &[0xFF; 3]), (99, b""), (HELLO, b"x")] {
        let stranger = LocalSocket::connect(&socket, Instant::now() + LONG).unwrap();
        stranger.send(verb, 0, body, &[]).unwrap();
        let answer = stranger.recv(Some(Instant::now() + LONG));
        assert!(answer.is_err() || answer.unwrap().flags & FLAG_FAILURE != 0, "{verb} {body:?}");
    }
    let next = find(socket.clone(), Duration::from_millis(1)).unwrap();
    assert_eq!(next.descriptors.len(), 1);
    drop(next);
    thread.join().unwrap().unwrap();
    assert!(run(dir.path(), LONG).is_err(), "a directory is no socket");
}

#[test]
fn a_look_does_not_begin_the_time_anew_and_a_server_does() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, short) = (dir.path().join("k"), Duration::from_millis(400));
    let thread = keeper(&socket, LONG);
    let first = find(socket.clone(), short).unwrap();
    first.custody.keep(&[("a".to_owned(), memory("kept").as_fd())]).unwrap();
    drop(first);
    // A server that takes it over, whoever looked before it.
    std::thread::sleep(short / 2);
    drop(find(socket.clone(), short).unwrap());
    let began = Instant::now();
    while !thread.is_finished() {
        drop(LocalSocket::connect(&socket, Instant::now() + LONG));
        assert!(began.elapsed() < 5 * short, "looks keep it");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(began.elapsed() >= short * 9 / 10, "the server before began the time anew");
    thread.join().unwrap().unwrap();
}
