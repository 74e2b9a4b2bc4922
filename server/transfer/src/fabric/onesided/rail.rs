//! The server's end of one rail, as the contract has it. Owns: what waits for the driver's thread, and when
//! nothing more is taken. Must not know: parts, the pair.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::fabric::completion::{CompletionQueue, Posted};
use crate::fabric::contract::Initiator;
use crate::fabric::onesided::bell::Bell;
use crate::fabric::operation::{Cause, Operation, Unposted, WhyUnposted};
use crate::limits::NIC_RAIL_OPERATIONS_MAX;

/// A rail's share that its users hold: the rail is closed with the last of these.
#[derive(Debug)]
pub(super) struct NicRail(Arc<RailCore>);

/// What the users of a rail and the driver's thread share.
#[derive(Debug)]
pub(super) struct RailCore {
    queue: Mutex<RailQueue>,
    queued_bytes: AtomicU64,
    completions: Arc<CompletionQueue>,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct RailQueue {
    backlog: VecDeque<Posted>,
    /// Operations that have not ended, those in the backlog included.
    under_way: usize,
    closed: bool,
    /// Why the rail takes no more, other than that it was closed.
    ended: Option<Cause>,
}

impl NicRail {
    pub(super) fn open(completions: &Arc<CompletionQueue>, bell: &Arc<Bell>) -> (Arc<Self>, Arc<RailCore>) {
        let core = Arc::new(RailCore {
            queue: Mutex::default(),
            queued_bytes: AtomicU64::new(0),
            completions: Arc::clone(completions),
            bell: Arc::clone(bell),
        });
        (Arc::new(Self(Arc::clone(&core))), core)
    }
}

impl Initiator for NicRail {
    fn post(&self, operation: Operation) -> Result<(), Unposted> {
        let mut queue = self.0.queue.lock();
        if queue.closed || queue.ended.is_some() {
            return Err(Unposted { operation, why: WhyUnposted::Dead });
        }
        if queue.under_way >= NIC_RAIL_OPERATIONS_MAX {
            return Err(Unposted { operation, why: WhyUnposted::Full });
        }
        let bytes = u64::from(operation.bytes());
        queue.backlog.push_back(self.0.completions.admit(operation)?);
        queue.under_way += 1;
        self.0.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        drop(queue);
        self.0.bell.ring();
        Ok(())
    }

    fn queued_bytes(&self) -> u64 {
        self.0.queued_bytes.load(Ordering::Relaxed)
    }

    fn close(&self) {
        self.0.queue.lock().closed = true;
        self.0.bell.ring();
    }

    fn death(&self) -> Option<Cause> {
        let queue = self.0.queue.lock();
        queue.ended.clone().or_else(|| queue.closed.then_some(Cause::Cancelled))
    }
}

impl Drop for NicRail {
    fn drop(&mut self) {
        self.close();
    }
}

impl RailCore {
    /// For the driver: the next operation, if `wanted` says that it can begin.
    pub(super) fn next(&self, wanted: impl FnOnce(&Operation) -> bool) -> Option<Posted> {
        let mut queue = self.queue.lock();
        let first = queue.backlog.front()?;
        if wanted(first.operation()) { queue.backlog.pop_front() } else { None }
    }

    /// For the driver: whether operations wait to begin.
    pub(super) fn has_backlog(&self) -> bool {
        !self.queue.lock().backlog.is_empty()
    }

    /// For the driver: whether the rail's users closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }

    /// For the driver: nothing more is taken, and what waited to begin is its caller's end.
    pub(super) fn end(&self, cause: Cause) -> VecDeque<Posted> {
        let mut queue = self.queue.lock();
        queue.ended.get_or_insert(cause);
        std::mem::take(&mut queue.backlog)
    }

    /// For the driver: an operation of so many bytes is about to be completed.
    pub(super) fn over(&self, bytes: u32) {
        let mut queue = self.queue.lock();
        assert!(queue.under_way > 0, "what ends was under way");
        queue.under_way -= 1;
        drop(queue);
        self.queued_bytes.fetch_sub(u64::from(bytes), Ordering::Relaxed);
    }
}
