//! A pool among others: what a cluster asks of it between turns. Owns: pages that come from elsewhere, and those that go first.
//! Must not know: which other pools there are.

use super::{Replay, SimError};
use turnkv_pool::Now;
use turnkv_proto::{BlockHash, SessionId};

impl Replay<'_> {
    /// A request comes, and is served as far as it can be now.
    pub(crate) fn arrive(&mut self, position: usize, now: Now) -> Result<(), SimError> {
        self.run_events(now)?;
        self.begin_turn(position, now)?;
        self.run_events(now)
    }

    /// Leading pages that are here.
    pub(crate) fn present(&mut self, hashes: &[BlockHash], now: Now) -> Result<usize, SimError> {
        let found = self.pool.lookup(self.ns, hashes, now).map_err(self.refused(0, "lookup"))?;
        Ok(found.present as usize)
    }

    /// Pages of a request that were pulled, behind those that are here.
    pub(crate) fn take_in(
        &mut self,
        position: usize,
        session: &SessionId,
        hashes: &[BlockHash],
        local: usize,
        now: Now,
    ) -> Result<(), SimError> {
        self.offload(position, session, hashes, local, now)
    }

    /// A session went to another host: what only it has here goes first.
    pub(crate) fn let_go(&mut self, session: u32, now: Now) {
        if self.model.policy.sessions {
            self.close(session, now);
        }
    }

    /// The name under which the pool knows the session of a request.
    pub(crate) fn name_of(&self, position: usize) -> SessionId {
        let request = &self.trace.requests[self.stream[position] as usize];
        let known = request.session.filter(|_| self.model.policy.sessions);
        known.map_or_else(|| super::session_id('r', position), |at| self.sessions[at as usize].clone())
    }
}
