//! Start: assembles the tiers, recovers the pages, loads the catalog. Owns: the order of a start. Must not know: the
//! network.

use super::clients::{Clients, Ghost};
use super::memory::Memory;
use super::outliving::{Outliving, SlotTableWriter};
use super::place::place;
use super::remotes::nics::Nics;
use super::start_plan::BegunSlab;
use super::{Core, Engine, clients, durable, memory, metrics, promotions, remotes, slabs};
use crate::catalog::{Catalog, CatalogMemory, Owner};
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::config::{Nvme, NvmeAdmit, NvmeCodec, NvmeEngine, Policy, Settings};
use crate::events::Events;
use crate::keep::custody::Kept;
use crate::limits::INLINE_CHUNK_BYTES;
use anyhow::Context;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use turnkv_pool::{Admit, Limits, PolicyKind, Pool, PoolConfig, Stranger, kept_percent};
use turnkv_proto::NamespaceId;
use turnkv_tier::dram::DramTier;
use turnkv_tier::limits::BLOCK_BYTES;
use turnkv_tier::nvme::{self, Claimed, Codec, NvmeConfig, NvmeTier, Packing, Recovered, TierId};
use turnkv_transfer::PieceBuffers;

/// What an engine is put together from.
pub(crate) struct Parts {
    /// The page memory.
    pub(crate) memory: Memory,
    /// What is kept on a disk, where there is one.
    pub(crate) kept: Option<KeptOnDisk>,
    /// The time.
    pub(crate) clock: Clock,
    /// Names this server process.
    pub(crate) instance: u64,
    /// By which pages go to other hosts.
    pub(crate) nics: Nics,
    /// The other pools that share what they have.
    pub(crate) cluster: Option<Arc<Cluster>>,
}

/// What a disk has: the pages' log and the catalog.
pub(crate) struct KeptOnDisk {
    /// The segment log.
    nvme: NvmeTier,
    /// The pages found in it.
    pub(crate) recovered: Vec<Recovered>,
    /// Namespaces, sessions, pins.
    catalog: Catalog,
}

impl Engine {
    /// Builds the engine: memory first, then what the disk still has. Blocking; takes seconds on a large tier.
    /// `kept`: asked what was kept of the last process's memory; ours is kept from then on.
    pub(crate) fn start(
        mut settings: Settings,
        kept: impl FnOnce(&Settings) -> Option<Kept>,
        cluster: Option<Arc<Cluster>>,
    ) -> anyhow::Result<Arc<Engine>> {
        let clock = Clock::system();
        let nics = Nics::open(&settings)?;
        // Whose the place and its catalog are is known before memory is touched, which takes long.
        let claimed = match settings.nvme.clone() {
            Some(config) => Some((claim_kept(&config, &clock)?, config)),
            None => None,
        };
        // And the log is ours only once no operation of the last process is in flight on the slabs.
        let kept = kept(&settings);
        if let Some(kept) = &kept {
            memory::follow_kept(&mut settings.dram, kept);
        }
        let memory = Memory::start(&settings, kept)?;
        let kept = match claimed {
            Some(((claimed, catalog), config)) => {
                let (nvme, recovered) = start_nvme(&config, claimed, &memory.dram)?;
                Some(KeptOnDisk::new(nvme, recovered, catalog))
            }
            None => None,
        };
        let instance = clients::random_u64()?;
        Engine::assemble(settings, Parts { memory, kept, clock, instance, nics, cluster })
    }

