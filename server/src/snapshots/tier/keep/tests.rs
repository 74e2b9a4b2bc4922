//! Sessions into the archive: once as they are, again when they went on, never in place of what another server archived, and
//! not at all where there is nothing to archive.

use super::*;
use crate::engine::session::{BeginTurn, EndOfTurn};
use crate::limits::ARCHIVE_PAUSE_MS_MIN;
use crate::snapshots::testing::{Rig, chain, files, session, snapshot_of};
use turnkv_archive::SessionName;

impl Rig {
    /// A session of this name goes to the archive.
    pub(in crate::snapshots::tier) async fn archive(&self, name: &str) {
        assert!(self.tier.keep(&self.key(name)).await.is_ok(), "it is archived, or there is nothing to do");
    }

    /// Bookmarks of a session.
    async fn listed(&self, name: &str) -> Vec<ListedBookmark> {
        self.directory.list_of(SessionName::of(&self.namespace, name)).await.unwrap()
    }

    /// A turn begins and ends, after which the session has these pages behind so many of before.
    async fn turn(&self, name: &str, keep: u32, hashes: &[BlockHash]) {
        let begin = BeginTurn { of: self.key(name), engine: None, ended: 0, may_go: false };
        self.engine.begin_turn(&begin).unwrap();
        let end = EndOfTurn {
            of: self.key(name),
            keep,
            hashes: hashes.to_vec(),
            tail_tokens: 0,
            expected_return_ms: 0,
            ttl_ms: 0,
            priority: 0,
            last: false,
            archive: false,
        };
        self.engine.end_turn(&end).unwrap();
    }
}

