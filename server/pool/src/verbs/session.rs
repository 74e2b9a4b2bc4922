//! Sessions: conversations and branches, their pages in order, and their waits.
//! Owns: forks, superseded branches, ends of sessions. Must not know: turns, slots, NVMe.

use crate::Pool;
use crate::error::PoolError;
use crate::eviction::policy::TurnFacts;
use crate::ids::{NamespaceIndex, Now};
use crate::index::path_end::PathEnd;
use crate::limits::NAMES_PER_CALL;
use crate::verbs::record::ListStart;
use turnkv_proto::{BlockHash, SessionId};

/// What the owner says at the end of a turn.
#[derive(Clone, Copy, Debug)]
pub struct EndTurn<'a> {
    /// Leading pages of the session's list that stay as they are.
    pub keep: u32,
    /// The pages after them, in order, a partial tail last.
    pub hashes: &'a [BlockHash],
    /// Above 0: the last hash is a partial tail.
    pub tail_tokens: u32,
    /// When the next turn is expected; 0: unknown.
    pub expected_return_ms: u64,
    /// How long to remember the session, and to protect it if it has a priority; 0: the pool's defaults.
    pub ttl_ms: u64,
    /// 0 usual; higher is protected while it waits, within the tenant's budget and before lower ones.
    pub priority: u32,
    /// No turn will follow.
    pub last: bool,
}

/// What another pool, where a session's last turn ended, says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FromElsewhere {
    /// Turns that have ended.
    pub turns: u32,
    /// Its pages.
    pub pages: u32,
    /// How long it had waited there when its next turn began; 0: not known.
    pub waited_ms: Now,
    /// Its next turn begins here now.
    pub begins: bool,
    /// What is here of its list.
    pub start: Option<ListStart>,
}

impl Pool {
    /// Makes a session that shares leading pages of another (0: all). One that exists gets this list instead
    /// of its own. Returns how many pages it shares.
    pub fn fork(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        fork: &SessionId,
        pages: u32,
        now: Now,
    ) -> Result<u32, PoolError> {
        let source = self.session_at(ns, session)?;
        if session == fork {
            return Err(PoolError::Invalid("a session cannot be forked onto itself"));
        }
        let now = self.store.tick(now);
        // Making room for the fork may forget a session, so the list is taken first.
        let present = self.sessions.present_end(self.store.pages(), source);
        let count = if pages == 0 { present.pages } else { present.pages.min(pages) };
        let list = self.store.pages().cut(present, count);
        let (ttl_ms, priority) = (self.sessions[source].ttl_ms, self.sessions[source].priority);
        let at = self.sessions.open(&mut self.store, ns, fork, now)?;
        self.sessions.replace_list(&mut self.store, at, list);
        self.sessions.update(at, |session| {
            session.last_used = now;
            session.ttl_ms = ttl_ms;
            session.priority = priority;
        });
        Ok(count)
    }

    /// Cuts a session's list to its leading pages; the branch after them becomes first victim. Returns the
    /// pages left.
    pub fn supersede(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        keep: u32,
        now: Now,
    ) -> Result<u32, PoolError> {
        let at = self.session_at(ns, session)?;
        let now = self.store.tick(now);
        let present = self.sessions.present_end(self.store.pages(), at);
        let list = self.store.pages().cut(present, present.pages.min(keep));
        self.sessions.replace_list(&mut self.store, at, list);
        self.sessions.update(at, |session| session.last_used = now);
        Ok(list.pages)
    }

    /// A session's next turn begins in another pool: it came back. Returns how long it had waited here; 0: nobody knows.
    pub fn begin_elsewhere(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        now: Now,
    ) -> Result<Now, PoolError> {
        let at = self.session_at(ns, session)?;
        let now = self.store.tick(now);
        let known = &self.sessions[at];
        if known.in_turn {
            return Ok(0);
        }
        let waited_ms = now.saturating_sub(known.last_used);
        self.store.turn_began_elsewhere(at);
        Ok(waited_ms)
    }

    /// A session lives in another pool now, which has all its pages: those here go first.
    pub fn end_elsewhere(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        now: Now,
    ) -> Result<(), PoolError> {
        let at = self.session_at(ns, session)?;
        self.supersede(ns, session, 0, now)?;
        self.store.moved_away(at);
        Ok(())
    }

