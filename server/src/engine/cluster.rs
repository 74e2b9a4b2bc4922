//! What the cluster is told of sessions here, and what its members ask. Owns: when a session is told of, and as what. Must not know:
//! members, how they are told.

use super::session::SessionKey;
use super::{Core, Engine};
use crate::cluster::{Cluster, HoldsPages};
use crate::limits::{HOMES_CHECKED_PER_LOCK, NAMED_CHUNKS_AT_ONCE, NAMED_PREFIX_PAGES_MAX};
use std::sync::Arc;
use turnkv_pool::{LIST_CHUNK_PAGES, NamespaceIndex};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId};

/// What is here of a session, for a member that wants it.
pub(crate) struct HeldSession {
    /// Turns that have ended.
    pub(crate) turn: u32,
    /// Its pages that are here, in order.
    pub(crate) hashes: Vec<BlockHash>,
    /// Above 0: the last of these is a partial tail of so many tokens.
    pub(crate) tail_tokens: u32,
    /// How long it had waited here when its next turn began elsewhere; 0: it does not, or nobody knows.
    pub(crate) waited_ms: u64,
}

impl Engine {
    /// The cluster that this pool takes part in.
    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// A turn of a session ended here, or it came back: the others are told. Of one that began no turn here another member knows more.
    pub(super) fn tell_home(&self, ns: NamespaceIndex, of: &SessionKey) {
        if let Some(turn) = self.turn_of(ns, &of.session).filter(|turn| *turn > 0) {
            self.tell_kept(ns, of, turn);
        }
    }

    /// A session was forked from one that is here: the same, before its first turn.
    pub(super) fn tell_fork(&self, ns: NamespaceIndex, of: &SessionKey) {
        if let Some(turn) = self.turn_of(ns, &of.session) {
            self.tell_kept(ns, of, turn);
        }
    }

    fn tell_kept(&self, ns: NamespaceIndex, of: &SessionKey, turn: u32) {
        let Some(cluster) = self.cluster() else { return };
        // A host that is being emptied is home of nothing new: what it declined of this turn nobody would find here.
        if self.is_draining() && cluster.home_tip(&of.namespace, &of.session).is_none() {
            return;
        }
        let hashes = self.session_hashes(ns, &of.session).unwrap_or_default();
        cluster.turn_ended(&of.namespace, &of.session, turn, &hashes);
    }

    /// No turn of a session follows here.
    pub(super) fn tell_left(&self, of: &SessionKey) {
        if let Some(cluster) = self.cluster() {
            cluster.session_left(&of.namespace, &of.session);
        }
    }

    /// How many leading ones of these pages are here: nobody else is asked.
    pub(crate) fn count_held(&self, namespace: &NamespaceId, hashes: &[BlockHash]) -> Result<u32, Error> {
        let ns = self.find_namespace(namespace)?;
        Ok(self.look(ns, hashes, self.now())?.present)
    }

    /// The pages that end with this one, in order; none: it is not here, or there are too many.
    pub(crate) fn held_prefix(
        &self,
        namespace: &NamespaceId,
        last: &BlockHash,
    ) -> Result<Vec<BlockHash>, Error> {
        let ns = self.find_namespace(namespace)?;
        let (mut next, mut chunks) = (Some(*last), Vec::new());
        while let Some(page) = next {
            let some = self.decide().pool.list_chunks(ns, &page, NAMED_CHUNKS_AT_ONCE);
            let Some(first) = some.last() else { return Ok(Vec::new()) };
            next = first.before;
            chunks.extend(some);
            if chunks.len() * LIST_CHUNK_PAGES as usize > NAMED_PREFIX_PAGES_MAX {
                return Ok(Vec::new());
            }
        }
        Ok(chunks.into_iter().rev().flat_map(|chunk| chunk.hashes).collect())
    }

    /// What is here of a session, whose next turn begins elsewhere or does not; none: nothing.
    pub(crate) fn held_session(
        &self,
        of: &SessionKey,
        turn_begins: bool,
    ) -> Result<Option<HeldSession>, Error> {
        let ns = self.find_namespace(&of.namespace)?;
        let Some(turn) = self.turn_of(ns, &of.session) else { return Ok(None) };
        // Those that are present, in order: of a list nothing follows one that is not.
        let hashes = self.session_hashes(ns, &of.session)?;
        let Some(last) = hashes.last() else { return Ok(None) };
        let last = self.decide().pool.outline_of(ns, std::slice::from_ref(last));
        let tail_tokens = last.first().map_or(0, |last| last.tail_tokens);
        let begin = || self.decide().pool.begin_elsewhere(ns, &of.session, self.now());
        // One that is gone since had waited for nobody knows how long.
        let waited_ms = if turn_begins { begin().unwrap_or(0) } else { 0 };
        Ok(Some(HeldSession { turn, hashes, tail_tokens, waited_ms }))
    }
}

impl Engine {
    /// Whether a session has a page here, as far as can be said: what is saved of its namespace may be about to come back.
    fn may_have(&self, core: &Core, namespace: &NamespaceId, session: &SessionId) -> bool {
        core.pool
            .namespace(namespace)
            .is_some_and(|ns| core.pool.has_of_session(ns, session) || self.is_coming_back(ns))
    }
}

impl HoldsPages for Engine {
    fn is_leaving(&self) -> bool {
        self.is_draining()
    }

    fn lacks(&self, sessions: &[(NamespaceId, SessionId)]) -> Vec<usize> {
        let mut lacked = Vec::new();
        for (part, sessions) in sessions.chunks(HOMES_CHECKED_PER_LOCK).enumerate() {
            let core = self.decide();
            let absent = sessions
                .iter()
                .enumerate()
                .filter(|(_, (namespace, session))| !self.may_have(&core, namespace, session));
            lacked.extend(absent.map(|(at, _)| part * HOMES_CHECKED_PER_LOCK + at));
        }
        lacked
    }

    fn goes_first(&self, namespace: &NamespaceId, session: &SessionId) {
        let of = SessionKey { namespace: *namespace, session: session.clone() };
        // One that is gone meanwhile has no copy here.
        if let Err(error) = self.end_elsewhere(&of) {
            tracing::debug!(%error, session = session.as_str(), "a session that lives elsewhere has no copy here");
        }
    }
}
