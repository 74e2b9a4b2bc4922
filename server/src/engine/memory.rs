//! Page memory at a start: made anew, or taken over as the last process left it. Owns: what of the kept memory fits, and that
//! what does not is said in one line. Must not know: pages (the pool takes in what was found), who keeps the descriptors.

use super::clients::{EPHEMERAL, Ghost, LeftSlots, random_u64};
use super::outliving::{CATALOG_NAME, Outliving, SlotTableWriter, TABLE_NAME, slab_name, slab_of_name};
use crate::config::Settings;
use crate::keep::link::Kept;
use crate::limits::CLIENTS_MAX;
use anyhow::Context;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;
use turnkv_pool::{ClientId, FoundSlab, FoundSlot};
use turnkv_tier::dram::table::{FoundEntries, Geometry, Holder, SlotTable, Unfit};
use turnkv_tier::dram::{DramConfig, DramTier, SlabStart};
use turnkv_transfer::{HugePages, Process};

/// Page memory, and what was found in it.
pub(crate) struct Memory {
    /// The slabs.
    pub(crate) dram: DramTier,
    /// Generation of each slab, with what was found in it.
    pub(crate) slabs: Vec<(u32, Option<FoundSlab>)>,
    /// Processes that may still be writing some of it, or have it mapped.
    pub(crate) ghosts: Vec<Ghost>,
    /// What makes it outlive this process; none: it does not.
    pub(crate) outliving: Option<(Outliving, SlotTableWriter)>,
}

impl Memory {
    /// Memory of this process alone.
    pub(crate) fn of_this_process(dram: DramTier) -> Memory {
        let slabs = (0..dram.slab_count()).map(|_| (0, None)).collect();
        Memory { dram, slabs, ghosts: Vec::new(), outliving: None }
    }

    /// Page memory as it is configured; with what a keeper kept, as far as that fits.
    pub(crate) fn start(settings: &Settings, kept: Option<Kept>) -> anyhow::Result<Memory> {
        let config = dram_config(settings);
        let memory = match kept {
            None => Memory::of_this_process(make(&config, None)?),
            Some(kept) => outlive(&config, kept, settings.nvme.is_none())?,
        };
        tracing::info!(
            bytes = settings.dram.bytes,
            slab_bytes = settings.dram.slab_bytes,
            locked_bytes = memory.dram.locked_bytes(),
            huge_bytes = memory.dram.huge_bytes(),
            "page memory is ready"
        );
        Ok(memory)
    }
}

pub(super) fn dram_config(settings: &Settings) -> DramConfig {
    DramConfig {
        slab_bytes: settings.dram.slab_bytes,
        slab_count: (settings.dram.bytes / settings.dram.slab_bytes) as u32,
        huge_pages: if settings.dram.huge_pages { HugePages::Auto } else { HugePages::Off },
        lock: settings.dram.lock,
        check_available: settings.dram.check_available,
    }
}

fn make(config: &DramConfig, starts: Option<Vec<SlabStart>>) -> anyhow::Result<DramTier> {
    let made = match starts {
        None => DramTier::new(config.clone()),
        Some(starts) => DramTier::start(config.clone(), starts),
    };
    let (dram, report) = made.context("page memory (dram.bytes)")?;
    for warning in [&report.lock_warning, &report.huge_warning].into_iter().flatten() {
        tracing::warn!("{warning}");
    }
    Ok(dram)
}

