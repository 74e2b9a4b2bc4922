//! Bringing sessions back at a start. Owns: finding how much of each saved list is here, each shared chunk looked at once.
//! Must not know: rows, how pages were recovered.

use crate::catalog::{Catalog, SavedSession, SavedSessions};
use crate::limits::CATALOG_CHUNKS_KNOWN_MAX;
use std::collections::HashMap;
use turnkv_pool::{LIST_CHUNK_PAGES, ListStart, NamespaceIndex, Pool};
use turnkv_proto::{BlockHash, NamespaceId};

/// Brings all saved sessions back of namespaces that are open, one by one. Those whose list is shorter than it was, or is
/// saved whole as older servers did, are marked: they are written anew. Returns how many.
pub(super) fn restore_sessions(pool: &mut Pool, catalog: &Catalog) -> Result<u64, redb::Error> {
    let saved = catalog.saved_sessions()?;
    let mut lists = Lists { saved: &saved, known: HashMap::new() };
    let mut sessions = 0;
    saved.for_each(|session| {
        let Some(ns) = pool.namespace(&session.namespace) else { return Ok(()) };
        let start = lists.start(pool, ns, &session)?;
        let whole = start.map(|start| start.page()) == session.hashes.last().copied().or(session.base);
        if !whole || session.hashes.len() >= LIST_CHUNK_PAGES as usize {
            catalog.mark(ns, session.session.clone());
        }
        let record = session.into_record(ns);
        sessions += u64::from(pool.restore_session(&record, start, 0).is_ok());
        Ok(())
    })?;
    Ok(sessions)
}

/// How much is here of the lists that chunks end.
struct Lists<'a> {
    saved: &'a SavedSessions,
    known: HashMap<(NamespaceIndex, BlockHash), Option<ListStart>>,
}

impl Lists<'_> {
    /// How much is here of a session's list.
    fn start(
        &mut self,
        pool: &Pool,
        ns: NamespaceIndex,
        session: &SavedSession,
    ) -> Result<Option<ListStart>, redb::Error> {
        let from = match &session.base {
            Some(base) => self.start_of_chunk(pool, ns, &session.namespace, base)?,
            None => None,
        };
        Ok(go_on(pool, ns, session.base, from, &session.hashes))
    }

    /// How much is here of the list that ends with a chunk: what the chunks before it have, and its own if they are whole.
    fn start_of_chunk(
        &mut self,
        pool: &Pool,
        ns: NamespaceIndex,
        namespace: &NamespaceId,
        last: &BlockHash,
    ) -> Result<Option<ListStart>, redb::Error> {
        let (mut chunks, mut next, mut start) = (Vec::new(), Some(*last), None);
        while let Some(at) = next {
            if let Some(known) = self.known.get(&(ns, at)) {
                start = *known;
                break;
            }
            let Some(chunk) = self.saved.chunk(namespace, &at)? else { break };
            next = chunk.before;
            chunks.push((at, chunk));
        }
        for (at, chunk) in chunks.into_iter().rev() {
            start = go_on(pool, ns, chunk.before, start, &chunk.hashes);
            if self.known.len() >= CATALOG_CHUNKS_KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert((ns, at), start);
        }
        Ok(start)
    }
}

/// How much is here of a list that goes on after `before` with some pages, if so much is here of what comes before them.
fn go_on(
    pool: &Pool,
    ns: NamespaceIndex,
    before: Option<BlockHash>,
    from: Option<ListStart>,
    hashes: &[BlockHash],
) -> Option<ListStart> {
    if from.map(|from| from.page()) != before {
        return from;
    }
    pool.list_start(ns, from, hashes).or(from)
}

#[cfg(test)]
mod tests;
