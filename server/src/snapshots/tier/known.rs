//! Which bookmarks were read. Owns: that each is read once. Must not know: stores, sessions.

use std::collections::{BTreeMap, HashSet};
use turnkv_archive::{Directory, ListedBookmark};

/// The bookmarks of all tenants.
#[derive(Default)]
pub(super) struct KnownBookmarks {
    pub(super) tenants: BTreeMap<String, TenantBookmarks>,
}

/// A tenant's bookmarks that were read, or can not be.
pub(super) struct TenantBookmarks {
    pub(super) directory: Directory,
    pub(super) seen: HashSet<ListedBookmark>,
    /// Of these, those that there was no room for.
    pub(super) unlisted: HashSet<ListedBookmark>,
}
