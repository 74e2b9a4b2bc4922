//! What the pool knows of sessions: one in full, its pages, a list of all. Owns: the answers, in parts that
//! one call may take. Must not know: verbs that change anything.
//!
//! Between two parts pages may come and go: an answer counts each page once, as it was when it was passed.

use crate::Pool;
use crate::error::PoolError;
use crate::eviction::protections::Owner;
use crate::ids::{NONE, NamespaceIndex, Now, PageKey};
use crate::index::flags::{COUNTED_DRAM, COUNTED_NVME};
use crate::limits::{FIND_PAGES_AT_ONCE, SESSION_LIST_MAX};
use crate::sessions::info::SessionInfo;
use crate::sessions::walk_back::WalkBack;
use std::cmp::Reverse;
use turnkv_proto::{BlockHash, SessionId};

/// One session in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDetail {
    /// What a list of sessions says of it.
    pub info: SessionInfo,
    /// Of its present pages, those in DRAM.
    pub dram_pages: u32,
    /// Of its present pages, those on NVMe (most are in DRAM as well).
    pub nvme_pages: u32,
    /// Of its present pages, those before the last one that another session or branch hangs on or ends at.
    pub shared_pages: u32,
    /// Leading pages that give way last, by this session's priority; it shrinks as time passes.
    pub protected_pages: u32,
    /// Bytes of its present pages.
    pub bytes: u64,
    /// Its partial tail.
    pub tail: Option<BlockHash>,
    /// When it is expected back; None: not told, or that time has passed.
    pub returns_in_ms: Option<u64>,
    /// When it is forgotten if nothing is heard of it.
    pub forgotten_in_ms: u64,
    /// When its protection ends.
    pub protected_for_ms: u64,
    /// What its owner said.
    pub priority: u32,
}

/// A session that is being described.
#[derive(Debug, Default)]
pub struct Describing {
    walk: WalkBack,
    dram_pages: u32,
    nvme_pages: u32,
    shared_pages: u32,
    bytes: u64,
}

/// What a session is worth against others, the least first: by its owner's priority, its return, its last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionWorth {
    /// What its owner said, the highest first.
    pub priority: Reverse<u32>,
    /// When it is expected back; the largest number: not told, or that time has passed.
    pub returns_in_ms: u64,
    /// Since it was last used.
    pub idle_ms: u64,
    /// Pages in its list that are present.
    pub pages: u32,
}

/// The pages of a session that are being named.
#[derive(Debug, Default)]
pub struct Naming {
    hashes: Vec<BlockHash>,
    last: Option<PageKey>,
}

/// Sessions that are being listed.
#[derive(Debug, Default)]
pub struct Listing {
    sessions: Vec<SessionInfo>,
    /// The place of the table that comes next.
    next: u32,
}

impl Naming {
    /// The leading pages of the session, as far as its list was the same all the time.
    pub fn hashes(self) -> Vec<BlockHash> {
        self.hashes
    }
}

impl Listing {
    /// The sessions found. One that was there all the time is among them once.
    pub fn sessions(self) -> Vec<SessionInfo> {
        self.sessions
    }
}

impl Pool {
    /// Describes a session, all at once; changes nothing.
    pub fn describe_session(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        now: Now,
    ) -> Result<SessionDetail, PoolError> {
        let mut describing = Describing::default();
        while !self.describe_some(ns, session, &mut describing)? {}
        self.described(ns, session, &describing, now)
    }

    /// Looks at some more pages of a session that is to be described. True: that is all, and `described` has
    /// the answer.
    pub fn describe_some(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        describing: &mut Describing,
    ) -> Result<bool, PoolError> {
        self.store.call.begin();
        let (at, slice) = (self.session_at(ns, session)?, self.store.call.slice());
        let own = self.sessions.list_end(self.store.pages(), at).page;
        while !self.store.call.is_over(slice) {
            let some = self.sessions.walk_back(&mut self.store, at, &mut describing.walk);
            if some.is_empty() {
                return Ok(true);
            }
            for index in some {
                let entry = &self.store.pages()[index];
                describing.dram_pages += u32::from(entry.has(COUNTED_DRAM));
                describing.nvme_pages += u32::from(entry.has(COUNTED_NVME));
                describing.bytes += self.store.pages().page_bytes(self.store.slots(), index);
                if describing.shared_pages == 0 && self.store.pages().is_shared(index, own) {
                    describing.shared_pages = entry.depth;
                }
            }
        }
        Ok(false)
    }

