//! A read lease that outlives the operation that was given it. Owns: ending it, and telling what of it did
//! not verify. Must not know: slots.

use super::connection::Server;
use super::lent::Lent;
use super::pool::LocalPool;
use parking_lot::Mutex;
use std::sync::Arc;

/// Ends a read lease when it is dropped, wherever that is.
#[derive(Debug)]
pub(crate) struct ReadGrant {
    lease: Option<u64>,
    corrupt: Mutex<Vec<u32>>,
    server: Server,
    pool: Arc<LocalPool>,
}

impl ReadGrant {
    /// Takes the read lease over from the operation that was given it.
    pub(crate) fn of(lent: &mut Lent) -> ReadGrant {
        let (server, pool) = (lent.server(), Arc::clone(lent.pool()));
        ReadGrant { lease: lent.take_read_lease(), corrupt: Mutex::default(), server, pool }
    }

    /// A page of the lease did not verify: the pool is told when the lease ends.
    pub(crate) fn report_corrupt(&self, position: u32) {
        let mut corrupt = self.corrupt.lock();
        if !corrupt.contains(&position) {
            corrupt.push(position);
        }
    }
}

impl Drop for ReadGrant {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.pool.end_reload(&self.server, lease, std::mem::take(self.corrupt.get_mut()));
        }
    }
}