    /// Puts an engine together: its index says what the disk has.
    pub(crate) fn assemble(settings: Settings, parts: Parts) -> anyhow::Result<Arc<Engine>> {
        let mut pool = Pool::new(pool_config(&settings, parts.memory.slabs.len() as u32))?;
        let Memory { dram, slabs: begun, ghosts, outliving } = parts.memory;
        let (clients, (outliving, mut slot_table)) = (clients::Clients::new(), outliving.unzip());
        begin_slabs(&mut pool, begun, slot_table.is_some());
        ghosts.into_iter().for_each(|ghost| remember(ghost, &clients, &mut pool, slot_table.as_mut()));
        let mut catalog = catalog_in_memory(outliving.as_ref(), &parts.clock)?;
        let (mut tier, mut nvme_segments, mut nvme_packing) = (None, 0, 100);
        if let Some(kept) = parts.kept {
            let (segments, spare, segment_bytes) = kept.nvme.geometry();
            pool.shape_nvme(kept_percent(segments, spare), segment_bytes, BLOCK_BYTES);
            nvme_packing = kept.nvme.packing_percent();
            pool.resize_nvme(segments * segment_bytes, nvme_packing, kept_percent(segments, spare));
            nvme_segments = segments;
            keep_strangers(&mut pool, kept.recovered);
            (tier, catalog) = (Some(Arc::new(kept.nvme)), Some(kept.catalog));
        }
        let core = Core {
            events: tell_pages(&settings, &mut pool),
            pool,
            slot_table,
            promotions: promotions::Waiters::default(),
            durable: durable::DurableWaits::default(),
            writing_bytes: 0,
            prefetching_bytes: 0,
            writes_paused_until: 0,
            nvme_segments,
            nvme_smaller_since: None,
            nvme_packing,
            nvme_lost: false,
        };
        let engine = Arc::new_cyclic(|me| Engine {
            me: Weak::clone(me),
            core: Mutex::new(core),
            router: Mutex::default(),
            slabs: slabs::Slabs::new(dram),
            outliving,
            nvme: tier,
            catalog,
            specs: Default::default(),
            swept: Mutex::default(),
            opening: Mutex::default(),
            adopting: AtomicU64::new(0),
            coming_back: Mutex::default(),
            learned: Mutex::default(),
            saving_pins: Mutex::default(),
            archived: super::archived::Archived::new(&settings.archive),
            afar: Default::default(),
            expected: Default::default(),
            placed_pins: Default::default(),
            moves: Default::default(),
            clients,
            freed: Notify::new(),
            waiting_for_slots: AtomicU64::new(0),
            recorder: Default::default(),
            pieces: PieceBuffers::new(INLINE_CHUNK_BYTES),
            metrics: metrics::Metrics::new(),
            remote: remotes::clients::Remotes::new(&settings, parts.nics),
            cluster: parts.cluster,
            settings,
            draining: AtomicBool::new(false),
            drained_kept_off: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            reclaimer: Default::default(),
            resizer: Default::default(),
            verifier: Default::default(),
            instance: parts.instance,
            clock: parts.clock,
        });
        engine.take_up();
        Ok(engine)
    }

    /// Goes on with what was kept, in memory and in the catalog.
    fn take_up(&self) {
        self.load_catalog();
        // What was kept may be more than there is to be, or less: it becomes that while it serves.
        self.want_slabs((self.settings.dram.bytes / self.settings.dram.slab_bytes) as u32);
        self.slabs.dram.regions().iter().for_each(|slab| self.remote.attach(slab));
    }
}

impl KeptOnDisk {
    /// Puts together what a disk has: of the extents that were found, those that nobody needed any more when the server was
    /// left are gone. Where the catalog cannot be read now, they come back.
    pub(crate) fn new(nvme: NvmeTier, mut recovered: Vec<Recovered>, catalog: Catalog) -> KeptOnDisk {
        match catalog.segment_notes() {
            Ok(notes) => {
                let dead = nvme.recall(&notes, &mut recovered);
                tracing::debug!(dead, "extents that nobody needed any more stay gone");
            }
            Err(error) => {
                nvme.recall_nothing();
                tracing::warn!(
                    %error,
                    "notes of segments cannot be read: what was given up on NVMe before is found again, and goes by the policy's order"
                );
            }
        }
        KeptOnDisk { nvme, recovered, catalog }
    }
}

