//! Lookup: how many leading pages are there. Owns: the verb. Must not know: slots.

use super::{Engine, malformed, refuse};
use parking_lot::MutexGuard;
use turnkv_pool::limits::HASHES_PER_LOOK_MAX;
use turnkv_pool::{Found, NamespaceIndex};
use turnkv_proto::{BlockHash, Error, SessionId, unpack_hashes, wire};

impl Engine {
    /// The leading run of a sample of one prefix chain, or of a session's own pages.
    pub(crate) fn lookup(&self, ask: &wire::LookupRequest) -> Result<wire::LookupReply, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let now = self.now();
        let hashes = if ask.session.is_empty() {
            unpack_hashes(&ask.hashes).map_err(malformed)?
        } else {
            let session = SessionId::parse(&ask.session).map_err(malformed)?;
            self.session_hashes(ns, &session)?
        };
        let found = self.look(ns, &hashes, now)?;
        self.metrics.lookups.increment(1);
        Ok(wire::LookupReply { present: found.present, dram: found.dram })
    }

    /// Counts the leading hashes that are present, so many under one hold of the lock.
    pub(super) fn look(&self, ns: NamespaceIndex, hashes: &[BlockHash], now: u64) -> Result<Found, Error> {
        let mut found = Found::default();
        let mut core = self.core();
        for (at, part) in hashes.chunks(HASHES_PER_LOOK_MAX).enumerate() {
            if at > 0 {
                MutexGuard::bump(&mut core);
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
