//! Sessions: conversations and branches, their pages in order, and their waits.
//! Owns: turns, forks, superseded branches. Must not know: slots, NVMe.

use crate::Pool;
use crate::entry::COUNTED_DRAM;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::limits::{NAMES_PER_CALL, PROTECTION_MS_MAX, RETENTION_MS_DEFAULT, SESSION_LIST_MAX};
use crate::protection::{Owner, PIN_RANK, Wish};
use crate::sessions::Session;
use crate::tips::End;
use turnkv_proto::{BlockHash, SessionId};

/// Answer to the begin of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnBegun {
    /// 1 for a new session.
    pub turn: u32,
    /// Leading pages of the session still present (its partial tail included).
    pub pages: u32,
    /// Of these, in DRAM.
    pub dram: u32,
    /// Its partial tail and the tail's tokens, when it has one that is present.
    pub tail: Option<(BlockHash, u32)>,
}

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

/// One session, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its namespace.
    pub ns: NamespaceIndex,
    /// Its name.
    pub session: SessionId,
    /// Turns begun.
    pub turn: u32,
    /// Pages in its list that are present.
    pub pages: u32,
    /// Tokens of its partial tail.
    pub tail_tokens: u32,
    /// Time since it was last used.
    pub idle_ms: u64,
    /// Whether a turn is running.
    pub in_turn: bool,
}

impl Pool {
    /// Begins a turn; a new session is created.
    pub fn begin_turn(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        now: Now,
    ) -> Result<TurnBegun, PoolError> {
        self.desc(ns)?;
        let now = self.tick(now);
        let at = self.open_session(ns, session, now)?;
        self.arrived(at);
        self.sessions.update(at, |session| {
            session.turn = session.turn.saturating_add(1);
            session.may_continue = session.turn == 1 && session.tip.is_none();
            session.in_turn = true;
            session.return_at = None;
            session.prefetch_at = None;
            session.last_used = now;
        });
        self.sessions.note_end(at, &[]);
        self.policy.turn_began(at);
        let end = self.present_end(at);
        let dram = self.pages.upward(end.page).filter(|index| self.pages[*index].has(COUNTED_DRAM)).count();
        let tail = self.tail_of(end);
        Ok(TurnBegun { turn: self.sessions[at].turn, pages: end.pages, dram: dram as u32, tail })
    }

    /// A session whose owner gave it a priority is protected while it waits, in place of what it had.
    pub(crate) fn retain(&mut self, at: u32, for_ms: u64, now: Now) {
        if self.sessions[at].priority == 0 {
            self.unprotect(Owner::Session(at));
            return;
        }
        self.retain_path(at, self.list_end(at), for_ms, now);
    }

    /// Protects a session's list up to a page of it.
    pub(crate) fn retain_path(&mut self, at: u32, path: End, for_ms: u64, now: Now) {
        let session = &self.sessions[at];
        let (ns, owner) = (session.ns, Owner::Session(at));
        let for_ms = if for_ms == 0 { RETENTION_MS_DEFAULT } else { for_ms.min(PROTECTION_MS_MAX) };
        let rank = session.priority.min(PIN_RANK - 1);
        self.protect(Wish { owner, ns, rank, path, for_ms, decays: true }, now);
    }

    /// Makes a session that shares leading pages of another (0: all). One that exists gets this list instead of its own.
    /// Returns how many pages it shares.
    pub fn fork(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        fork: &SessionId,
        pages: u32,
        now: Now,
    ) -> Result<u32, PoolError> {
        self.desc(ns)?;
        let source = self.sessions.find(ns, session).ok_or(PoolError::SessionUnknown)?;
        if session == fork {
            return Err(PoolError::Invalid("a session cannot be forked onto itself"));
        }
        let now = self.tick(now);
        // Making room for the fork may forget a session, so the list is taken first.
        let present = self.present_end(source);
        let count = if pages == 0 { present.pages } else { present.pages.min(pages) };
        let list = self.cut(present, count);
        let (ttl_ms, priority) = (self.sessions[source].ttl_ms, self.sessions[source].priority);
        let at = self.open_session(ns, fork, now)?;
        self.replace_list(at, list);
        self.sessions.update(at, |session| {
            session.last_used = now;
            session.ttl_ms = ttl_ms;
            session.priority = priority;
        });
        Ok(count)
    }

    /// Cuts a session's list to its leading pages; the branch after them becomes first victim. Returns the pages left.
    pub fn supersede(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        keep: u32,
        now: Now,
    ) -> Result<u32, PoolError> {
        self.desc(ns)?;
        let at = self.sessions.find(ns, session).ok_or(PoolError::SessionUnknown)?;
        let now = self.tick(now);
        let present = self.present_end(at);
        let list = self.cut(present, present.pages.min(keep));
        self.replace_list(at, list);
        self.sessions.update(at, |session| session.last_used = now);
        Ok(list.pages)
    }

    /// Forgets a session; pages that only it used become first victims.
    pub fn close(&mut self, ns: NamespaceIndex, session: &SessionId, now: Now) -> Result<(), PoolError> {
        self.desc(ns)?;
        let at = self.sessions.find(ns, session).ok_or(PoolError::SessionUnknown)?;
        self.tick(now);
        self.close_at(at);
        Ok(())
    }

    /// The leading pages of a session that are present.
    pub fn session_hashes(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
    ) -> Result<Vec<BlockHash>, PoolError> {
        self.desc(ns)?;
        let at = self.sessions.find(ns, session).ok_or(PoolError::SessionUnknown)?;
        Ok(self.hashes_at(at))
    }

    /// Up to `limit` sessions (0: as many as one answer holds), and how many there are.
    pub fn list_sessions(
        &self,
        ns: Option<NamespaceIndex>,
        limit: usize,
        now: Now,
    ) -> (Vec<SessionInfo>, u64) {
        let limit = if limit == 0 { SESSION_LIST_MAX } else { limit.min(SESSION_LIST_MAX) };
        let mut list = Vec::new();
        let mut total = 0;
        for (at, session) in self.sessions.iter() {
            if ns.is_some_and(|ns| ns != session.ns) {
                continue;
            }
            total += 1;
            if list.len() < limit {
                list.push(self.session_info(at, session, now));
            }
        }
        (list, total)
    }

    /// Some of the names of all sessions, from a place of the table on; and where to go on, if there are more.
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

    pub(crate) fn session_info(&self, at: u32, session: &Session, now: Now) -> SessionInfo {
        let end = self.present_end(at);
        SessionInfo {
            ns: session.ns,
            session: session.id.clone(),
            turn: session.turn,
            pages: end.pages,
            tail_tokens: self.tail_of(end).map_or(0, |(_, tokens)| tokens),
            idle_ms: self.now.max(now).saturating_sub(session.last_used),
            in_turn: session.in_turn,
        }
    }

    /// The partial tail that a path ends with, and its tokens.
    pub(crate) fn tail_of(&self, end: End) -> Option<(BlockHash, u32)> {
        let last = self.pages.upward(end.page).next().map(|index| &self.pages[index]);
        last.filter(|last| last.cell.tail_tokens > 0)
            .map(|last| (last.hash, u32::from(last.cell.tail_tokens)))
    }
}
