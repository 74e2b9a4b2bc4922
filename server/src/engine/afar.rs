//! What other pools of the cluster have, for turns that begin here: told to lookups and turns, waited for by reloads, and asked for.
//! Owns: the pulls that wait or are under way, and which pages they will bring. Must not know: how they are brought, the pool.
//!
//! ```text
//!   begin_turn, lookup --begin--> waiting --next--> under way [the puller brings pages, as anybody offloads] --landed*--> ended
//!   reload --is_coming, wait (its own, and PULL_PAGE_WAIT)--> landed --> the page is in DRAM, or it goes on without it
//! ```
//! A page that is on its way is known by a mark: two may have one in common. Then a reload waits for a page that does not come, for
//! a bounded time. One that waited in vain for a pull of which nothing comes ends that wait for all: nothing of it counts as on its way
//! until more of it comes.

use super::brought::BroughtSessions;
use super::second_copies::SecondCopies;
use crate::cluster::MemberCard;
use crate::limits::{
    PULL_PAGES_MAX, PULL_PAGES_SETTLED_PER_LOCK, PULL_STILL_MIN, PULLS_MAX, PULLS_WAITING_MAX,
};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::Notify;
use turnkv_cluster::Tip;
use turnkv_proto::{BlockHash, NamespaceId, SessionId};
use turnkv_transfer::checksum;

/// Pulls, and who waits for them.
#[derive(Default)]
pub(crate) struct Afar {
    state: Mutex<OnTheWay>,
    /// There are pulls: looked at before the lock is taken.
    has_any: AtomicBool,
    /// Rung when a pull waits.
    pub(crate) bell: Notify,
    /// Rung when pages came, or a pull ended.
    pub(super) landed: Notify,
    /// Reloads that wait.
    pub(crate) waiting_reloads: AtomicU64,
    /// Pulls that found no place.
    pub(crate) refused: AtomicU64,
    /// Prefixes that came, and that other pools have as well.
    pub(crate) second_copies: SecondCopies,
    /// Sessions that were brought ahead of their turn.
    pub(crate) brought: BroughtSessions,
}

/// Pages that are to be brought from another pool.
#[derive(Clone, Debug)]
pub(crate) struct Pull {
    /// Its number.
    pub(crate) id: u64,
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Of which session; none: of a prefix.
    pub(crate) session: Option<SessionId>,
    /// All pages from the first on, in order.
    pub(crate) hashes: Arc<[BlockHash]>,
    /// So many leading ones were here when it began.
    pub(crate) here: usize,
    /// Above 0: the last page is a partial tail of so many tokens.
    pub(crate) tail_tokens: u32,
    /// Who has them.
    pub(crate) member: Arc<MemberCard>,
    /// What made it ask there; none: a lookup found them, or a prefetch.
    pub(crate) tip: Option<Tip>,
    /// A turn is expected to use them here, so they are no copies that may go first.
    pub(crate) expected: bool,
    /// Members that were asked before.
    pub(crate) redirects: u32,
    /// Rung when somebody here has computed a page that it is bringing.
    pub(crate) gives_way: Arc<Notify>,
    /// It ended because there was no room here, or what is here is worth more.
    pub(crate) lacks_room: Arc<AtomicBool>,
}

#[derive(Default)]
struct OnTheWay {
    last: u64,
    waiting: VecDeque<Pull>,
    under_way: Vec<KnownPull>,
    /// For each page that is to come the pull that brings it.
    pages: HashMap<u64, u64>,
}

/// What is known of a pull under way.
struct KnownPull {
    id: u64,
    session: Option<(NamespaceId, SessionId)>,
    pages: usize,
    gives_way: Arc<Notify>,
    /// When some of it came, or it began.
    moved: Instant,
    /// Somebody waited for it in vain since.
    stands_still: bool,
}

impl Pull {
    /// Of a prefix.
    pub(super) fn new(namespace: NamespaceId, hashes: Vec<BlockHash>, member: Arc<MemberCard>) -> Pull {
        let hashes = hashes.into();
        let (id, here, tail_tokens, redirects) = (0, 0, 0, 0);
        let gives_way = Arc::default();
        Pull {
            id,
            namespace,
            session: None,
            hashes,
            here,
            tail_tokens,
            member,
            tip: None,
            expected: false,
            redirects,
            gives_way,
            lacks_room: Arc::default(),
        }
    }
}

