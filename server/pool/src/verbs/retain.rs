//! Sessions that are protected while they wait, because their owner gave them a priority: in parts that one
//! call may take. Owns: what such a session wishes. Must not know: budgets (protection has them), turns.

use crate::Pool;
use crate::eviction::protections::{Owner, PIN_RANK};
use crate::ids::{NamespaceIndex, Now};
use crate::index::tips::TipId;
use crate::limits::{PROTECTION_MS_MAX, RETENTION_MS_DEFAULT};
use crate::store::protection::{ProtectReach, ProtectionWish};
use turnkv_proto::SessionId;

/// A session that is being protected.
#[derive(Debug)]
pub struct Retaining<'a> {
    ns: NamespaceIndex,
    session: &'a SessionId,
    for_ms: u64,
    /// What is protected of it so far.
    held: Option<TipId>,
}

impl<'a> Retaining<'a> {
    /// A session to protect for a time (0: the default), by as many calls of [`Pool::retain_some`] as it
    /// takes.
    #[must_use]
    pub fn new(ns: NamespaceIndex, session: &'a SessionId, for_ms: u64) -> Retaining<'a> {
        let for_ms = if for_ms == 0 { RETENTION_MS_DEFAULT } else { for_ms.min(PROTECTION_MS_MAX) };
        Retaining { ns, session, for_ms, held: None }
    }
}

impl Retaining<'_> {
    /// What is protected so far, and is nobody's from now on.
    pub(super) fn give_up(&mut self) -> Option<TipId> {
        self.held.take()
    }
}

impl Pool {
    /// Protects some more of a session's list, in place of what was protected for it before; without a
    /// priority nothing is. True: that is all, or the session has gone, or its list is another one now.
    pub fn retain_some(&mut self, retaining: &mut Retaining<'_>, now: Now) -> bool {
        let now = self.store.tick(now);
        let held = retaining.held.take();
        let Some(at) = self.sessions.find(retaining.ns, retaining.session) else {
            self.store.disown_protected(held);
            return true;
        };
        let (owner, path, priority) =
            (Owner::Session(at), self.sessions.list_end(self.store.pages(), at), self.sessions[at].priority);
        if priority == 0 {
            self.store.disown_protected(held);
            self.store.unprotect(owner);
            return true;
        }
        if held.is_some_and(|held| {
            self.store.pages().end_within(path, self.store.pages().tip_end(held).page).is_none()
        }) {
            self.store.disown_protected(held);
            return true;
        }
        let (ns, rank, for_ms) = (retaining.ns, priority.min(PIN_RANK - 1), retaining.for_ms);
        let wish = ProtectionWish { owner, ns, rank, path, for_ms, decays: true };
        let slice = self.store.call.slice();
        let (held, reach) = self.store.protect_more(held, &wish, slice);
        if reach == ProtectReach::Slice {
            retaining.held = held;
            return false;
        }
        self.store.own_protected(held, &wish, now);
        true
    }
}
