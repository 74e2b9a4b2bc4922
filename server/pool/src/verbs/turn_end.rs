//! The end of a turn, in steps: a session may have more pages than one hold of the server's lock should look
//! at. Owns: what of it is done in which step. Must not know: what a policy or a curve makes of it.
//!
//! ```text
//!   FOLLOW (pages named, from the first) -> [the session's list is the new one] -> TAILS (used, from the tail up)
//!          -> HEADS (worth a write, from the head down) -> PROTECT (as far as the budget reaches) -> OVER
//! ```
//! Between two steps anything may happen to pages and sessions. Each step looks again; a turn that began, or
//! a session that is gone, ends it.

use crate::Pool;
use crate::error::PoolError;
use crate::eviction::policy::TurnFacts;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::index::path_end::PathEnd;
use crate::limits::{HASHES_PER_CALL_MAX, TURN_PAGES_PER_STEP};
use crate::sessions::walk::end_at;
use crate::sizing::curve::Seen;
use crate::verbs::retain::Retaining;
use crate::verbs::session::EndTurn;
use turnkv_proto::{BlockHash, SessionId};

/// A turn that is being ended.
#[derive(Debug)]
pub struct TurnEnd<'a> {
    ns: NamespaceIndex,
    session: &'a SessionId,
    end: EndTurn<'a>,
    stage: TurnEndStage,
    /// Where the list ends, as far as that is known: a page and how many there are up to it.
    list: Option<(PageKey, u32)>,
    /// Pages named that were looked for.
    followed: usize,
    /// Which turn it is.
    turn: u32,
    /// The list from its tail up, as far as it was gone over; from the head on, what is left of it.
    path: Vec<PageKey>,
    /// Bytes of the pages gone over.
    bytes: u64,
    retaining: Retaining<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnEndStage {
    Follow,
    Tails,
    Heads,
    Protect,
    Over,
}

impl<'a> TurnEnd<'a> {
    /// A turn to end, by as many calls of [`Pool::end_turn_step`] as it takes.
    #[must_use]
    pub fn new(ns: NamespaceIndex, session: &'a SessionId, end: EndTurn<'a>) -> TurnEnd<'a> {
        let stage = TurnEndStage::Follow;
        TurnEnd {
            ns,
            session,
            end,
            stage,
            list: None,
            followed: 0,
            turn: 0,
            path: Vec::new(),
            bytes: 0,
            retaining: Retaining::new(ns, session, end.ttl_ms),
        }
    }

    /// The pages that the session has now: fewer than told when some are not present.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.list.map_or(0, |(_, pages)| pages)
    }

    /// The full pages named.
    fn full(&self) -> &'a [BlockHash] {
        &self.end.hashes[..self.end.hashes.len() - usize::from(self.end.tail_tokens > 0)]
    }
}

impl Pool {
    /// Ends a turn, all at once. Returns the pages the session has now. What the session had before and has
    /// no more becomes first victim. `last` also forgets the session.
    pub fn end_turn(
        &mut self,
        ns: NamespaceIndex,
        session: &SessionId,
        end: EndTurn<'_>,
        now: Now,
    ) -> Result<u32, PoolError> {
        let mut turn = TurnEnd::new(ns, session, end);
        while self.end_turn_step(&mut turn, now)? {}
        Ok(turn.pages())
    }

    /// Does some of what the end of a turn takes. True: there is more. An error comes before anything has
    /// changed.
    pub fn end_turn_step(&mut self, turn: &mut TurnEnd<'_>, now: Now) -> Result<bool, PoolError> {
        let now = self.store.tick(now);
        let found = self.sessions.find(turn.ns, turn.session);
        match turn.stage {
            TurnEndStage::Follow => {
                self.check_turn_end(turn)?;
                let at = found.ok_or(PoolError::SessionUnknown)?;
                if self.follow_turn(turn, at) {
                    self.take_list(turn, at, now);
                    turn.stage = TurnEndStage::Tails;
                }
            }
            TurnEndStage::Over => {}
            stage => match (stage, found.filter(|at| self.is_ended(*at, turn))) {
                (TurnEndStage::Tails, Some(at)) => self.settle_tails(turn, at, now),
                (TurnEndStage::Heads, Some(at)) => self.settle_heads(turn, at),
                (_, Some(_)) if !self.retain_some(&mut turn.retaining, now) => {}
                _ => {
                    self.store.disown_protected(turn.retaining.give_up());
                    turn.stage = TurnEndStage::Over;
                }
            },
        }
        Ok(turn.stage != TurnEndStage::Over)
    }

