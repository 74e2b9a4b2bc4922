//! One life of a simulated server: from its start to its end, clean or not. Owns: what the threads of a real server do, as
//! steps; looking inside. Must not know: when the simulator takes which step.

use super::catalog::SimulatedPlace;
use super::{Books, Held, Shape, SimulatedDisk, Step, Time};
use crate::access::Guest;
use crate::catalog::{Catalog, Owner};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::memory::Memory;
use crate::engine::reclaim::Next;
use crate::engine::remotes::nics::Nics;
use crate::engine::start::{KeptOnDisk, Parts, packing};
use anyhow::Context;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::dram::{DramConfig, DramTier};
use turnkv_tier::nvme::{NvmeConfig, NvmeTier};
use turnkv_transfer::HugePages;

/// An engine whose threads the simulator is.
#[derive(Clone)]
pub struct Server {
    pub(super) engine: Arc<Engine>,
    /// Who calls it.
    pub(super) guest: Guest,
    /// Pages of which its start found an extent.
    found: Arc<BTreeSet<(NamespaceId, BlockHash)>>,
}

impl Server {
    /// Starts an engine; with a disk for pages and one for the catalog (which may be the same) it has an NVMe tier.
    /// `instance` names this life of it.
    pub fn start(
        shape: &Shape,
        time: &Arc<Time>,
        disks: Option<(&SimulatedDisk, &SimulatedDisk)>,
        instance: u64,
    ) -> anyhow::Result<Server> {
        let settings = shape.settings();
        let (dram, _) = DramTier::new(DramConfig {
            slab_bytes: shape.slab_bytes,
            slab_count: (shape.dram_bytes / shape.slab_bytes) as u32,
            huge_pages: HugePages::Off,
            lock: false,
            check_available: true,
        })?;
        let (mut kept, mut found) = (None, BTreeSet::new());
        if let (Some((pages, catalog)), Some(nvme)) = (disks, &settings.nvme) {
            let config = NvmeConfig {
                segment_bytes: nvme.segment_bytes,
                inflight_bytes: nvme.inflight_bytes,
                queue_ops_max: shape.queue_ops,
                packing: packing(nvme.codec),
                ..NvmeConfig::new("simulated", nvme.bytes)
            };
            let (nvme, recovered, _) = NvmeTier::open_simulated(config, pages)?;
            let catalog = Catalog::open_with(
                Box::new(SimulatedPlace(catalog.clone())),
                Owner { id: nvme.id(), path: "simulated".into(), is_new: nvme.is_new() },
                Clock::Simulated(Arc::clone(time)),
            );
            let on_disk = KeptOnDisk::new(nvme, recovered, catalog.context("the catalog")?);
            found.extend(on_disk.recovered.iter().map(|extent| (extent.meta.namespace, extent.meta.hash)));
            kept = Some(on_disk);
        }
        let parts = Parts {
            memory: Memory::of_this_process(dram),
            kept,
            clock: Clock::Simulated(Arc::clone(time)),
            instance,
            nics: Nics::default(),
            cluster: None,
        };
        let (engine, guest) = (Engine::assemble(settings, parts)?, Guest::of_everything());
        Ok(Server { engine, guest, found: Arc::new(found) })
    }

    /// A client process says Hello under a number of its own; it lives as long as `alive` is true.
    pub fn join(&self, client: u64, alive: Arc<AtomicBool>) {
        self.engine.join(client, alive);
    }

    /// What the thread of ticks does every 100 ms.
    pub fn tick(&self) {
        self.engine.tick();
    }

    /// What the thread of ticks does beside it, less often: changed sessions go to the catalog.
    pub fn flush_catalog(&self) {
        self.engine.flush_catalog();
    }

    /// One step of the thread that reclaims; false: it has nothing to do at once.
    pub fn step_reclaim(&self) -> bool {
        self.engine.step_reclaim() == Next::Now
    }

    /// Page memory is to have so many slabs from now on.
    pub fn resize(&self, slabs: u32) {
        self.engine.want_slabs(slabs);
    }

    /// One step of the thread that resizes; false: it has nothing to do at once.
    pub fn step_resize(&self) -> bool {
        self.engine.step_resize() == Next::Now
    }

    /// One step of the NVMe tier; false: there is nothing to do for it.
    pub fn step_tier(&self, step: Step) -> bool {
        self.engine.nvme().is_some_and(|nvme| nvme.step(step))
    }

    /// Goes on with a drain; says whether there is something to wait for.
    pub fn drain(&self) -> bool {
        self.engine.has_to_write()
    }

    /// The end of a clean life.
    pub fn seal(&self) {
        self.engine.seal();
    }

    /// Lets go of a life whose disk is dead: everything that waits for it ends, with an error that nobody hears.
    pub fn bury(&self) {
        if let Some(Err(error)) = self.engine.nvme().map(|nvme| nvme.shutdown()) {
            tracing::debug!(%error, "a dead disk");
        }
    }

    /// Why the NVMe tier is out of service, if it is.
    pub fn poisoned(&self) -> Option<String> {
        self.engine.nvme().and_then(|nvme| nvme.poisoned())
    }

    /// The pool's invariants, from scratch.
    pub fn check(&self) -> Result<(), String> {
        self.engine.check()
    }

    /// What is on its way and what was given up.
    pub fn books(&self) -> Books {
        self.engine.books()
    }

    /// Whether the start of this life found an extent of a page.
    pub fn found(&self, namespace: &NamespaceId, hash: &BlockHash) -> bool {
        self.found.contains(&(*namespace, *hash))
    }

    /// What the pool has of a page; nothing is touched by asking.
    pub fn held(&self, namespace: &NamespaceId, hash: &BlockHash) -> Option<Held> {
        self.engine.held(namespace, hash)
    }
}
