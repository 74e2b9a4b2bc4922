//! Saving sessions: what changed since the last time goes to the catalog. Owns: how much of it at a time, so that neither the
//! pool's lock nor a transaction sees more than its bound. Must not know: rows.

use super::Engine;
use crate::catalog::{Catalog, CatalogError, Change, ListSource};
use crate::limits::{
    CATALOG_BATCHES_PER_FLUSH, CATALOG_CHUNKS_MIN, CATALOG_CHUNKS_PER_LOCK, CATALOG_LAST_FLUSHES,
    CATALOG_LIST_PAGES_PER_PAGE, CATALOG_ROWS_SWEPT_PER_FLUSH, CATALOG_SESSIONS_PER_BATCH,
    CATALOG_SESSIONS_PER_LOCK,
};
use turnkv_pool::{LIST_CHUNK_PAGES, ListChunk, NamespaceIndex};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};
use turnkv_tier::limits::BLOCK_BYTES;

/// A session of this run.
type Name = (NamespaceIndex, SessionId);

impl Engine {
    /// Writes to the catalog what changed, and what could not be written before, up to the bounds of one flush: the rest waits
    /// for the next one.
    pub(crate) fn flush_catalog(&self) {
        let Some(catalog) = &self.catalog else { return };
        let mut swept = self.swept.lock();
        self.load_catalog();
        catalog.flush_namespaces();
        catalog.flush_pins();
        if catalog.take_rebuilt() {
            self.mark_all_sessions(catalog);
        }
        let mut waiting = catalog.take_marked();
        waiting.extend(self.core().pool.take_forgotten());
        let saved = self.sweep(catalog, &mut swept, &mut waiting);
        let mut left = waiting.as_slice();
        let saved = saved.and_then(|()| {
            for _ in 0..CATALOG_BATCHES_PER_FLUSH {
                let count = left.len().min(CATALOG_SESSIONS_PER_BATCH);
                if count == 0 {
                    break;
                }
                let (positions, changes) = self.changes(catalog, &left[..count]);
                let written =
                    catalog.put_sessions(&changes, &self.list_source(&|ns, last| self.chunks(ns, last)))?;
                for at in written.again {
                    let (ns, session) = &left[positions[at]];
                    catalog.mark(*ns, session.clone());
                }
                self.metrics.unlisted_sessions.increment(written.unlisted);
                left = &left[positions.get(written.changes).copied().unwrap_or(count)..];
            }
            Ok(())
        });
        for (ns, session) in left {
            catalog.mark(*ns, session.clone());
        }
        catalog.settled();
        if let Err(error) = saved {
            // The catalog says what is wrong when it begins and when it is over. What was not written is tried again.
            tracing::debug!(%error, "sessions are not saved yet");
        }
    }

    /// Writes all that changed: the server is leaving.
    pub(super) fn flush_catalog_whole(&self) {
        for _ in 0..CATALOG_LAST_FLUSHES {
            let before = self.catalog.as_ref().map_or(0, Catalog::waiting_len);
            self.flush_catalog();
            let left = self.catalog.as_ref().map_or(0, Catalog::waiting_len);
            if left == 0 || left >= before {
                return;
            }
        }
    }

    /// What the catalog may hold of sessions' lists: of what names pages that fit on NVMe, some is of pages that left it.
    pub(super) fn list_chunks_max(&self) -> u64 {
        let nvme_bytes = self.settings.nvme.as_ref().map_or(0, |nvme| nvme.bytes);
        let pages = (nvme_bytes / BLOCK_BYTES).min(u64::from(self.settings.limits.pages_max));
        (pages * CATALOG_LIST_PAGES_PER_PAGE / u64::from(LIST_CHUNK_PAGES)).max(CATALOG_CHUNKS_MIN)
    }

    fn list_source<'a>(
        &self,
        chunks: &'a dyn Fn(&NamespaceId, &BlockHash) -> Vec<ListChunk>,
    ) -> ListSource<'a> {
        ListSource { chunks, chunks_max: self.list_chunks_max() }
    }

    /// The sessions named as they are now, those that are gone without a record, each with its position among the names:
    /// those of a namespace that is gone are left out, and wait where old rows of it are to go first.
    fn changes(&self, catalog: &Catalog, names: &[Name]) -> (Vec<usize>, Vec<Change>) {
        let (mut positions, mut changes) = (Vec::with_capacity(names.len()), Vec::with_capacity(names.len()));
        for (first, names) in names.chunks(CATALOG_SESSIONS_PER_LOCK).enumerate() {
            let (now, core) = (self.now(), self.core());
            for (at, (ns, session)) in names.iter().enumerate() {
                let Some(namespace) = core.pool.namespace_desc(*ns).map(|desc| desc.id) else { continue };
                if catalog.is_forgetting(&namespace) {
                    catalog.mark(*ns, session.clone());
                    continue;
                }
                positions.push(first * CATALOG_SESSIONS_PER_LOCK + at);
                changes.push((namespace, session.clone(), core.pool.session_record(*ns, session, now)));
            }
        }
        (positions, changes)
    }

    fn chunks(&self, ns: &NamespaceId, last: &BlockHash) -> Vec<ListChunk> {
        let core = self.core();
        let ns = core.pool.namespace(ns);
        ns.map_or(Vec::new(), |ns| core.pool.list_chunks(ns, last, CATALOG_CHUNKS_PER_LOCK))
    }

    /// Looks at some rows that nobody marked, the next ones each time: of sessions that were forgotten unheard, or whose pages
    /// went, so that the catalog does not keep lists of what is gone.
    fn sweep(
        &self,
        catalog: &Catalog,
        swept: &mut Vec<u8>,
        waiting: &mut Vec<Name>,
    ) -> Result<(), CatalogError> {
        let rows = catalog.saved_sessions(|saved| saved.rows_after(swept, CATALOG_ROWS_SWEPT_PER_FLUSH))?;
        *swept = match rows.last() {
            Some((key, _)) if rows.len() == CATALOG_ROWS_SWEPT_PER_FLUSH => key.clone(),
            _ => Vec::new(),
        };
        for rows in rows.chunks(CATALOG_SESSIONS_PER_LOCK) {
            let (now, core) = (self.now(), self.core());
            for saved in rows.iter().filter_map(|(_, saved)| saved.as_ref()) {
                let Some(ns) = core.pool.namespace(&saved.namespace) else { continue };
                let is = core.pool.session_record(ns, &saved.session, now).map(|record| record.base);
                if is != Some(saved.base) {
                    waiting.push((ns, saved.session.clone()));
                }
            }
        }
        Ok(())
    }

    /// The catalog was begun anew: every session is to be written again.
    fn mark_all_sessions(&self, catalog: &Catalog) {
        let mut from = 0;
        loop {
            let (sessions, next) = self.core().pool.session_names(from);
            sessions.into_iter().for_each(|(ns, session)| catalog.mark(ns, session));
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
    }
}
