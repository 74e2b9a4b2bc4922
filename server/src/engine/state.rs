//! What an engine has. Owns: every part of it, and the pool with all else that the one lock guards. Must not know: the verbs,
//! which extend it.

use super::afar::Afar;
use super::archived::Archived;
use super::clients::Clients;
use super::durable::DurableWaits;
use super::expected::Expected;
use super::learner::LearnedSaves;
use super::metrics::Metrics;
use super::moves::Moves;
use super::outliving::{Outliving, SlotTableWriter};
use super::placed_pins::PlacedPins;
use super::promotions::Waiters;
use super::reclaimer::Reclaimer;
use super::recorder::Recorder;
use super::remotes::clients::Remotes;
use super::resizer::Resizer;
use super::slabs::Slabs;
use super::specs::Specs;
use super::verifier::Verifier;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::config::Settings;
use crate::events::Events;
use crate::keep::custody::Custody;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use turnkv_pool::{Effects, NamespaceIndex, Pool, SlotKey, SlotPlace};
use turnkv_router::Router;
use turnkv_tier::nvme::NvmeTier;
use turnkv_transfer::PieceBuffers;

/// The running pool: shared by every service.
pub(crate) struct Engine {
    /// Itself, for work that goes on after a call.
    pub(super) me: Weak<Engine>,
    /// The pure pool and who waits for its answers: taken in [`super::decide`] alone; held for so many steps at most (`turnkv_pool::limits::STEPS_PER_CALL_MAX`),
    /// never across I/O.
    pub(super) core: Mutex<Core>,
    /// Who ran what. Its lock is never taken together with the pool's.
    pub(super) router: Mutex<Router>,
    /// Page memory.
    pub(super) slabs: Slabs,
    /// Who keeps it for the next process; none: nobody.
    pub(super) outliving: Option<Outliving>,
    /// The segment log, where one is configured.
    pub(super) nvme: Option<Arc<NvmeTier>>,
    /// Namespaces and sessions across restarts, where there is a place for them.
    pub(super) catalog: Option<Catalog>,
    /// What open namespaces are, in their owners' words.
    pub(super) specs: Specs,
    /// The last of the catalog's rows that was compared with what the pool knows; whoever flushes holds it.
    pub(super) swept: Mutex<Vec<u8>>,
    /// Held while a namespace is opened, until what was found of it is there.
    pub(super) opening: Mutex<()>,
    /// The index of a namespace of which that is under way, and 1; 0: there is none.
    pub(super) adopting: AtomicU64,
    /// Namespaces of which not all that is saved is back. Bounded by those that are open; taken after the pool's lock.
    pub(super) coming_back: Mutex<BTreeMap<NamespaceIndex, Return>>,
    /// What is saved of what was learned. Taken before the pool's lock.
    pub(super) learned: Mutex<LearnedSaves>,
    /// Held while pins are written, so that a row is never older than the one before it.
    pub(super) saving_pins: Mutex<()>,
    /// What only the archive has, and what it is to get.
    pub(crate) archived: Archived,
    /// What other pools of the cluster have, and is on its way.
    pub(crate) afar: Afar,
    /// Sessions of other members that are brought by a time.
    pub(super) expected: Expected,
    /// Where second copies of pins are.
    pub(super) placed_pins: PlacedPins,
    /// How far this host is being emptied.
    pub(crate) moves: Moves,
    /// Client processes on this host.
    pub(crate) clients: Clients,
    /// Rung whenever slots may have become free.
    pub(super) freed: Notify,
    /// Calls that wait for that.
    pub(super) waiting_for_slots: AtomicU64,
    /// Tells of calls to whoever records them.
    pub(super) recorder: Recorder,
    /// For pages on their way out in gRPC streams.
    pub(super) pieces: PieceBuffers,
    /// Handles of what is counted.
    pub(crate) metrics: Metrics,
    /// Clients on other hosts.
    pub(crate) remote: Remotes,
    /// The other pools that share what they have, where there are some.
    pub(super) cluster: Option<Arc<Cluster>>,
    /// What was configured.
    pub(crate) settings: Settings,
    /// No new offloads: an operator asked for a drain, or the process leaves.
    pub(super) draining: AtomicBool,
    /// Pages that had been kept off NVMe when the drain last had all of them sent there.
    pub(super) drained_kept_off: AtomicU64,
    /// The process leaves: a drain is not taken back any more.
    pub(super) leaving: AtomicBool,
    /// Rings the thread that reclaims.
    pub(super) reclaimer: Reclaimer,
    /// Has DRAM grow and shrink.
    pub(super) resizer: Resizer,
    /// Has pages in DRAM checked before they are told.
    pub(super) verifier: Verifier,
    /// Names this server process: leases of another are unknown here.
    pub(crate) instance: u64,
    /// The pool's time, and every deadline's.
    pub(super) clock: Clock,
}

