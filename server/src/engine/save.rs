//! Saving sessions and pins: what changed since the last time goes to the catalog. Owns: how much of it at a time, so that
//! neither the pool's lock nor a transaction sees more than its bound. Must not know: rows.

use super::Engine;
use crate::catalog::{Catalog, CatalogError, ListSource, Written};
use crate::limits::{
    CATALOG_BATCHES_PER_FLUSH, CATALOG_CHUNKS_MIN, CATALOG_CHUNKS_PER_LOCK, CATALOG_LAST_FLUSHES,
    CATALOG_LIST_PAGES_PER_PAGE, CATALOG_NOTE_BYTES_PER_FLUSH, CATALOG_ROWS_SWEPT_PER_FLUSH,
    CATALOG_SESSIONS_PER_BATCH, CATALOG_SESSIONS_PER_LOCK,
};
use turnkv_pool::{LIST_CHUNK_PAGES, ListChunk, NamespaceIndex, Pool};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};
use turnkv_tier::limits::BLOCK_BYTES;

/// What is saved under a name, in a namespace of this run.
type Name<T> = (NamespaceIndex, T);

/// What is to be saved of names, each with its position among them; no record: it is gone.
type Changes<T, R> = (Vec<usize>, Vec<(NamespaceId, T, Option<R>)>);

impl Engine {
    /// Writes to the catalog what changed, and what could not be written before, up to the bounds of one flush: the rest waits
    /// for the next one.
    pub(crate) fn flush_catalog(&self) {
        let Some(catalog) = &self.catalog else { return };
        let mut swept = self.swept.lock();
        self.load_catalog();
        self.restore_again();
        catalog.flush_namespaces();
        if catalog.take_rebuilt() {
            self.mark_all(catalog);
        }
        self.save_learned(catalog);
        self.flush_segment_notes(catalog);
        // The catalog says what is wrong when it begins and when it is over. What was not written is tried again.
        if let Err(error) = self.flush_pins(catalog) {
            tracing::debug!(%error, "pins are not saved yet");
        }
        let mut waiting = catalog.take_marked();
        waiting.extend(self.decide().pool.take_forgotten());
        let saved = self.sweep(catalog, &mut swept, &mut waiting);
        let saved = self.save_sessions(catalog, &waiting, saved);
        catalog.settled();
        if let Err(error) = saved {
            tracing::debug!(%error, "sessions are not saved yet");
        }
    }

    /// Writes what the tier notes of extents: a start would else find what died, and not know what goes first.
    fn flush_segment_notes(&self, catalog: &Catalog) {
        let Some(nvme) = &self.nvme else { return };
        let notes = nvme.take_notes(CATALOG_NOTE_BYTES_PER_FLUSH);
        if let Err(error) = catalog.put_segment_notes(&notes) {
            tracing::debug!(%error, "notes of segments are not saved yet");
            nvme.notes_failed(&notes);
        }
    }

    /// Changes that wait for the catalog.
    pub(super) fn unsaved(&self) -> usize {
        let notes = self.nvme.as_ref().map_or(0, |nvme| nvme.notes_waiting());
        self.catalog.as_ref().map_or(0, Catalog::waiting_len) + notes
    }

    /// Writes pins that changed or ended.
    fn flush_pins(&self, catalog: &Catalog) -> Result<(), CatalogError> {
        let ended = self.decide().pool.take_ended_pins();
        let unheard = ended.into_iter().filter(|(ns, pin)| !catalog.mark_pin(*ns, *pin)).count();
        if unheard > 0 {
            tracing::warn!(unheard, "pins that ended stay in the catalog until the next start");
        }
        let some = || catalog.take_marked_pins(CATALOG_SESSIONS_PER_BATCH * CATALOG_BATCHES_PER_FLUSH);
        self.save_pins(catalog, some).map(|_| ())
    }

