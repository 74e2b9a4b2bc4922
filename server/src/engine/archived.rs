//! What only the archive has of sessions: told to lookups and turns, waited for by reloads that would wait, and asked for. Owns: what is
//! known of it in memory, who asks for what, and how long nobody asks because the store does not answer. Must not know: stores,
//! manifests, the pool, which sessions are archived, and why.
//!
//! ```text
//!   lookup, begin_turn, prefetch --want--> fetches (queue) --next_fetch--> [the archiver brings pages back, as anybody offloads]
//!   reload --want, wait (its own, and archive.wait_ms)--> landed --> the pages are in DRAM, or it goes on without them
//!   end_turn, close --ask--> asked (queue) --next_asked--> [the archiver captures the session]
//! ```
//! Nothing here waits for a store: where it is not trusted, nothing is archived as far as turns are told.

mod index;

use crate::config::{ArchiveConfig, ArchivedSessions};
use crate::limits::{ARCHIVE_AVOID_MS, ARCHIVE_AVOIDED_MAX, ARCHIVE_FETCHES_WAITING_MAX};
pub(crate) use index::{ArchivedIndex, ArchivedPage, ArchivedSession, SnapshotName};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

/// What turns and the archiver tell one another.
pub(crate) struct Archived {
    /// Sessions are archived, and archived ones are found.
    is_on: bool,
    /// How long a reload waits.
    pub(super) wait: Duration,
    asked_max: usize,
    pub(crate) index: RwLock<ArchivedIndex>,
    /// An index with something in it: looked at before the lock is taken.
    has_any: AtomicBool,
    asked: Mutex<VecDeque<AskedSession>>,
    fetches: Mutex<Fetches>,
    /// Rung when a session was asked to be archived.
    pub(crate) asked_bell: Notify,
    /// Rung when pages are wanted.
    pub(crate) fetch_bell: Notify,
    /// Rung when a namespace was opened: its tenant may have archived sessions.
    pub(crate) opened_bell: Notify,
    /// Rung when pages came back, or a fetch ended.
    pub(super) landed: Notify,
    /// Until then nobody is told of the archive: its store does not answer, or is slow.
    distrusted_until_ms: AtomicU64,
    /// Reloads that wait.
    pub(crate) waiting_reloads: AtomicU64,
    /// Fetches that found no place in the queue.
    pub(crate) refused_fetches: AtomicU64,
}

/// A session that somebody asked to archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedSession {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Which.
    pub(crate) session: SessionId,
    /// Its turns when that was asked.
    pub(crate) turn: u32,
    /// No turn follows: it is closed when it is archived.
    pub(crate) is_last: bool,
}

/// Pages that somebody wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    /// From this namespace.
    pub(crate) namespace: NamespaceId,
    /// From this snapshot,
    pub(crate) snapshot: SnapshotName,
    /// so many leading pages of its session.
    pub(crate) pages: u32,
}

/// Fetches that wait or are under way: each snapshot once.
#[derive(Debug, Default)]
struct Fetches {
    waiting: VecDeque<Fetch>,
    under_way: Vec<Fetch>,
    /// Snapshots that could not be brought back, and until when nobody tries.
    avoided: BTreeMap<SnapshotName, u64>,
}

impl Archived {
    /// As configured.
    pub(crate) fn new(config: &ArchiveConfig) -> Archived {
        Archived {
            is_on: config.place.is_some() && config.sessions.keep != ArchivedSessions::Off,
            wait: config.sessions.wait,
            asked_max: config.sessions.queue_max,
            index: RwLock::default(),
            has_any: AtomicBool::new(false),
            asked: Mutex::default(),
            fetches: Mutex::default(),
            asked_bell: Notify::new(),
            fetch_bell: Notify::new(),
            opened_bell: Notify::new(),
            landed: Notify::new(),
            distrusted_until_ms: AtomicU64::new(0),
            waiting_reloads: AtomicU64::new(0),
            refused_fetches: AtomicU64::new(0),
        }
    }

    /// Whether sessions are archived at all.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The index changed.
    pub(crate) fn index_changed(&self) {
        self.has_any.store(self.index.read().sessions() > 0, Ordering::Release);
    }

    /// Sessions that wait to be archived because somebody asked.
    pub(crate) fn asked_count(&self) -> usize {
        self.asked.lock().len()
    }

    /// Fetches that wait.
    pub(crate) fn waiting_fetches(&self) -> usize {
        self.fetches.lock().waiting.len()
    }

    /// The session that was asked for first.
    pub(crate) fn next_asked(&self) -> Option<AskedSession> {
        self.asked.lock().pop_front()
    }

    /// Somebody wants a session archived. False: it will not be, because nothing is or too many wait.
    pub(super) fn ask(&self, asked: AskedSession) -> bool {
        if !self.is_on {
            return false;
        }
        let mut queue = self.asked.lock();
        let is_same =
            |one: &&mut AskedSession| one.namespace == asked.namespace && one.session == asked.session;
        if let Some(waiting) = queue.iter_mut().find(is_same) {
            (waiting.turn, waiting.is_last) = (asked.turn, asked.is_last);
            return true;
        }
        let has_room = queue.len() < self.asked_max;
        if has_room {
            queue.push_back(asked);
            self.asked_bell.notify_one();
        }
        has_room
    }

    /// The fetch that waited longest; it is under way from now on.
    pub(crate) fn next_fetch(&self) -> Option<Fetch> {
        let mut fetches = self.fetches.lock();
        let next = fetches.waiting.pop_front()?;
        fetches.under_way.push(next);
        Some(next)
    }

    /// Some pages of a fetch are in the pool now.
    pub(crate) fn pages_landed(&self) {
        self.landed.notify_waiters();
    }

