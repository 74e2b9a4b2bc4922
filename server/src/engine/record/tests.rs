//! What is told of calls to whoever records them: all of it, under a key of its own, and never so much that anybody waits.

use super::*;
use crate::config;
use crate::engine::recorder::RecordedKind;
use crate::engine::testing::open;
use crate::limits::RECORD_QUEUE_BLOCKS_MAX;
use tempfile::TempDir;
use turnkv_pool::ClientId;

/// An engine without its threads, and two namespaces of it.
fn engine() -> (TempDir, Arc<Engine>, [NamespaceId; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("turnkv.toml");
    std::fs::write(&file, "[dram]\nbytes = \"16MiB\"\nlock = false\n").unwrap();
    let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
    let namespaces = [open(&engine, "m", 4096), open(&engine, "n", 4096)];
    (dir, engine, namespaces)
}

fn hash(at: u8) -> BlockHash {
    BlockHash([at; 32])
}

fn session() -> SessionId {
    SessionId::parse("chat").unwrap()
}

/// A call of a session's turn.
fn tell(engine: &Engine, namespace: &NamespaceId, parent: Option<BlockHash>, blocks: &[BlockHash]) {
    let (ns, session) = (engine.find_namespace(namespace).unwrap(), session());
    let (kind, client) = (RecordedKind::Offload, ClientId(7));
    engine.tell(&Told { ns, kind, session: Some(&session), client, parent, blocks });
}

/// The calls in the queue, taken as the door takes them.
fn take(recording: &mut Recording) -> Vec<Recorded> {
    let calls: Vec<Recorded> = std::iter::from_fn(|| recording.calls.try_recv().ok()).collect();
    let blocks = calls.iter().map(|call| call.blocks.len() as u64).sum();
    recording.queued_blocks.fetch_sub(blocks, Ordering::Relaxed);
    calls
}

#[test]
fn calls_of_the_namespace_are_told_in_order_under_a_key_of_the_recording() {
    let (_dir, engine, [ours, others]) = engine();
    tell(&engine, &ours, None, &[hash(9)]);
    let mut recording = engine.record(Some(&ours)).unwrap();
    tell(&engine, &ours, None, &[hash(1), hash(2)]);
    tell(&engine, &others, None, &[hash(3)]);
    tell(&engine, &ours, Some(hash(2)), &[hash(3)]);
    let calls = take(&mut recording);
    let [first, one, two] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!((first.kind, first.page_tokens), (None, 16));
    assert_eq!((one.kind, one.parent, one.blocks.len()), (Some(RecordedKind::Offload), 0, 2));
    assert_eq!((two.parent, two.session, two.client), (one.blocks[1], one.session, one.client));
    assert!(one.session != 0 && !two.blocks.contains(&one.blocks[0]));
    drop(recording);
    let mut again = engine.record(Some(&ours)).unwrap();
    tell(&engine, &ours, None, &[hash(1), hash(2)]);
    assert_ne!(take(&mut again)[1].blocks, one.blocks, "nobody can put two recordings together");
}

#[test]
fn one_records_at_a_time_and_who_left_is_in_nobodys_way() {
    let (_dir, engine, [ours, others]) = engine();
    assert_eq!(engine.record(None).map(drop).unwrap_err().kind, ErrorKind::Invalid, "which of the two?");
    let unknown = NamespaceId([9; 32]);
    assert_eq!(engine.record(Some(&unknown)).map(drop).unwrap_err().kind, ErrorKind::NamespaceUnknown);
    assert!(!engine.is_recording());
    let recording = engine.record(Some(&ours)).unwrap();
    assert_eq!(engine.record(Some(&others)).map(drop).unwrap_err().kind, ErrorKind::Limit);
    drop(recording);
    let recording = engine.record(Some(&others)).unwrap();
    drop(recording);
    assert!(engine.is_recording(), "nothing was told since");
    tell(&engine, &others, None, &[hash(1)]);
    assert!(!engine.is_recording(), "who tells finds that nobody listens");
}

#[test]
fn calls_beyond_the_queue_are_left_out_and_counted() {
    let (_dir, engine, [ours, _]) = engine();
    let mut recording = engine.record(Some(&ours)).unwrap();
    for _ in 0..RECORD_QUEUE_CALLS_MAX + 10 {
        tell(&engine, &ours, None, &[hash(1)]);
    }
    let calls = take(&mut recording);
    assert_eq!(calls.len(), RECORD_QUEUE_CALLS_MAX, "the first message has a place too");
    assert!(calls.iter().all(|call| call.dropped == 0));
    tell(&engine, &ours, None, &[hash(1)]);
    assert_eq!(take(&mut recording)[0].dropped, 11);
    assert_eq!(
        recording.queued_blocks.load(Ordering::Relaxed),
        0,
        "what was left out is not counted as queued"
    );
}

#[test]
fn blocks_beyond_the_queue_are_left_out_until_there_is_room() {
    let (_dir, engine, [ours, _]) = engine();
    let mut recording = engine.record(Some(&ours)).unwrap();
    let blocks = vec![hash(1); 1 << 18];
    let most = RECORD_QUEUE_BLOCKS_MAX as usize / blocks.len();
    for _ in 0..most + 3 {
        tell(&engine, &ours, None, &blocks);
    }
    assert_eq!(take(&mut recording).len(), 1 + most);
    tell(&engine, &ours, None, &blocks);
    assert_eq!(take(&mut recording)[0].dropped, 3);
}

#[test]
fn what_a_turn_keeps_is_looked_up_for_a_recording_only() {
    let (_dir, engine, [ours, _]) = engine();
    let ns = engine.find_namespace(&ours).unwrap();
    assert!(engine.kept_pages(ns, &session(), 3).is_empty());
    let _recording = engine.record(Some(&ours)).unwrap();
    assert!(engine.kept_pages(ns, &session(), 3).is_empty(), "it is nobody's session");
}
