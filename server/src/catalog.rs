//! The catalog: namespaces and sessions across restarts, in an embedded database. Owns: its two tables and which
//! sessions are to be written at the next flush. Must not know: pages' bytes or places (the segments tell those).

use parking_lot::Mutex;
use prost::Message;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use turnkv_pool::{NamespaceIndex, SessionRecord};
use turnkv_proto::{BlockHash, CheckedSpec, Error, ErrorKind, NamespaceId, SessionId, pack_hashes, wire};

/// Namespace id -> `wire::NamespaceSpec`.
const NAMESPACES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("namespaces");
/// Namespace id + session id -> [`Saved`].
const SESSIONS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("sessions");

/// The database, and the sessions that changed since the last flush.
pub(crate) struct Catalog {
    database: Database,
    /// A set: a session that changes often is written once a flush. Bounded by the pool's bound on sessions.
    marked: Mutex<HashSet<(NamespaceIndex, SessionId)>>,
}

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
        }
    }
}

/// A session to write (or, with no record, to remove).
pub(crate) type Change = (NamespaceId, SessionId, Option<SessionRecord>);

/// What was saved: the namespaces, and the sessions with the namespace of each.
pub(crate) struct Loaded {
    /// Specs that still check.
    pub(crate) namespaces: Vec<CheckedSpec>,
    /// Sessions, of those namespaces or of others.
    pub(crate) sessions: Vec<SavedSession>,
}

impl Catalog {
    /// Opens or creates the catalog in a directory. One that cannot be read is set aside, not trusted: its sessions
    /// and namespaces are forgotten, and the server starts.
    pub(crate) fn open(directory: &Path) -> Result<Catalog, redb::Error> {
        let path = directory.join("catalog.redb");
        let database = match open_tables(&path) {
            Err(error) if is_damage(&error) => {
                let aside = set_aside(&path)?;
                tracing::error!(%error, aside = %aside.display(), "the catalog cannot be read and was set aside");
                open_tables(&path)?
            }
            opened => opened?,
        };
        Ok(Catalog { database, marked: Mutex::new(HashSet::new()) })
    }

    /// Everything saved. Rows that do not check are skipped and said.
    pub(crate) fn load(&self) -> Result<Loaded, redb::Error> {
        let read = self.database.begin_read()?;
        let mut namespaces = Vec::new();
        for row in read.open_table(NAMESPACES)?.iter()? {
            let (_, spec) = row?;
            match wire::NamespaceSpec::decode(spec.value()).map(|raw| CheckedSpec::try_from(&raw)) {
                Ok(Ok(spec)) => namespaces.push(spec),
                _ => tracing::warn!("a saved namespace does not check: its pages are dropped"),
            }
        }
        let mut sessions = Vec::new();
        for row in read.open_table(SESSIONS)?.iter()? {
            let (key, saved) = row?;
            match saved_session(key.value(), saved.value()) {
                Some(session) => sessions.push(session),
                None => tracing::warn!("a saved session does not check: it is forgotten"),
            }
        }
        Ok(Loaded { namespaces, sessions })
    }

    /// Saves a namespace, durably.
    pub(crate) fn put_namespace(&self, spec: &CheckedSpec) -> Result<(), Error> {
        let put = || -> Result<(), redb::Error> {
            let write = self.database.begin_write()?;
            let value = wire::NamespaceSpec::from(spec).encode_to_vec();
            write.open_table(NAMESPACES)?.insert(spec.id().0.as_slice(), value.as_slice())?;
            write.commit()?;
            Ok(())
        };
        put().map_err(|error| {
            Error::new(ErrorKind::Internal, format!("the catalog cannot be written: {error}"))
        })
    }

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
        self.marked.lock().drain().collect()
    }

    /// Writes sessions in one transaction; a record of `None` removes one.
    pub(crate) fn put_sessions(&self, changes: &[Change]) -> Result<(), redb::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let write = self.database.begin_write()?;
        {
            let mut table = write.open_table(SESSIONS)?;
            for (namespace, session, record) in changes {
                let key = [namespace.0.as_slice(), session.as_str().as_bytes()].concat();
                match record {
                    Some(record) => table.insert(key.as_slice(), save(record).as_slice())?,
                    None => table.remove(key.as_slice())?,
                };
            }
        }
        write.commit()?;
        Ok(())
    }
}

fn open_tables(path: &Path) -> Result<Database, redb::Error> {
    let database = Database::create(path)?;
    let write = database.begin_write()?;
    write.open_table(NAMESPACES)?;
    write.open_table(SESSIONS)?;
    write.commit()?;
    Ok(database)
}

/// Does this error say that the file's content is bad, rather than that it cannot be reached?
fn is_damage(error: &redb::Error) -> bool {
    match error {
        redb::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        redb::Error::DatabaseAlreadyOpen => false,
        _ => true,
    }
}

fn save(record: &SessionRecord) -> Vec<u8> {
    Saved {
        turn: record.turn,
        hashes: pack_hashes(&record.hashes),
        tail_tokens: record.tail_tokens,
        ttl_ms: record.ttl_ms,
        priority: record.priority,
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

fn set_aside(path: &Path) -> Result<PathBuf, redb::Error> {
    let aside = path.with_extension("redb.damaged");
    std::fs::rename(path, &aside).map_err(redb::Error::Io)?;
    Ok(aside)
}

#[cfg(test)]
mod tests;