/// Takes the place of the segment log and the catalog of this host for this process. Nothing of the tier is touched.
fn claim_kept(config: &Nvme, clock: &Clock) -> anyhow::Result<(Claimed, Catalog)> {
    std::fs::create_dir_all(&config.state_dir).with_context(|| {
        format!("cannot create {} (for a block device, set nvme.state_dir)", config.state_dir.display())
    })?;
    let claimed = claim_nvme(config)?;
    let owner = Owner { id: claimed.id(), path: config.path.clone(), is_new: claimed.is_new() };
    let catalog = Catalog::open(&config.state_dir, owner, clock.clone()).with_context(|| {
        format!("the catalog of namespaces and sessions in {}", config.state_dir.display())
    })?;
    Ok((claimed, catalog))
}

/// The catalog of a server without a disk, in memory that is kept with its pages: of these it is, and of none before them.
fn catalog_in_memory(outliving: Option<&Outliving>, clock: &Clock) -> anyhow::Result<Option<Catalog>> {
    let Some(outliving) = outliving else { return Ok(None) };
    let Some(memory) = outliving.catalog().context("the catalog in memory")? else { return Ok(None) };
    let id = TierId(u128::from(outliving.memory()).to_be_bytes());
    let owner = Owner { id, path: PathBuf::from("(memory)"), is_new: true };
    let catalog = Catalog::open_with(Box::new(CatalogMemory::new(memory)), owner, clock.clone());
    Ok(Some(catalog.context("the catalog of namespaces and sessions in memory")?))
}

/// Has the pool say which pages come and go, where routers are to be told.
fn tell_pages(settings: &Settings, pool: &mut Pool) -> Option<Arc<Events>> {
    let events = Events::new(settings.events.as_ref()?);
    pool.tell_pages();
    Some(events)
}

/// Tells the pool with what its slabs begin, before any namespace is open.
fn begin_slabs(pool: &mut Pool, begun: Vec<BegunSlab>, tells: bool) {
    if tells {
        pool.tell_slots();
    }
    for (slab, BegunSlab { generation, present, found }) in (0..).zip(begun) {
        match present {
            true => pool.begin_slab(slab, generation, found),
            false => pool.begin_absent(slab, generation),
        }
    }
}

/// A client of the server before, which may still be writing, is known here from the beginning.
fn remember(ghost: Ghost, clients: &Clients, pool: &mut Pool, table: Option<&mut SlotTableWriter>) {
    if let Some(table) = table {
        table.introduce(ghost.client, ghost.holder);
    }
    pool.introduce_client(ghost.client, clients.remember(ghost));
}

/// What a setting is to the tier.
pub(crate) fn packing(codec: NvmeCodec) -> Packing {
    match codec {
        NvmeCodec::Auto => Packing::Auto,
        NvmeCodec::None => Packing::Off,
        NvmeCodec::Codebook => Packing::Always(Codec::Codebook),
        NvmeCodec::Huffman => Packing::Always(Codec::Huffman),
        NvmeCodec::Zstd => Packing::Always(Codec::Zstd),
    }
}

pub(super) fn claim_nvme(config: &Nvme) -> anyhow::Result<Claimed> {
    let engine = match config.engine {
        NvmeEngine::Auto => nvme::Engine::Auto,
        NvmeEngine::Ring => nvme::Engine::Ring,
        NvmeEngine::Blocking => nvme::Engine::Blocking,
    };
    let wanted = NvmeConfig {
        segment_bytes: config.segment_bytes,
        engine,
        packing: packing(config.codec),
        inflight_bytes: config.inflight_bytes,
        ..NvmeConfig::new(config.path.clone(), config.bytes)
    };
    NvmeTier::claim(wanted).with_context(|| format!("the NVMe tier at {}", config.path.display()))
}

