//! A process that is gone leaves nothing leased, whatever it had in flight.

use super::*;
use crate::config;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tempfile::TempDir;
use turnkv_proto::{Spec, wire};

const PAGE: u64 = 64 << 10;
const PROCESS: u64 = 7;

/// An engine without its threads, and a namespace of it.
fn engine() -> (TempDir, Arc<Engine>, bytes::Bytes) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("turnkv.toml");
    std::fs::write(&file, "[dram]\nbytes = \"16MiB\"\nlock = false\n").unwrap();
    let engine = Engine::start(config::load(Some(&file)).unwrap()).unwrap();
    let spec = wire::NamespaceSpec::from(&Spec::opaque("m", 16, PAGE));
    let namespace = engine.open_namespace(&spec).unwrap().namespace;
    (dir, engine, namespace)
}

/// A call of a process waits for the pool's lock while the process is found to be gone, and its leases end.
fn late(engine: &Arc<Engine>, call: impl FnOnce(&Engine) -> Result<(), Error> + Send + 'static) {
    let alive = Arc::new(AtomicBool::new(true));
    engine.join(PROCESS, Arc::clone(&alive));
    let called = {
        let mut core = engine.core();
        let waiting = Arc::clone(engine);
        let called =
            std::thread::Builder::new().name("late".to_owned()).spawn(move || call(&waiting)).unwrap();
        // Should it not have come so far by then, it is refused before it waits.
        std::thread::sleep(Duration::from_millis(200));
        alive.store(false, Ordering::Relaxed);
        let gone = engine.clients.take_gone();
        assert_eq!(gone, [ClientId(PROCESS)]);
        while !core.pool.client_gone(gone[0], 0) {}
        called
    };
    assert_eq!(called.join().unwrap().unwrap_err().kind, ErrorKind::LeaseUnknown);
    assert_eq!(engine.core().pool.stats().leases, 0, "nobody ends this lease");
}

#[test]
fn a_call_in_flight_leases_nothing_to_a_process_that_is_gone() {
    let (_dir, engine, namespace) = engine();
    let begin = wire::BeginOffloadRequest {
        namespace: namespace.clone(),
        hashes: vec![1; 32].into(),
        client: PROCESS,
        ..Default::default()
    };
    late(&engine, move |engine| engine.begin_offload_now(&begin).map(drop));
    let reserve = wire::ReserveRequest { namespace, pages: 4, client: PROCESS, ..Default::default() };
    late(&engine, move |engine| engine.reserve(&reserve).map(drop));
}

#[tokio::test]
async fn a_reload_in_flight_leases_nothing_to_a_process_that_is_gone() {
    let (_dir, engine, namespace) = engine();
    let call = engine.begin_call(Caller::Unknown).unwrap();
    let begin = wire::BeginOffloadRequest {
        namespace: namespace.clone(),
        hashes: vec![1; 32].into(),
        ..Default::default()
    };
    let begun = engine.begin_offload_as(call.client, &begin).await.unwrap();
    let commit = wire::CommitOffloadRequest {
        lease: begun.lease,
        pages: vec![0],
        checksums: vec![0],
        ..Default::default()
    };
    engine.commit_offload_as(call.client, &commit).await.unwrap();
    let reload = wire::BeginReloadRequest {
        namespace,
        hashes: vec![1; 32].into(),
        client: PROCESS,
        ..Default::default()
    };
    let (shared, runtime) = (Arc::clone(&engine), tokio::runtime::Handle::current());
    let late = move || {
        let again = Arc::clone(&shared);
        late(&shared, move |_| runtime.block_on(again.begin_reload(&reload)).map(drop));
    };
    tokio::task::spawn_blocking(late).await.unwrap();
}
