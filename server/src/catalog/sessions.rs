//! The catalog's rows of sessions. Owns: their form, and which of them are to be written at the next flush. Must not know:
//! pages' bytes or places; how lists are shared (`lists`).

use super::lists::{self, ListSource, ReadLists};
use super::rows::{Kind, Row, Value, Written};
use super::tables::{PINS, SESSIONS};
use super::{Catalog, CatalogError};
use prost::Message;
use redb::ReadOnlyTable;
use std::collections::HashSet;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use turnkv_pool::{ListChunk, NamespaceIndex, SessionRecord};
use turnkv_proto::{BlockHash, NamespaceId, SessionId, pack_hashes};

const KIND: Kind = Kind { table: SESSIONS, base_of };

/// A session as saved: protobuf, so that fields can be added.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionRow {
    #[prost(uint32, tag = "1")]
    pub(super) turn: u32,
    /// The pages after the base; of a row without one, all: so older servers wrote every row.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) hashes: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub(super) tail_tokens: u32,
    #[prost(uint64, tag = "4")]
    pub(super) ttl_ms: u64,
    #[prost(uint32, tag = "5")]
    pub(super) priority: u32,
    #[prost(uint64, tag = "6")]
    pub(super) protected_ms: u64,
    /// The last page of its last full chunk; empty: it has none.
    #[prost(bytes = "vec", tag = "7")]
    pub(super) base: Vec<u8>,
}

/// A session as it was saved, not yet checked against the pages that are there.
pub(crate) struct SavedSession {
    /// Its namespace.
    pub(crate) namespace: NamespaceId,
    /// Its name.
    pub(crate) session: SessionId,
    /// The last page of its last full chunk.
    pub(crate) base: Option<BlockHash>,
    /// The pages after it.
    pub(crate) hashes: Vec<BlockHash>,
    saved: SessionRow,
}

impl SavedSession {
    /// The pool's form, in the namespace's index of this run. Idle time starts anew with the server.
    pub(crate) fn into_record(self, ns: NamespaceIndex) -> SessionRecord {
        SessionRecord {
            ns,
            session: self.session,
            turn: self.saved.turn,
            base: self.base,
            hashes: self.hashes,
            tail_tokens: self.saved.tail_tokens,
            ttl_ms: self.saved.ttl_ms,
            idle_ms: 0,
            priority: self.saved.priority,
            protected_ms: self.saved.protected_ms,
        }
    }
}

/// A session to write (or, with no record, to remove).
pub(crate) type Change = (NamespaceId, SessionId, Option<SessionRecord>);

/// A row's key, and the session if the row checks.
pub(crate) type SweptRow = (Vec<u8>, Option<SavedSession>);

/// Everything saved of sessions and pins, as of one moment.
pub(crate) struct SavedRows {
    rows: ReadOnlyTable<&'static [u8], &'static [u8]>,
    pub(super) pins: ReadOnlyTable<&'static [u8], &'static [u8]>,
    lists: ReadLists,
    /// That moment.
    pub(super) unix_ms: u64,
}

impl Catalog {
    /// A session changed: write it at the next flush.
    pub(crate) fn mark(&self, ns: NamespaceIndex, session: SessionId) {
        self.marked.lock().insert((ns, session));
    }

    /// Takes the sessions to write: they count as waiting until they are [`Catalog::settled`].
    pub(crate) fn take_marked(&self) -> Vec<(NamespaceIndex, SessionId)> {
        let marked = std::mem::take(&mut *self.marked.lock());
        self.saving.store(marked.len(), Ordering::Relaxed);
        marked.into_iter().collect()
    }

    /// What was taken is written, or marked again.
    pub(crate) fn settled(&self) {
        self.saving.store(0, Ordering::Relaxed);
    }

    /// Writes leading changes in one transaction, as many as its bounds allow; a record of `None` removes a row.
    pub(crate) fn put_sessions(
        &self,
        changes: &[Change],
        source: &ListSource<'_>,
    ) -> Result<Written, CatalogError> {
        let rows = changes.iter().map(|(namespace, session, record)| Row {
            namespace: *namespace,
            name: session.as_str().as_bytes().to_vec(),
            value: record.as_ref().map(|record| Value {
                base: record.base,
                bytes: save(record, true),
                unlisted: Some(save(record, false)),
            }),
        });
        self.put_rows(&KIND, &rows.collect::<Vec<Row>>(), source)
    }

