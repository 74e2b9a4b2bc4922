//! What a snapshot takes from the pool beside pages' bytes, and sessions that come back from one. Owns: the pages of a session, a
//! prefix or a namespace by what each follows; a session that is made whole, or not at all. Must not know: archives, pages' bytes.

use super::session::{ListSessions, Listed, SessionKey};
use super::{Engine, refuse};
use turnkv_pool::limits::HASHES_PER_LOOK_MAX;
use turnkv_pool::{LIST_CHUNK_PAGES, NamespaceIndex, Outlining, PageOutline, SessionRecord};
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId, SessionId};

/// A session that is to be there with all these pages.
pub(crate) struct WholeSession<'a> {
    /// Its namespace and its name.
    pub(crate) of: &'a SessionKey,
    /// Its pages from the first one on, a partial tail last; at least one.
    pub(crate) hashes: &'a [BlockHash],
    /// Above 0: the last page is a partial tail of so many tokens.
    pub(crate) tail_tokens: u32,
}

impl Engine {
    /// The leading pages of a session that are present, a partial tail last.
    pub(crate) fn session_outline(&self, of: &SessionKey) -> Result<Vec<PageOutline>, Error> {
        let ns = self.find_namespace(&of.namespace)?;
        let hashes = self.session_hashes(ns, &of.session)?;
        Ok(self.outline_chain(ns, &hashes))
    }

    /// The leading ones of these pages that are present, each following the one before it.
    pub(crate) fn prefix_outline(
        &self,
        namespace: &NamespaceId,
        hashes: &[BlockHash],
    ) -> Result<Vec<PageOutline>, Error> {
        Ok(self.outline_chain(self.find_namespace(namespace)?, hashes))
    }

    /// All pages of a namespace, in no order; no more than so many, and one.
    pub(crate) fn namespace_outline(
        &self,
        namespace: &NamespaceId,
        pages_max: usize,
    ) -> Result<Vec<PageOutline>, Error> {
        let ns = self.find_namespace(namespace)?;
        let mut outlining = Outlining::default();
        drop(self.decide_in_slices(|core| {
            core.pool.outline_some(ns, &mut outlining) || outlining.count() > pages_max
        }));
        Ok(outlining.pages())
    }

    /// The names of a namespace's sessions, and how many there are: more than these, if it has more than one list tells.
    pub(crate) fn session_names_of(&self, namespace: &NamespaceId) -> Result<(Vec<SessionId>, u64), Error> {
        let listed = self.list_sessions(&ListSessions { of: Listed::Namespace(*namespace), limit: None })?;
        let mut names: Vec<SessionId> = listed.sessions.into_iter().map(|info| info.session).collect();
        names.sort_unstable();
        Ok((names, listed.total))
    }

    /// Whether a session is there.
    pub(crate) fn has_session(&self, of: &SessionKey) -> Result<bool, Error> {
        let ns = self.find_namespace(&of.namespace)?;
        let now = self.now();
        Ok(self.decide().pool.session_record(ns, &of.session, now).is_some())
    }

    /// Makes a session of pages that are all present; else nothing changes.
    ///
    /// # Errors
    /// A page is not there, the session is, or there is no room for it.
    pub(crate) fn make_session(&self, whole: &WholeSession<'_>) -> Result<(), Error> {
        let WholeSession { of, hashes, tail_tokens } = whole;
        let ns = self.find_namespace(&of.namespace)?;
        let name = of.session.as_str();
        let gone = || {
            let text = format!(
                "not all pages of session {name} are in the pool any more: it has no room for them, restore again when it has"
            );
            Error::new(ErrorKind::Limit, text)
        };
        let mut chunks = hashes.chunks(LIST_CHUNK_PAGES as usize).peekable();
        let mut start = None;
        while let Some(chunk) = chunks.next() {
            let now = self.now();
            let mut core = self.decide();
            start = core.pool.list_start(ns, start, chunk);
            if start.map(|start| start.page()) != chunk.last().copied() {
                return Err(gone());
            }
            if chunks.peek().is_some() {
                continue;
            }
            // Under the same lock: nobody else makes it, and what the last page follows is there as long as it is.
            if core.pool.session_record(ns, &of.session, now).is_some() {
                return Err(session_exists(name));
            }
            let record = SessionRecord {
                ns,
                session: of.session.clone(),
                turn: 1,
                base: None,
                hashes: Vec::new(),
                tail_tokens: *tail_tokens,
                ttl_ms: self.settings.limits.session_ttl_ms,
                idle_ms: 0,
                priority: 0,
                protected_ms: 0,
            };
            core.pool.restore_session(&record, start, now).map_err(refuse)?;
        }
        self.remember(ns, &of.session);
        Ok(())
    }

    fn outline_chain(&self, ns: NamespaceIndex, hashes: &[BlockHash]) -> Vec<PageOutline> {
        let mut chain: Vec<PageOutline> = Vec::with_capacity(hashes.len());
        let mut core = self.decide();
        for part in hashes.chunks(HASHES_PER_LOOK_MAX) {
            let told = core.pool.outline_of(ns, part);
            let whole = told.len() == part.len();
            for page in told {
                if page.parent != chain.last().map(|before| before.hash) {
                    return chain;
                }
                chain.push(page);
            }
            if !whole {
                break;
            }
            core.let_others_in();
        }
        chain
    }
}

/// What is said where a session is to be made that is there.
pub(crate) fn session_exists(name: &str) -> Error {
    Error::invalid(format!(
        "session: {name} is there already: close it, or give the restored one another name"
    ))
}
