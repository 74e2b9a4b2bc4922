//! The catalog's rows of namespaces. Owns: the specs of those that are open, and the end of all that is saved of one that is
//! not. Must not know: the pool's indices.

use super::tables::{CatalogTable, NAMESPACES, OF_NAMESPACES};
use super::{Catalog, CatalogError};
use crate::limits::{CATALOG_REMOVALS_PER_FLUSH, CATALOG_ROWS_PER_WRITE};
use prost::Message;
use redb::{ReadTransaction, ReadableTable};
use std::collections::BTreeSet;
use turnkv_proto::{CheckedSpec, NamespaceId, wire};

impl Catalog {
    /// Saves a namespace that was opened: durably, if the catalog works, else as soon as it does. Blocking.
    pub(crate) fn put_namespace(&self, spec: &CheckedSpec) {
        self.note_namespace(spec, false);
        let _order = self.flushing.lock();
        self.flush_unsaved();
    }

    /// Takes note of a namespace that is open. `saved`: its row is there.
    pub(crate) fn note_namespace(&self, spec: &CheckedSpec, saved: bool) {
        let row = wire::NamespaceSpec::from(spec).encode_to_vec();
        self.waiting.lock().note(spec.id(), row, saved);
    }

    /// All that is saved of a namespace is to go, at the next flush.
    pub(crate) fn forget_namespace(&self, id: NamespaceId) {
        self.waiting.lock().forget(id);
    }

    /// Whether rows of a namespace are still to go: nothing is to be written of it before they have.
    pub(crate) fn is_forgetting(&self, id: &NamespaceId) -> bool {
        self.waiting.lock().is_gone(id)
    }

    /// Writes what waits of namespaces, so much a call. What cannot be written goes on waiting; `trouble` says why. Blocking.
    pub(crate) fn flush_namespaces(&self) {
        let _order = self.flushing.lock();
        for _ in 0..CATALOG_REMOVALS_PER_FLUSH {
            match self.remove_some() {
                Ok(true) => {}
                Ok(false) | Err(_) => break,
            }
        }
        self.flush_unsaved();
    }

    fn flush_unsaved(&self) {
        let rows = self.waiting.lock().take_unsaved();
        if rows.is_empty() {
            return;
        }
        let put = self.write(|write| {
            let mut table = write.open_table(NAMESPACES)?;
            for (id, row) in &rows {
                table.insert(id.0.as_slice(), row.as_slice())?;
            }
            Ok(())
        });
        if put.is_err() {
            self.waiting.lock().unsaved_again(rows);
        }
    }

    /// Removes some rows of namespaces that are not to be kept, their own last. True: there are more.
    fn remove_some(&self) -> Result<bool, CatalogError> {
        let gone = self.waiting.lock().gone();
        if gone.is_empty() {
            return Ok(false);
        }
        let (rows, done) = self.read(|read| rows_of(read, &gone))?;
        if !rows.is_empty() {
            self.write(|write| {
                for (table, key) in &rows {
                    write.open_table(*table)?.remove(key.as_slice())?;
                }
                Ok(())
            })?;
        }
        let mut waiting = self.waiting.lock();
        done.iter().for_each(|id| waiting.forgotten(id));
        Ok(done.len() < gone.len())
    }
}

/// Specs that still check.
pub(super) fn load(read: &ReadTransaction) -> Result<Vec<CheckedSpec>, CatalogError> {
    let mut namespaces = Vec::new();
    for row in read.open_table(NAMESPACES)?.iter()? {
        let (key, spec) = row?;
        match checked(key.value(), spec.value()) {
            Some(spec) => namespaces.push(spec),
            None => tracing::warn!("a saved namespace does not check: its pages wait until it is opened"),
        }
    }
    Ok(namespaces)
}

/// The ids that rows of any table begin with, those without a namespace's row included.
pub(super) fn ids(read: &ReadTransaction) -> Result<Vec<NamespaceId>, CatalogError> {
    let mut ids = BTreeSet::new();
    for table in OF_NAMESPACES {
        for row in read.open_table(table)?.iter()? {
            let (key, _) = row?;
            ids.extend(key.value().first_chunk::<32>().map(|id| NamespaceId(*id)));
        }
    }
    Ok(ids.into_iter().collect())
}

/// A table and a key in it.
type RowKey = (CatalogTable, Vec<u8>);

/// Rows of namespaces, within a bound, and those of which these are all.
fn rows_of(
    read: &ReadTransaction,
    ids: &[NamespaceId],
) -> Result<(Vec<RowKey>, Vec<NamespaceId>), CatalogError> {
    let (mut rows, mut done) = (Vec::new(), Vec::new());
    for id in ids {
        for table in OF_NAMESPACES {
            for row in read.open_table(table)?.range(id.0.as_slice()..)? {
                let (key, _) = row?;
                if !key.value().starts_with(&id.0) {
                    break;
                }
                if rows.len() == CATALOG_ROWS_PER_WRITE {
                    return Ok((rows, done));
                }
                rows.push((table, key.value().to_vec()));
            }
        }
        done.push(*id);
    }
    Ok((rows, done))
}

fn checked(key: &[u8], row: &[u8]) -> Option<CheckedSpec> {
    let raw = wire::NamespaceSpec::decode(row).ok()?;
    let spec = CheckedSpec::try_from(&raw).ok()?;
    (spec.id().0 == key).then_some(spec)
}
