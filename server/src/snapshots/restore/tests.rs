//! Snapshots that come back: all of their pages and then their sessions, or nothing that says it is one; and turns that are
//! given back whatever an operation came to.

use super::*;
use crate::limits::SNAPSHOT_LOOKS_MAX;
use crate::snapshots::create::{CaptureWish, CreateSnapshot, CreatedSnapshot};
use crate::snapshots::describe::DescribeSnapshot;
use crate::snapshots::fork::ForkSnapshot;
use crate::snapshots::list::ListSnapshots;
use crate::snapshots::plan::TokensOf;
use crate::snapshots::testing::{Rig, chain, files, open_of_tenant, session};

impl Rig {
    async fn create(&self, what: CaptureWish, tokens: TokensOf) -> Result<CreatedSnapshot, Error> {
        let ask = CreateSnapshot { namespace: self.namespace, what, tokens };
        self.snapshots.create(ask, &mut |_| ()).await
    }

    async fn captured(&self, what: CaptureWish) -> ObjectId {
        let created = self.create(what, TokensOf::new()).await.unwrap();
        ObjectId::parse(&created.summary.snapshot).unwrap()
    }

    async fn restore(&self, ask: RestoreSnapshot) -> Result<RestoredSnapshot, Error> {
        self.snapshots.restore(ask, &mut |_| ()).await
    }

    fn pages_of(&self, name: &str) -> Option<usize> {
        self.engine.session_outline(&self.key(name)).ok().map(|pages| pages.len())
    }

    /// Sessions of two branches and a third one with a partial tail: `a` and `b` share two pages.
    async fn with_sessions() -> (Rig, Vec<BlockHash>, Vec<BlockHash>) {
        let rig = Rig::new();
        let (one, other) = (chain(1, 5), chain(2, 3));
        rig.make("a", &one, 0).await;
        rig.make("b", &one[..2], 0).await;
        rig.make("c", &other, 9).await;
        (rig, one, other)
    }
}

fn of(snapshot: ObjectId) -> RestoreSnapshot {
    RestoreSnapshot {
        tenant: String::new(),
        snapshot,
        namespace: None,
        sequence: None,
        session: None,
        pages_only: false,
    }
}

fn word<T>(done: Result<T, Error>) -> String {
    done.err().expect("it is refused").message
}

#[tokio::test]
async fn everything_of_a_namespace_comes_back_at_another_server_page_for_page_and_session_for_session() {
    let (rig, one, other) = Rig::with_sessions().await;
    let snapshot = rig.captured(CaptureWish::Everything).await;
    let rig = rig.another();
    let mut told: Vec<PagesDone> = Vec::new();
    let restored = rig.snapshots.restore(of(snapshot), &mut |done| told.push(done)).await.unwrap();
    assert_eq!((restored.stored_pages, restored.present_pages, restored.sessions.len()), (8, 0, 3));
    assert_eq!((rig.here(&one).await, rig.here(&other).await), (5, 3));
    assert_eq!(["a", "b", "c"].map(|name| rig.pages_of(name)), [Some(5), Some(2), Some(3)]);
    assert_eq!(rig.engine.session_outline(&rig.key("c")).unwrap()[2].tail_tokens, 9);
    assert!(told.first().is_some_and(|first| first.pages_done == 0 && first.pages == 8));
    assert!(told.is_sorted_by_key(|done| done.pages_done) && told.last().unwrap().pages_done == 8);
    assert!(told.iter().all(|done| done.page_bytes == 4096));
}

#[tokio::test]
async fn a_session_that_is_there_already_is_refused_before_anything_is_read_and_another_name_is_not() {
    let (rig, one, _) = Rig::with_sessions().await;
    let snapshot = rig.captured(CaptureWish::Session(session("a"))).await;
    rig.engine.close(&rig.key("a"), false).unwrap();
    rig.evict_all();
    rig.make("a", &one[..1], 0).await;
    assert!(word(rig.restore(of(snapshot)).await).contains("a is there already"));
    assert_eq!(rig.here(&one).await, 1, "nothing came");
    let renamed = RestoreSnapshot { session: Some(session("a2")), ..of(snapshot) };
    let restored = rig.restore(renamed).await.unwrap();
    assert_eq!((restored.stored_pages, restored.present_pages), (4, 1), "what was here is not stored twice");
    assert_eq!(
        (restored.sessions.as_slice(), rig.pages_of("a2"), rig.pages_of("a")),
        (["a2".to_owned()].as_slice(), Some(5), Some(1))
    );
    let again = RestoreSnapshot { pages_only: true, ..of(snapshot) };
    let restored = rig.restore(again).await.unwrap();
    assert_eq!((restored.stored_pages, restored.present_pages, restored.sessions.len()), (0, 5, 0));
}

