//! The list of pages of a session: how it grows, is cut, is replaced, and what becomes of pages it had.
//! Owns: the link between sessions and pages. Must not know: turns, slots.

use crate::Pool;
use crate::entry::{NONE, PROTECTED, VICTIM, VISIBLE};
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::limits::VICTIM_CHILDREN_MAX;
use crate::offload::OffloadAsk;
use crate::policy::{Position, TurnFacts};
use crate::protection::Owner;
use crate::session::EndTurn;
use turnkv_proto::{BlockHash, SessionId};

impl Pool {
    /// Finds a session or makes it. At the limit the one idle for longest is forgotten; one in a turn only when nothing was
    /// heard of it for long: engines die.
    pub(crate) fn open_session(
        &mut self,
        ns: NamespaceIndex,
        id: &SessionId,
        now: Now,
    ) -> Result<u32, PoolError> {
        if let Some(at) = self.sessions.find(ns, id) {
            return Ok(at);
        }
        if self.sessions.len() >= self.config.limits.sessions_max {
            let idle = self.sessions.oldest_idle().or_else(|| self.sessions.silent_turn(now));
            self.forget(idle.ok_or(PoolError::Limit("sessions_max"))?, true);
        }
        Ok(self.sessions.insert(ns, id, self.config.limits.session_ttl_ms, now))
    }

    /// The session of an offload, made if new; checked before anything else changes.
    pub(crate) fn reserve_session(
        &mut self,
        ask: &OffloadAsk<'_>,
        now: Now,
    ) -> Result<Option<u32>, PoolError> {
        let Some(id) = ask.session else { return Ok(None) };
        let max = self.config.limits.session_pages_max as usize;
        let parent =
            ask.parent.and_then(|hash| self.pages.find(ask.ns.0, &hash)).map(|index| self.pages.key(index));
        let found = self.sessions.find(ask.ns, id);
        let before = match (found, parent) {
            (Some(at), Some(parent)) => self.sessions[at]
                .pages
                .iter()
                .rposition(|page| *page == parent)
                .map_or(0, |position| position + 1),
            _ => 0,
        };
        if before + ask.hashes.len() > max {
            return Err(PoolError::Limit("session_pages_max"));
        }
        let at = self.open_session(ask.ns, id, now)?;
        self.sessions[at].last_used = now;
        Ok(Some(at))
    }

    /// The session read something: it is not idle.
    pub(crate) fn use_session(&mut self, ns: NamespaceIndex, id: &SessionId, hashes: &[BlockHash], now: Now) {
        if let Some(at) = self.sessions.find(ns, id) {
            self.sessions[at].last_used = now;
            self.continue_another(at, hashes);
        }
    }

    /// An offload accepted `count` pages, the last one being `last`: they follow their parent in the session's list. A
    /// branch they replace leaves the list; a partial tail among it becomes first victim.
    pub(crate) fn extend_session(&mut self, at: u32, last: u32, count: usize) {
        let mut added = self.path_to(last, count);
        let parent = added.first().map_or(NONE, |first| self.pages[first.index].parent);
        let list = &self.sessions[at].pages;
        let position = match parent {
            NONE => Some(0),
            parent => {
                let key = self.pages.key(parent);
                list.iter().rposition(|page| *page == key).map(|position| position + 1)
            }
        };
        let position = position.unwrap_or_else(|| {
            added = self.path_to(last, usize::MAX);
            0
        });
        if position + added.len() > self.config.limits.session_pages_max as usize {
            return;
        }
        let same = list[position..].iter().zip(&added).take_while(|(old, new)| old == new).count();
        if same == added.len() {
            return;
        }
        let cut = self.sessions[at].pages.split_off(position + same);
        self.sessions[at].pages.extend_from_slice(&added[same..]);
        self.move_tip(at);
        let is_tail = |page: &PageKey| {
            self.pages.resolve(*page).is_some_and(|index| self.pages[index].cell.tail_tokens > 0)
        };
        let tails: Vec<PageKey> = cut.into_iter().filter(is_tail).collect();
        self.supersede_pages(&tails);
    }

    /// The list a session has after its turn, as far as its pages are here.
    pub(crate) fn list_after_turn(&mut self, at: u32, end: &EndTurn<'_>) -> Vec<PageKey> {
        let ns = self.sessions[at].ns.0;
        let present = self.live_run(at);
        let mut list = self.sessions[at].pages[..present.min(end.keep as usize)].to_vec();
        let first = end.hashes.first().and_then(|hash| self.pages.find(ns, hash));
        if let (true, Some(first)) = ((end.keep as usize) > list.len(), first) {
            // The pool forgot part of the list (a restart, perhaps): the pages themselves know their prefix.
            let parent = self.pages[first].parent;
            list = if parent == NONE { Vec::new() } else { self.path_to(parent, usize::MAX) };
            if list.len() != end.keep as usize {
                return list;
            }
        }
        let parent = list.last().map_or(NONE, |page| page.index);
        if list.len() == end.keep as usize {
            self.follow(ns, parent, end.hashes, &mut list);
        }
        if let (true, Some(last)) = (end.tail_tokens > 0, list.last()) {
            let index = last.index;
            if end.hashes.last() == Some(&self.pages[index].hash) {
                self.pages[index].cell.tail_tokens = end.tail_tokens as u16;
            }
        }
        list
    }

    /// Appends the pages named, each the child of the one before, until one is not here.
    pub(crate) fn follow(&self, ns: u16, mut parent: u32, hashes: &[BlockHash], list: &mut Vec<PageKey>) {
        for hash in hashes {
            let found = self.pages.find(ns, hash);
            let Some(index) = found.filter(|index| self.pages[*index].parent == parent) else { return };
            list.push(self.pages.key(index));
            parent = index;
        }
    }

