//! Bringing sessions back: at a start, and when a namespace is opened that something is saved of. Owns: finding how much of
//! each saved list is here, each shared chunk looked at once. Must not know: rows, how pages were found.

use super::Engine;
use crate::catalog::{CatalogError, SavedSession, SavedSessions};
use crate::limits::CATALOG_CHUNKS_KNOWN_MAX;
use std::collections::HashMap;
use turnkv_pool::{LIST_CHUNK_PAGES, ListStart, NamespaceIndex};
use turnkv_proto::{BlockHash, NamespaceId};

impl Engine {
    /// Brings back what the catalog has, as soon as it can be read.
    pub(super) fn load_catalog(&self) {
        if let Some(loaded) = self.catalog.as_ref().and_then(|catalog| catalog.load()) {
            self.bring_back(loaded);
        }
    }

    /// Brings the saved sessions of a namespace back, one by one. Those whose list is shorter than it was, or is saved whole as
    /// older servers did, are written anew. Returns how many.
    pub(super) fn restore_sessions(&self, ns: NamespaceIndex) -> u64 {
        let id = self.core().pool.namespace_desc(ns).map(|desc| desc.id);
        let (Some(catalog), Some(id)) = (&self.catalog, id) else { return 0 };
        if catalog.is_forgetting(&id) {
            return 0;
        }
        let mut sessions = 0;
        let restored = catalog.saved_sessions(|saved| {
            let mut lists = Lists { engine: self, saved, known: HashMap::new() };
            saved.for_each_of(&id, |session| {
                let start = lists.start(ns, &session)?;
                let whole =
                    start.map(|start| start.page()) == session.hashes.last().copied().or(session.base);
                if !whole || session.hashes.len() >= LIST_CHUNK_PAGES as usize {
                    catalog.mark(ns, session.session.clone());
                }
                let (record, now) = (session.into_record(ns), self.now());
                sessions += u64::from(self.core().pool.restore_session(&record, start, now).is_ok());
                Ok(())
            })
        });
        if let Err(error) = restored {
            tracing::warn!(%error, "not all sessions of a namespace are back");
        }
        sessions
    }
}

/// How much is here of the lists that chunks end.
struct Lists<'a> {
    engine: &'a Engine,
    saved: &'a SavedSessions,
    known: HashMap<(NamespaceIndex, BlockHash), Option<ListStart>>,
}

impl Lists<'_> {
    /// How much is here of a session's list.
    fn start(
        &mut self,
        ns: NamespaceIndex,
        session: &SavedSession,
    ) -> Result<Option<ListStart>, CatalogError> {
        let from = match &session.base {
            Some(base) => self.start_of_chunk(ns, &session.namespace, base)?,
            None => None,
        };
        Ok(self.go_on(ns, session.base, from, &session.hashes))
    }

    /// How much is here of the list that ends with a chunk: what the chunks before it have, and its own if they are whole.
    fn start_of_chunk(
        &mut self,
        ns: NamespaceIndex,
        namespace: &NamespaceId,
        last: &BlockHash,
    ) -> Result<Option<ListStart>, CatalogError> {
        let chunks = self.saved.chunks_back(namespace, last, |at| self.known.contains_key(&(ns, *at)))?;
        let before = chunks.last().map_or(Some(*last), |(_, first)| first.before);
        let mut start = before.and_then(|at| self.known.get(&(ns, at)).copied().flatten());
        for (at, chunk) in chunks.into_iter().rev() {
            start = self.go_on(ns, chunk.before, start, &chunk.hashes);
            if self.known.len() >= CATALOG_CHUNKS_KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert((ns, at), start);
        }
        Ok(start)
    }

    /// How much is here of a list that goes on after `before` with some pages, if so much is here of what comes before them.
    /// The pool's lock is held for these pages only.
    fn go_on(
        &self,
        ns: NamespaceIndex,
        before: Option<BlockHash>,
        from: Option<ListStart>,
        hashes: &[BlockHash],
    ) -> Option<ListStart> {
        if from.map(|from| from.page()) != before {
            return from;
        }
        self.engine.core().pool.list_start(ns, from, hashes).or(from)
    }
}
