//! Clients: whose processes they are, and that they are gone. Owns: the verbs. Must not know: how a client proves
//! who it is.

use crate::Pool;
use crate::ids::{ClientId, Now, UserId};
use crate::limits::GONE_ROWS_PER_LOOK_MAX;

impl Pool {
    /// Whose process a client is: what all of a user's clients hold counts against the user's share as well.
    /// A client of whom nothing was said is nobody's in particular, like all those.
    pub fn introduce_client(&mut self, client: ClientId, user: UserId) {
        self.leases.introduce(client, user);
    }

    /// Whether a client was introduced, and is not gone since. Whoever leases slots to a process asks first:
    /// a call of it may still be in flight when it is found to be gone, and what is leased to it then nobody
    /// would end.
    pub fn is_present(&self, client: ClientId) -> bool {
        self.leases.counts().is_present(client)
    }

    /// A client that holds no lease any more need not be known.
    pub fn forget_client(&mut self, client: ClientId) {
        self.leases.forget(client);
    }

    /// The client's process is gone: its leases end and its slots are free. False: there were too many for
    /// one call; ask again.
    pub fn client_gone(&mut self, client: ClientId, now: Now) -> bool {
        self.store.tick(now);
        self.leases.depart(client);
        let slice = self.store.call.slice();
        loop {
            let (lease, passed) = self.leases.next_of_gone(client, GONE_ROWS_PER_LOOK_MAX);
            self.store.call.pass(passed.rows);
            if let Some(lease) = lease {
                self.end_lease(lease);
                self.store.call.note_freed();
            }
            if passed.all {
                self.leases.forget(client);
                self.left.forget(client);
                self.store.forget_reader(client);
                return true;
            }
            if self.store.call.is_over(slice) {
                return false;
            }
        }
    }
}