    fn check_turn_end(&self, turn: &TurnEnd<'_>) -> Result<(), PoolError> {
        let (desc, end) = (self.namespaces.desc(turn.ns)?, &turn.end);
        if end.hashes.len() > HASHES_PER_CALL_MAX {
            return Err(PoolError::Invalid("too many pages in one call: split it"));
        }
        if end.tail_tokens > 0 && (end.tail_tokens >= desc.page_tokens || end.hashes.is_empty()) {
            return Err(PoolError::Invalid(
                "a partial tail is the last page named, with fewer tokens than a page",
            ));
        }
        if end.keep as usize + end.hashes.len() > self.store.limits().session_pages_max as usize {
            return Err(PoolError::Limit("session_pages_max"));
        }
        Ok(())
    }

    /// Whether it is still the session's last turn that is being ended.
    fn is_ended(&self, at: u32, turn: &TurnEnd<'_>) -> bool {
        self.sessions[at].turn == turn.turn && !self.sessions[at].in_turn
    }

    /// Finds some more of the pages named. True: that is all there are.
    fn follow_turn(&mut self, turn: &mut TurnEnd<'_>, at: u32) -> bool {
        let (keep, ns) = (turn.end.keep, turn.ns.0);
        let known =
            turn.list.and_then(|(page, _)| self.store.pages().resolve(page)).filter(|_| turn.followed > 0);
        let from = match known {
            Some(page) => PathEnd { page, pages: self.store.pages().depth(page) },
            None => self.find_again(turn, at),
        };
        let next = &turn.end.hashes[turn.followed..];
        let next = &next[..next.len().min(TURN_PAGES_PER_STEP)];
        self.store.call.add(next.len() as u64);
        let whole = from.pages as usize == keep as usize + turn.followed;
        let end = if whole { self.store.pages().follow(ns, from, next) } else { from };
        turn.followed += next.len();
        turn.list = (end != PathEnd::EMPTY).then(|| (self.store.pages().key(end.page), end.pages));
        let reached = end.pages as usize == keep as usize + turn.followed;
        !reached || turn.followed == turn.end.hashes.len()
    }

    /// Where the pages end that were followed so far. The last of them may have gone meanwhile, and with it
    /// some before it: what is still here is found by halves.
    fn find_again(&self, turn: &TurnEnd<'_>, at: u32) -> PathEnd {
        let kept = self.kept_after_turn(at, &turn.end);
        let is_here = |hash: &BlockHash| self.store.pages().find(turn.ns.0, hash).is_some();
        let here = turn.end.hashes[..turn.followed].partition_point(is_here);
        let last =
            here.checked_sub(1).and_then(|last| self.store.pages().find(turn.ns.0, &turn.end.hashes[last]));
        let path = last.map(|page| PathEnd { page, pages: self.store.pages().depth(page) });
        let follows = |path: &PathEnd| {
            path.pages as usize == kept.pages as usize + here
                && self.store.pages().end_within(*path, kept.page).is_some()
        };
        path.filter(follows).unwrap_or(kept)
    }

    /// The pages that a session keeps after its turn, as far as they are here: those named follow them.
    fn kept_after_turn(&self, at: u32, end: &EndTurn<'_>) -> PathEnd {
        let old = self.sessions.list_end(self.store.pages(), at);
        let kept = self.store.pages().cut(old, end.keep.min(old.pages));
        let first = end.hashes.first().and_then(|hash| self.store.pages().find(self.sessions[at].ns.0, hash));
        match first.filter(|_| end.keep > kept.pages) {
            // The pool forgot part of the list (a restart, perhaps): the pages themselves know their prefix.
            Some(first) => end_at(&self.store, self.store.pages()[first].parent).unwrap_or(kept),
            None => kept,
        }
    }