/// Memory that a keeper keeps: what it kept for the server before is gone through first. `saves`: what is saved of sessions is kept
/// there too.
fn outlive(config: &DramConfig, kept: Kept, saves: bool) -> anyhow::Result<Memory> {
    let began = Instant::now();
    let Kept { keeper, mut descriptors } = kept;
    // A start that is refused takes nothing away from the next one.
    DramTier::check_room(config, bytes_of(&descriptors))?;
    let geometry = Geometry::new(config.slab_bytes, config.slab_count);
    let (boot, user) = (boot_id()?, rustix::process::geteuid().as_raw());
    let (table, catalog) = (descriptors.remove(TABLE_NAME), descriptors.remove(CATALOG_NAME));
    let table = table.map(|fd| SlotTable::open(fd, geometry, boot, user)).transpose();
    let mut plan = match table {
        Ok(table) => StartPlan::of(table, descriptors, config.slab_count),
        Err(unfit) => {
            say_cold(&unfit);
            StartPlan::of(None, BTreeMap::new(), config.slab_count)
        }
    };
    // Sessions are of the pages that are there.
    plan.catalog = catalog.filter(|_| saves && plan.table.is_some());
    // What does not serve goes first: there may be no memory for both.
    for name in keeper.names().iter().filter(|name| !plan.keeps(name)) {
        keeper.drop_kept(name).context("the keeper of page memory")?;
    }
    plan.clear();
    let starts = plan.starts();
    let dram = match make(config, Some(starts)) {
        Ok(dram) => dram,
        Err(error) if plan.found() > 0 => {
            tracing::warn!("DRAM begins cold: the kept memory cannot be taken over ({error:#})");
            for name in keeper.names() {
                keeper.drop_kept(&name).context("the keeper of page memory")?;
            }
            plan = StartPlan::of(None, BTreeMap::new(), config.slab_count);
            make(config, None)?
        }
        Err(error) => return Err(error),
    };
    let table = match plan.table.take() {
        Some(table) => table,
        None => SlotTable::create(geometry, boot, user, random_u64()?).context("the slot table")?,
    };
    let (slabs, found_shards) = (plan.found(), plan.shards());
    if slabs > 0 {
        let took_ms = began.elapsed().as_millis() as u64;
        tracing::info!(slabs, shards = found_shards, took_ms, "DRAM is as the last process left it");
    }
    let catalog = match plan.catalog.take() {
        None if saves => {
            Some(memfd_create("turnkv-catalog", MemfdFlags::CLOEXEC).context("a catalog in memory")?)
        }
        kept => kept,
    };
    let outliving = Outliving::new(keeper, &table, catalog)?;
    let memory = plan.slabs.into_iter().map(|slab| (slab.generation, slab.found)).collect();
    let writer = SlotTableWriter::new(table);
    let memory = Memory { dram, slabs: memory, ghosts: plan.ghosts, outliving: Some((outliving, writer)) };
    if let Some((outliving, _)) = &memory.outliving {
        outliving.keep_all(&memory.dram);
    }
    Ok(memory)
}

/// Bytes that what is kept has at most.
fn bytes_of(descriptors: &BTreeMap<String, OwnedFd>) -> u64 {
    let bytes = |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |file| file.st_size.max(0) as u64);
    descriptors.values().map(bytes).sum()
}

/// What begins each slab, and whose its slots are.
#[derive(Default)]
struct StartPlan {
    table: Option<SlotTable>,
    /// What was saved of sessions.
    catalog: Option<OwnedFd>,
    slabs: Vec<SlabPlan>,
    ghosts: Vec<Ghost>,
    /// Slots whose holders are gone, or not theirs any more.
    over: Vec<(u32, u32)>,
    /// Slots that somebody had mapped, with those who have still.
    mapped: BTreeMap<(u32, u32), Vec<Holder>>,
}

struct SlabPlan {
    generation: u32,
    /// The memory that the last process left.
    kept: Option<OwnedFd>,
    /// Its name, while it serves.
    name: Option<String>,
    found: Option<FoundSlab>,
}

impl StartPlan {
    fn of(
        table: Option<(SlotTable, Vec<FoundEntries>)>,
        descriptors: BTreeMap<String, OwnedFd>,
        slab_count: u32,
    ) -> StartPlan {
        let mut kept: BTreeMap<u32, (u32, OwnedFd)> = BTreeMap::new();
        for (name, fd) in descriptors {
            let Some((slab, generation)) = slab_of_name(&name) else { continue };
            if kept.get(&slab).is_none_or(|(other, _)| *other < generation) {
                kept.insert(slab, (generation, fd));
            }
        }
        let mut plan = StartPlan::default();
        let Some((table, entries)) = table else {
            plan.slabs = (0..slab_count).map(|_| SlabPlan::fresh(0)).collect();
            return plan;
        };
        for (slab, entries) in entries.iter().enumerate() {
            let planned = plan.slab(slab as u32, kept.remove(&(slab as u32)), entries);
            let held = planned.found.as_ref().map(|found| &found.held[..]).unwrap_or_default();
            let over = entries.held.iter().filter(|(slot, _)| !held.iter().any(|(other, _)| other == slot));
            plan.over.extend(over.map(|(slot, _)| (slab as u32, *slot)));
            let seen = planned.found.as_ref().map(|found| &found.mapped[..]).unwrap_or_default();
            for (slot, reader) in &entries.mapped {
                let readers = plan.mapped.entry((slab as u32, *slot)).or_default();
                let lives = |(of, client): &(u32, ClientId)| {
                    of == slot
                        && plan.ghosts.iter().any(|ghost| (ghost.client, ghost.holder) == (*client, *reader))
                };
                readers.extend(seen.iter().any(lives).then_some(*reader));
            }
            plan.slabs.push(planned);
        }
        plan.table = Some(table);
        plan
    }

