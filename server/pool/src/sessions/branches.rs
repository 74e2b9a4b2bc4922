//! The list of pages of a session: how it grows, is cut, is replaced.
//! Owns: the link between sessions and pages. Must not know: turns, slots.

use crate::Pool;
use crate::error::PoolError;
use crate::eviction::protections::Owner;
use crate::ids::{NONE, NamespaceIndex, Now};
use crate::index::arena::Pages;
use crate::index::path_end::PathEnd;
use crate::index::tips::TipKeeper;
use crate::limits::SESSIONS_LATE_PER_CALL_MAX;
use crate::sessions::table::Sessions;
use turnkv_proto::{BlockHash, SessionId};

impl Sessions {
    /// Where a session's list ends: at its last page that is in the index, visible or not yet.
    pub(crate) fn list_end(&self, pages: &Pages, at: u32) -> PathEnd {
        self[at].tip.map_or(PathEnd::EMPTY, |tip| pages.tip_end(tip))
    }

    /// Where the leading pages of a session end that readers can see: of a path, what is not visible is last.
    pub(crate) fn present_end(&self, pages: &Pages, at: u32) -> PathEnd {
        pages.visible_end(self.list_end(pages, at))
    }

    /// Notes where a session's list ends from now on.
    fn end_list(&mut self, pages: &mut Pages, at: u32, end: PathEnd) {
        let tip = (end.page != NONE).then(|| pages.add_tip(end, TipKeeper::Session));
        if let Some(tip) = std::mem::replace(&mut self[at].tip, tip) {
            pages.drop_tip(tip, TipKeeper::Session);
        }
    }
}

impl Pool {
    /// Finds a session or makes it. At the limit another one is forgotten: see [`Sessions::makes_way`].
    ///
    /// [`Sessions::makes_way`]: crate::sessions::table::Sessions::makes_way
    pub(crate) fn open_session(
        &mut self,
        ns: NamespaceIndex,
        id: &SessionId,
        now: Now,
    ) -> Result<u32, PoolError> {
        if let Some(at) = self.sessions.find(ns, id) {
            return Ok(at);
        }
        let tenant = self.store.slots.tenant_of(ns.0);
        let sessions_max = self.store.config.limits.sessions_max;
        if self.sessions.len() >= sessions_max {
            let (goes, looked) = self.sessions.makes_way(tenant, sessions_max, now);
            self.store.call.add(looked);
            self.forget(goes.ok_or(PoolError::Limit("sessions_max"))?, true);
        }
        Ok(self.sessions.insert(ns, tenant, id, self.store.config.limits.session_ttl_ms, now))
    }

    /// The session read something: it is not idle.
    pub(crate) fn use_session(&mut self, ns: NamespaceIndex, id: &SessionId, hashes: &[BlockHash], now: Now) {
        if let Some(at) = self.sessions.find(ns, id) {
            self.sessions[at].last_used = now;
            self.continue_another(at, hashes);
        }
    }

    /// An offload accepted pages up to `last`: they follow their parent in the session's list. A branch they
    /// replace leaves the list; a partial tail among it becomes first victim.
    pub(crate) fn extend_session(&mut self, at: u32, last: u32) {
        let old = self.sessions.list_end(&self.store.pages, at);
        let Some(new) = self.end_at(last) else { return };
        if self.store.pages.end_within(old, last).is_some() {
            return;
        }
        let same = self.store.pages.shared(old, new);
        self.sessions.end_list(&mut self.store.pages, at, new);
        self.store.leave_branch(old, same, true);
    }

    /// Gives a session another list. What it had and has no more becomes first victim.
    pub(crate) fn replace_list(&mut self, at: u32, new: PathEnd) {
        let old = self.sessions.list_end(&self.store.pages, at);
        let same = self.store.pages.shared(old, new);
        self.sessions.end_list(&mut self.store.pages, at, new);
        self.store.unprotect_after(Owner::Session(at), same);
        self.store.leave_branch(old, same, false);
    }

    pub(crate) fn close_at(&mut self, at: u32) {
        self.replace_list(at, PathEnd::EMPTY);
        self.forget(at, false);
    }

    /// Forgets a session; its pages stay as they are.
    pub(crate) fn forget(&mut self, at: u32, tell: bool) {
        self.sessions.end_list(&mut self.store.pages, at, PathEnd::EMPTY);
        self.store.unprotect(Owner::Session(at));
        self.store.policy.session_gone(at);
        self.sessions.remove(at, tell);
    }

    pub(crate) fn expire_sessions(&mut self, now: Now) {
        for _ in 0..SESSIONS_LATE_PER_CALL_MAX {
            let Some((at, is_over)) = self.sessions.overdue(now) else { break };
            self.store.call.step();
            if is_over {
                self.forget(at, true);
            }
        }
    }
}