    /// Chunks of lists that are saved.
    pub(crate) fn list_chunks(&self) -> u64 {
        self.list_chunks.load(Ordering::Relaxed)
    }

    /// Looks at what is saved of sessions and pins now. Blocking.
    pub(crate) fn saved_rows<T>(
        &self,
        look: impl FnOnce(&SavedRows) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        self.read(|read| {
            let saved = SavedRows {
                rows: read.open_table(SESSIONS)?,
                pins: read.open_table(PINS)?,
                lists: lists::read(read)?,
                unix_ms: self.clock.unix_ms(),
            };
            self.list_chunks.store(saved.lists.len()?, Ordering::Relaxed);
            look(&saved)
        })
    }
}

impl SavedRows {
    /// Hands over one session of a namespace after the other; rows that do not check are skipped and said.
    pub(crate) fn for_each_of(
        &self,
        ns: &NamespaceId,
        mut each: impl FnMut(SavedSession) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        for row in self.rows.range(ns.0.as_slice()..)? {
            let (key, saved) = row?;
            if !key.value().starts_with(&ns.0) {
                break;
            }
            match saved_session(key.value(), saved.value()) {
                Some(session) => each(session)?,
                None => tracing::warn!("a saved session does not check: it is forgotten"),
            }
        }
        Ok(())
    }

    /// The chunk of lists that ends with a page and those before it, the last one first, up to one that is `known` or missing.
    /// Damaged rows may name one another in a circle: it is gone round once.
    pub(crate) fn chunks_back(
        &self,
        ns: &NamespaceId,
        last: &BlockHash,
        known: impl Fn(&BlockHash) -> bool,
    ) -> Result<Vec<(BlockHash, ListChunk)>, CatalogError> {
        let (mut chunks, mut seen, mut next) = (Vec::new(), HashSet::new(), Some(*last));
        while let Some(at) = next.filter(|at| !known(at) && seen.insert(*at)) {
            let Some(chunk) = self.lists.get(ns, &at)? else { break };
            next = chunk.before;
            chunks.push((at, chunk));
        }
        Ok(chunks)
    }

    /// Up to `max` rows after a key, in order, each with the session if it checks.
    pub(crate) fn rows_after(&self, after: &[u8], max: usize) -> Result<Vec<SweptRow>, CatalogError> {
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Excluded(after), Bound::Unbounded);
        let mut found = Vec::with_capacity(max);
        for row in self.rows.range::<&[u8]>(range)?.take(max) {
            let (key, saved) = row?;
            found.push((key.value().to_vec(), saved_session(key.value(), saved.value())));
        }
        Ok(found)
    }
}

/// A row; without its list it is of a session that has no pages.
fn save(record: &SessionRecord, listed: bool) -> Vec<u8> {
    let base = record.base.filter(|_| listed);
    SessionRow {
        turn: record.turn,
        hashes: if listed { pack_hashes(&record.hashes) } else { Vec::new() },
        tail_tokens: record.tail_tokens,
        ttl_ms: record.ttl_ms,
        priority: record.priority,
        protected_ms: record.protected_ms,
        base: base.map_or(Vec::new(), |base| base.0.to_vec()),
    }
    .encode_to_vec()
}

fn base_of(row: &[u8]) -> Option<BlockHash> {
    BlockHash::parse_optional(&SessionRow::decode(row).ok()?.base).ok()?
}

fn saved_session(key: &[u8], value: &[u8]) -> Option<SavedSession> {
    let (namespace, session) = key.split_at_checked(32)?;
    let mut saved = SessionRow::decode(value).ok()?;
    let packed = std::mem::take(&mut saved.hashes);
    let (hashes, rest) = packed.as_chunks::<32>();
    if !rest.is_empty() {
        return None;
    }
    Some(SavedSession {
        namespace: NamespaceId::parse(namespace).ok()?,
        session: SessionId::parse(std::str::from_utf8(session).ok()?).ok()?,
        base: BlockHash::parse_optional(&saved.base).ok()?,
        hashes: hashes.iter().map(|hash| BlockHash(*hash)).collect(),
        saved,
    })
}
