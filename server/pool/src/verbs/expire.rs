//! Time passing. Owns: deadlines of leases and sessions, watermarks. Must not know: clocks.

use crate::Pool;
use crate::ids::Now;
use crate::memory::leases::LeaseKind;

impl Pool {
    /// Ends what is overdue: read leases past deadline and grace free their slots, write leases past their
    /// deadline can no longer commit (their slots stay quarantined), held leases that were not renewed count
    /// as unheard, idle sessions are forgotten, pages whose missing shards do not come go. False: there was
    /// too much for one call; ask again.
    pub fn expire(&mut self, now: Now) -> bool {
        let (now, slice) = (self.store.tick(now), self.store.call.slice());
        for kind in [LeaseKind::Read, LeaseKind::Write, LeaseKind::Held] {
            while let Some(lease) = self.leases.overdue(kind, now) {
                if self.store.call.is_over(slice) {
                    return false;
                }
                self.store.call.step();
                match kind {
                    LeaseKind::Read => {
                        self.leases.count_expired();
                        self.end_lease(lease);
                        self.store.call.note_freed();
                    }
                    LeaseKind::Write => self.quarantine(lease),
                    _ => self.leases.mark_unheard(lease),
                }
            }
        }
        self.sessions.expire(&mut self.store, now);
        self.store.expire_protections(now, slice)
            && self.store.mark_left(slice)
            && self.store.expire_unfinished(slice)
            && self.store.remove_condemned(slice)
    }

    /// Demotes clean pages until the watermark of free slots is reached. Bounded work: call it often.
    pub fn maintain(&mut self, now: Now) {
        self.store.tick(now);
        self.store.call.note_freed(); // whoever waits looks again: pages may be ripe to go that were not
        self.store.maintain();
    }
}
