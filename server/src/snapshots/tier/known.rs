//! Which bookmarks were read. Owns: that each is read once, and once more where there may be room for it. Must not know: stores,
//! sessions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use turnkv_archive::{Directory, ListedBookmark};

/// The bookmarks of all tenants.
#[derive(Default)]
pub(super) struct KnownBookmarks {
    pub(super) tenants: BTreeMap<String, TenantBookmarks>,
}

impl KnownBookmarks {
    /// So many sessions left: as many that found no room are read again, of each tenant, the newest first.
    pub(super) fn try_again(&mut self, left: usize) {
        for tenant in self.tenants.values_mut() {
            let mut waiting: Vec<ListedBookmark> = tenant.unlisted.iter().copied().collect();
            waiting.sort_unstable_by_key(|one| Reverse(one.snapshot));
            for one in waiting.into_iter().take(left) {
                tenant.unlisted.remove(&one);
                tenant.seen.remove(&one);
            }
        }
    }

    /// Sessions that there was no room for.
    pub(super) fn unlisted(&self) -> usize {
        self.tenants.values().map(|one| one.unlisted.len()).sum()
    }
}

/// A tenant's bookmarks that were read, or can not be.
pub(super) struct TenantBookmarks {
    pub(super) directory: Directory,
    pub(super) seen: HashSet<ListedBookmark>,
    /// Of these, those that there was no room for.
    pub(super) unlisted: HashSet<ListedBookmark>,
}
