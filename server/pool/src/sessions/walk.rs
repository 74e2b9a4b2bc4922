//! Walks over the pages of a session, in parts that one call may take. Owns: where a walk goes on. Must not
//! know: what it is for.
//!
//! A walk is told by how many pages it has still to pass: in between the list may have lost its tail, or be
//! another one, and the walk goes on with the list as it is. So no page is passed twice, and every walk ends.

use crate::index::path_end::PathEnd;
use crate::limits::FIND_PAGES_AT_ONCE;
use crate::sessions::table::Sessions;
use crate::sessions::walk_back::WalkBack;
use crate::store::Store;

impl Sessions {
    /// The next pages of a walk, the last one first; none: that was all.
    pub(crate) fn walk_back(&self, store: &mut Store, at: u32, walk: &mut WalkBack) -> Vec<u32> {
        let end = self.present_end(store.pages(), at);
        let end = store.pages().cut(end, walk.left.map_or(end.pages, |left| left.min(end.pages)));
        let some: Vec<u32> = store.pages().upward(end.page).take(FIND_PAGES_AT_ONCE).collect();
        store.call.pass(some.len() as u64);
        walk.left = Some(end.pages - some.len() as u32);
        some
    }
}

/// The path that ends at a page (`NONE`: none). None: it is longer than a session may be.
pub(crate) fn end_at(store: &Store, page: u32) -> Option<PathEnd> {
    let pages = store.pages().depth(page);
    (pages <= store.limits().session_pages_max).then_some(PathEnd { page, pages })
}
