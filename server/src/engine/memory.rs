//! Page memory at a start: made anew, or taken over as the last process left it. Owns: what of the kept memory fits, and that
//! what does not is said in one line. Must not know: pages (the pool takes in what was found), who keeps the descriptors.

use super::clients::{Ghost, random_u64};
use super::outliving::{CATALOG_NAME, Outliving, SlotTableWriter, TABLE_NAME};
use super::start_plan::{BegunSlab, StartPlan};
use crate::config::{Bytes, Dram, Settings};
use crate::keep::custody::Kept;
use anyhow::Context;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use turnkv_tier::dram::table::{Geometry, SlotTable, Unfit};
use turnkv_tier::dram::{DramConfig, DramTier, SlabStart};
use turnkv_transfer::HugePages;

/// Page memory, and what was found in it.
pub(crate) struct Memory {
    /// The slabs.
    pub(crate) dram: DramTier,
    /// With what each slab begins.
    pub(crate) slabs: Vec<BegunSlab>,
    /// Processes that may still be writing some of it, or have it mapped.
    pub(crate) ghosts: Vec<Ghost>,
    /// What makes it outlive this process; none: it does not.
    pub(crate) outliving: Option<(Outliving, SlotTableWriter)>,
}

impl Memory {
    /// Memory of this process alone.
    pub(crate) fn of_this_process(dram: DramTier) -> Memory {
        let fresh = |_| BegunSlab { present: true, ..BegunSlab::default() };
        let slabs = (0..dram.slab_count()).map(fresh).collect();
        Memory { dram, slabs, ghosts: Vec::new(), outliving: None }
    }

    /// Page memory as it is configured; with what was kept, as far as that fits.
    pub(crate) fn start(settings: &Settings, kept: Option<Kept>) -> anyhow::Result<Memory> {
        let config = dram_config(settings);
        let memory = match kept {
            None => Memory::of_this_process(make(&config, None)?),
            Some(kept) => outlive(&config, kept, settings.nvme.is_none())?,
        };
        tracing::info!(
            bytes = memory.dram.report().bytes,
            slab_bytes = settings.dram.slab_bytes,
            locked_bytes = memory.dram.locked_bytes(),
            huge_bytes = memory.dram.huge_bytes(),
            "page memory is ready"
        );
        Ok(memory)
    }
}

/// Slabs that are kept stay as large as they are, where nobody said how large they are to be: how much memory there is to be may
/// be other than at their start.
pub(super) fn follow_kept(dram: &mut Dram, kept: &Kept) {
    let table = kept.descriptors.get(TABLE_NAME).filter(|_| dram.any_slab_bytes);
    // One that is of no use is refused, and said to be, when it is to be taken over.
    let Some(Ok(slab_bytes)) = table.map(|fd| SlotTable::slab_bytes_of(fd.as_fd())) else { return };
    let (slab_bytes, bytes) = (Bytes(slab_bytes), dram.bytes);
    match Dram::with_slabs(bytes, slab_bytes) {
        Ok((slab, whole)) if whole / slab <= u64::from(Geometry::widest(slab).slab_count) => {
            (dram.slab_bytes, dram.bytes) = (slab, whole);
        }
        // There cannot be so many of them, or so few: what is kept is of no use.
        _ => {}
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
        Some(starts) => {
            DramTier::start(DramConfig { slab_count: starts.len() as u32, ..config.clone() }, starts)
        }
    };
    let (dram, report) = made.context("page memory (dram.bytes)")?;
    for warning in [&report.lock_warning, &report.huge_warning].into_iter().flatten() {
        tracing::warn!("{warning}");
    }
    Ok(dram)
}

/// Memory that is kept: what was kept of the server before is gone through first. `saves`: what is saved of sessions is kept
/// there too.
fn outlive(config: &DramConfig, kept: Kept, saves: bool) -> anyhow::Result<Memory> {
    let began = Instant::now();
    let Kept { custody, mut descriptors } = kept;
    // A start that is refused takes nothing away from the next one.
    DramTier::check_room(config, bytes_of(&descriptors))?;
    let geometry = Geometry::widest(config.slab_bytes);
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
    if plan.lost > 0 {
        let slabs = plan.lost;
        tracing::warn!(slabs, "memory of some slabs was not kept: what was in them alone is recomputed");
    }
    // Sessions are of the pages that are there.
    plan.catalog = catalog.filter(|_| saves && plan.table.is_some());
    // What does not serve goes first: there may be no memory for both.
    for name in custody.names().iter().filter(|name| !plan.keeps(name)) {
        custody.drop_kept(name).context("who keeps page memory")?;
    }
    plan.clear();
    let starts = plan.starts();
    let dram = match make(config, Some(starts)) {
        Ok(dram) => dram,
        Err(error) if plan.found() > 0 => {
            tracing::warn!("DRAM begins cold: the kept memory cannot be taken over ({error:#})");
            for name in custody.names() {
                custody.drop_kept(&name).context("who keeps page memory")?;
            }
            plan = StartPlan::of(None, BTreeMap::new(), config.slab_count);
            make(config, None)?
        }
        Err(error) => return Err(error),
    };
    let made = match plan.table.take() {
        Some(table) => Ok(table),
        None => SlotTable::create(geometry, boot, user, random_u64()?),
    };
    let table = match made {
        Ok(table) => table,
        Err(error) => {
            tracing::warn!(%error, "nobody keeps DRAM for the next start: there is no slot table");
            return Ok(Memory::of_this_process(dram));
        }
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
    let outliving = Outliving::new(custody, &table, catalog)?;
    let writer = SlotTableWriter::new(table);
    let (slabs, ghosts) = plan.begun();
    let memory = Memory { dram, slabs, ghosts, outliving: Some((outliving, writer)) };
    if let Some((outliving, _)) = &memory.outliving {
        outliving.begin(&memory.dram);
    }
    Ok(memory)
}

/// Bytes that what is kept has at most.
fn bytes_of(descriptors: &BTreeMap<String, OwnedFd>) -> u64 {
    let bytes = |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |file| file.st_size.max(0) as u64);
    descriptors.values().map(bytes).sum()
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