impl Afar {
    /// Has pages brought, those that no other pull brings already: of a prefix none if one brings its last page, and so all before it.
    /// False: there are too many.
    pub(crate) fn begin(&self, mut pull: Pull) -> bool {
        // Made before the lock is taken: reloads of other sessions look behind it, and there may be many.
        let coming = pull.hashes.get(pull.here..).unwrap_or_default();
        let marks: Vec<u64> = coming.iter().map(|hash| mark(&pull.namespace, hash)).collect();
        let mut state = self.state.lock();
        if pull.session.is_none() && marks.last().is_some_and(|last| state.comes(last)) {
            return true;
        }
        if state.waiting.len() >= PULLS_WAITING_MAX || state.pages.len() + marks.len() > PULL_PAGES_MAX {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        state.last += 1;
        pull.id = state.last;
        state.pages.reserve(marks.len());
        for mark in marks {
            if !state.comes(&mark) {
                state.pages.insert(mark, pull.id);
            }
        }
        state.waiting.push_back(pull);
        self.has_any.store(true, Ordering::Release);
        self.bell.notify_one();
        true
    }

    /// The pull that waited longest, if another one may be under way; it is from now on.
    pub(crate) fn next(&self) -> Option<Pull> {
        let mut state = self.state.lock();
        if state.under_way.len() >= PULLS_MAX {
            return None;
        }
        let pull = state.waiting.pop_front()?;
        let session = pull.session.clone().map(|session| (pull.namespace, session));
        let (id, pages, gives_way) = (pull.id, pull.hashes.len(), Arc::clone(&pull.gives_way));
        let (moved, stands_still) = (Instant::now(), false);
        state.under_way.push(KnownPull { id, session, pages, gives_way, moved, stands_still });
        Some(pull)
    }

    /// These pages of a pull are in the pool now, or will not come.
    pub(crate) fn pages_settled(&self, pull: &Pull, pages: &[BlockHash]) {
        let mut state = self.state.lock();
        state.settle(pull, pages);
        let known = state.under_way.iter_mut().find(|known| known.id == pull.id && !pages.is_empty());
        if let Some(known) = known {
            (known.moved, known.stands_still) = (Instant::now(), false);
        }
        drop(state);
        self.landed.notify_waiters();
    }

    /// A pull ended: what has not come of it will not.
    pub(crate) fn ended(&self, pull: &Pull) {
        for part in pull.hashes.chunks(PULL_PAGES_SETTLED_PER_LOCK) {
            self.state.lock().settle(pull, part);
        }
        let mut state = self.state.lock();
        state.under_way.retain(|known| known.id != pull.id);
        let is_empty = state.under_way.is_empty() && state.waiting.is_empty();
        self.has_any.store(!is_empty, Ordering::Release);
        drop(state);
        self.landed.notify_waiters();
        self.bell.notify_one();
    }

    /// Whether any page may be on its way.
    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Whether a page is on its way.
    pub(super) fn is_coming(&self, namespace: &NamespaceId, hash: &BlockHash) -> bool {
        self.has_any() && self.state.lock().comes(&mark(namespace, hash))
    }

    /// Somebody here has computed a page: the pull that brings it lets go of it. False: none does.
    pub(super) fn give_way(&self, namespace: &NamespaceId, hash: &BlockHash) -> bool {
        if !self.has_any() {
            return false;
        }
        let state = self.state.lock();
        let pull = state.pages.get(&mark(namespace, hash));
        let known = pull.and_then(|id| state.under_way.iter().find(|known| known.id == *id));
        known.is_some_and(|known| {
            known.gives_way.notify_one();
            true
        })
    }

    /// Somebody waited in vain for a page that is on its way: if nothing came of its pull for a while, nobody else does, until more of
    /// it comes.
    pub(super) fn waited_in_vain(&self, namespace: &NamespaceId, hash: &BlockHash) {
        let mut state = self.state.lock();
        let Some(id) = state.pages.get(&mark(namespace, hash)).copied() else { return };
        let known = state.under_way.iter_mut().find(|known| known.id == id);
        if let Some(known) = known.filter(|known| known.moved.elapsed() >= PULL_STILL_MIN) {
            known.stands_still = true;
            drop(state);
            self.landed.notify_waiters();
        }
    }

    /// How many leading ones of these are.
    pub(super) fn coming(&self, namespace: &NamespaceId, hashes: &[BlockHash]) -> usize {
        if !self.has_any() {
            return 0;
        }
        let state = self.state.lock();
        hashes.iter().take_while(|hash| state.comes(&mark(namespace, hash))).count()
    }

    /// How many pages a session has, if some of them are on their way.
    pub(super) fn pages_of(&self, namespace: &NamespaceId, session: &SessionId) -> Option<usize> {
        if !self.has_any() {
            return None;
        }
        let state = self.state.lock();
        let waits = |pull: &&Pull| pull.namespace == *namespace && pull.session.as_ref() == Some(session);
        let waiting = state.waiting.iter().find(waits).map(|pull| pull.hashes.len());
        let goes = |known: &&KnownPull| {
            let is_its = |(of, name): &(NamespaceId, SessionId)| of == namespace && name == session;
            !known.stands_still && known.session.as_ref().is_some_and(is_its)
        };
        waiting.or_else(|| state.under_way.iter().find(goes).map(|known| known.pages))
    }

    /// Pulls that wait, pulls under way, pages that are to come.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.waiting.len(), state.under_way.len(), state.pages.len())
    }
}

impl OnTheWay {
    /// Whether a page is on its way, of a pull of which something comes.
    fn comes(&self, mark: &u64) -> bool {
        self.pages.get(mark).is_some_and(|id| !is_still(&self.under_way, *id))
    }

    fn settle(&mut self, pull: &Pull, pages: &[BlockHash]) {
        for hash in pages {
            let mark = mark(&pull.namespace, hash);
            if self.pages.get(&mark) == Some(&pull.id) {
                self.pages.remove(&mark);
            }
        }
    }
}

fn is_still(under_way: &[KnownPull], id: u64) -> bool {
    under_way.iter().any(|known| known.stands_still && known.id == id)
}

/// A mark of a page, which tells namespaces apart as well.
fn mark(namespace: &NamespaceId, hash: &BlockHash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = namespace.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ checksum(&hash.0)
}

#[cfg(test)]
mod tests;
