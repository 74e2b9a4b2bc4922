//! The list of pages of a session: how it grows, is cut, is replaced.
//! Owns: the link between sessions and pages. Must not know: turns, slots.

use crate::error::PoolError;
use crate::eviction::protections::Owner;
use crate::ids::{NONE, NamespaceIndex, Now};
use crate::index::arena::Pages;
use crate::index::path_end::PathEnd;
use crate::limits::SESSIONS_LATE_PER_CALL_MAX;
use crate::sessions::table::Sessions;
use crate::sessions::walk::end_at;
use crate::store::Store;
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
    fn end_list(&mut self, store: &mut Store, at: u32, end: PathEnd) {
        let tip = (end.page != NONE).then(|| store.end_list(end));
        if let Some(tip) = std::mem::replace(&mut self[at].tip, tip) {
            store.drop_list(tip);
        }
    }

    /// Finds a session or makes it. At the limit another one is forgotten: see [`Sessions::makes_way`].
    pub(crate) fn open(
        &mut self,
        store: &mut Store,
        ns: NamespaceIndex,
        id: &SessionId,
        now: Now,
    ) -> Result<u32, PoolError> {
        if let Some(at) = self.find(ns, id) {
            return Ok(at);
        }
        let tenant = store.slots().tenant_of(ns.0);
        let sessions_max = store.limits().sessions_max;
        if self.len() >= sessions_max {
            let (goes, looked) = self.makes_way(tenant, sessions_max, now);
            store.call.add(looked);
            self.forget(store, goes.ok_or(PoolError::Limit("sessions_max"))?, true);
        }
        Ok(self.insert(ns, tenant, id, store.limits().session_ttl_ms, now))
    }

    /// The session read something: it is not idle.
    pub(crate) fn note_read(
        &mut self,
        store: &mut Store,
        ns: NamespaceIndex,
        id: &SessionId,
        hashes: &[BlockHash],
        now: Now,
    ) {
        if let Some(at) = self.find(ns, id) {
            self[at].last_used = now;
            self.continue_another(store, at, hashes);
        }
    }

    /// An offload accepted pages up to `last`: they follow their parent in the session's list. A branch they
    /// replace leaves the list; a partial tail among it becomes first victim.
    pub(crate) fn extend(&mut self, store: &mut Store, at: u32, last: u32) {
        let old = self.list_end(store.pages(), at);
        let Some(new) = end_at(store, last) else { return };
        if store.pages().end_within(old, last).is_some() {
            return;
        }
        let same = store.pages().shared(old, new);
        self.end_list(store, at, new);
        store.leave_branch(old, same, true);
    }

    /// Gives a session another list. What it had and has no more becomes first victim.
    pub(crate) fn replace_list(&mut self, store: &mut Store, at: u32, new: PathEnd) {
        let old = self.list_end(store.pages(), at);
        let same = store.pages().shared(old, new);
        self.end_list(store, at, new);
        store.unprotect_after(Owner::Session(at), same);
        store.leave_branch(old, same, false);
    }

    /// Forgets a session; pages that only it used become first victims.
    pub(crate) fn close(&mut self, store: &mut Store, at: u32) {
        self.replace_list(store, at, PathEnd::EMPTY);
        self.forget(store, at, false);
    }

    /// A session's list is not known any more; its pages stay as they are.
    pub(crate) fn drop_list(&mut self, store: &mut Store, at: u32) {
        self.end_list(store, at, PathEnd::EMPTY);
        store.unprotect(Owner::Session(at));
    }

    /// Forgets a session; its pages stay as they are. `tell`: nobody asked for it.
    pub(crate) fn forget(&mut self, store: &mut Store, at: u32, tell: bool) {
        self.drop_list(store, at);
        store.session_gone(at);
        self.remove(at, tell);
    }

    /// Forgets sessions that are idle for too long, some in each call.
    pub(crate) fn expire(&mut self, store: &mut Store, now: Now) {
        for _ in 0..SESSIONS_LATE_PER_CALL_MAX {
            let Some((at, is_over)) = self.overdue(now) else { break };
            store.call.step();
            if is_over {
                self.forget(store, at, true);
            }
        }
    }
}
