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

    /// Adds a session, in place of an older snapshot of it. False: there is no room, or what is known of it is as new.
    pub(crate) fn put(&mut self, session: ArchivedSession) -> bool {
        let name = (session.namespace, session.session.clone());
        if let Some(older) = self.by_name.get(&name).and_then(|at| self.table[*at as usize].as_ref()) {
            let older = older.snapshot;
            if older >= session.snapshot {
                return false;
            }
            self.forget(older);
        }
        if !self.has_room(session.pages.len()) {
            return false;
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

    /// Forgets a snapshot. Pages that others have as well may not be found until [`ArchivedIndex::take_pages`]. Whether it was known.
    pub(crate) fn forget(&mut self, snapshot: SnapshotName) -> bool {
        let Some(at) = self.by_snapshot.remove(&snapshot) else { return false };
        let Some(session) = self.table[at as usize].take() else { return false };
        self.free.push(at);
        self.version += 1;
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
            self.by_page = by_page;
        }
        is_whole
    }

    /// Where a page is, if it is archived.
    pub(crate) fn find(&self, namespace: &NamespaceId, hash: &BlockHash) -> Option<ArchivedPage> {
        let (of, at) = *self.by_page.get(&key_of(namespace, mark_of(hash)))?;
        let session = self.table.get(of as usize)?.as_ref().filter(|one| one.namespace == *namespace)?;
        Some(ArchivedPage { snapshot: session.snapshot, at })
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
mod tests {
    use super::*;

    fn session(name: &str, snapshot: u8, pages: std::ops::Range<u8>) -> ArchivedSession {
        ArchivedSession {
            namespace: NamespaceId([1; 32]),
            session: SessionId::parse(name).unwrap(),
            snapshot: SnapshotName([snapshot; 16]),
            pages: pages.map(|at| mark_of(&BlockHash([at; 32]))).collect(),
        }
    }

    fn find(index: &ArchivedIndex, page: u8) -> Option<(u8, u32)> {
        let found = index.find(&NamespaceId([1; 32]), &BlockHash([page; 32]))?;
        Some((found.snapshot.0[0], found.at))
    }

    #[test]
    fn pages_are_found_while_any_session_has_them() {
        let mut index = ArchivedIndex::default();
        assert!(index.put(session("a", 1, 0..4)) && index.put(session("b", 2, 0..2)));
        assert_eq!((find(&index, 0), find(&index, 3), find(&index, 4)), (Some((2, 0)), Some((1, 3)), None));
        assert!(index.find(&NamespaceId([2; 32]), &BlockHash([0; 32])).is_none());
        assert!(index.put(session("a", 3, 0..6)), "a newer snapshot of the same");
        assert!(!index.put(session("a", 1, 0..4)), "not an older one");
        assert_eq!((find(&index, 5), index.sessions(), index.pages()), (Some((3, 5)), 2, 8));
        let known = index.session(&NamespaceId([1; 32]), &SessionId::parse("a").unwrap()).unwrap();
        assert!(known.has(6, &BlockHash([5; 32])) && known.has(3, &BlockHash([2; 32])));
        assert!(!known.has(7, &BlockHash([6; 32])) && !known.has(6, &BlockHash([4; 32])));
        assert!(index.forget(SnapshotName([3; 16])) && !index.forget(SnapshotName([3; 16])));
        let map = index.map_pages();
        assert!(index.take_pages(map.clone()));
        assert!(index.put(session("c", 7, 9..10)) && !index.take_pages(map) && find(&index, 9).is_some());
        assert!(index.forget(SnapshotName([7; 16])));
        assert_eq!((find(&index, 0), find(&index, 2), index.pages()), (Some((2, 0)), None, 2));
        assert!(index.forget(SnapshotName([2; 16])) && index.by_page.is_empty() && index.by_name.is_empty());
    }
}
