//! The begin of a turn, in parts that one call may take. Owns: what is told of the session's pages, and that
//! they are expected no more. Must not know: how the turn ends.
//!
//! The session is in its turn from the first call on; the calls that follow go over its pages. What is told
//! is what is there when the last of them comes by.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::index::flags::COUNTED_DRAM;
use crate::sessions::walk_back::WalkBack;
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

/// A turn that is being begun.
#[derive(Debug)]
pub struct TurnBegin<'a> {
    ns: NamespaceIndex,
    session: &'a SessionId,
    turn: u32,
    /// When the session was expected, if it was.
    back: Option<Now>,
    walk: WalkBack,
    dram: u32,
}

impl Pool {
    /// Begins a turn, all at once; a new session is created.
    pub fn begin_turn(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        now: Now,
    ) -> Result<TurnBegun, PoolError> {
        let mut turn = self.start_turn(ns, session, now)?;
        while !self.begin_turn_some(&mut turn, now) {}
        Ok(self.turn_begun(&turn))
    }

    /// Begins a turn; a new session is created. Then `begin_turn_some` until it says so, then `turn_begun`.
    pub fn start_turn<'a>(
        &mut self,
        ns: NamespaceIndex,
        session: &'a SessionId,
        now: Now,
    ) -> Result<TurnBegin<'a>, PoolError> {
        self.namespaces.desc(ns)?;
        let now = self.store.tick(now);
        let at = self.sessions.open(&mut self.store, ns, session, now)?;
        let back = self.sessions[at].return_at;
        self.sessions.update(at, |session| {
            session.turn = session.turn.saturating_add(1);
            session.may_continue = session.turn == 1 && session.tip.is_none();
            session.in_turn = true;
            session.return_at = None;
            session.prefetch_at = None;
            session.last_used = now;
        });
        self.sessions.note_end(at, &[]);
        self.store.turn_began(at);
        let turn = self.sessions[at].turn;
        Ok(TurnBegin { ns, session, turn, back, walk: WalkBack::default(), dram: 0 })
    }

    /// Goes over some more of the session's pages. True: that is all.
    pub fn begin_turn_some(&mut self, turn: &mut TurnBegin<'_>, now: Now) -> bool {
        self.store.tick(now);
        let slice = self.store.call.slice();
        let Some(at) = self.sessions.find(turn.ns, turn.session) else { return true };
        while !self.store.call.is_over(slice) {
            let some = self.sessions.walk_back(&mut self.store, at, &mut turn.walk);
            if some.is_empty() {
                return true;
            }
            for index in some {
                turn.dram += u32::from(self.store.pages()[index].has(COUNTED_DRAM));
                if let Some(back) = turn.back {
                    self.store.expect_no_more(index, back);
                }
            }
        }
        false
    }

    /// What is left of the session whose turn was begun.
    pub fn turn_begun(&self, turn: &TurnBegin<'_>) -> TurnBegun {
        let end = self
            .sessions
            .find(turn.ns, turn.session)
            .map(|at| self.sessions.present_end(self.store.pages(), at));
        let pages = end.map_or(0, |end| end.pages);
        let tail = end.and_then(|end| self.store.pages().tail_of(end));
        TurnBegun { turn: turn.turn, pages, dram: turn.dram.min(pages), tail }
    }
}
