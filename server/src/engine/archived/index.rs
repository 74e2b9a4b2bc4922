//! Which sessions are archived, and which pages these have, as far as there is room to know it. Owns: finding a page, or a session, in
//! memory. Must not know: where the archive is, who asks.
//!
//! Pages are known by marks: two may have one in common. Then a page is said to be archived that is not, and whoever fetches it finds
//! that out; what is fetched is named by its whole hash.

use crate::limits::{ARCHIVED_PAGES_MAX, ARCHIVED_SESSIONS_MAX};
use std::collections::HashMap;
use turnkv_proto::{BlockHash, NamespaceId, SessionId};
use turnkv_transfer::checksum;

/// Names a snapshot in the archive; of two snapshots of one session the greater is the newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SnapshotName(pub(crate) [u8; 16]);

/// An archived session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArchivedSession {
    /// Its namespace.
    pub(crate) namespace: NamespaceId,
    /// Its name.
    pub(crate) session: SessionId,
    /// The snapshot that has it.
    pub(crate) snapshot: SnapshotName,
    /// Marks of its pages, from the first one on.
    pub(crate) pages: Box<[u64]>,
}

/// Where a page is in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArchivedPage {
    /// In this snapshot,
    pub(crate) snapshot: SnapshotName,
    /// the page at this place of its session.
    pub(crate) at: u32,
}

/// All that are known.
#[derive(Debug, Default)]
pub(crate) struct ArchivedIndex {
    table: Vec<Option<ArchivedSession>>,
    free: Vec<u32>,
    by_name: HashMap<(NamespaceId, SessionId), u32>,
    by_snapshot: HashMap<SnapshotName, u32>,
    /// For each page one session that has it, and its place there.
    by_page: PageMap,
    pages: usize,
    /// Pages may not be found that a session has: one left that had them, too.
    has_gaps: bool,
    /// Counts changes.
    version: u64,
}

/// Pages by their marks.
pub(crate) type PageMap = HashMap<u64, (u32, u32)>;

/// The mark of a page, as the archive's directory has it.
fn mark_of(hash: &BlockHash) -> u64 {
    checksum(&hash.0)
}

/// A mark that tells namespaces apart as well.
fn key_of(namespace: &NamespaceId, mark: u64) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = namespace.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ mark
}

impl ArchivedIndex {
    /// Sessions known.
    pub(crate) fn sessions(&self) -> usize {
        self.by_snapshot.len()
    }

    /// Pages of these, a shared one as often as it is shared.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Whether there is room for a session of so many pages.
    pub(crate) fn has_room(&self, pages: usize) -> bool {
        self.by_snapshot.len() < ARCHIVED_SESSIONS_MAX && self.pages + pages <= ARCHIVED_PAGES_MAX
    }

    /// Whether pages that some session has may not be found until [`ArchivedIndex::take_pages`].
    pub(crate) fn has_gaps(&self) -> bool {
        self.has_gaps
    }

    /// Adds a session, in place of an older snapshot of it. False: there is no room, or what is known of it is as new.
    pub(crate) fn put(&mut self, session: ArchivedSession) -> bool {
        let name = (session.namespace, session.session.clone());
        let had_gaps = self.has_gaps;
        let mut has_all = false;
        if let Some(older) = self.by_name.get(&name).and_then(|at| self.table[*at as usize].as_ref()) {
            let snapshot = older.snapshot;
            if snapshot >= session.snapshot {
                return false;
            }
            has_all = session.pages.starts_with(&older.pages);
            self.forget(snapshot);
        }
        if !self.has_room(session.pages.len()) {
            return false;
        }
        if has_all {
            self.has_gaps = had_gaps;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        self.version += 1;
        self.by_name.insert(name, at);
        self.by_snapshot.insert(session.snapshot, at);
        self.pages += session.pages.len();
        add_pages(&mut self.by_page, at, &session);
        self.table[at as usize] = Some(session);
        true
    }

    /// Forgets a snapshot, which may leave gaps. Whether it was known.
    pub(crate) fn forget(&mut self, snapshot: SnapshotName) -> bool {
        let Some(at) = self.by_snapshot.remove(&snapshot) else { return false };
        let Some(session) = self.table[at as usize].take() else { return false };
        self.free.push(at);
        self.version += 1;
        self.has_gaps |= !session.pages.is_empty();
        self.pages -= session.pages.len();
        for mark in &session.pages {
            let key = key_of(&session.namespace, *mark);
            if self.by_page.get(&key).is_some_and(|(of, _)| *of == at) {
                self.by_page.remove(&key);
            }
        }
        let name = (session.namespace, session.session);
        if self.by_name.get(&name) == Some(&at) {
            self.by_name.remove(&name);
        }
        true
    }

    /// Where the pages of all sessions are: made beside the index while it is only read.
    pub(crate) fn map_pages(&self) -> (PageMap, u64) {
        let mut by_page = PageMap::with_capacity(self.by_page.len());
        for (at, session) in self.table.iter().enumerate() {
            if let Some(session) = session {
                add_pages(&mut by_page, at as u32, session);
            }
        }
        (by_page, self.version)
    }

    /// Takes what [`ArchivedIndex::map_pages`] made, if nothing changed since. Whether that was so.
    pub(crate) fn take_pages(&mut self, (by_page, version): (PageMap, u64)) -> bool {
        let is_whole = version == self.version;
        if is_whole {
            (self.by_page, self.has_gaps) = (by_page, false);
        }
        is_whole
    }

    /// Where a page is, if it is archived.
    pub(crate) fn find(&self, namespace: &NamespaceId, hash: &BlockHash) -> Option<ArchivedPage> {
        let (of, at) = *self.by_page.get(&key_of(namespace, mark_of(hash)))?;
        let session = self.table.get(of as usize)?.as_ref().filter(|one| one.namespace == *namespace)?;
        Some(ArchivedPage { snapshot: session.snapshot, at })
    }

    /// As if so many pages of other sessions were known that there is room for this many more.
    #[cfg(test)]
    pub(crate) fn fill_but(&mut self, free: usize) {
        self.pages = ARCHIVED_PAGES_MAX - free;
    }

    /// What is archived of a session.
    pub(crate) fn session(&self, namespace: &NamespaceId, session: &SessionId) -> Option<&ArchivedSession> {
        let at = self.by_name.get(&(*namespace, session.clone()))?;
        self.table.get(*at as usize)?.as_ref()
    }
}

impl ArchivedSession {
    /// Whether it has so many pages, of which the last is this one: then it has all before it as well.
    pub(crate) fn has(&self, pages: u32, last: &BlockHash) -> bool {
        let at = (pages as usize).checked_sub(1);
        at.and_then(|at| self.pages.get(at)).is_some_and(|mark| *mark == mark_of(last))
    }
}

fn add_pages(by_page: &mut PageMap, of: u32, session: &ArchivedSession) {
    for (at, mark) in session.pages.iter().enumerate() {
        by_page.insert(key_of(&session.namespace, *mark), (of, at as u32));
    }
}

#[cfg(test)]
mod tests;
