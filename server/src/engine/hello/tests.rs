//! A process that is gone leaves nothing leased, whatever it had in flight.

use super::*;
use crate::config;
use crate::engine::hold::Reserve;
use crate::engine::offload::CommitOffload;
use crate::engine::testing::{offer, open, want};
use crate::limits::CALLERS_MAX;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use turnkv_proto::{BlockHash, NamespaceId};

const PAGE: u64 = 64 << 10;
const PROCESS: u64 = 7;
const HASH: BlockHash = BlockHash([1; 32]);

/// An engine without its threads, and a namespace of it.
fn engine() -> (TempDir, Arc<Engine>, NamespaceId) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("turnkv.toml");
    std::fs::write(&file, "[dram]\nbytes = \"16MiB\"\nlock = false\n").unwrap();
    let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
    let namespace = open(&engine, "m", PAGE);
    (dir, engine, namespace)
}

/// A call of a process waits for the pool's lock while the process is found to be gone, and its leases end.
fn late(engine: &Arc<Engine>, call: impl FnOnce(&Engine) -> Result<(), Error> + Send + 'static) {
    let alive = Arc::new(AtomicBool::new(true));
    engine.join(PROCESS, Arc::clone(&alive));
    let called = {
        let mut core = engine.decide();
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
    assert_eq!(engine.decide().pool.stats().leases, 0, "nobody ends this lease");
}

#[test]
fn a_call_in_flight_leases_nothing_to_a_process_that_is_gone() {
    let (_dir, engine, namespace) = engine();
    let begin = offer(namespace, vec![HASH]);
    late(&engine, move |engine| {
        let client = engine.clients.check(PROCESS)?;
        engine.begin_offload_now(client, &begin).map(drop)
    });
    let reserve = Reserve { namespace, shard: 0, lease: None, pages: 4 };
    late(&engine, move |engine| engine.reserve(engine.clients.check(PROCESS)?, &reserve).map(drop));
}

#[tokio::test]
async fn a_reload_in_flight_leases_nothing_to_a_process_that_is_gone() {
    let (_dir, engine, namespace) = engine();
    let call = engine.begin_call(InlineCaller::Unknown).unwrap();
    let begun = engine.begin_offload(call.client, &offer(namespace, vec![HASH])).await.unwrap();
    let commit = CommitOffload { lease: begun.lease.unwrap(), pages: vec![(0, 0)], durable: false };
    engine.commit_offload(call.client, &commit).await.unwrap();
    let reload = want(namespace, vec![HASH]);
    let (shared, runtime) = (Arc::clone(&engine), tokio::runtime::Handle::current());
    let late = move || {
        let again = Arc::clone(&shared);
        late(&shared, move |engine| {
            let client = engine.clients.check(PROCESS)?;
            runtime.block_on(again.begin_reload(client, &reload)).map(drop)
        });
    };
    tokio::task::spawn_blocking(late).await.unwrap();
}

#[test]
fn more_callers_than_may_have_calls_in_service_are_refused_and_counted() {
    let (_dir, engine, _) = engine();
    let caller = |at: usize| InlineCaller::Host(IpAddr::from((at as u32).to_be_bytes()));
    let calls: Vec<InlineCall> = (0..CALLERS_MAX).map(|at| engine.begin_call(caller(at)).unwrap()).collect();
    assert_eq!(engine.metrics.refused_callers.total(), 0);
    for refused in 1..=2 {
        assert_eq!(engine.begin_call(caller(CALLERS_MAX)).err().unwrap().kind, ErrorKind::Limit);
        assert_eq!(engine.metrics.refused_callers.total(), refused);
    }
    assert!(engine.begin_call(caller(0)).is_ok(), "one that is known has another call");
    drop(calls);
    assert!(engine.begin_call(caller(CALLERS_MAX)).is_ok());
    assert_eq!(engine.metrics.refused_callers.total(), 2);
}
