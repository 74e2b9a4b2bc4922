//! Lookup: how many leading pages are there. Owns: the verb. Must not know: slots.

use super::{Engine, refuse};
use std::borrow::Cow;
use turnkv_pool::limits::HASHES_PER_LOOK_MAX;
use turnkv_pool::{Found, NamespaceIndex};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId};

/// How many leading pages are there?
pub(crate) struct Lookup {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Which: a sample of one prefix chain, or a session's own.
    pub(crate) pages: PagesOf,
    /// Those of the sample are at signposts.
    pub(crate) only_posts: bool,
    /// Only what this pool itself has counts: whoever asks would store the rest.
    pub(crate) only_here: bool,
}

/// Pages, named one by one or as a session's.
pub(crate) enum PagesOf {
    /// The leading pages of this session that are present.
    Session(SessionId),
    /// These.
    Hashes(Vec<BlockHash>),
}

impl Engine {
    /// The leading run of a sample of one prefix chain, or of a session's own pages. What is on its way from another pool counts, and
    /// what only the archive has where a reload waits for it, unless only what is here is asked for.
    pub(crate) fn lookup(&self, ask: &Lookup) -> Result<Found, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        self.metrics.lookups.increment(1);
        let PagesOf::Hashes(hashes) = &ask.pages else {
            return self.look(ns, &self.hashes_of(ns, &ask.pages)?, self.now());
        };
        if ask.only_here {
            return self.look(ns, hashes, self.now());
        }
        let (mut found, coming) = self.look_with_coming(ns, &ask.namespace, hashes)?;
        found.present += coming;
        let beyond = hashes.get(found.present as usize..).unwrap_or_default();
        found.present += self.archived_after(&ask.namespace, beyond);
        Ok(found)
    }

    /// The pages meant, one by one.
    pub(super) fn hashes_of<'a>(
        &self,
        ns: NamespaceIndex,
        pages: &'a PagesOf,
    ) -> Result<Cow<'a, [BlockHash]>, Error> {
        Ok(match pages {
            PagesOf::Session(session) => Cow::Owned(self.session_hashes(ns, session)?),
            PagesOf::Hashes(hashes) => Cow::Borrowed(hashes),
        })
    }

    /// Counts the leading hashes that are present, so many under one hold of the lock.
    pub(super) fn look(&self, ns: NamespaceIndex, hashes: &[BlockHash], now: u64) -> Result<Found, Error> {
        let mut found = Found::default();
        let mut core = self.decide();
        for (at, part) in hashes.chunks(HASHES_PER_LOOK_MAX).enumerate() {
            if at > 0 {
                core.let_others_in();
            }
            let seen = core.pool.lookup(ns, part, now).map_err(refuse)?;
            found.present += seen.present;
            found.dram += seen.dram;
            if (seen.present as usize) < part.len() {
                break;
            }
        }
        Ok(found)
    }
}