    /// A session whose last turn ended in another pool goes on here after so many turns, with what is here of its list. One whose
    /// turn runs here already keeps a list that goes on from there.
    pub fn continue_session(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        from: &FromElsewhere,
        now: Now,
    ) -> Result<(), PoolError> {
        let end = from.start.and_then(|start| self.end_of(ns, start)).unwrap_or(PathEnd::EMPTY);
        if end.pages > self.store.limits().session_pages_max {
            return Err(PoolError::Limit("session_pages_max"));
        }
        let known = self.sessions.find(ns, session).map_or(0, |at| self.sessions[at].turn);
        let at = self.open_after(ns, session, from.turns, now)?;
        if !self.sessions[at].in_turn {
            let turn = self.sessions[at].turn;
            let facts = TurnFacts { session: at, turn, expected_return_ms: 0, ns: ns.0, pages: from.pages };
            self.store.moved_here(&facts, from.waited_ms, from.begins);
        }
        let list = self.sessions.list_end(self.store.pages(), at);
        let goes_on = end.pages == 0 || self.store.pages().end_within(list, end.page).is_some();
        // A turn that runs here may have come further than what is named; one that began on a list from before that has not.
        let came_further = self.sessions[at].in_turn && goes_on && known >= from.turns;
        if !came_further {
            self.sessions.replace_list(&mut self.store, at, end);
        }
        Ok(())
    }

    /// Turns of a session are known to have ended, wherever: those that follow here are counted from there on. A list from before them
    /// may be of a branch that was left since, so it is the session's no more; its pages stay.
    pub fn count_turns(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        turns: u32,
        now: Now,
    ) -> Result<(), PoolError> {
        let known = self.sessions.find(ns, session).map_or(0, |at| self.sessions[at].turn);
        let at = self.open_after(ns, session, turns, now)?;
        if known < turns {
            self.sessions.drop_list(&mut self.store, at);
        }
        Ok(())
    }

    fn open_after(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        turns: u32,
        now: Now,
    ) -> Result<u32, PoolError> {
        self.namespaces.desc(ns)?;
        let now = self.store.tick(now);
        let at = self.sessions.open(&mut self.store, ns, session, now)?;
        self.sessions.update(at, |session| {
            session.turn = session.turn.max(turns);
            session.last_used = now;
        });
        Ok(at)
    }

    /// More pages of a session's list are here than up to `from` (none: nothing). A list that does not end there any more is
    /// another one by now, and stays.
    pub fn extend_list(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        from: Option<ListStart>,
        to: ListStart,
        now: Now,
    ) {
        self.store.tick(now);
        let Some(at) = self.sessions.find(ns, session) else { return };
        let end = self.sessions.present_end(self.store.pages(), at);
        let from = from.map_or(Some(PathEnd::EMPTY), |from| self.end_of(ns, from));
        let to = self.end_of(ns, to).filter(|to| to.pages <= self.store.limits().session_pages_max);
        if let (Some(from), Some(to)) = (from, to)
            && (from.pages, from.page) == (end.pages, end.page)
        {
            self.sessions.replace_list(&mut self.store, at, to);
            let turn = self.sessions[at].turn;
            let facts = TurnFacts { session: at, turn, expected_return_ms: 0, ns: ns.0, pages: to.pages };
            for page in self.store.pages().between(to, from.pages).into_iter().rev() {
                self.store.came_for(page, &facts);
            }
        }
    }

    fn end_of(&self, ns: NamespaceIndex, start: ListStart) -> Option<PathEnd> {
        let page = self.find_page(ns, &start.page())?;
        Some(PathEnd { page, pages: start.pages })
    }

    /// Forgets a session; pages that only it used become first victims.
    pub fn close(&mut self, ns: NamespaceIndex, session: &SessionId, now: Now) -> Result<(), PoolError> {
        let at = self.session_at(ns, session)?;
        self.store.tick(now);
        self.sessions.close(&mut self.store, at);
        Ok(())
    }

    /// Whether a session has a page here, visible or not yet. Looking for it is no use of it.
    pub fn has_of_session(&self, ns: NamespaceIndex, session: &SessionId) -> bool {
        let at = self.sessions.find(ns, session);
        at.is_some_and(|at| self.sessions.list_end(self.store.pages(), at).pages > 0)
    }

    /// Some of the names of all sessions, from a place of the table on; and where to go on, if there are
    /// more.
    pub fn session_names(&self, from: u32) -> (Vec<(NamespaceIndex, SessionId)>, Option<u32>) {
        let to = from.saturating_add(NAMES_PER_CALL).min(self.sessions.end());
        (
            (from..to).filter_map(|at| self.sessions.name_at(at)).collect(),
            (to < self.sessions.end()).then_some(to),
        )
    }

    /// Sessions forgotten since the last call (expired, or made way for a new one): their records can go.
    pub fn take_forgotten(&mut self) -> Vec<(NamespaceIndex, SessionId)> {
        self.sessions.take_forgotten()
    }
}