fn start_nvme(
    config: &Nvme,
    claimed: Claimed,
    dram: &DramTier,
) -> anyhow::Result<(NvmeTier, Vec<Recovered>)> {
    let regions = dram.regions();
    let places = regions.len();
    let (nvme, recovered, report) =
        claimed.open(regions).with_context(|| format!("the NVMe tier at {}", config.path.display()))?;
    if places < dram.numbers() as usize {
        // Some numbers have no memory: each slab's goes to the place of its number, as when it is renewed.
        (0..places).for_each(|place| nvme.unregister(place));
        let regions = (0..dram.numbers()).filter_map(|slab| Some((slab, dram.region(slab)?.0)));
        regions.for_each(|(slab, region)| nvme.register(slab as usize, region));
    }
    for warning in &report.warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!(
        path = %config.path.display(),
        bytes = config.bytes,
        engine = report.engine,
        direct = report.direct,
        registered_bytes = report.registered_bytes,
        extents = recovered.len(),
        recovery_ms = report.elapsed.as_millis() as u64,
        "the NVMe tier is ready"
    );
    Ok((nvme, recovered))
}

fn pool_config(settings: &Settings, slab_count: u32) -> PoolConfig {
    PoolConfig {
        slab_bytes: settings.dram.slab_bytes,
        slab_count,
        nvme_bytes: settings.nvme.as_ref().map_or(0, |nvme| nvme.bytes),
        nvme_admit: match settings.nvme.as_ref().map(|nvme| nvme.admit) {
            Some(NvmeAdmit::Reused) => Admit::Reused,
            Some(NvmeAdmit::All) | None => Admit::All,
        },
        nvme_bytes_per_day: settings.nvme.as_ref().map_or(0, |nvme| nvme.write_bytes_per_day),
        free_slots_percent: settings.limits.free_slots_percent,
        limits: limits_of(settings),
        policy: match settings.policy {
            Policy::Lru => PolicyKind::Lru,
            Policy::S3fifo => PolicyKind::S3Fifo,
            Policy::Tinylfu => PolicyKind::TinyLfu,
            Policy::Arc => PolicyKind::Arc,
            Policy::Gittins => PolicyKind::Gittins,
            Policy::Session => PolicyKind::Session,
        },
    }
}

/// What the settings say of the pool's bounds.
pub(super) fn limits_of(settings: &Settings) -> Limits {
    let limits = &settings.limits;
    Limits {
        pages_max: limits.pages_max,
        namespaces_max: limits.namespaces_max,
        sessions_max: limits.sessions_max,
        leases_max: limits.leases_max,
        client_slots_percent: limits.client_slots_percent,
        user_slots_percent: limits.user_slots_percent,
        all_slots_percent: limits.all_slots_percent,
        lease_ms: limits.lease_ms as u32,
        lease_grace_ms: limits.lease_grace_ms as u32,
        session_ttl_ms: limits.session_ttl_ms,
        protected_percent: limits.protected_percent,
        ..Limits::default()
    }
}

/// What the disk has is the pool's, as far as its index goes, until its namespaces are opened.
fn keep_strangers(pool: &mut Pool, recovered: Vec<Recovered>) {
    let pages = pool.keep_strangers(recovered.into_iter().map(stranger));
    if pages > 0 {
        tracing::warn!(
            pages,
            "NVMe has more than limits.pages_max pages: those written longest ago are forgotten; raise it to keep all"
        );
    }
}

/// What an extent says, in the pool's words.
fn stranger(extent: Recovered) -> (NamespaceId, Stranger) {
    let (meta, at) = (extent.meta, extent.at);
    let stranger = Stranger {
        hash: meta.hash,
        parent: meta.parent,
        shard: meta.shard,
        shards: meta.shards,
        tail_tokens: meta.tail_tokens,
        bytes: meta.payload_bytes,
        checksum: meta.checksum,
        place: place(at),
        sequence: extent.sequence,
        leaving: extent.leaving,
    };
    (meta.namespace, stranger)
}

#[cfg(test)]
mod tests;
