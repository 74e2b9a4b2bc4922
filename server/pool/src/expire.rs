//! Time passing. Owns: deadlines of leases and sessions, watermarks. Must not know: clocks.

use crate::Pool;
use crate::ids::{ClientId, Now};
use crate::lease::LeaseKind;
use crate::limits::LEAVING_PER_LOOK_MAX;

impl Pool {
    /// Ends what is overdue: read leases past deadline and grace free their slots, write leases past their deadline can
    /// no longer commit (their slots stay quarantined), held leases that were not renewed count as unheard, idle sessions
    /// are forgotten.
    pub fn expire(&mut self, now: Now) {
        let now = self.tick(now);
        while let Some(lease) = self.leases.overdue(LeaseKind::Read, now) {
            self.leases.expired += 1;
            self.end_lease(lease);
        }
        while let Some(lease) = self.leases.overdue(LeaseKind::Write, now) {
            self.quarantine(lease);
        }
        while let Some(lease) = self.leases.overdue(LeaseKind::Held, now) {
            self.mark_unheard(lease);
        }
        self.expire_sessions(now);
        self.expire_protections(now);
    }

    /// The client's process is gone: its leases end and its slots are free.
    pub fn client_gone(&mut self, client: ClientId, now: Now) {
        self.tick(now);
        for lease in self.leases.of_client(client) {
            self.end_lease(lease);
        }
    }

    /// Demotes clean pages until the watermark of free slots is reached. Bounded work: call it often.
    pub fn maintain(&mut self, now: Now) {
        self.tick(now);
        self.keep_watermark();
        self.compact_writes();
        self.choose_leaving(LEAVING_PER_LOOK_MAX);
    }
}