    /// The list is what was found; the session waits.
    fn take_list(&mut self, turn: &mut TurnEnd<'_>, at: u32, now: Now) {
        let end = turn.end;
        self.sessions.continue_another(&mut self.store, at, turn.full());
        self.sessions.note_turn_end(at, turn.full());
        let list = turn
            .list
            .and_then(|(page, pages)| Some(PathEnd { page: self.store.pages().resolve(page)?, pages }));
        let list = list.unwrap_or(PathEnd::EMPTY);
        if end.tail_tokens > 0
            && list != PathEnd::EMPTY
            && end.hashes.last() == Some(&self.store.pages()[list.page].hash)
        {
            self.store.set_tail_tokens(list.page, end.tail_tokens);
        }
        self.sessions.replace_list(&mut self.store, at, list);
        let ttl_ms = if end.ttl_ms == 0 { self.store.limits().session_ttl_ms } else { end.ttl_ms };
        self.sessions.update(at, |session| {
            session.in_turn = false;
            session.last_used = now;
            session.ttl_ms = ttl_ms;
            session.priority = end.priority;
            (session.return_at, session.prefetch_at) = (None, None);
        });
        turn.turn = self.sessions[at].turn;
        turn.path.reserve_exact(list.pages as usize);
        self.store.turn_ended(&facts_of(turn, at));
    }

    /// A turn used all pages of its session at one time, whether they were reloaded, offloaded early or late,
    /// or never left the engine: tails before heads, so that a prefix is never colder than what hangs on it.
    /// Pages that the turn stored do not count as used again by this.
    fn settle_tails(&mut self, turn: &mut TurnEnd<'_>, at: u32, now: Now) {
        // If the page gone over last has gone, the list ends before it now.
        let last = turn.path.last().and_then(|page| self.store.pages().resolve(*page));
        let next = last.map_or(self.sessions.list_end(self.store.pages(), at).page, |index| {
            self.store.pages()[index].parent
        });
        let some: Vec<u32> = self.store.pages().upward(next).take(TURN_PAGES_PER_STEP).collect();
        self.store.call.add(some.len() as u64);
        let recent = some.iter().map(|index| (&self.store.pages()[*index].hash, Seen::Recent));
        self.curves.observe(turn.ns.0, recent, turn.path.is_empty(), now);
        let facts = facts_of(turn, at);
        let back = Some(turn.end.expected_return_ms).filter(|ms| *ms > 0).map(|ms| now.saturating_add(ms));
        for index in &some {
            self.store.use_in_turn(*index, &facts);
            turn.path.push(self.store.pages().key(*index));
            if let Some(back) = back.filter(|_| self.store.pages()[*index].is_visible()) {
                turn.bytes += self.store.expect_page(*index, back);
            }
        }
        if some.len() < TURN_PAGES_PER_STEP {
            self.store.turn_settled(at);
            if let Some(back) = back {
                self.note_return(at, back, turn.bytes, now);
            }
            turn.stage = TurnEndStage::Heads;
        }
    }

    /// The session came back, or is expected: what it has is worth writing to NVMe, parents first.
    fn settle_heads(&mut self, turn: &mut TurnEnd<'_>, at: u32) {
        let admits = turn.end.expected_return_ms > 0 || turn.turn > 1;
        let count = if admits { TURN_PAGES_PER_STEP.min(turn.path.len()) } else { 0 };
        self.store.call.add(count as u64);
        for page in turn.path.split_off(turn.path.len() - count).iter().rev() {
            let Some(index) = self.store.pages().resolve(*page) else { break };
            self.store.admit(index);
        }
        if admits && !turn.path.is_empty() {
            return;
        }
        turn.stage = TurnEndStage::Protect;
        if turn.end.last {
            self.sessions.close(&mut self.store, at);
            turn.stage = TurnEndStage::Over;
        }
    }
}

fn facts_of(turn: &TurnEnd<'_>, at: u32) -> TurnFacts {
    TurnFacts {
        session: at,
        turn: turn.turn,
        expected_return_ms: turn.end.expected_return_ms,
        ns: turn.ns.0,
        pages: turn.end.keep + turn.end.hashes.len() as u32,
    }
}