    /// Writes pins that are taken from those marked as they are now, and says how many of them found no room for their lists;
    /// what cannot be written is marked again.
    pub(super) fn save_pins(
        &self,
        catalog: &Catalog,
        take: impl FnOnce() -> Vec<Name<BlockHash>>,
    ) -> Result<u64, CatalogError> {
        let _order = self.saving_pins.lock();
        let pins = take();
        let mark = |(ns, pin): &Name<BlockHash>| {
            if !catalog.mark_pin(*ns, *pin) {
                tracing::warn!(
                    "more pins than may wait for the catalog: one holds only until the server restarts"
                );
            }
        };
        let mut unlisted = 0;
        let saved = self.save(&pins, Ok(()), mark, |some| {
            let record = |pool: &Pool, ns, pin: &BlockHash, now| pool.pin_record(ns, pin, now);
            let (positions, changes) = self.changes(catalog, some, mark, record);
            let written = catalog.put_pins(&changes, &self.list_source(&|ns, last| self.chunks(ns, last)))?;
            unlisted += written.unlisted;
            Ok((positions, written))
        });
        saved.map(|()| unlisted)
    }

    /// Writes sessions as they are now, if all went well `so_far`; what cannot be written is marked again.
    fn save_sessions(
        &self,
        catalog: &Catalog,
        sessions: &[Name<SessionId>],
        so_far: Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        let mark = |(ns, session): &Name<SessionId>| catalog.mark(*ns, session.clone());
        self.save(sessions, so_far, mark, |some| {
            let record = |pool: &Pool, ns, session: &SessionId, now| pool.session_record(ns, session, now);
            let (positions, changes) = self.changes(catalog, some, mark, record);
            let written =
                catalog.put_sessions(&changes, &self.list_source(&|ns, last| self.chunks(ns, last)))?;
            self.metrics.unlisted_sessions.increment(written.unlisted);
            Ok((positions, written))
        })
    }

    /// Writes what names stand for, batch by batch, up to the bounds of one flush. Those that are to be looked at again, and
    /// those that are left, are marked.
    fn save<T>(
        &self,
        names: &[Name<T>],
        so_far: Result<(), CatalogError>,
        mark: impl Fn(&Name<T>),
        mut write: impl FnMut(&[Name<T>]) -> Result<(Vec<usize>, Written), CatalogError>,
    ) -> Result<(), CatalogError> {
        let mut left = names;
        let saved = so_far.and_then(|()| {
            for _ in 0..CATALOG_BATCHES_PER_FLUSH {
                let count = left.len().min(CATALOG_SESSIONS_PER_BATCH);
                if count == 0 {
                    break;
                }
                let (positions, written) = write(&left[..count])?;
                written.again.iter().for_each(|at| mark(&left[positions[*at]]));
                left = &left[positions.get(written.changes).copied().unwrap_or(count)..];
            }
            Ok(())
        });
        left.iter().for_each(mark);
        saved
    }

    /// Writes all that changed: the server is leaving.
    pub(super) fn flush_catalog_whole(&self) {
        if let Some(catalog) = &self.catalog {
            self.save_all_learned(catalog);
        }
        for _ in 0..CATALOG_LAST_FLUSHES {
            let before = self.unsaved();
            self.flush_catalog();
            let left = self.unsaved();
            if left == 0 || left >= before {
                return;
            }
        }
    }

    /// What the catalog may hold of sessions' lists: of what names pages that fit on NVMe (DRAM, where that is all), some is of pages
    /// that left it.
    pub(super) fn list_chunks_max(&self) -> u64 {
        let bytes = self.settings.nvme.as_ref().map_or(self.settings.dram.bytes, |nvme| nvme.bytes);
        let pages = (bytes / BLOCK_BYTES).min(u64::from(self.settings.limits.pages_max));
        (pages * CATALOG_LIST_PAGES_PER_PAGE / u64::from(LIST_CHUNK_PAGES)).max(CATALOG_CHUNKS_MIN)
    }

