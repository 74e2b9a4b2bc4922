//! Lookup: how many leading pages are there. Owns: the verb. Must not know: slots.

use super::{Engine, malformed, refuse};
use turnkv_proto::{Error, SessionId, unpack_hashes, wire};

impl Engine {
    /// The leading run of a sample of one prefix chain, or of a session's own pages.
    pub(crate) fn lookup(&self, ask: &wire::LookupRequest) -> Result<wire::LookupReply, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let now = self.now();
        let hashes = if ask.session.is_empty() {
            unpack_hashes(&ask.hashes).map_err(malformed)?
        } else {
            let session = SessionId::parse(&ask.session).map_err(malformed)?;
            self.core().pool.session_hashes(ns, &session).map_err(refuse)?
        };
        let found = self.core().pool.lookup(ns, &hashes, now).map_err(refuse)?;
        self.metrics.lookups.increment(1);
        Ok(wire::LookupReply { present: found.present, dram: found.dram })
    }
}
