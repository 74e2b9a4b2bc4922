//! A prefix that others have as well. Owns: that it goes before what is here only. Must not know: who has it.

use crate::Pool;
use crate::ids::{NamespaceIndex, Now};
use crate::index::path_end::PathEnd;
use turnkv_proto::BlockHash;

impl Pool {
    /// Of the pages up to this one, those after the first `keep` go before others, as far as nobody has a use for them. Whoever uses
    /// one of them has it kept like any other.
    pub fn leave_prefix(&mut self, ns: NamespaceIndex, last: &BlockHash, keep: u32, now: Now) {
        self.store.tick(now);
        if let Some(page) = self.find_page(ns, last) {
            let end = PathEnd { page, pages: self.store.pages().depth(page) };
            self.store.leave_branch(end, keep, false);
        }
    }
}