    /// The answer on a session whose pages were looked at.
    pub fn described(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
        describing: &Describing,
        now: Now,
    ) -> Result<SessionDetail, PoolError> {
        let at = self.session_at(ns, session)?;
        let (this, now, owner) = (&self.sessions[at], self.store.call.now().max(now), Owner::Session(at));
        let info = self.sessions.info(&self.store, at, this, now);
        Ok(SessionDetail {
            dram_pages: describing.dram_pages.min(info.pages),
            nvme_pages: describing.nvme_pages.min(info.pages),
            shared_pages: describing.shared_pages.min(info.pages),
            protected_pages: self.store.protections().end_of(owner, self.store.pages()).pages,
            bytes: describing.bytes,
            tail: self
                .store
                .pages()
                .tail_of(self.sessions.present_end(self.store.pages(), at))
                .map(|(hash, _)| hash),
            returns_in_ms: this.return_at.and_then(|back| back.checked_sub(now)),
            forgotten_in_ms: this.last_used.saturating_add(this.ttl_ms).saturating_sub(now),
            protected_for_ms: self
                .store
                .protections()
                .ends_of(owner)
                .map_or(0, |ends| ends.saturating_sub(now)),
            priority: this.priority,
            info,
        })
    }

    /// The leading pages of a session that are present, all at once.
    pub fn session_hashes(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
    ) -> Result<Vec<BlockHash>, PoolError> {
        let mut naming = Naming::default();
        while !self.name_some(ns, session, &mut naming)? {}
        Ok(naming.hashes())
    }

    /// Names some more of a session's pages that are present, from the first on. True: that is all of them,
    /// or the list is another one now.
    pub fn name_some(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        naming: &mut Naming,
    ) -> Result<bool, PoolError> {
        self.store.call.begin();
        let (at, slice) = (self.session_at(ns, session)?, self.store.call.slice());
        let end = self.sessions.present_end(self.store.pages(), at);
        let mut done = naming.hashes.len() as u32;
        let last = naming.last.map_or(Some(NONE), |last| self.store.pages().resolve(last));
        if last.is_none_or(|last| self.store.pages().end_within(end, last).is_none()) {
            return Ok(true);
        }
        while done < end.pages && !self.store.call.is_over(slice) {
            let to = end.pages.min(done + FIND_PAGES_AT_ONCE as u32);
            let part = self.store.pages().cut(end, to);
            let some = self.store.pages().between(part, done);
            self.store.call.pass(some.len() as u64);
            naming.hashes.extend(some.into_iter().map(|index| self.store.pages()[index].hash));
            (naming.last, done) = (Some(self.store.pages().key(part.page)), to);
        }
        Ok(done == end.pages)
    }

    /// Up to `limit` sessions (0: as many as one answer holds), all at once; and how many there are.
    pub fn list_sessions(
        &mut self,
        ns: Option<NamespaceIndex>,
        limit: usize,
        now: Now,
    ) -> (Vec<SessionInfo>, u64) {
        let mut listing = Listing::default();
        while !self.list_some(|of| ns.is_none_or(|ns| ns == of), limit, &mut listing, now) {}
        (listing.sessions, self.session_count(ns))
    }

    /// Lists some more sessions, of the namespaces that are wanted. True: that is all, or as many as are wanted.
    pub fn list_some(
        &mut self,
        is_wanted: impl Fn(NamespaceIndex) -> bool,
        limit: usize,
        listing: &mut Listing,
        now: Now,
    ) -> bool {
        self.store.call.begin();
        let slice = self.store.call.slice();
        let limit = if limit == 0 { SESSION_LIST_MAX } else { limit.min(SESSION_LIST_MAX) };
        while listing.sessions.len() < limit && listing.next < self.sessions.end() {
            if self.store.call.is_over(slice) {
                return false;
            }
            let at = listing.next;
            listing.next += 1;
            let wanted = self.sessions.get(at).filter(|session| is_wanted(session.ns));
            let info = wanted.map(|session| self.sessions.info(&self.store, at, session, now));
            self.store.call.step();
            listing.sessions.extend(info);
        }
        true
    }

    /// What a session is worth against others; none: it is not there.
    pub fn worth_of_session(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
        now: Now,
    ) -> Option<SessionWorth> {
        let this = &self.sessions[self.sessions.find(ns, session)?];
        let now = self.store.call.now().max(now);
        let returns_in_ms = this.return_at.and_then(|at| at.checked_sub(now)).unwrap_or(u64::MAX);
        let pages = self.sessions.present_end(self.store.pages(), self.sessions.find(ns, session)?).pages;
        let idle_ms = now.saturating_sub(this.last_used);
        Some(SessionWorth { priority: Reverse(this.priority), returns_in_ms, idle_ms, pages })
    }

    /// Sessions of a namespace, or all.
    pub fn session_count(&self, ns: Option<NamespaceIndex>) -> u64 {
        u64::from(ns.map_or_else(|| self.sessions.len(), |ns| self.sessions.len_of(ns)))
    }

    pub(super) fn session_at(&self, ns: NamespaceIndex, session: &SessionId) -> Result<u32, PoolError> {
        self.namespaces.desc(ns)?;
        self.sessions.find(ns, session).ok_or(PoolError::SessionUnknown)
    }
}