    fn list_source<'a>(
        &self,
        chunks: &'a dyn Fn(&NamespaceId, &BlockHash) -> Vec<ListChunk>,
    ) -> ListSource<'a> {
        ListSource { chunks, chunks_max: self.list_chunks_max() }
    }

    /// What the names stand for now: those of a namespace that is gone are left out, and wait where old rows of it are to go
    /// first.
    fn changes<T: Clone, R>(
        &self,
        catalog: &Catalog,
        names: &[Name<T>],
        mark: impl Fn(&Name<T>),
        record: impl Fn(&Pool, NamespaceIndex, &T, u64) -> Option<R>,
    ) -> Changes<T, R> {
        let (mut positions, mut changes) = (Vec::with_capacity(names.len()), Vec::with_capacity(names.len()));
        for (first, names) in names.chunks(CATALOG_SESSIONS_PER_LOCK).enumerate() {
            let (now, core) = (self.now(), self.decide());
            for (at, (ns, name)) in names.iter().enumerate() {
                let Some(namespace) = core.pool.namespace_desc(*ns).map(|desc| desc.id) else { continue };
                if catalog.is_forgetting(&namespace) {
                    mark(&names[at]);
                    continue;
                }
                positions.push(first * CATALOG_SESSIONS_PER_LOCK + at);
                changes.push((namespace, name.clone(), record(&core.pool, *ns, name, now)));
            }
        }
        (positions, changes)
    }

    fn chunks(&self, ns: &NamespaceId, last: &BlockHash) -> Vec<ListChunk> {
        let core = self.decide();
        let ns = core.pool.namespace(ns);
        ns.map_or(Vec::new(), |ns| core.pool.list_chunks(ns, last, CATALOG_CHUNKS_PER_LOCK))
    }

    /// Looks at some rows that nobody marked, the next ones each time: of sessions that were forgotten unheard, or whose pages
    /// went, so that the catalog does not keep lists of what is gone.
    fn sweep(
        &self,
        catalog: &Catalog,
        swept: &mut Vec<u8>,
        waiting: &mut Vec<Name<SessionId>>,
    ) -> Result<(), CatalogError> {
        let rows = catalog.saved_rows(|saved| saved.rows_after(swept, CATALOG_ROWS_SWEPT_PER_FLUSH))?;
        *swept = match rows.last() {
            Some((key, _)) if rows.len() == CATALOG_ROWS_SWEPT_PER_FLUSH => key.clone(),
            _ => Vec::new(),
        };
        for rows in rows.chunks(CATALOG_SESSIONS_PER_LOCK) {
            let (now, core) = (self.now(), self.decide());
            for saved in rows.iter().filter_map(|(_, saved)| saved.as_ref()) {
                let Some(ns) = core.pool.namespace(&saved.namespace) else { continue };
                if self.is_coming_back(ns) {
                    continue; // not here does not mean gone
                }
                let is = core.pool.session_record(ns, &saved.session, now).map(|record| record.base);
                if is != Some(saved.base) {
                    waiting.push((ns, saved.session.clone()));
                }
            }
        }
        Ok(())
    }

    /// The catalog was begun anew: every session and every pin is to be written again.
    fn mark_all(&self, catalog: &Catalog) {
        self.save_learned_again();
        if let Some(nvme) = &self.nvme {
            nvme.note_all_again();
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let (sessions, further) = self.decide().pool.session_names(from);
            sessions.into_iter().for_each(|(ns, session)| catalog.mark(ns, session));
            next = further;
        }
        let (mut next, mut unheard) = (Some(0), 0);
        while let Some(from) = next {
            let (pins, further) = self.decide().pool.pin_names(from);
            unheard += pins.into_iter().filter(|(ns, pin)| !catalog.mark_pin(*ns, *pin)).count();
            next = further;
        }
        if unheard > 0 {
            tracing::warn!(
                unheard,
                "more pins than may wait for the catalog: these hold until the server restarts"
            );
        }
    }
}

#[cfg(test)]
mod tests;
