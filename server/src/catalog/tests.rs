//! The catalog: what comes back, what stays away, what is set aside.

use super::*;
use turnkv_pool::SessionRecord;
use turnkv_proto::{BlockHash, Spec};

fn spec(model: &str) -> CheckedSpec {
    Spec::opaque(model, 16, 4096).check().unwrap()
}

fn record(turn: u32) -> SessionRecord {
    SessionRecord {
        ns: NamespaceIndex(3),
        session: SessionId::parse("chat").unwrap(),
        turn,
        base: None,
        hashes: vec![BlockHash([1; 32]), BlockHash([2; 32])],
        tail_tokens: 5,
        ttl_ms: 9,
        idle_ms: 0,
        priority: 2,
        protected_ms: 7,
    }
}

#[test]
fn namespaces_and_sessions_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let spec = spec("m");
    {
        let catalog = Catalog::open(dir.path()).unwrap();
        catalog.put_namespace(&spec).unwrap();
        let session = SessionId::parse("chat").unwrap();
        catalog.put_sessions(&[(spec.id(), session.clone(), Some(record(1)))]).unwrap();
        catalog.put_sessions(&[(spec.id(), session, Some(record(4)))]).unwrap();
    }
    let loaded = Catalog::open(dir.path()).unwrap().load().unwrap();
    assert_eq!(loaded.namespaces.iter().map(CheckedSpec::id).collect::<Vec<_>>(), [spec.id()]);
    let sessions: Vec<_> =
        loaded.sessions.into_iter().map(|saved| saved.into_record(NamespaceIndex(3))).collect();
    assert_eq!(sessions, [record(4)]);
}

#[test]
fn a_removed_session_stays_removed() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    let session = SessionId::parse("chat").unwrap();
    catalog.put_sessions(&[(spec("m").id(), session.clone(), Some(record(1)))]).unwrap();
    catalog.put_sessions(&[(spec("m").id(), session, None)]).unwrap();
    assert!(catalog.load().unwrap().sessions.is_empty());
}

#[test]
fn a_damaged_catalog_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("catalog.redb"), [0x5a; 100_000]).unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    assert!(catalog.load().unwrap().namespaces.is_empty());
    assert!(dir.path().join("catalog.redb.damaged").exists());
}

#[test]
fn marks_are_a_set() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    for _ in 0..100 {
        catalog.mark(NamespaceIndex(0), SessionId::parse("a").unwrap());
    }
    assert_eq!(catalog.take_marked().len(), 1);
    assert!(catalog.take_marked().is_empty());
}
