//! Bringing sessions and pins back: at a start, and when a namespace is opened that something is saved of. Owns: finding how
//! much of each saved list is here, each shared chunk looked at once; of which namespaces not all is back. Must not know: rows,
//! how pages were found.

use super::Engine;
use super::session::SessionKey;
use super::state::Return;
use crate::catalog::{Catalog, CatalogError, SavedPin, SavedRows, SavedSession};
use crate::limits::CATALOG_CHUNKS_KNOWN_MAX;
use std::collections::HashMap;
use turnkv_pool::{LIST_CHUNK_PAGES, ListStart, NamespaceIndex, Retaining};
use turnkv_proto::{BlockHash, NamespaceId};

impl Engine {
    /// Brings back what the catalog has, as soon as it can be read.
    pub(super) fn load_catalog(&self) {
        if let Some(loaded) = self.catalog.as_ref().and_then(|catalog| catalog.load()) {
            self.learn_again(None);
            self.bring_back(loaded);
        }
    }

    /// Brings back what is saved of a namespace, row by row. What its rows say counts from then on only as far as the pool knows
    /// of it; before, and where they could not all be read, nothing of it is removed. Returns how many sessions.
    pub(super) fn restore(&self, ns: NamespaceIndex) -> u64 {
        let id = self.decide().pool.namespace_desc(ns).map(|desc| desc.id);
        let (Some(catalog), Some(id)) = (&self.catalog, id) else { return 0 };
        let mut sessions = 0;
        let restored = match catalog.is_forgetting(&id) {
            true => Ok(()),
            false => catalog.saved_rows(|saved| {
                let mut lists = KnownLists { engine: self, saved, known: HashMap::new() };
                saved.for_each_of(&id, |session| {
                    sessions += u64::from(lists.restore_session(catalog, ns, session)?);
                    Ok(())
                })?;
                saved.for_each_pin_of(&id, |pin| lists.restore_pin(catalog, ns, pin))
            }),
        };
        let mut coming_back = self.coming_back.lock();
        match restored {
            Ok(()) => drop(coming_back.remove(&ns)),
            Err(error) => {
                tracing::warn!(%error, "not all sessions and pins of a namespace are back: they are read again");
                coming_back.insert(ns, Return::Failed);
            }
        }
        sessions
    }

    /// Reads once more what is saved of a namespace, where that failed.
    pub(super) fn restore_again(&self) {
        let failed = |(_, state): &(&NamespaceIndex, &Return)| **state == Return::Failed;
        let next = self.coming_back.lock().iter().find(failed).map(|(ns, _)| *ns);
        let Some(ns) = next else { return };
        let gone = self.decide().pool.namespace_desc(ns).is_none();
        if gone {
            self.coming_back.lock().remove(&ns);
        } else {
            self.restore(ns);
        }
    }

    /// Is something saved of a namespace that the pool may not know of yet?
    pub(super) fn is_coming_back(&self, ns: NamespaceIndex) -> bool {
        self.coming_back.lock().contains_key(&ns)
    }
}

/// How much is here of the lists that chunks end.
struct KnownLists<'a> {
    engine: &'a Engine,
    saved: &'a SavedRows,
    known: HashMap<(NamespaceIndex, BlockHash), Option<ListStart>>,
}

impl KnownLists<'_> {
    /// Brings one session back; says whether it is. One whose list is shorter than it was, or is saved whole as older servers
    /// did, is written anew.
    fn restore_session(
        &mut self,
        catalog: &Catalog,
        ns: NamespaceIndex,
        session: SavedSession,
    ) -> Result<bool, CatalogError> {
        let start = self.start(ns, &session.namespace, session.base, &session.hashes)?;
        let whole = start.map(|start| start.page()) == session.hashes.last().copied().or(session.base);
        if !whole || is_saved_whole(&session.hashes) {
            catalog.mark(ns, session.session.clone());
        }
        let of = SessionKey { namespace: session.namespace, session: session.session.clone() };
        let (record, now) = (session.into_record(ns), self.engine.now());
        let restored = self.engine.decide().pool.restore_session(&record, start, now).is_ok();
        if record.protected_ms > 0 {
            let mut retaining = Retaining::new(ns, &record.session, record.protected_ms);
            drop(self.engine.decide_in_slices(|core| core.pool.retain_some(&mut retaining, now)));
        }
        if restored {
            self.engine.tell_home(ns, &of);
        }
        Ok(restored)
    }

    /// Brings one pin back, likewise. One that has ended, or of which nothing is here, goes.
    fn restore_pin(
        &mut self,
        catalog: &Catalog,
        ns: NamespaceIndex,
        saved: SavedPin,
    ) -> Result<(), CatalogError> {
        let start = self.start(ns, &saved.namespace, saved.base, &saved.hashes)?;
        let start = start.filter(|_| saved.for_ms > 0);
        if let Some(start) = start {
            let (engine, now) = (self.engine, self.engine.now());
            let begun = engine.decide().pool.begin_pin_again(ns, saved.pin, start, saved.for_ms, now);
            let Ok(mut pinning) = begun else { return Ok(()) }; // the namespace has gone
            let mut core = engine.decide_in_slices(|core| core.pool.pin_again(&mut pinning));
            core.pool.end_pin(pinning, now);
        }
        if (start.is_none() || is_saved_whole(&saved.hashes)) && !catalog.mark_pin(ns, saved.pin) {
            tracing::debug!("more pins are to be written than may wait: this one's row stays as it is");
        }
        Ok(())
    }

    /// How much is here of a list that is the chunks up to `base` and some pages.
    fn start(
        &mut self,
        ns: NamespaceIndex,
        namespace: &NamespaceId,
        base: Option<BlockHash>,
        hashes: &[BlockHash],
    ) -> Result<Option<ListStart>, CatalogError> {
        let from = match &base {
            Some(base) => self.start_of_chunk(ns, namespace, base)?,
            None => None,
        };
        Ok(self.go_on(ns, base, from, hashes))
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
        self.engine.decide().pool.list_start(ns, from, hashes).or(from)
    }
}

/// Is a list saved in its row instead of in chunks?
fn is_saved_whole(hashes: &[BlockHash]) -> bool {
    hashes.len() >= LIST_CHUNK_PAGES as usize
}

#[cfg(test)]
mod tests;
