//! The catalog's rows of sessions. Owns: their form, and which of them are to be written at the next flush. Must not know:
//! pages' bytes or places.

use super::Catalog;
use prost::Message;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};
use turnkv_pool::{NamespaceIndex, SessionRecord};
use turnkv_proto::{BlockHash, NamespaceId, SessionId, pack_hashes};

/// Namespace id + session id -> [`Saved`].
const SESSIONS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("sessions");

/// A session as saved: protobuf, so that fields can be added.
#[derive(Clone, PartialEq, Message)]
struct Saved {
    #[prost(uint32, tag = "1")]
    turn: u32,
    #[prost(bytes = "vec", tag = "2")]
    hashes: Vec<u8>,
    #[prost(uint32, tag = "3")]
    tail_tokens: u32,
    #[prost(uint64, tag = "4")]
    ttl_ms: u64,
    #[prost(uint32, tag = "5")]
    priority: u32,
    #[prost(uint64, tag = "6")]
    protected_ms: u64,
}

/// A session as it was saved, not yet checked against the pages that are there.
pub(crate) struct SavedSession {
    /// Its namespace.
    pub(crate) namespace: NamespaceId,
    session: SessionId,
    hashes: Vec<BlockHash>,
    saved: Saved,
}

impl SavedSession {
    /// The pool's form, in the namespace's index of this run. Idle time starts anew with the server.
    pub(crate) fn into_record(self, ns: NamespaceIndex) -> SessionRecord {
        SessionRecord {
            ns,
            session: self.session,
            turn: self.saved.turn,
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

impl Catalog {
    /// A session changed: write it at the next flush.
    pub(crate) fn mark(&self, ns: NamespaceIndex, session: SessionId) {
        self.marked.lock().insert((ns, session));
    }

    /// Sessions that wait to be written.
    pub(crate) fn marked_len(&self) -> usize {
        self.marked.lock().len()
    }

    /// Takes the sessions to write.
    pub(crate) fn take_marked(&self) -> Vec<(NamespaceIndex, SessionId)> {
        std::mem::take(&mut *self.marked.lock()).into_iter().collect()
    }

    /// Writes sessions in one transaction; a record of `None` removes one.
    pub(crate) fn put_sessions(&self, changes: &[Change]) -> Result<(), redb::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        self.write(|write| {
            let mut table = write.open_table(SESSIONS)?;
            for (namespace, session, record) in changes {
                let key = [namespace.0.as_slice(), session.as_str().as_bytes()].concat();
                match record {
                    Some(record) => table.insert(key.as_slice(), save(record).as_slice())?,
                    None => table.remove(key.as_slice())?,
                };
            }
            Ok(())
        })
    }
}

pub(super) fn create(write: &WriteTransaction) -> Result<(), redb::Error> {
    write.open_table(SESSIONS)?;
    Ok(())
}

/// Sessions whose rows check.
pub(super) fn load(read: &ReadTransaction) -> Result<Vec<SavedSession>, redb::Error> {
    let mut sessions = Vec::new();
    for row in read.open_table(SESSIONS)?.iter()? {
        let (key, saved) = row?;
        match saved_session(key.value(), saved.value()) {
            Some(session) => sessions.push(session),
            None => tracing::warn!("a saved session does not check: it is forgotten"),
        }
    }
    Ok(sessions)
}

fn save(record: &SessionRecord) -> Vec<u8> {
    Saved {
        turn: record.turn,
        hashes: pack_hashes(&record.hashes),
        tail_tokens: record.tail_tokens,
        ttl_ms: record.ttl_ms,
        priority: record.priority,
        protected_ms: record.protected_ms,
    }
    .encode_to_vec()
}

fn saved_session(key: &[u8], value: &[u8]) -> Option<SavedSession> {
    let (namespace, session) = key.split_at_checked(32)?;
    let mut saved = Saved::decode(value).ok()?;
    let packed = std::mem::take(&mut saved.hashes);
    let (hashes, rest) = packed.as_chunks::<32>();
    if !rest.is_empty() {
        return None;
    }
    Some(SavedSession {
        namespace: NamespaceId::parse(namespace).ok()?,
        session: SessionId::parse(std::str::from_utf8(session).ok()?).ok()?,
        hashes: hashes.iter().map(|hash| BlockHash(*hash)).collect(),
        saved,
    })
}