    /// A fetch ended; a snapshot that can not be brought back is avoided for a while.
    pub(crate) fn fetch_ended(&self, fetch: &Fetch, is_avoided: bool, now_ms: u64) {
        let mut fetches = self.fetches.lock();
        fetches.under_way.retain(|one| one.snapshot != fetch.snapshot);
        fetches.avoided.retain(|_, until| *until > now_ms);
        if is_avoided && fetches.avoided.len() < ARCHIVE_AVOIDED_MAX {
            fetches.avoided.insert(fetch.snapshot, now_ms + ARCHIVE_AVOID_MS);
        }
        drop(fetches);
        self.landed.notify_waiters();
    }

    /// Nobody is told of the archive until a moment: its store does not answer, or is slow. Who waits goes on without.
    pub(crate) fn distrust(&self, until_ms: u64) {
        self.distrusted_until_ms.store(until_ms, Ordering::Release);
        self.landed.notify_waiters();
    }

    /// Whether turns are told of the archive.
    pub(crate) fn is_trusted(&self, now_ms: u64) -> bool {
        self.distrusted_until_ms.load(Ordering::Acquire) <= now_ms
    }

    /// Whether there may be anything to find: a load or two, and a look at the clock only where there is an archive.
    pub(super) fn may_find(&self, now_ms: impl FnOnce() -> u64) -> bool {
        self.is_on && self.has_any.load(Ordering::Acquire) && self.is_trusted(now_ms())
    }

    /// How many of these pages only the archive has, if they follow pages that are here; they are wanted from now on.
    pub(super) fn want_following(&self, namespace: &NamespaceId, hashes: &[BlockHash], now_ms: u64) -> u32 {
        let index = self.index.read();
        let found = hashes.iter().map_while(|hash| index.find(namespace, hash));
        let (count, last) = found.fold((0, None), |(count, _), page| (count + 1, Some(page)));
        drop(index);
        match last {
            Some(page) if self.want(namespace, page, now_ms) => count,
            _ => 0,
        }
    }

    /// Asks for a page and all before it. False: it will not come.
    pub(super) fn want(&self, namespace: &NamespaceId, page: ArchivedPage, now_ms: u64) -> bool {
        let wish = Fetch { namespace: *namespace, snapshot: page.snapshot, pages: page.at + 1 };
        let mut fetches = self.fetches.lock();
        if fetches.avoided.get(&wish.snapshot).is_some_and(|until| *until > now_ms) {
            return false;
        }
        if let Some(waiting) = fetches.waiting.iter_mut().find(|one| one.snapshot == wish.snapshot) {
            waiting.pages = waiting.pages.max(wish.pages);
            return true;
        }
        // One that is under way for fewer pages is asked again by whoever waits, when it has ended.
        if fetches.under_way.iter().any(|one| one.snapshot == wish.snapshot) {
            return true;
        }
        let has_room = fetches.waiting.len() < ARCHIVE_FETCHES_WAITING_MAX;
        if has_room {
            fetches.waiting.push_back(wish);
            self.fetch_bell.notify_one();
        } else {
            self.refused_fetches.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archived(asked_max: usize) -> Archived {
        let mut archived = Archived::new(&ArchiveConfig::default());
        (archived.is_on, archived.asked_max) = (true, asked_max);
        archived
    }

    fn asked(name: &str, is_last: bool) -> AskedSession {
        let session = SessionId::parse(name).unwrap();
        AskedSession { namespace: NamespaceId([1; 32]), session, turn: 1, is_last }
    }

    #[test]
    fn a_session_waits_once_and_no_more_wait_than_may() {
        let archived = archived(2);
        assert!(
            archived.ask(asked("a", false))
                && archived.ask(asked("a", true))
                && archived.ask(asked("b", false))
        );
        assert!(!archived.ask(asked("c", false)), "the queue is full");
        assert_eq!(archived.next_asked(), Some(asked("a", true)));
        assert!(archived.ask(asked("c", false)) && archived.asked_count() == 2);
        let off = Archived::new(&ArchiveConfig::default());
        assert!(!off.ask(asked("a", false)), "nothing is archived");
    }

    #[test]
    fn a_snapshot_is_fetched_once_at_a_time_and_one_that_failed_not_for_a_while() {
        let archived = archived(1);
        let namespace = NamespaceId([1; 32]);
        let page = |snapshot: u8, at| ArchivedPage { snapshot: SnapshotName([snapshot; 16]), at };
        assert!(archived.want(&namespace, page(1, 3), 0) && archived.want(&namespace, page(1, 9), 0));
        let fetch = archived.next_fetch().unwrap();
        assert_eq!((fetch.pages, archived.next_fetch()), (10, None));
        assert!(
            archived.want(&namespace, page(1, 20), 0) && archived.waiting_fetches() == 0,
            "it is under way"
        );
        archived.fetch_ended(&fetch, true, 5);
        assert!(!archived.want(&namespace, page(1, 20), 6));
        assert!(archived.want(&namespace, page(1, 20), 5 + ARCHIVE_AVOID_MS));
        let mut snapshots = (2..=u8::MAX).flat_map(|one| (0..2).map(move |two| (one, two)));
        let is_taken = |(one, two): (u8, u8)| {
            let mut page = page(one, 0);
            page.snapshot.0[15] = two;
            archived.want(&namespace, page, 0)
        };
        assert!(snapshots.any(|snapshot| !is_taken(snapshot)));
        assert_eq!(archived.refused_fetches.load(Ordering::Relaxed), 1);
        assert_eq!(archived.waiting_fetches(), ARCHIVE_FETCHES_WAITING_MAX);
    }
}
