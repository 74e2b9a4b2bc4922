//! Sessions that go on under another name: engines whose requests are not told apart by session, or each get
//! a name of their own. Owns: when a new session is taken for the next turn of another one. Must not know:
//! chances of return (the policy does).
//!
//! Pages that nobody but one waiting session has used are needed again by another session: if the newcomer's
//! first turn has the other's last full page, it has all of it, and is its next turn. Only sessions of one
//! turn are continued so: one that came back under its own name, or has a priority, is waited for. Nothing
//! but the wait is taken over: the old name stays good.

use crate::sessions::table::Sessions;
use crate::store::Store;
use turnkv_proto::BlockHash;

#[cfg(test)]
mod tests;

impl Sessions {
    /// Looks for a session that ended with one of these pages, the longest first, if this one is in its first
    /// turn.
    pub(crate) fn continue_another(&mut self, store: &mut Store, at: u32, hashes: &[BlockHash]) {
        let this = &self[at];
        if !this.may_continue {
            return;
        }
        let ns = this.ns;
        let ended = |hash: &BlockHash| {
            let from = self.ended_with(ns, hash)?;
            let waits = from != at && !self[from].in_turn && self[from].priority == 0;
            // Without its last page it may as well be a head that many share: then others have read it too.
            let shared = || {
                store.pages().find_visible(ns.0, hash).is_some_and(|page| store.pages()[page].cell.uses() > 0)
            };
            (waits && (self[from].ends[0] == Some(*hash) || !shared())).then_some(from)
        };
        let found = hashes.iter().rev().find_map(ended);
        store.call.pass(hashes.len() as u64);
        let Some(from) = found else { return };
        self.note_end(from, &[]);
        self[at].may_continue = false;
        store.continued(from, at);
    }

    /// A turn ended with these full pages.
    pub(crate) fn note_turn_end(&mut self, at: u32, full: &[BlockHash]) {
        let may_be_continued = self[at].turn == 1;
        self[at].may_continue = false;
        self.note_end(at, if may_be_continued { full } else { &[] });
    }
}
