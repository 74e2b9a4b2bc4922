//! Time passing. Owns: deadlines of leases and sessions, watermarks. Must not know: clocks.

use crate::Pool;
use crate::ids::{ClientId, Now};
use crate::limits::{GONE_ROWS_PER_LOOK_MAX, LEAVING_PER_LOOK_MAX, SIFTED_PER_LOOK_MAX};
use crate::memory::leases::LeaseKind;

impl Pool {
    /// Ends what is overdue: read leases past deadline and grace free their slots, write leases past their
    /// deadline can no longer commit (their slots stay quarantined), held leases that were not renewed count
    /// as unheard, idle sessions are forgotten, pages whose missing shards do not come go. False: there was
    /// too much for one call; ask again.
    pub fn expire(&mut self, now: Now) -> bool {
        let (now, slice) = (self.tick(now), self.call.slice());
        for kind in [LeaseKind::Read, LeaseKind::Write, LeaseKind::Held] {
            while let Some(lease) = self.leases.overdue(kind, now) {
                if self.call.is_over(slice) {
                    return false;
                }
                self.call.step();
                match kind {
                    LeaseKind::Read => {
                        self.leases.count_expired();
                        self.end_lease(lease);
                        self.call.note_freed();
                    }
                    LeaseKind::Write => self.quarantine(lease),
                    _ => self.leases.mark_unheard(lease),
                }
            }
        }
        self.expire_sessions(now);
        self.expire_protections(now, slice)
            && self.mark_left(slice)
            && self.expire_unfinished(slice)
            && self.remove_condemned(slice)
    }

    /// The client's process is gone: its leases end and its slots are free. False: there were too many for
    /// one call; ask again.
    pub fn client_gone(&mut self, client: ClientId, now: Now) -> bool {
        self.tick(now);
        self.leases.depart(client);
        let slice = self.call.slice();
        loop {
            let (lease, passed) = self.leases.next_of_gone(client, GONE_ROWS_PER_LOOK_MAX);
            self.call.pass(passed.rows);
            if let Some(lease) = lease {
                self.end_lease(lease);
                self.call.note_freed();
            }
            if passed.all {
                self.leases.forget(client);
                return true;
            }
            if self.call.is_over(slice) {
                return false;
            }
        }
    }

    /// Demotes clean pages until the watermark of free slots is reached. Bounded work: call it often.
    pub fn maintain(&mut self, now: Now) {
        self.tick(now);
        self.call.note_freed(); // whoever waits looks again: pages may be ripe to go that were not
        self.keep_watermark();
        self.nvme.sift_writes(&self.pages, &mut self.call, SIFTED_PER_LOOK_MAX);
        self.choose_leaving(LEAVING_PER_LOOK_MAX);
    }
}
