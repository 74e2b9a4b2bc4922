//! Pages of which some shards never come: a rank died, or its offload was declined. Owns: that pages do not wait
//! for more of their shards for ever. Must not know: which ranks there are.
//!
//! Nobody can read such a page, so its slots are worth nothing until it is whole. Its ranks have the time of
//! a lease to bring what is missing; from then on it goes before any page that somebody can read, whosever
//! that is, and after
//! [`UNFINISHED_MS_MAX`] it goes by itself.

use crate::call::Slice;
use crate::ids::Now;
use crate::index::entry::Cell;
use crate::index::flags::UNFINISHED;
use crate::limits::{UNFINISHED_MAX, UNFINISHED_MS_MAX};
use crate::store::Store;
use crate::store::going::{Removal, Search};

impl Store {
    /// Some of the page's shards were committed: from now on it waits for the others, if it did not before.
    pub(crate) fn await_shards(&mut self, index: u32) {
        let entry = &self.pages[index];
        if entry.is_visible() || entry.has(UNFINISHED) {
            return;
        }
        self.pages.set_unfinished(index, true);
        self.unfinished.count(true);
        self.unfinished.push(self.pages.key(index), self.call.now());
        self.unfinished.oldest(&self.pages, &mut self.call);
        if self.unfinished.rows() > UNFINISHED_MAX {
            // Not the page itself, nor what it hangs on: its caller goes on with it.
            let search = Search { page: index, ..Search::NONE };
            self.drop_unfinished(0, self.call.half_slice(), search);
        }
    }

    /// The page is whole, or gone.
    pub(super) fn finish(&mut self, index: u32) {
        if self.pages[index].has(UNFINISHED) {
            self.pages.set_unfinished(index, false);
            self.unfinished.count(false);
        }
    }

    /// Pages that waited too long go, and all that hangs on them, which nobody can read either. False: there
    /// was too much for one call.
    pub(crate) fn expire_unfinished(&mut self, slice: Slice) -> bool {
        let patience = UNFINISHED_MS_MAX.max(self.config.limits.lease_ms.into());
        while !self.call.is_over(slice) {
            if !self.drop_unfinished(patience, slice, Search::NONE) {
                return true;
            }
        }
        false
    }

    /// Drops unfinished pages whose ranks had their time, of any namespace, until there is what `claim`
    /// takes.
    pub(super) fn claim_from_unfinished<T>(
        &mut self,
        search: Search,
        mut claim: impl FnMut(&mut Store) -> Option<T>,
    ) -> Option<T> {
        let slice = self.call.half_slice();
        let patience = self.config.limits.lease_ms.into();
        while !self.call.is_over(slice) && self.drop_unfinished(patience, slice, search) {
            if let Some(claimed) = claim(self) {
                return Some(claimed);
            }
        }
        None
    }

    /// Drops the page that waits for longest, if that is so long, with what hangs on it: what is left of that
    /// when the slice is over goes by and by. False: none waits so long.
    fn drop_unfinished(&mut self, patience: Now, slice: Slice, search: Search) -> bool {
        let Some((index, since)) = self.unfinished.oldest(&self.pages, &mut self.call) else {
            return false;
        };
        if since + patience > self.call.now() {
            return false;
        }
        self.call.step();
        self.unfinished.pop();
        let page = self.pages.key(index);
        if self.pages.cells(index).iter().any(Cell::granted) || self.pages.leads_to(index, search.page) {
            // Somebody is at it.
            self.unfinished.push(page, self.call.now());
            return true;
        }
        // Not by way of what is condemned already: room may be made for a page that hangs on some of that.
        if !self.remove_some(page, &mut None, Removal::Dropped, slice, search) {
            self.condemned.push(page);
        }
        true
    }
}