    /// Gives a session another list. What it had and has no more becomes first victim.
    pub(crate) fn replace_list(&mut self, at: u32, list: Vec<PageKey>) {
        let old = std::mem::replace(&mut self.sessions[at].pages, list);
        let list = &self.sessions[at].pages;
        let same = old.iter().zip(list).take_while(|(old, new)| old == new).count();
        self.move_tip(at);
        self.unprotect_after(Owner::Session(at), same);
        self.supersede_pages(&old[same..]);
    }

    /// A turn used all pages of its session at one time, whether they were reloaded, offloaded early or late, or never
    /// left the engine: tails before heads, so that a prefix is never colder than what hangs on it. Pages that the turn
    /// stored do not count as used again by this.
    pub(crate) fn make_list_recent(&mut self, at: u32, pages: u32, expected_return_ms: u64) {
        let path: Vec<u32> =
            self.sessions[at].pages.iter().map_while(|page| self.pages.resolve(*page)).collect();
        for index in path.iter().rev() {
            self.pages[*index].flags &= !VICTIM;
            self.relist_parked(*index);
            self.touch_slots(*index);
        }
        let session = &self.sessions[at];
        let facts =
            TurnFacts { session: at, turn: session.turn, expected_return_ms, ns: session.ns.0, pages };
        self.policy.turn_ended(&mut self.pages, &path, &facts);
    }

    /// The session came back, or is expected: what it has is worth writing to NVMe, parents first.
    pub(crate) fn admit_list(&mut self, at: u32) {
        for position in 0..self.sessions[at].pages.len() {
            let page = self.sessions[at].pages[position];
            let Some(index) = self.pages.resolve(page) else { break };
            self.admit(index);
        }
    }

    pub(crate) fn close_at(&mut self, at: u32) {
        self.replace_list(at, Vec::new());
        self.forget(at, false);
    }

    /// Forgets a session; its pages stay as they are.
    pub(crate) fn forget(&mut self, at: u32, tell: bool) {
        self.sessions[at].pages = Vec::new();
        self.move_tip(at);
        self.unprotect(Owner::Session(at));
        self.policy.session_gone(at);
        self.sessions.remove(at, tell);
    }

    pub(crate) fn expire_sessions(&mut self, now: Now) {
        while let Some(at) = self.sessions.overdue(now) {
            self.forget(at, true);
        }
    }

    /// How many leading pages of a session readers can see. The list is a path of the tree, so presence is monotone.
    pub(crate) fn present_run(&self, at: u32) -> usize {
        let visible =
            |page: &PageKey| self.pages.resolve(*page).is_some_and(|index| self.pages[index].has(VISIBLE));
        self.sessions[at].pages.partition_point(visible)
    }

    pub(crate) fn hashes_at(&self, at: u32) -> Vec<BlockHash> {
        let pages = &self.sessions[at].pages[..self.present_run(at)];
        pages.iter().map(|page| self.pages[page.index].hash).collect()
    }

    /// How many leading pages of a session are in the index, visible or not yet.
    fn live_run(&self, at: u32) -> usize {
        self.sessions[at].pages.partition_point(|page| self.pages.resolve(*page).is_some())
    }

    /// The last `count` pages of the path from the root to a page, in order.
    fn path_to(&self, last: u32, count: usize) -> Vec<PageKey> {
        let mut path = Vec::new();
        let mut index = last;
        while index != NONE && path.len() < count {
            path.push(self.pages.key(index));
            index = self.pages[index].parent;
        }
        path.reverse();
        path
    }

    /// Remembers, at the page where the list ends now, that a session ends there.
    fn move_tip(&mut self, at: u32) {
        let new = self.sessions[at].pages.last().copied();
        let old = std::mem::replace(&mut self.sessions[at].tip, new);
        if old == new {
            return;
        }
        if let Some(index) = old.and_then(|page| self.pages.resolve(page)) {
            let tips = &mut self.pages[index].tips;
            // A count that was ever full is not exact any more: the page stays protected.
            *tips -= u16::from(*tips != u16::MAX);
        }
        if let Some(index) = new.and_then(|page| self.pages.resolve(page)) {
            let tips = &mut self.pages[index].tips;
            *tips = tips.saturating_add(1);
        }
    }

    /// Makes pages first victims, from the last one back to the first that still has a use: one that another session
    /// ends at, or that leads to a page that is not superseded.
    fn supersede_pages(&mut self, pages: &[PageKey]) {
        let mut victims = Vec::new();
        for page in pages.iter().rev() {
            let Some(index) = self.pages.resolve(*page) else { continue };
            let used = self.pages[index].tips > 0 || self.pages[index].has(PROTECTED);
            if used || !self.leads_nowhere(index) {
                break;
            }
            self.pages[index].flags |= VICTIM;
            victims.push(index);
        }
        // Heads first, so that the tail ends up as the very first victim.
        for index in victims.into_iter().rev() {
            self.bring_back(index);
            if let Some(list) = self.pages[index].list() {
                self.policy.remove(&mut self.pages, list, index);
                self.policy.insert(&mut self.pages, list, index, Position::Cold);
            }
        }
    }

    fn leads_nowhere(&self, index: u32) -> bool {
        let mut child = self.pages[index].first_child;
        for _ in 0..VICTIM_CHILDREN_MAX {
            if child == NONE {
                return true;
            }
            if !self.pages[child].has(VICTIM) || self.pages[child].tips > 0 {
                return false;
            }
            child = self.pages[child].next;
        }
        child == NONE
    }
}