#[tokio::test]
async fn one_sequence_of_several_brings_its_own_pages_alone() {
    let (rig, one, other) = Rig::with_sessions().await;
    let snapshot = rig.captured(CaptureWish::Everything).await;
    let rig = rig.another();
    let renamed = RestoreSnapshot { session: Some(session("x")), ..of(snapshot) };
    assert!(word(rig.restore(renamed).await).contains("the snapshot has 3 sequences"));
    let unknown = RestoreSnapshot { sequence: Some("nobody".to_owned()), ..of(snapshot) };
    assert!(word(rig.restore(unknown).await).contains("none called \"nobody\""));
    let of_b =
        RestoreSnapshot { sequence: Some("b".to_owned()), session: Some(session("x")), ..of(snapshot) };
    let restored = rig.restore(of_b).await.unwrap();
    assert_eq!((restored.stored_pages, restored.sessions), (2, vec!["x".to_owned()]));
    assert_eq!((rig.here(&one).await, rig.here(&other).await, rig.pages_of("b")), (2, 0, None));
}

#[tokio::test]
async fn a_snapshot_of_another_namespace_or_tenant_is_refused_with_what_differs() {
    let (rig, _, _) = Rig::with_sessions().await;
    let snapshot = rig.captured(CaptureWish::Session(session("a"))).await;
    let other = crate::engine::testing::open(&rig.engine, "another model", 4096);
    let refused = word(rig.restore(RestoreSnapshot { namespace: Some(other), ..of(snapshot) }).await);
    assert!(
        refused.contains("model is \"m\" in the snapshot and \"another model\" in the namespace"),
        "{refused}"
    );
    assert!(!refused.contains("page_tokens"), "what is the same is not named: {refused}");
    let closed = NamespaceId([9; 32]);
    assert!(
        word(rig.restore(RestoreSnapshot { namespace: Some(closed), ..of(snapshot) }).await)
            .contains("not open")
    );
    let same = RestoreSnapshot { namespace: Some(rig.namespace), pages_only: true, ..of(snapshot) };
    assert!(rig.restore(same).await.is_ok());
    open_of_tenant(&rig.engine, "other");
    let foreign = RestoreSnapshot { tenant: "other".to_owned(), ..of(snapshot) };
    assert!(rig.restore(foreign).await.is_err(), "another tenant's archive does not have it");
    let control = RestoreSnapshot { tenant: "a\nb".to_owned(), ..of(snapshot) };
    assert!(word(rig.restore(control).await).contains("tenant"));
}

#[tokio::test]
async fn a_snapshot_with_damage_makes_no_session_and_gives_its_turn_back() {
    let (rig, one, _) = Rig::with_sessions().await;
    let snapshot = rig.captured(CaptureWish::Session(session("a"))).await;
    let rig = rig.another();
    let packs: Vec<(std::path::PathBuf, Vec<u8>)> = files(&rig.place(), "pack")
        .into_iter()
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    for (path, bytes) in &packs {
        let mut bytes = bytes.clone();
        bytes.iter_mut().take(200).for_each(|byte| *byte ^= 0x11);
        std::fs::write(path, bytes).unwrap();
    }
    // More often than there are turns: each is given back.
    for _ in 0..rig.snapshots.config().operations_max + 2 {
        let failed = rig.restore(of(snapshot)).await.err().unwrap();
        assert!(!matches!(failed.kind, ErrorKind::Busy { .. }), "{failed}");
        assert_eq!(rig.pages_of("a"), None);
    }
    for (path, bytes) in packs {
        std::fs::write(path, bytes).unwrap();
    }
    let rig = rig.another();
    assert!(rig.restore(of(snapshot)).await.is_ok());
    assert_eq!((rig.here(&one).await, rig.pages_of("a")), (5, Some(5)), "what is whole again comes back");
}

