//! A pool among others: what a cluster asks of it between turns. Owns: pages that come from elsewhere, and those that go first.
//! Must not know: which other pools there are.

use super::{Replay, SimError};
use turnkv_pool::{FromElsewhere, Now};
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
        self.offload(position, session, hashes, local, now)?;
        let from = self.pool.list_start(self.ns, None, &hashes[..local]);
        if let Some(to) = self.pool.list_start(self.ns, None, hashes) {
            self.pool.extend_list(self.ns, session, from, to, now);
        }
        Ok(())
    }

    /// A session's next turn begins on another host. How long it had waited here; 0: nobody knows.
    pub(crate) fn begin_elsewhere(&mut self, session: u32, now: Now) -> Now {
        let name = self.sessions.get(session as usize);
        // One that is forgotten here had waited for nobody knows how long.
        name.and_then(|name| self.pool.begin_elsewhere(self.ns, name, now).ok()).unwrap_or(0)
    }

    /// A session whose last turn ran on another host goes on here, before its pages come.
    pub(crate) fn come(
        &mut self,
        position: usize,
        session: u32,
        from: &FromElsewhere,
        hashes: &[BlockHash],
        now: Now,
    ) -> Result<(), SimError> {
        let Some(name) = self.sessions.get(session as usize) else { return Ok(()) };
        let from = FromElsewhere { start: self.pool.list_start(self.ns, None, hashes), ..*from };
        let came = self.pool.continue_session(self.ns, name, &from, now);
        came.map_err(self.refused(position, "continue_session"))
    }

    /// A session's turn ended on another host: what only it has here goes first.
    pub(crate) fn end_elsewhere(&mut self, session: u32, now: Now) {
        let Some(name) = self.sessions.get(session as usize) else { return };
        match self.pool.end_elsewhere(self.ns, name, now) {
            // It may be forgotten here.
            Ok(()) | Err(_) => {}
        }
    }

    /// The name under which the pool knows the session of a request.
    pub(crate) fn name_of(&self, position: usize) -> SessionId {
        let request = &self.trace.requests[self.stream[position] as usize];
        let known = request.session.filter(|_| self.model.policy.sessions);
        known.map_or_else(|| super::session_id('r', position), |at| self.sessions[at as usize].clone())
    }
}
