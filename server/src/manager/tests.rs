//! Where a service manager is, and that what it does not hear is said in time.

use super::*;
use std::os::unix::net::UnixDatagram;

#[test]
fn a_manager_is_at_a_path_or_at_an_abstract_name_and_nowhere_else() {
    let path = ServiceManager::at(&"/run/systemd/notify".into()).unwrap();
    assert_eq!(path.path(), Some(Path::new("/run/systemd/notify")));
    assert!(ServiceManager::at(&"@name".into()).unwrap().path().is_none());
    let long = format!("/{}", "x".repeat(200));
    for place in ["", "@", "vsock:2:1234", "relative", &long] {
        assert!(ServiceManager::at(&place.into()).is_none(), "{place}");
    }
}

#[test]
fn what_is_said_is_one_message_each_and_a_manager_that_hears_nothing_is_not_waited_for_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("notify");
    let socket = UnixDatagram::bind(&place).unwrap();
    let manager = ServiceManager::at(&place.clone().into()).unwrap();
    let mut saying = manager.begin().unwrap();
    saying.say("READY=1", &[]).unwrap();
    let mut bytes = [0; 64];
    let length = socket.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], b"READY=1");
    saying.until = Instant::now() + Duration::from_millis(20);
    assert_eq!(saying.is_heard().unwrap_err().kind(), io::ErrorKind::TimedOut);
    // Until its queue is full, and then for a time.
    let mut saying = manager.begin().unwrap();
    saying.until = Instant::now() + Duration::from_millis(50);
    let full = (0..100_000).find_map(|_| saying.say("READY=1", &[]).err()).unwrap();
    assert_eq!(full.kind(), io::ErrorKind::TimedOut);
    drop(socket);
    assert!(saying.say("READY=1", &[]).is_err());
    assert!(manager.begin().is_err());
}