    /// What the table says of processes is over where these are gone, and where a slab's old memory is. Not before nobody keeps
    /// that any more: a start that is killed leaves the next one what it found.
    fn clear(&mut self) {
        let Some(table) = &mut self.table else { return };
        self.over.iter().for_each(|(slab, slot)| table.hold(*slab, *slot, None));
        for ((slab, slot), readers) in &self.mapped {
            table.map(*slab, *slot, readers.iter().copied());
        }
        for slab in 0..self.slabs.len() as u32 {
            let seen =
                self.mapped.range((slab, 0)..=(slab, u32::MAX)).any(|(_, readers)| !readers.is_empty());
            table.map_slab(slab, seen);
        }
        let known: Vec<Holder> = table.readers().collect();
        for reader in known {
            if !self.mapped.values().flatten().any(|other| *other == reader) {
                table.forget(reader);
            }
        }
    }

    /// How one slab begins: as it is, if all that is in it can be accounted for, else with fresh memory.
    fn slab(&mut self, slab: u32, kept: Option<(u32, OwnedFd)>, entries: &FoundEntries) -> SlabPlan {
        let latest = entries.sealed.iter().map(|(_, entry, _)| entry.generation).max();
        let known = kept.as_ref().map(|(generation, _)| *generation).max(latest);
        // A generation is never used twice with one table: an old entry would speak of new memory.
        let fresh = SlabPlan::fresh(known.map_or(0, |known| known + 1));
        let Some((generation, fd)) = kept else { return fresh };
        let of_it = entries.sealed.iter().filter(|(_, entry, _)| entry.generation == generation);
        let namespace = of_it.clone().next().map(|(_, entry, _)| entry.namespace);
        let alone = of_it.clone().all(|(_, entry, _)| Some(entry.namespace) == namespace);
        let (Some(namespace), true) = (namespace, alone) else { return fresh };
        let Some(held) = self.ghosts_of(&entries.held, LeftSlots::Writing) else { return fresh };
        let Some(mapped) = self.ghosts_of(&entries.mapped, LeftSlots::Mapped) else { return fresh };
        let slot = |(slot, entry, sequence): &(u32, turnkv_tier::dram::table::SlotEntry, u64)| FoundSlot {
            slot: *slot,
            hash: entry.hash,
            parent: entry.parent,
            shard: entry.shard,
            shards: entry.shards,
            tail_tokens: entry.tail_tokens,
            bytes: entry.bytes,
            checksum: entry.checksum,
            sequence: *sequence,
        };
        let slots = of_it.map(slot).collect();
        let found = FoundSlab { slab, generation, namespace, slots, held, mapped };
        SlabPlan { generation, kept: Some(fd), name: Some(slab_name(slab, generation)), found: Some(found) }
    }

    /// Which of these slots are of processes that live, as what these are known. None: nobody can say.
    fn ghosts_of(&mut self, slots: &[(u32, Holder)], left: LeftSlots) -> Option<Vec<(u32, ClientId)>> {
        let mut held = Vec::new();
        for (slot, holder) in slots {
            let Holder::Process { pid, began, .. } = holder else { return None };
            let is_known = |ghost: &&Ghost| (ghost.holder, ghost.left) == (*holder, left);
            if let Some(ghost) = self.ghosts.iter().find(is_known) {
                held.push((*slot, ghost.client));
                continue;
            }
            let Some(process) = Process::find(*pid as i32, *began).ok()? else { continue };
            let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
            let client = ClientId(random_u64().ok()? & !EPHEMERAL);
            if self.ghosts.len() >= CLIENTS_MAX {
                return None;
            }
            self.ghosts.push(Ghost { client, pid: *pid as i32, user, process, holder: *holder, left });
            held.push((*slot, client));
        }
        Some(held)
    }

    fn keeps(&self, name: &str) -> bool {
        let is_table = name == TABLE_NAME && self.table.is_some();
        let is_catalog = name == CATALOG_NAME && self.catalog.is_some();
        is_table || is_catalog || self.slabs.iter().any(|slab| slab.name.as_deref() == Some(name))
    }

    fn starts(&mut self) -> Vec<SlabStart> {
        let start = |slab: &mut SlabPlan| SlabStart { generation: slab.generation, kept: slab.kept.take() };
        self.slabs.iter_mut().map(start).collect()
    }

    fn found(&self) -> usize {
        self.slabs.iter().filter(|slab| slab.found.is_some()).count()
    }

    fn shards(&self) -> usize {
        self.slabs.iter().filter_map(|slab| slab.found.as_ref()).map(|found| found.slots.len()).sum()
    }
}

impl SlabPlan {
    fn fresh(generation: u32) -> SlabPlan {
        SlabPlan { generation, kept: None, name: None, found: None }
    }
}

fn say_cold(unfit: &Unfit) {
    tracing::warn!("DRAM begins cold: {unfit}");
}

/// Which boot of this machine it is.
fn boot_id() -> anyhow::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("the id of this boot")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).context("the id of this boot")?;
    Ok(id.to_be_bytes())
}
