//! The list of pages of a session: how it grows, is cut, is replaced, and what becomes of pages it had.
//! Owns: the link between sessions and pages. Must not know: turns, slots.

use crate::Pool;
use crate::entry::{Entry, NONE, PROTECTED, VICTIM, VISIBLE};
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::limits::{SESSIONS_EXPIRED_PER_CALL_MAX, VICTIM_CHILDREN_MAX};
use crate::offload::OffloadAsk;
use crate::policy::Position;
use crate::protection::Owner;
use crate::session::EndTurn;
use crate::tips::{End, Keeper};
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
        let parent = ask.parent.and_then(|hash| self.pages.find(ask.ns.0, &hash));
        let before = match (self.sessions.find(ask.ns, id), parent) {
            (Some(at), Some(parent)) => self.end_in_list(at, parent).map_or(0, |end| end.pages as usize),
            _ => 0,
        };
        if before + ask.hashes.len() > self.config.limits.session_pages_max as usize {
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

    /// An offload accepted pages up to `last`: they follow their parent in the session's list. A branch they replace leaves
    /// the list; a partial tail among it becomes first victim.
    pub(crate) fn extend_session(&mut self, at: u32, last: u32) {
        let old = self.list_end(at);
        let Some(new) = self.end_at(last) else { return };
        if new.pages <= old.pages && self.cut(old, new.pages) == new {
            return;
        }
        let same = self.common(old, new);
        self.end_list(at, new);
        self.supersede_after(old, same, |entry| entry.cell.tail_tokens > 0);
    }

    /// The pages that a session keeps after its turn, as far as they are here: those named follow them.
    pub(crate) fn kept_after_turn(&self, at: u32, end: &EndTurn<'_>) -> End {
        let old = self.list_end(at);
        let kept = self.cut(old, end.keep.min(old.pages));
        let first = end.hashes.first().and_then(|hash| self.pages.find(self.sessions[at].ns.0, hash));
        match first.filter(|_| end.keep > kept.pages) {
            // The pool forgot part of the list (a restart, perhaps): the pages themselves know their prefix.
            Some(first) => self.end_at(self.pages[first].parent).unwrap_or(kept),
            None => kept,
        }
    }

    /// Follows the pages named, each the child of the one before, until one is not here.
    pub(crate) fn follow(&self, ns: u16, from: End, hashes: &[BlockHash]) -> End {
        let mut end = from;
        for hash in hashes {
            let found = self.pages.find(ns, hash);
            let child = |index: &u32| self.pages[*index].parent == end.page;
            let Some(index) = found.filter(child) else { break };
            end = End { page: index, pages: end.pages + 1 };
        }
        end
    }

    /// Gives a session another list. What it had and has no more becomes first victim.
    pub(crate) fn replace_list(&mut self, at: u32, new: End) {
        let old = self.list_end(at);
        let same = self.common(old, new);
        self.end_list(at, new);
        self.unprotect_after(Owner::Session(at), same);
        self.supersede_after(old, same, |_| true);
    }

    pub(crate) fn close_at(&mut self, at: u32) {
        self.replace_list(at, End::EMPTY);
        self.forget(at, false);
    }

    /// Forgets a session; its pages stay as they are.
    pub(crate) fn forget(&mut self, at: u32, tell: bool) {
        self.end_list(at, End::EMPTY);
        self.unprotect(Owner::Session(at));
        self.policy.session_gone(at);
        self.sessions.remove(at, tell);
    }

    pub(crate) fn expire_sessions(&mut self, now: Now) {
        for _ in 0..SESSIONS_EXPIRED_PER_CALL_MAX {
            let Some(at) = self.sessions.overdue(now) else { break };
            self.forget(at, true);
        }
    }

    /// Where a session's list ends: at its last page that is in the index, visible or not yet.
    pub(crate) fn list_end(&self, at: u32) -> End {
        self.sessions[at].tip.map_or(End::EMPTY, |tip| self.tips.end(tip))
    }

    /// Where the leading pages of a session end that readers can see: of a path, what is not visible is last.
    pub(crate) fn present_end(&self, at: u32) -> End {
        self.visible_end(self.list_end(at))
    }

    /// Where the visible part of a path ends.
    pub(crate) fn visible_end(&self, end: End) -> End {
        let hidden = self.pages.upward(end.page).take_while(|index| !self.pages[*index].has(VISIBLE)).count();
        self.cut(end, end.pages - hidden as u32)
    }

    pub(crate) fn hashes_at(&self, at: u32) -> Vec<BlockHash> {
        self.path_to(self.present_end(at)).into_iter().map(|index| self.pages[index].hash).collect()
    }

    /// The first so many pages of a path.
    pub(crate) fn cut(&self, end: End, keep: u32) -> End {
        if keep == 0 {
            return End::EMPTY;
        }
        let mut page = end.page;
        for _ in keep..end.pages {
            page = self.pages[page].parent;
        }
        End { page, pages: keep }
    }

    /// A path from the root to its end, in order.
    pub(crate) fn path_to(&self, end: End) -> Vec<u32> {
        let mut path = Vec::with_capacity(end.pages as usize);
        path.extend(self.pages.upward(end.page));
        path.reverse();
        path
    }

    /// The path that ends at a page (`NONE`: none). None: it is longer than a session may be. Lists that end on the way know
    /// how long they are, so the pages of one conversation are not counted again and again.
    pub(crate) fn end_at(&self, page: u32) -> Option<End> {
        let mut pages = 0;
        for index in self.pages.upward(page) {
            let known = Some(index).filter(|index| self.pages[*index].tips > 0);
            if let Some(known) = known.and_then(|index| self.tips.at(index)) {
                pages += known.pages;
                break;
            }
            pages += 1;
            if pages > self.config.limits.session_pages_max {
                return None;
            }
        }
        (pages <= self.config.limits.session_pages_max).then_some(End { page, pages })
    }

    /// The part of a session's list that ends at a page, if the page is in it.
    fn end_in_list(&self, at: u32, page: u32) -> Option<End> {
        let end = self.list_end(at);
        let behind = self.pages.upward(end.page).position(|index| index == page)?;
        Some(End { page, pages: end.pages - behind as u32 })
    }

    /// Leading pages that two paths share.
    fn common(&self, one: End, two: End) -> u32 {
        let keep = one.pages.min(two.pages);
        let (mut one, mut two) = (self.cut(one, keep), self.cut(two, keep));
        while one.page != two.page {
            one = self.cut(one, one.pages - 1);
            two = self.cut(two, two.pages - 1);
        }
        one.pages
    }

    /// Notes where a session's list ends from now on.
    fn end_list(&mut self, at: u32, end: End) {
        let old = self.list_end(at).page;
        let tip = (end.page != NONE).then(|| self.tips.add(end, Keeper::Session));
        if let Some(tip) = std::mem::replace(&mut self.sessions[at].tip, tip) {
            self.tips.drop(tip, Keeper::Session);
        }
        self.count_tips(old);
        self.count_tips(end.page);
    }

    /// A page is about to leave the index: lists that end at it end at the page before it.
    pub(crate) fn lift_tips(&mut self, index: u32) {
        let parent = self.pages[index].parent;
        self.tips.lift(index, parent);
        self.pages[index].tips = 0;
        self.count_tips(parent);
    }

    /// Notes at a page how many sessions end there: more than it can count stay that many.
    fn count_tips(&mut self, page: u32) {
        if page != NONE {
            self.pages[page].tips = u16::try_from(self.tips.sessions_at(page)).unwrap_or(u16::MAX);
        }
    }

    /// Makes such pages of a path first victims, from the last one back to the first `keep`, or to the first that still has
    /// a use: one that another session ends at, or that leads to a page that is not superseded.
    fn supersede_after(&mut self, end: End, keep: u32, is_such: impl Fn(&Entry) -> bool) {
        let (mut victims, mut next) = (Vec::new(), end.page);
        for _ in keep..end.pages {
            let index = next;
            next = self.pages[index].parent;
            if !is_such(&self.pages[index]) {
                continue;
            }
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