#[tokio::test]
async fn a_session_is_archived_once_as_it_is_and_a_later_turn_supersedes_it() {
    let (rig, pages) = (Rig::new(), chain(1, 6));
    rig.make("a", &pages[..4], 0).await;
    rig.archive("a").await;
    let first = rig.listed("a").await;
    assert_eq!((first.len(), rig.known("a").unwrap().pages.len()), (1, 4));
    rig.archive("a").await;
    assert_eq!(rig.listed("a").await, first, "nothing is captured twice");
    rig.store(&pages, 0).await;
    rig.turn("a", 4, &pages[4..]).await;
    rig.archive("a").await;
    let second = rig.listed("a").await;
    assert_eq!((second.len(), rig.known("a").unwrap().pages.len()), (1, 6), "the older one is gone");
    assert!(second[0].snapshot > first[0].snapshot);
    let bookmark = rig.directory.read(second[0]).await.unwrap();
    assert_eq!(bookmark.pages, pages.iter().map(PageMark::of).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_another_server_archived_is_learned_and_not_captured_again() {
    let (rig, pages) = (Rig::new(), chain(1, 3));
    rig.make("a", &pages, 0).await;
    rig.archive("a").await;
    let there = rig.listed("a").await;
    let rig = rig.another();
    rig.make("a", &pages, 0).await;
    assert!(rig.known("a").is_none(), "it has not looked");
    rig.archive("a").await;
    assert_eq!(rig.listed("a").await, there);
    assert_eq!(rig.known("a").unwrap().pages.len(), 3);
}

#[tokio::test]
async fn what_another_server_never_ended_is_captured_here() {
    let (rig, pages) = (Rig::new(), chain(1, 3));
    rig.make("a", &pages, 0).await;
    let begun = rig.begin_to_archive("a", &pages).await;
    rig.archive("a").await;
    let listed = rig.listed("a").await;
    assert!(listed.len() == 1 && listed[0] != begun, "{listed:?}");
    rig.evict_all();
    let rig = rig.another();
    rig.look().await;
    assert_eq!(rig.known("a").unwrap().snapshot, snapshot_of(listed[0]));
}

#[tokio::test]
async fn what_is_not_a_session_here_or_has_no_pages_is_done_without_a_word_to_the_store() {
    let (rig, pages) = (Rig::new(), chain(1, 3));
    rig.archive("nobody").await;
    let gone = SessionKey { namespace: turnkv_proto::NamespaceId([9; 32]), session: session("a") };
    assert!(rig.tier.keep(&gone).await.is_ok(), "its namespace has retired");
    rig.make("a", &pages, 0).await;
    rig.evict_all();
    rig.archive("a").await;
    assert!(rig.listed("a").await.is_empty());
    assert!(!rig.place().join("tenants").exists(), "nothing was written");
}

#[tokio::test]
async fn a_session_that_lost_its_end_is_archived_as_far_as_it_is_here() {
    let (rig, pages) = (Rig::new(), chain(1, 5));
    rig.store(&pages[..2], 0).await;
    // Its list has more pages than there are.
    rig.turn("a", 0, &pages[..2]).await;
    let outlined = rig.engine.session_outline(&rig.key("a")).unwrap();
    assert_eq!(outlined.len(), 2);
    let plan =
        [outlined, vec![PageOutline { hash: pages[2], parent: Some(pages[1]), tail_tokens: 5 }]].concat();
    let spec = rig.engine.namespace_spec(&rig.namespace).unwrap();
    // The last one leaves after it was planned and before it is read.
    assert!(rig.tier.capture(&rig.key("a"), &spec, &plan, &[]).await.is_ok());
    let archive = rig.tier.snapshots.archive_of("").await.unwrap();
    let manifest = archive.describe(rig.listed("a").await[0].snapshot).await.unwrap();
    let sequence = &manifest.sequences[0];
    assert_eq!((sequence.pages.len(), sequence.last_page_tokens), (2, 16), "whole pages, and no tail");
    assert_eq!(rig.known("a").unwrap().pages.len(), 2);
    // Of one whose pages all left nothing is written.
    rig.evict_all();
    assert!(rig.tier.capture(&rig.key("b"), &spec, &plan, &[]).await.is_ok());
    assert!(rig.listed("b").await.is_empty() && rig.known("b").is_none());
}

#[tokio::test]
async fn a_partial_tail_is_archived_and_a_session_that_forked_at_it_is_another() {
    let (rig, pages) = (Rig::new(), chain(1, 3));
    rig.make("a", &pages, 7).await;
    rig.archive("a").await;
    let archive = rig.tier.snapshots.archive_of("").await.unwrap();
    let manifest = archive.describe(rig.listed("a").await[0].snapshot).await.unwrap();
    assert_eq!((manifest.sequences[0].pages.len(), manifest.sequences[0].last_page_tokens), (3, 7));
    assert_eq!(manifest.sequences[0].id, "a");
}

#[tokio::test]
async fn a_session_waits_for_a_store_that_does_not_answer_and_is_archived_when_it_is_back() {
    let (rig, pages) = (Rig::new(), chain(1, 2));
    rig.make("a", &pages, 0).await;
    rig.lose_store();
    let job = Job::Found(rig.key("a"));
    let is_trusted = || rig.engine.archived.is_trusted(rig.engine.moment_after(Duration::ZERO));
    let distrusted = async {
        while is_trusted() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = rig.tier.keep_one(&job) => panic!("it is neither archived nor given up"),
        told = timeout(Duration::from_secs(20), distrusted) => told.expect("turns are not told of the archive"),
    }
    assert!(rig.known("a").is_none());
    rig.find_store();
    rig.tier.keep_one(&job).await.unwrap();
    assert_eq!((rig.listed("a").await.len(), rig.known("a").unwrap().pages.len()), (1, 2));
    let first = Duration::from_millis(ARCHIVE_PAUSE_MS_MIN);
    assert_eq!(rig.tier.postponing.next(), first, "the next trouble begins with a short pause again");
}

#[tokio::test]
async fn a_session_that_the_store_never_takes_keeps_no_other_waiting() {
    let (rig, pages) = (Rig::new(), chain(1, 2));
    for name in ["never", "a", "b"] {
        rig.make(name, &pages, 0).await;
    }
    rig.archive("a").await;
    // Its folder is one that nothing can be said of.
    let sessions = files(&rig.place(), "/sessions/")[0].ancestors().nth(2).unwrap().to_owned();
    let folder = sessions.join(SessionName::of(&rig.namespace, "never").to_string());
    std::os::unix::fs::symlink(&folder, &folder).unwrap();
    let (mut found, mut late) = (VecDeque::from(["never", "b"].map(|name| rig.key(name))), VecDeque::new());
    let mut archived = 0;
    let first = rig.tier.next_session(&mut found, &mut late, archived).unwrap();
    assert_eq!(first.job.of(), rig.key("never"));
    assert!(rig.tier.keep_one(&first.job).await.is_err(), "it is tried again");
    late.push_back(first);
    let second = rig.tier.next_session(&mut found, &mut late, archived).unwrap();
    archived += u64::from(rig.tier.keep_one(&second.job).await.unwrap());
    assert_eq!(archived, 1);
    assert!(
        !rig.tier.keep_one(&second.job).await.unwrap(),
        "that it is archived already says nothing of the store"
    );
    assert!(rig.known("b").is_some());
    let again = rig.tier.next_session(&mut found, &mut late, archived).unwrap();
    assert_eq!((again.job.of(), again.archived), (rig.key("never"), 0));
    assert!(rig.tier.next_session(&mut found, &mut late, archived).is_none());
}

#[tokio::test]
async fn what_fails_alone_is_given_up_what_fails_with_all_others_is_not_and_no_more_are_begun_then() {
    let rig = Rig::new();
    let of = |name: &str| Late { job: Job::Found(rig.key(name)), tries: 0, archived: 3 };
    let (mut alone, mut with_all) = (of("alone"), of("all"));
    for attempt in 1..=2 * ARCHIVE_TRIES_MAX {
        assert_eq!(alone.is_hopeless(3 + u64::from(attempt)), attempt >= ARCHIVE_TRIES_MAX);
        assert!(!with_all.is_hopeless(3));
    }
    assert!(!with_all.is_hopeless(100), "a store that comes back is given time");
    let mut late: VecDeque<Late> = (0..ARCHIVE_LATE_MAX).map(|at| of(&format!("late-{at}"))).collect();
    let mut found = VecDeque::from([rig.key("new")]);
    let next = rig.tier.next_session(&mut found, &mut late, 3).unwrap();
    assert_eq!((next.job.of(), found.len()), (rig.key("late-0"), 1));
}

#[tokio::test]
async fn sessions_at_rest_are_found_until_they_are_archived_as_they_are() {
    let (rig, pages) = (Rig::new(), chain(1, 4));
    rig.make("a", &pages, 0).await;
    rig.make("b", &pages[..2], 0).await;
    let engine = std::sync::Arc::clone(&rig.engine);
    let resting = || {
        let (mut walk, mut names) = (RestingWalk::default(), Vec::new());
        for _ in 0..8 {
            let found = engine.resting(&mut walk, 3, Duration::ZERO);
            names.extend(found.into_iter().map(|(of, pages, _)| (of.session.as_str().to_owned(), pages)));
        }
        names.sort_unstable();
        names.dedup();
        names
    };
    assert_eq!(resting(), [("a".to_owned(), 4)], "of fewer pages than are asked for none is told");
    rig.archive("a").await;
    let index = rig.engine.archived.index.read();
    let known = index.session(&rig.namespace, &session("a")).unwrap();
    assert!(known.has(4, &pages[3]) && !known.has(3, &pages[3]) && !known.has(4, &pages[2]));
    assert!(!known.has(0, &pages[0]) && !known.has(5, &pages[3]));
}
