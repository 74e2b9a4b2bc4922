//! The engine: asks the pool what to do and has the tiers do it. Owns: the one lock around the pool, the waits on
//! its answers, and the order "decide under the lock, move bytes outside it". Must not know: messages, gRPC, sockets, frames.
//!
//! A verb takes an ask of its own (checked, owned by the verb's file) and gives a plain answer; doors translate both.
//!
//! - [`start`]: assembles the tiers, recovers, loads the catalog
//! - [`namespace`]: opens and finds namespaces; [`restore`], [`save`]: sessions and pins across restarts
//! - [`lookup`], [`offload`], [`reload`]: the verbs on pages; [`hold`]: those on slots that a client maps; [`inline`]: those whose
//!   pages travel in a stream
//! - [`session`], [`pin`], [`prefetch`], [`route`]: the verbs on sessions and prefixes
//! - [`promote`], [`writeback`], [`reclaim`]: bytes between DRAM and NVMe; [`place`]: where these are
//! - [`durable`]: who waits for pages on NVMe; [`waits`]: who waits for slots
//! - [`slabs`]: slots as memory; [`verify`]: pages in DRAM that are checked before a reload is told of them
//! - [`clients`], [`tick`], [`drain`], [`health`]: who is there, deadlines, leaving, what is wrong
//! - [`advice`]: what more memory would buy; [`record`]: what turns asked, for a trace
//! - [`metrics`], [`gauges`], [`tier_seconds`], [`stats`]: what is counted, held, timed, reported
//! - `inspect`, `testing`: what simulators and tests may do

pub(crate) mod advice;
pub(crate) mod clients;
mod decide;
pub(crate) mod drain;
pub(crate) mod durable;
pub(crate) mod gauges;
pub(crate) mod health;
pub(crate) mod hold;
pub(crate) mod inline;
#[cfg(feature = "simulation")]
mod inspect;
pub(crate) mod lookup;
pub(crate) mod metrics;
pub(crate) mod namespace;
pub(crate) mod offload;
pub(crate) mod pin;
mod place;
pub(crate) mod prefetch;
pub(crate) mod promote;
pub(crate) mod reclaim;
pub(crate) mod record;
pub(crate) mod reload;
pub(crate) mod restore;
pub(crate) mod route;
pub(crate) mod save;
pub(crate) mod session;
pub(crate) mod slabs;
pub(crate) mod start;
pub(crate) mod stats;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod tick;
mod tier_seconds;
mod verify;
mod waits;
pub(crate) mod writeback;

use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::Settings;
use crate::limits::RETRY_AFTER_MS;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use turnkv_pool::{NamespaceIndex, Pool, PoolError, SlotKey, SlotPlace};
use turnkv_proto::{Error, ErrorKind};
use turnkv_router::Router;
use turnkv_tier::nvme::NvmeTier;
use turnkv_transfer::PieceBuffers;

/// The running pool: shared by every service.
pub(crate) struct Engine {
    /// Itself, for work that goes on after a call.
    me: Weak<Engine>,
    /// The pure pool and who waits for its answers: taken in [`decide`] alone; held for so many steps at most (`turnkv_pool::limits::STEPS_PER_CALL_MAX`),
    /// never across I/O.
    core: Mutex<Core>,
    /// Who ran what. Its lock is never taken together with the pool's.
    router: Mutex<Router>,
    /// Page memory.
    slabs: slabs::Slabs,
    /// The segment log, where one is configured.
    nvme: Option<Arc<NvmeTier>>,
    /// Namespaces and sessions across restarts, where there is a place for them.
    catalog: Option<Catalog>,
    /// The last of the catalog's rows that was compared with what the pool knows; whoever flushes holds it.
    swept: Mutex<Vec<u8>>,
    /// Namespaces of which not all that is saved is back. Bounded by those that are open; taken after the pool's lock.
    coming_back: Mutex<BTreeMap<NamespaceIndex, restore::Return>>,
    /// Held while pins are written, so that a row is never older than the one before it.
    saving_pins: Mutex<()>,
    /// Client processes on this host.
    pub(crate) clients: clients::Clients,
    /// Rung whenever slots may have become free.
    freed: Notify,
    /// Calls that wait for that.
    waiting_for_slots: AtomicU64,
    /// Tells of calls to whoever records them.
    recorder: record::Recorder,
    /// For pages on their way out in gRPC streams.
    pieces: PieceBuffers,
    /// Handles of what is counted.
    pub(crate) metrics: metrics::Metrics,
    /// What was configured.
    pub(crate) settings: Settings,
    /// No new offloads: an operator asked for a drain, or the process leaves.
    draining: AtomicBool,
    /// The process leaves: a drain is not taken back any more.
    leaving: AtomicBool,
    /// Rings the thread that reclaims.
    reclaimer: reclaim::Reclaimer,
    /// Has pages in DRAM checked before they are told.
    verifier: verify::Verifier,
    /// Names this server process: leases of another are unknown here.
    pub(crate) instance: u64,
    /// The pool's time, and every deadline's.
    clock: Clock,
}

/// What the one lock guards.
struct Core {
    pool: Pool,
    promotions: promote::Waiters,
    durable: durable::DurableWaits,
    /// Bytes handed to the NVMe tier for writing and not completed.
    writing_bytes: u64,
    /// Bytes being read ahead of expected turns.
    prefetching_bytes: u64,
    /// No write is started before this moment: the tier had no room.
    writes_paused_until: u64,
    /// Segments that the pool was told NVMe can have.
    nvme_segments: u64,
    /// Since when NVMe can have fewer than that.
    nvme_smaller_since: Option<u64>,
    /// The NVMe device failed and was taken out of service.
    nvme_lost: bool,
}

impl Core {
    /// Where a slot is that the pool has just named. A slot that is gone meanwhile gets a place that no slab has: it
    /// is refused where its memory is asked for.
    fn place(&self, slot: SlotKey) -> SlotPlace {
        let nowhere = SlotPlace { slab: u32::MAX, generation: u32::MAX, offset: 0, bytes: 0 };
        self.pool.slot_place(slot).unwrap_or(nowhere)
    }
}

impl Engine {
    /// The pool's `now`: milliseconds since this process started, monotonic.
    fn now(&self) -> u64 {
        self.clock.now().as_millis() as u64
    }

    /// File descriptors that the tiers hold or may come to need.
    pub(crate) fn descriptors(&self) -> u64 {
        self.slabs.dram.descriptors() + self.nvme.as_ref().map_or(0, |nvme| nvme.descriptors())
    }
}

/// A pool's refusal, by what its caller should do.
fn refuse(error: PoolError) -> Error {
    let kind = match &error {
        PoolError::NamespaceUnknown => ErrorKind::NamespaceUnknown,
        PoolError::LeaseUnknown => ErrorKind::LeaseUnknown,
        PoolError::SessionUnknown => ErrorKind::SessionUnknown,
        PoolError::LeaseShare(_) => ErrorKind::Busy { retry_after_ms: RETRY_AFTER_MS },
        PoolError::Limit(_) => ErrorKind::Limit,
        PoolError::Invalid(_) => ErrorKind::Invalid,
    };
    Error::new(kind, error.to_string())
}