impl Engine {
    /// Memory and listening sockets that are kept for the next process; none: none are to be.
    pub(crate) fn custody(&self) -> Option<&Custody> {
        self.outliving.as_ref().map(Outliving::custody)
    }

    /// Who tells routers of pages, where that is asked for.
    pub(crate) fn events(&self) -> Option<Arc<Events>> {
        self.decide().events.clone()
    }

    /// Has memory and listening sockets where the next program in this process finds them, whatever became of who kept them. Returns what an
    /// operator should know of that. None: nobody is to keep anything. Blocking.
    pub(crate) fn assure_kept(&self) -> Option<std::io::Result<Option<String>>> {
        self.outliving.as_ref().map(|outliving| outliving.assure(&self.slabs.dram))
    }
}

/// What the one lock guards.
pub(super) struct Core {
    pub(super) pool: Pool,
    /// What slots hold, for the next process; none where memory does not outlive this one.
    pub(super) slot_table: Option<SlotTableWriter>,
    /// Hears which pages come and go, in the order in which that was decided.
    pub(super) events: Option<Arc<Events>>,
    pub(super) promotions: Waiters,
    pub(super) durable: DurableWaits,
    /// Bytes handed to the NVMe tier for writing and not completed.
    pub(super) writing_bytes: u64,
    /// Bytes being read ahead of expected turns.
    pub(super) prefetching_bytes: u64,
    /// No write is started before this moment: the tier had no room.
    pub(super) writes_paused_until: u64,
    /// Segments that the pool was told NVMe can have.
    pub(super) nvme_segments: u64,
    /// Since when NVMe can have fewer than that.
    pub(super) nvme_smaller_since: Option<u64>,
    /// Bytes of pages that a hundred bytes of NVMe hold, as the pool was told.
    pub(super) nvme_packing: u64,
    /// The NVMe device failed and was taken out of service.
    pub(super) nvme_lost: bool,
}

/// How far the return is of what is saved of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// It is under way, or about to be.
    Begun,
    /// Not all could be read: it is tried again.
    Failed,
}

impl Core {
    /// Takes what follows from the verbs since the last time. What became of slots is noted at once: before anybody else gets
    /// the lock, and before anybody hears of a slot.
    pub(super) fn take_effects(&mut self) -> Effects {
        let mut effects = self.pool.take_effects();
        if let Some(events) = &self.events {
            events.tell(std::mem::take(&mut effects.pages));
        }
        if let Some(table) = &mut self.slot_table {
            table.write(&effects);
        }
        effects
    }

    /// Where a slot is that the pool has just named. A slot that is gone meanwhile gets a place that no slab has: it
    /// is refused where its memory is asked for.
    pub(super) fn place(&self, slot: SlotKey) -> SlotPlace {
        let nowhere = SlotPlace { slab: u32::MAX, generation: u32::MAX, offset: 0, bytes: 0 };
        self.pool.slot_place(slot).unwrap_or(nowhere)
    }
}

impl Engine {
    /// The pool's `now`: milliseconds since this process started, monotonic.
    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_millis() as u64
    }

    /// File descriptors that the tiers hold or may come to need.
    pub(crate) fn descriptors(&self) -> u64 {
        let held = self.held_descriptors() * u64::from(self.slabs.dram.slab_count());
        self.slabs.dram.descriptors() + held + self.nvme.as_ref().map_or(0, |nvme| nvme.descriptors())
    }

    /// How often a slab's descriptor is held here once more, for the next program in this process.
    pub(super) fn held_descriptors(&self) -> u64 {
        u64::from(self.custody().is_some_and(Custody::hands_down))
    }
}
