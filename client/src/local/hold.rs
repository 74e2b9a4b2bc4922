//! Leases of pages that this process has mapped. Owns: renewing them in the background, releasing them for
//! certain. Must not know: what is mapped where.
//!
//! Nothing breaks when a renewal fails: time alone never frees a held lease. A server that does not hear of
//! one counts it as quarantined. Should a server nevertheless say that a lease of ours is over, whatever is
//! mapped under it is not to be trusted any more: [`LocalPool::is_lost`].

use super::connection::Server;
use super::lent::Lent;
use super::pool::LocalPool;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{RENEW_LEASES_MAX, RENEW_PAUSE_MAX, RENEW_PAUSE_MIN, RENEW_WAIT, RENEWALS_PER_LEASE};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use turnkv_proto::wire::{self, Verb};

/// What became of the wish to map what a lease is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holding {
    /// It may be mapped.
    Held,
    /// So much may not be mapped. The lease is one to copy from, as it was.
    Refused,
}

impl LocalPool {
    /// Makes the lease that an operation was just given a held one. Only after this may its slots be mapped.
    pub(crate) async fn hold(
        self: &Arc<Self>,
        lent: &mut Lent,
        lease: u64,
        deadline: Deadline,
    ) -> Result<Holding> {
        let renew = wire::RenewRequest { client: lent.client(), leases: vec![lease] };
        // The lease runs from the server's receipt: counted from before the request was sent, it is renewed in time
        // however late the answer comes.
        let asked = Instant::now();
        let reply: wire::RenewReply = lent.call(Verb::Renew, &renew, deadline).await?;
        if !reply.gone.is_empty() {
            return Err(Error::new(
                ErrorKind::LeaseExpired,
                "the lease ended before its pages could be mapped",
            ));
        }
        if !reply.refused.is_empty() {
            return Ok(Holding::Refused);
        }
        lent.keep_lease();
        let mut held = self.held.lock();
        held.leases.insert(lease);
        if !std::mem::replace(&mut held.kept, true) {
            drop(tokio::spawn(keep(Arc::downgrade(self), asked, pause(reply.lease_ms))));
        }
        Ok(Holding::Held)
    }

    /// Whether the server said that this lease is over although we did not release it.
    pub(crate) fn is_lost(&self, server: &Server, lease: u64) -> bool {
        self.held.lock().lost.contains(&lease) && self.server().0 == *server
    }

    /// Whether that was ever said of any lease of this server.
    pub(crate) fn has_lost(&self) -> bool {
        !self.held.lock().lost.is_empty()
    }

    /// Gives slots back that are not mapped any more (no positions: all of the lease), now or when a
    /// connection can be had.
    pub(crate) fn release(&self, server: &Server, lease: u64, positions: Vec<u32>, corrupt: Vec<u32>) {
        if self.server().0 != *server {
            return; // that server process is gone, and the lease with it
        }
        if positions.is_empty() {
            self.held.lock().leases.remove(&lease);
        }
        let release = wire::ReleaseRequest { lease, client: server.client, positions, corrupt };
        if !self.tell(server, Verb::Release, &release) {
            self.held.lock().unsent.push((server.clone(), release));
        }
    }

    /// Renews every lease held, and sends releases that could not be sent before. Returns how long after the
    /// first request the next time is due.
    async fn renew_all(self: &Arc<Self>, leases: &[u64]) -> Result<Duration> {
        let deadline = Deadline::after(RENEW_WAIT);
        let mut lent = self.acquire(deadline).await?;
        let server = lent.server();
        let mut next = RENEW_PAUSE_MAX;
        for leases in leases.chunks(RENEW_LEASES_MAX) {
            let renew = wire::RenewRequest { client: server.client, leases: leases.to_vec() };
            let reply: wire::RenewReply = lent.call(Verb::Renew, &renew, deadline).await?;
            next = next.min(pause(reply.lease_ms));
            let mut held = self.held.lock();
            for gone in reply.gone {
                if held.leases.remove(&gone) {
                    tracing::warn!(lease = gone, "the server ended a lease of pages that are mapped");
                    held.lost.insert(gone);
                }
            }
        }
        drop(lent); // at rest, so that the releases can use it
        let unsent = std::mem::take(&mut self.held.lock().unsent);
        for (from, release) in unsent.into_iter().filter(|(from, _)| *from == server) {
            if !self.tell(&from, Verb::Release, &release) {
                self.held.lock().unsent.push((from, release));
            }
        }
        Ok(next)
    }
}

/// Renews until nothing is held any more: first so long after it was asked last.
async fn keep(pool: Weak<LocalPool>, mut asked: Instant, mut pause: Duration) {
    loop {
        let due = (asked + pause).max(Instant::now() + RENEW_PAUSE_MIN);
        tokio::time::sleep_until(due.into()).await;
        let Some(pool) = pool.upgrade() else { return };
        let leases: Vec<u64> = {
            let mut held = pool.held.lock();
            if held.leases.is_empty() && held.unsent.is_empty() {
                held.kept = false;
                return;
            }
            held.leases.iter().copied().collect()
        };
        asked = Instant::now();
        match pool.renew_all(&leases).await {
            Ok(next) => pause = next,
            Err(error) => tracing::debug!(%error, "mapped pages were not renewed: trying again"),
        }
    }
}

fn pause(lease_ms: u32) -> Duration {
    Duration::from_millis(u64::from(lease_ms) / RENEWALS_PER_LEASE).clamp(RENEW_PAUSE_MIN, RENEW_PAUSE_MAX)
}
