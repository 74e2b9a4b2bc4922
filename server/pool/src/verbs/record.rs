//! Sessions and pins across restarts. Owns: what is kept of each, their lists in pieces that they share, and
//! how sessions come back. Must not know: where records are kept.
//!
//! A list is cut into chunks of [`LIST_CHUNK_PAGES`] from the root. A block hash names its whole prefix, so a
//! full chunk is named by its last page and is the same for every list that has it: it is kept once. A
//! session's or pin's own record is the name of its last full chunk and the few pages after it.

use crate::Pool;
use crate::error::PoolError;
use crate::eviction::protections::Owner;
use crate::ids::{NamespaceIndex, Now};
use crate::index::path_end::PathEnd;
use crate::limits::NAMES_PER_CALL;
use turnkv_proto::{BlockHash, SessionId};

/// Pages of one chunk of a list: a record names fewer, and one more hash.
pub const LIST_CHUNK_PAGES: u32 = 32;

/// A session as it is kept across restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Its namespace.
    pub ns: NamespaceIndex,
    /// Its name.
    pub session: SessionId,
    /// Turns begun.
    pub turn: u32,
    /// The last page of its last full chunk; none: it has no full one.
    pub base: Option<BlockHash>,
    /// Its pages after that one, in order.
    pub hashes: Vec<BlockHash>,
    /// Tokens of the partial tail, 0 for none.
    pub tail_tokens: u32,
    /// How long to remember it once idle.
    pub ttl_ms: u64,
    /// How long it had been idle.
    pub idle_ms: u64,
    /// 0 usual; higher is kept longer.
    pub priority: u32,
    /// How much longer it is protected; 0: it is not.
    pub protected_ms: u64,
}

/// A pin as it is kept across restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRecord {
    /// The last page of its last full chunk; none: it has no full one.
    pub base: Option<BlockHash>,
    /// The protected pages after that one, in order.
    pub hashes: Vec<BlockHash>,
    /// How much longer it holds.
    pub ends_in_ms: u64,
}

/// A chunk of lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListChunk {
    /// The last page of the chunk before it; none: it is the first.
    pub before: Option<BlockHash>,
    /// Its pages in order; the last one names it.
    pub hashes: Vec<BlockHash>,
}

/// A page that a list begins with, as far as it is here: the last one of its first so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListStart {
    page: BlockHash,
    pub(super) pages: u32,
}

impl ListStart {
    pub(super) fn new(page: BlockHash, pages: u32) -> ListStart {
        ListStart { page, pages }
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> BlockHash {
        self.page
    }
}

impl Pool {
    /// What to keep of a session across restarts.
    pub fn session_record(&self, ns: NamespaceIndex, session: &SessionId, now: Now) -> Option<SessionRecord> {
        let at = self.sessions.find(ns, session)?;
        let end = self.sessions.present_end(self.store.pages(), at);
        let base = self.store.pages().whole_chunks(end, LIST_CHUNK_PAGES);
        let info = self.sessions.info(&self.store, at, &self.sessions[at], now);
        let protected_until = self.store.protections().ends_of(Owner::Session(at));
        Some(SessionRecord {
            ns,
            session: session.clone(),
            turn: info.turn,
            base: (base.pages > 0).then(|| self.store.pages()[base.page].hash),
            hashes: self.store.pages().hashes_between(base, end),
            tail_tokens: info.tail_tokens,
            ttl_ms: self.sessions[at].ttl_ms,
            idle_ms: info.idle_ms,
            priority: self.sessions[at].priority,
            protected_ms: protected_until.map_or(0, |ends| ends.saturating_sub(now)),
        })
    }

    /// What to keep of a pin across restarts; none: it has ended.
    pub fn pin_record(&self, ns: NamespaceIndex, pin: &BlockHash, now: Now) -> Option<PinRecord> {
        let owner = Owner::Pin(ns, *pin);
        let ends_in_ms = self.pin_ends_in(ns, pin, now)?;
        let end = self.store.protections().end_of(owner, self.store.pages());
        let base = self.store.pages().whole_chunks(end, LIST_CHUNK_PAGES);
        (end.pages > 0).then(|| PinRecord {
            base: (base.pages > 0).then(|| self.store.pages()[base.page].hash),
            hashes: self.store.pages().hashes_between(base, end),
            ends_in_ms,
        })
    }

