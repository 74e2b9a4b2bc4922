//! Paths: fresh, stale, in use, not ours.

use std::time::Duration;

use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[test]
fn connects_and_talks_with_the_asked_mode() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    for mode in [0o600, 0o666] {
        let listener = LocalListener::bind(&path, mode).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        let client = LocalSocket::connect(listener.path(), soon()).unwrap();
        let server = listener.accept().unwrap();
        client.send(1, 0, b"hello", &[]).unwrap();
        assert_eq!(server.recv(Some(soon())).unwrap().body, b"hello");
        drop(listener);
        assert!(!path.exists(), "the file goes with its listener");
    }
    assert_eq!(LocalSocket::connect(&path, soon()).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "its server died without removing it");
    let listener = LocalListener::bind(&path, 0o600).unwrap();
    assert_eq!(LocalListener::bind(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert!(LocalSocket::connect(&path, soon()).is_ok());
    drop(listener);
}

#[test]
fn other_files_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes");
    fs::write(&path, "mine").unwrap();
    assert_eq!(bind_unix(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");

    let path = directory.path().join("socket");
    let listener = LocalListener::bind(&path, 0o600).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "somebody else's").unwrap();
    drop(listener);
    assert!(path.exists());
}

#[test]
fn a_server_that_does_not_accept_is_in_use_and_does_not_hang_its_callers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = LocalListener::bind(&path, 0o600).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        match LocalSocket::connect(&path, Instant::now() + Duration::from_millis(30)) {
            Ok(socket) => waiting.push(socket),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100, "the backlog is bounded");
    };
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    assert_eq!(bind_unix(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn a_place_is_one_servers_and_what_nobody_answers_for_there_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let (path, lock) = (directory.path().join("socket"), directory.path().join("lock"));
    let place = ServingLock::take(&lock).unwrap();
    assert_eq!(ServingLock::take(&lock).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(who_listens(&path).unwrap(), Listens::Nobody);
    // This process is about to listen there itself: what it finds of its own number is of a program before it.
    let listener = LocalListener::bind(&path, 0o600).unwrap();
    assert_eq!(who_listens(&path).unwrap(), Listens::Gone);
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(socket) = LocalSocket::connect(&path, Instant::now() + Duration::from_millis(30)) {
        waiting.push(socket);
        assert!(waiting.len() < 100, "the backlog is bounded");
    }
    assert_eq!(who_listens(&path).unwrap(), Listens::Unasked);
    remove_abandoned(&path, &place).unwrap();
    assert!(!path.exists());
    drop(place);
    ServingLock::take(&lock).unwrap();
}

#[test]
fn shutdown_wakes_an_accepting_thread() {
    let directory = tempfile::tempdir().unwrap();
    let listener = LocalListener::bind(&directory.path().join("socket"), 0o600).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.accept().is_err());
        std::thread::sleep(Duration::from_millis(30));
        listener.shutdown();
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn a_successor_keeps_the_file_that_it_bound() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let (leaving, file) = bind_unix(&path, 0o600).unwrap();
    fs::remove_file(&path).unwrap();
    let (_successor, _its_file) = bind_unix(&path, 0o600).unwrap();
    drop((leaving, file));
    assert!(LocalSocket::connect(&path, soon()).is_ok(), "only its own file is removed");
}
