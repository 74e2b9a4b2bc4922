//! Changed files are taken over when they are good, and only then; whose certificate is not accepted any more is ended.

use super::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn signed(by: &Authority) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["pool.example".to_owned()]).unwrap();
    (params.signed_by(&key, by).unwrap(), key)
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

fn write_server(dir: &Path, by: &Authority) {
    let (cert, key) = signed(by);
    write(dir, "cert.pem", &cert.pem());
    write(dir, "key.pem", &key.serialize_pem());
}

/// Those of a server and its clients' authority, written into a directory.
pub(crate) fn trial(dir: &Path) -> Arc<Credentials> {
    write_trial(dir, &authority());
    open(dir).unwrap()
}

fn write_trial(dir: &Path, by: &Authority) {
    write_server(dir, by);
    write(dir, "ca.pem", &by.pem());
}

fn open(dir: &Path) -> Result<Arc<Credentials>, TlsError> {
    let at = |name: &str| dir.join(name);
    let files = ServerFiles { cert: at("cert.pem"), key: at("key.pem"), client_ca: at("ca.pem") };
    Credentials::open(files, &[b"h2"], TlsCounters::new(false))
}

struct Place {
    dir: tempfile::TempDir,
    authority: Authority,
    credentials: Arc<Credentials>,
}

fn place() -> Place {
    let (dir, authority) = (tempfile::tempdir().unwrap(), authority());
    write_trial(dir.path(), &authority);
    let credentials = open(dir.path()).unwrap();
    Place { dir, authority, credentials }
}

/// A connection whose peer showed a certificate of this authority, and how often it was told to end.
fn connection(place: &Place, by: &Authority) -> (Result<Certified, Error>, Arc<AtomicUsize>) {
    let (cert, _) = signed(by);
    let ended = Arc::new(AtomicUsize::new(0));
    let end = Arc::clone(&ended);
    let end = Box::new(move || {
        end.fetch_add(1, Ordering::Relaxed);
    });
    let set = place.credentials.set();
    (place.credentials.look_after(&set, vec![cert.der().clone()], i64::MAX, end), ended)
}

#[test]
fn a_good_set_is_taken_over_and_a_bad_one_is_not() {
    let place = place();
    let first = place.credentials.set();
    let look = || place.credentials.look(UnixTime::now());
    look();
    assert!(Arc::ptr_eq(&first, &place.credentials.set()), "nothing changed");
    write(place.dir.path(), "key.pem", &KeyPair::generate().unwrap().serialize_pem());
    for _ in 0..3 {
        look();
        assert!(Arc::ptr_eq(&first, &place.credentials.set()), "the key is another's");
    }
    assert!(matches!(place.credentials.state.lock().bad, Bad::Said(_)), "and that was said");
    std::fs::remove_file(place.dir.path().join("cert.pem")).unwrap();
    look();
    assert!(Arc::ptr_eq(&first, &place.credentials.set()), "a file is missing");
    let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    write(place.dir.path(), "cert.pem", &params.signed_by(&key, &place.authority).unwrap().pem());
    write(place.dir.path(), "key.pem", &key.serialize_pem());
    look();
    assert!(Arc::ptr_eq(&first, &place.credentials.set()), "no client would take it for a server's");
    write_server(place.dir.path(), &place.authority);
    look();
    assert!(!Arc::ptr_eq(&first, &place.credentials.set()), "all is well again");
    assert_eq!(place.credentials.state.lock().bad, Bad::No);
}

#[test]
fn who_is_not_accepted_any_more_is_ended_and_others_stay() {
    let (place, other) = (place(), authority());
    let both = format!("{}{}", place.authority.pem(), other.pem());
    write(place.dir.path(), "ca.pem", &both);
    place.credentials.look(UnixTime::now());
    let (_stays, of_first) = connection(&place, &place.authority);
    let (_goes, of_other) = connection(&place, &other);
    let before = place.credentials.set();
    write(place.dir.path(), "ca.pem", &place.authority.pem());
    place.credentials.look(UnixTime::now());
    let ended = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    assert_eq!((ended(&of_first), ended(&of_other)), (0, 1));
    let (cert, _) = signed(&other);
    let late = place.credentials.look_after(&before, vec![cert.der().clone()], i64::MAX, Box::new(|| {}));
    assert!(late.is_err(), "its handshake began before the change");
}

#[test]
fn who_is_gone_is_forgotten_and_whose_time_is_over_is_ended() {
    let place = place();
    let (certified, ended) = connection(&place, &place.authority);
    drop(certified);
    let (cert, _) = signed(&place.authority);
    let over = Arc::new(AtomicUsize::new(0));
    let end = Arc::clone(&over);
    let end = Box::new(move || {
        end.fetch_add(1, Ordering::Relaxed);
    });
    let _late =
        place.credentials.look_after(&place.credentials.set(), vec![cert.der().clone()], 5, end).unwrap();
    place.credentials.look(UnixTime::now());
    assert_eq!((ended.load(Ordering::Relaxed), over.load(Ordering::Relaxed)), (0, 1));
}
