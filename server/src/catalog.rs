//! The catalog: namespaces, sessions and pins across restarts, in an embedded database. Owns: its three tables and which
//! sessions are to be written at the next flush. Must not know: pages' bytes or places (the segments tell those).

use parking_lot::Mutex;
use prost::Message;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use turnkv_pool::{NamespaceIndex, SessionRecord};
use turnkv_proto::{
    BlockHash, CheckedSpec, Error, ErrorKind, NamespaceId, SessionId, pack_hashes, unpack_hashes, wire,
};

/// Namespace id -> `wire::NamespaceSpec`.
const NAMESPACES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("namespaces");
/// Namespace id + session id -> [`Saved`].
const SESSIONS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("sessions");

/// Namespace id + the pin's last page -> [`SavedPin`].
const PINS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pins");

/// The database, and the sessions that changed since the last flush.
pub(crate) struct Catalog {
    database: Database,
    /// A set: a session that changes often is written once a flush. Bounded by the pool's bound on sessions.
    marked: Mutex<BTreeSet<(NamespaceIndex, SessionId)>>,
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
    #[prost(uint64, tag = "6")]
    protected_ms: u64,
}

/// A pin as saved.
#[derive(Clone, PartialEq, Message)]
struct SavedPin {
    #[prost(bytes = "vec", tag = "1")]
    hashes: Vec<u8>,
    /// Of the system's clock: a pin ends while the server is down as well.
    #[prost(uint64, tag = "2")]
    ends_unix_ms: u64,
}

/// A pin that has not ended.
pub(crate) struct LoadedPin {
    /// Its namespace.
    pub(crate) namespace: NamespaceId,
    /// The prefix.
    pub(crate) hashes: Vec<BlockHash>,
    /// How much longer it holds.
    pub(crate) for_ms: u64,
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

/// What was saved: the namespaces, and the sessions with the namespace of each.
pub(crate) struct Loaded {
    /// Specs that still check.
    pub(crate) namespaces: Vec<CheckedSpec>,
    /// Sessions, of those namespaces or of others.
    pub(crate) sessions: Vec<SavedSession>,
    /// Pins, likewise.
    pub(crate) pins: Vec<LoadedPin>,
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
        Ok(Catalog { database, marked: Mutex::default() })
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
        let (mut pins, now) = (Vec::new(), unix_ms());
        for row in read.open_table(PINS)?.iter()? {
            let (key, saved) = row?;
            match saved_pin(key.value(), saved.value(), now) {
                Some(pin) => pins.extend(Some(pin).filter(|pin| pin.for_ms > 0)),
                None => tracing::warn!("a saved pin does not check: it is forgotten"),
            }
        }
        Ok(Loaded { namespaces, sessions, pins })
    }

    /// Saves a pin that holds for so long, or removes it (no time); those that ended go as well, so that the table stays as
    /// small as what is pinned.
    pub(crate) fn put_pin(&self, ns: &NamespaceId, hashes: &[BlockHash], for_ms: u64) -> Result<(), Error> {
        let Some(last) = hashes.last() else { return Ok(()) };
        let now = unix_ms();
        let put = || -> Result<(), redb::Error> {
            let write = self.database.begin_write()?;
            {
                let mut table = write.open_table(PINS)?;
                let key = [ns.0.as_slice(), last.0.as_slice()].concat();
                table.retain(|other, saved| other != key && holds(saved, now))?;
                if for_ms > 0 {
                    let ends_unix_ms = now.saturating_add(for_ms);
                    let saved = SavedPin { hashes: pack_hashes(hashes), ends_unix_ms };
                    table.insert(key.as_slice(), saved.encode_to_vec().as_slice())?;
                }
            }
            write.commit()?;
            Ok(())
        };
        put().map_err(|error| {
            Error::new(ErrorKind::Internal, format!("the catalog cannot be written: {error}"))
        })
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
        std::mem::take(&mut *self.marked.lock()).into_iter().collect()
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
    write.open_table(PINS)?;
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

fn saved_pin(key: &[u8], value: &[u8], now: u64) -> Option<LoadedPin> {
    let (namespace, _) = key.split_at_checked(32)?;
    let saved = SavedPin::decode(value).ok()?;
    Some(LoadedPin {
        namespace: NamespaceId::parse(namespace).ok()?,
        hashes: unpack_hashes(&saved.hashes).ok()?,
        for_ms: saved.ends_unix_ms.saturating_sub(now),
    })
}

fn holds(saved: &[u8], now: u64) -> bool {
    SavedPin::decode(saved).is_ok_and(|pin| pin.ends_unix_ms > now)
}

fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

fn set_aside(path: &Path) -> Result<PathBuf, redb::Error> {
    let aside = path.with_extension("redb.damaged");
    std::fs::rename(path, &aside).map_err(redb::Error::Io)?;
    Ok(aside)
}

#[cfg(test)]
mod tests;