    /// Some of the names of all pins, from a place of the table on; and where to go on, if there are more.
    pub fn pin_names(&self, from: u32) -> (Vec<(NamespaceIndex, BlockHash)>, Option<u32>) {
        let to = from.saturating_add(NAMES_PER_CALL).min(self.store.protections().end());
        let names = (from..to).filter_map(|at| self.store.protections().pin_at(at)).collect();
        (names, (to < self.store.protections().end()).then_some(to))
    }

    /// The chunk that ends with a page and those before it, at most so many; none where the page has gone.
    pub fn list_chunks(&self, ns: NamespaceIndex, last: &BlockHash, max: usize) -> Vec<ListChunk> {
        let mut chunks = Vec::new();
        let mut next = self.find_page(ns, last);
        while let Some(page) = next.filter(|_| chunks.len() < max) {
            let end = PathEnd { page, pages: LIST_CHUNK_PAGES };
            let path = self.store.pages().upward(page).take(LIST_CHUNK_PAGES as usize).last();
            next = path
                .map(|first| self.store.pages()[first].parent)
                .and_then(|parent| self.store.pages().upward(parent).next());
            let before = next.map(|index| self.store.pages()[index].hash);
            let mut hashes = Vec::with_capacity(LIST_CHUNK_PAGES as usize);
            hashes.extend(
                self.store
                    .pages()
                    .upward(page)
                    .take(end.pages as usize)
                    .map(|index| self.store.pages()[index].hash),
            );
            hashes.reverse();
            chunks.push(ListChunk { before, hashes });
        }
        chunks
    }

    /// How far a list is here that goes on with these pages from a page that is here (none: from the root).
    /// Presence is monotone along a list, so a few of them are looked at. None: not even the first, or it
    /// does not follow.
    pub fn list_start(
        &self,
        ns: NamespaceIndex,
        from: Option<ListStart>,
        hashes: &[BlockHash],
    ) -> Option<ListStart> {
        let is_here = |hash: &BlockHash| self.find_page(ns, hash).is_some();
        let count = hashes.partition_point(is_here);
        let page = hashes[..count].last()?;
        let mut upward = self.store.pages().upward(self.find_page(ns, page)?);
        upward.nth(count - 1)?;
        let follows = match (from, upward.next()) {
            (None, None) => true,
            (Some(from), Some(base)) => self.store.pages()[base].hash == from.page,
            (None, Some(_)) | (Some(_), None) => false,
        };
        follows.then_some(ListStart { page: *page, pages: from.map_or(0, |from| from.pages) + count as u32 })
    }

    /// Brings a session back whose list is here as far as `start` says; one that is here already knows more
    /// than its record. Returns the pages it has. What was protected of it is for the caller to protect again
    /// ([`Retaining`]).
    ///
    /// [`Retaining`]: crate::Retaining
    pub fn restore_session(
        &mut self,
        record: &SessionRecord,
        start: Option<ListStart>,
        now: Now,
    ) -> Result<u32, PoolError> {
        self.namespaces.desc(record.ns)?;
        if let Some(at) = self.sessions.find(record.ns, &record.session) {
            return Ok(self.sessions.present_end(self.store.pages(), at).pages);
        }
        let page = start.and_then(|start| {
            Some((self.store.pages().find_visible(record.ns.0, &start.page)?, start.pages))
        });
        let end = page.map_or(PathEnd::EMPTY, |(page, pages)| PathEnd { page, pages });
        if end.pages > self.store.limits().session_pages_max {
            return Err(PoolError::Limit("session_pages_max"));
        }
        let now = self.store.tick(now);
        let at = self.sessions.open(&mut self.store, record.ns, &record.session, now)?;
        self.sessions.replace_list(&mut self.store, at, end);
        self.sessions.update(at, |session| {
            session.turn = record.turn;
            session.ttl_ms = record.ttl_ms.max(1);
            session.priority = record.priority;
            session.last_used = now.saturating_sub(record.idle_ms);
        });
        Ok(end.pages)
    }
}
