//! Rows that go on from a list: those of sessions and of pins. Owns: that each has the list that it needs saved once, and what
//! one transaction writes. Must not know: what else is in a row.

use super::lists::{ListSource, Lists, Needed};
use super::tables::CatalogTable;
use super::{Catalog, CatalogError};
use crate::limits::{CATALOG_BATCH_BYTES, CATALOG_CHUNKS_DROPPED_PER_BATCH};
use redb::ReadableTable;
use std::sync::atomic::Ordering;
use turnkv_pool::LIST_CHUNK_PAGES;
use turnkv_proto::{BlockHash, NamespaceId};

/// About what a chunk of a list is written with.
const CHUNK_BYTES: usize = LIST_CHUNK_PAGES as usize * 32 + 128;

/// A table of such rows.
pub(super) struct Kind {
    pub(super) table: CatalogTable,
    /// The last page of the last full chunk that a row names; none: it has no full one.
    pub(super) base_of: fn(&[u8]) -> Option<BlockHash>,
}

/// A row that is to be there, or to go.
pub(super) struct Row {
    pub(super) namespace: NamespaceId,
    /// After the namespace's id.
    pub(super) name: Vec<u8>,
    /// None: it goes.
    pub(super) value: Option<Value>,
}

/// What a row is to be.
pub(super) struct Value {
    /// The last page of its last full chunk.
    pub(super) base: Option<BlockHash>,
    pub(super) bytes: Vec<u8>,
    /// What it is where there is no room for its list; none: it is not saved.
    pub(super) unlisted: Option<Vec<u8>>,
}

/// What one transaction came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// So many of the changes were dealt with: what one transaction writes is bounded.
    pub(crate) changes: usize,
    /// Of these, those whose pages went meanwhile: look at what they are of again.
    pub(crate) again: Vec<usize>,
    /// Of these, those saved without their lists, or not at all: the catalog has no room for more.
    pub(crate) unlisted: u64,
}

/// What one transaction wrote so far.
#[derive(Default)]
struct Spent {
    bytes: usize,
    dropped: usize,
}

impl Catalog {
    /// Writes leading rows in one transaction, as many as its bounds allow.
    pub(super) fn put_rows(
        &self,
        kind: &Kind,
        rows: &[Row],
        source: &ListSource<'_>,
    ) -> Result<Written, CatalogError> {
        if rows.is_empty() {
            return Ok(Written::default());
        }
        let (written, chunks) = self.write(|write| {
            let (mut table, mut lists) = (write.open_table(kind.table)?, Lists::open(write)?);
            let (mut written, mut spent) = (Written::default(), Spent::default());
            for (at, row) in rows.iter().enumerate() {
                if spent.bytes >= CATALOG_BATCH_BYTES || spent.dropped >= CATALOG_CHUNKS_DROPPED_PER_BATCH {
                    break;
                }
                written.changes = at + 1;
                match put(kind, &mut table, &mut lists, row, source, &mut spent)? {
                    Needed::Saved(_) => {}
                    Needed::Gone => written.again.push(at),
                    Needed::Full => written.unlisted += 1,
                }
            }
            Ok((written, lists.len()?))
        })?;
        self.list_chunks.store(chunks, Ordering::Relaxed);
        Ok(written)
    }
}

/// Writes one row, and sees to the list that it needs and to the one that it needed.
fn put(
    kind: &Kind,
    table: &mut redb::Table<'_, &'static [u8], &'static [u8]>,
    lists: &mut Lists<'_>,
    row: &Row,
    source: &ListSource<'_>,
    spent: &mut Spent,
) -> Result<Needed, CatalogError> {
    let (ns, key) = (&row.namespace, [row.namespace.0.as_slice(), &row.name].concat());
    let before = table.get(key.as_slice())?.and_then(|row| (kind.base_of)(row.value()));
    let mut outcome = Needed::Saved(0);
    let mut base = row.value.as_ref().and_then(|value| value.base);
    if let Some(last) = base.filter(|last| before != Some(*last)) {
        outcome = lists.need(ns, &last, source)?;
        match outcome {
            Needed::Saved(fresh) => spent.bytes += fresh * CHUNK_BYTES,
            Needed::Gone => return Ok(outcome),
            Needed::Full => base = None,
        }
    }
    let value = row.value.as_ref();
    let bytes = match outcome {
        Needed::Full => value.and_then(|value| value.unlisted.as_ref()),
        Needed::Saved(_) | Needed::Gone => value.map(|value| &value.bytes),
    };
    match bytes {
        Some(bytes) => {
            spent.bytes += key.len() + bytes.len();
            table.insert(key.as_slice(), bytes.as_slice())?;
        }
        None => {
            table.remove(key.as_slice())?;
        }
    }
    if let Some(last) = before.filter(|last| base != Some(*last)) {
        spent.dropped += lists.release(ns, &last)?;
    }
    Ok(outcome)
}
