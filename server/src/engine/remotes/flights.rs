//! Transfers under way. Owns: whose each one is, from its posting to its completion, and the one queue in which all rails'
//! completions arrive. Must not know: pages, leases.

use super::inflight::InflightPart;
use crate::limits::REMOTE_FLIGHTS_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use turnkv_transfer::fabric::{CompletionQueue, Op, Outcome};

/// All of them.
pub(super) struct Flights {
    /// Where rails' completions go.
    pub(super) completions: Arc<CompletionQueue>,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Flight>>,
}

/// One transfer.
struct Flight {
    /// Which one of its call's.
    part: usize,
    tell: mpsc::Sender<Landed>,
    inflight: InflightPart,
}

/// A transfer has completed: nothing touches its slot any more.
pub(super) struct Landed {
    pub(super) part: usize,
    pub(super) outcome: Outcome,
}

impl Flights {
    /// None is under way.
    pub(super) fn new() -> Flights {
        Flights {
            completions: CompletionQueue::new(REMOTE_FLIGHTS_MAX),
            next: AtomicU64::new(1),
            open: Mutex::default(),
        }
    }

    /// A transfer is about to be posted. `tell` must have room for the end of every transfer of its call.
    pub(super) fn begin(&self, part: usize, tell: mpsc::Sender<Landed>, inflight: InflightPart) -> Op {
        let op = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(op, Flight { part, tell, inflight });
        Op(op)
    }

    /// It was not posted after all.
    pub(super) fn forget(&self, op: Op) {
        drop(self.open.lock().remove(&op.0));
    }

    /// Waits for completions, at most so long, and tells the calls whose they are.
    pub(super) fn land(&self, wait: Duration) {
        let mut completed = Vec::new();
        self.completions.poll(&mut completed, wait);
        for done in completed {
            let flight = self.open.lock().remove(&done.op.0);
            let Some(Flight { part, tell, inflight }) = flight else {
                tracing::error!("a transfer completed that is nobody's");
                continue;
            };
            drop(inflight); // first: who hears of the end may look
            // A call waits for all of its transfers, and has room for each.
            if tell.try_send(Landed { part, outcome: done.outcome }).is_err() {
                tracing::error!("a transfer completed whose call has ended");
            }
        }
    }
}