#[tokio::test]
async fn no_more_operations_are_under_way_than_may_be_and_looks_have_turns_of_their_own() {
    let (rig, _, _) = Rig::with_sessions().await;
    let snapshot = rig.captured(CaptureWish::Session(session("a"))).await;
    let most = rig.snapshots.config().operations_max;
    let turns: Vec<Operation<'_>> =
        (0..most).map(|_| rig.snapshots.begin(SnapshotVerb::Restore).unwrap()).collect();
    let refused = rig.restore(of(snapshot)).await.err().unwrap();
    assert!(matches!(refused.kind, ErrorKind::Busy { retry_after_ms } if retry_after_ms > 0), "{refused}");
    assert!(refused.message.contains("archive.operations_max"));
    let list = || ListSnapshots { tenant: String::new(), after: None, limit: None };
    assert_eq!(rig.snapshots.list(&list()).await.unwrap().total, 1);
    let looks: Vec<Operation<'_>> =
        (0..SNAPSHOT_LOOKS_MAX).map(|_| rig.snapshots.begin(SnapshotVerb::List).unwrap()).collect();
    assert!(word(rig.snapshots.list(&list()).await).contains("SNAPSHOT_LOOKS_MAX"));
    drop(turns);
    drop(looks);
    assert!(rig.snapshots.list(&list()).await.is_ok());
    assert!(rig.restore(RestoreSnapshot { pages_only: true, ..of(snapshot) }).await.is_ok());
}

#[tokio::test]
async fn token_ids_are_told_with_the_pages_that_they_are_of_and_must_be_enough() {
    let (rig, _, other) = Rig::with_sessions().await;
    let ids = |count: u32| TokensOf::from([("c".to_owned(), (0..count).collect())]);
    let what = || CaptureWish::Session(session("c"));
    // Two whole pages of 16 tokens, and 9 in the tail.
    assert!(word(rig.create(what(), ids(40)).await).contains("40 ids for \"c\", whose pages hold 41 tokens"));
    assert!(
        word(rig.create(CaptureWish::Session(session("a")), ids(99)).await)
            .contains("no sequence called \"c\"")
    );
    let created = rig.create(what(), ids(50)).await.unwrap();
    let snapshot = ObjectId::parse(&created.summary.snapshot).unwrap();
    let describe = |from_page| DescribeSnapshot {
        tenant: String::new(),
        snapshot,
        sequence: Some("c".to_owned()),
        from_page,
    };
    let all = rig.snapshots.describe(&describe(0)).await.unwrap();
    assert_eq!((all.hashes, all.tokens, all.next_page), (other.clone(), (0..41).collect(), None));
    assert_eq!(
        (all.sequences[0].tokens, all.sequences[0].last_page_tokens, all.sequences[0].has_tokens),
        (41, 9, true)
    );
    let tail = rig.snapshots.describe(&describe(2)).await.unwrap();
    assert_eq!((tail.hashes, tail.tokens), (other[2..].to_vec(), (32..41).collect::<Vec<u32>>()));
    for beyond in [3, usize::MAX] {
        let nothing = rig.snapshots.describe(&describe(beyond)).await.unwrap();
        assert_eq!((nothing.hashes.len(), nothing.tokens.len(), nothing.next_page), (0, 0, None));
    }
}

#[tokio::test]
async fn a_fork_is_a_beginning_and_a_list_goes_on_where_it_ended() {
    let (rig, one, _) = Rig::with_sessions().await;
    let whole = rig.captured(CaptureWish::Everything).await;
    let fork = |sequence: Option<&str>, pages, name: Option<&str>| ForkSnapshot {
        tenant: String::new(),
        snapshot: whole,
        sequence: sequence.map(str::to_owned),
        pages,
        name: name.map(session),
    };
    assert!(word(rig.snapshots.fork(&fork(None, None, None)).await).contains("has 3: name one of them"));
    assert!(word(rig.snapshots.fork(&fork(Some("z"), None, None)).await).contains("none called \"z\""));
    assert!(rig.snapshots.fork(&fork(Some("a"), Some(6), None)).await.is_err(), "it has five pages");
    let forked = rig.snapshots.fork(&fork(Some("a"), Some(3), Some("f"))).await.unwrap();
    assert_eq!((forked.pages, forked.sequences, forked.first_sequence.as_str()), (3, 1, "f"));
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let ask = ListSnapshots { tenant: String::new(), after, limit: Some(1) };
        let list = rig.snapshots.list(&ask).await.unwrap();
        assert!(list.total == 2 && list.snapshots.len() == 1);
        after = list.snapshots.last().map(|one| one.found.id);
        seen.extend(list.snapshots.into_iter().map(|one| one.summary.unwrap().pages));
        if !list.more {
            break;
        }
    }
    assert_eq!(seen, [8, 3], "the oldest first, each once");
    let rig = rig.another();
    let restored = rig.restore(of(ObjectId::parse(&forked.snapshot).unwrap())).await.unwrap();
    assert_eq!((restored.sessions, rig.here(&one).await), (vec!["f".to_owned()], 3));
}
