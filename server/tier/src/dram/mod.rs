//! The DRAM tier: slabs, each one sealed memfd, touched and locked before it is used. They come and go one by one.
//!
//! Owns: the slabs' memory, its budget, which generation of a slab is current. Must not know: slots' sizes,
//! who leases them, hashes, NVMe.
//!
//! A slab that changes its tenant is renewed: it gets a new memfd and a new generation, and the old one's
//! pages go back to the system at once, even while an old client still maps them (it would see zeros).
//!
//! - `memory`: what the host can give; `places`: where slabs are found
//! - [`table`]: what each slot holds, for the next process that has the slabs

mod memory;
mod places;
pub mod table;

use crate::errno::ErrnoClass;
use crate::limits::{KEPT_COLLAPSE_MAX, SLAB_THREADS_MAX, SLABS_MAX};
use places::Places;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use turnkv_transfer::{Granted, HugePages, Region, RegionOptions, RegionReport, Slot};

/// How much DRAM, and how.
#[derive(Clone, Debug)]
pub struct DramConfig {
    /// Bytes of one slab: a multiple of 4 KiB, of 2 MiB for huge pages.
    pub slab_bytes: u64,
    /// Number of slabs.
    pub slab_count: u32,
    /// Whether to use reserved huge pages where the system has them.
    pub huge_pages: HugePages,
    /// Whether to lock slabs in memory.
    pub lock: bool,
    /// Whether the host must say that it has so much memory available before any is taken. A virtual machine
    /// whose memory grows as it is used says too little; without this its limit shows only when it is
    /// reached.
    pub check_available: bool,
}

/// What the slabs got from the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DramReport {
    /// Bytes of all slabs.
    pub bytes: u64,
    /// Of these, locked in memory.
    pub locked_bytes: u64,
    /// Of these, in reserved huge pages.
    pub huge_bytes: u64,
    /// Why a slab is not locked although that was asked for, and what to do.
    pub lock_warning: Option<String>,
    /// Why a slab is not in huge pages although they were asked for, and what to do.
    pub huge_warning: Option<String>,
}

/// Why there is no DRAM tier, or no new slab.
#[derive(Debug, thiserror::Error)]
pub enum DramError {
    /// The configuration is not possible; the text says which part.
    #[error("dram: {0}")]
    Config(String),
    /// The budget is more than the host, or this process's cgroup, has to give.
    #[error(
        "dram: {asked_bytes} bytes of slabs are asked for and {available_bytes} are available ({limited_by}): \
         lower the DRAM budget or free memory"
    )]
    Budget {
        /// Bytes of all slabs.
        asked_bytes: u64,
        /// What can be had.
        available_bytes: u64,
        /// What sets that limit.
        limited_by: &'static str,
    },
    /// The system refused a slab.
    #[error("dram: slab {slab} of {slab_bytes} bytes: {source}")]
    Slab {
        /// Which.
        slab: u32,
        /// Its size.
        slab_bytes: u64,
        /// Why.
        source: io::Error,
    },
}

impl DramError {
    /// Is the system short of memory or descriptors, so that asking again later makes sense?
    #[must_use]
    pub fn is_short(&self) -> bool {
        match self {
            DramError::Slab { source, .. } => ErrnoClass::of_error(source) != ErrnoClass::Device,
            DramError::Config(_) | DramError::Budget { .. } => false,
        }
    }
}

/// The slabs.
#[derive(Debug)]
pub struct DramTier {
    config: DramConfig,
    slabs: Places<Slab>,
}

#[derive(Debug)]
struct Slab {
    /// `None` after a renewal failed, until one succeeds, and while DRAM is smaller: the slab serves nothing then.
    region: Option<Arc<Region>>,
    report: RegionReport,
    generation: u32,
}

/// With what a slab begins.
#[derive(Debug, Default)]
pub struct SlabStart {
    /// Of the memory: later ones are of a higher generation.
    pub generation: u32,
    /// Which memory it has.
    pub memory: SlabMemory,
}

/// The memory that a slab begins with.
#[derive(Debug, Default)]
pub enum SlabMemory {
    /// Fresh memory.
    #[default]
    Fresh,
    /// That of a process that is gone.
    Kept(OwnedFd),
    /// None, until it is made.
    Absent,
}

impl DramTier {
    /// Creates, touches and locks every slab. Takes as long as the system needs to clear so much memory.
    pub fn new(config: DramConfig) -> Result<(DramTier, DramReport), DramError> {
        let starts = (0..config.slab_count.min(SLABS_MAX)).map(|_| SlabStart::default()).collect();
        DramTier::start(config, starts)
    }

    /// The same with memory that was kept: one start a slab. Of memory that was kept nothing is touched.
    pub fn start(config: DramConfig, starts: Vec<SlabStart>) -> Result<(DramTier, DramReport), DramError> {
        check(&config)?;
        if starts.len() != config.slab_count as usize {
            return Err(DramError::Config("one start for each slab is needed".to_owned()));
        }
        let fresh = starts.iter().filter(|start| matches!(start.memory, SlabMemory::Fresh)).count();
        check_available(&config, fresh as u32)?;
        let slabs = Places::of(create_all(&config, starts)?);
        let tier = DramTier { config, slabs };
        let report = tier.report();
        Ok((tier, report))
    }

    /// File descriptors that this tier may hold at once: a slab's own, and while it is renewed its
    /// successor's.
    pub fn descriptors(&self) -> u64 {
        2 * u64::from(self.slab_count())
    }

    /// Number of slabs at the start, those without memory included.
    pub fn slab_count(&self) -> u32 {
        self.config.slab_count
    }

    /// One more than the highest number that a slab has had.
    pub fn numbers(&self) -> u32 {
        self.slabs.count()
    }

    /// Whether there would be memory for all slabs of a configuration once so many bytes more are free. Takes nothing.
    ///
    /// # Errors
    /// The configuration is not possible, or there would not.
    pub fn check_room(config: &DramConfig, freed_bytes: u64) -> Result<(), DramError> {
        check(config)?;
        let bytes = config.slab_bytes * u64::from(config.slab_count);
        let slabs = bytes.saturating_sub(freed_bytes).div_ceil(config.slab_bytes);
        check_available(config, slabs as u32)
    }

    /// Whether there is memory for so many slabs more.
    pub fn check_growth(&self, slabs: u32) -> Result<(), DramError> {
        check_available(&self.config, slabs)
    }

    /// Gives a slab that has no memory some, of this generation; the slab may be one that never was. As [`DramTier::renew`].
    pub fn make(&self, slab: u32, generation: u32) -> Option<Result<Arc<Region>, DramError>> {
        self.slabs.make(slab)?;
        self.renew(slab, generation)
    }

    /// A slab has no memory from this generation on: its pages go back to the system, whoever still maps them. One that is of a
    /// later generation already keeps what it has.
    pub fn give_back(&self, slab: u32, generation: u32) {
        let Some(mut place) = self.slabs.get(slab).map(|place| place.write()) else { return };
        if place.generation >= generation {
            return;
        }
        let old = std::mem::replace(&mut *place, Slab { generation, ..Slab::default() });
        drop(place);
        if let Some(region) = old.region {
            memory::give_back(&region);
        }
    }

    /// Bytes of one slab.
    pub fn slab_bytes(&self) -> u64 {
        self.config.slab_bytes
    }

    /// Gives a slab a new, zeroed memfd of this generation. Nobody may hold a lease in it. Blocks for as long
    /// as touching the slab takes. `None` if there is no such slab, or if it has been renewed as far or
    /// further. One that failed may be tried again.
    pub fn renew(&self, slab: u32, generation: u32) -> Option<Result<Arc<Region>, DramError>> {
        let mut place = self.slabs.get(slab)?.write();
        let failed = place.generation == generation && place.region.is_none();
        if place.generation >= generation && !failed {
            return None;
        }
        if let Some(old) = place.region.take() {
            memory::give_back(&old);
        }
        place.generation = generation;
        Some(create(&self.config, slab).map(|(region, report)| {
            place.region = Some(Arc::clone(&region));
            place.report = report;
            region
        }))
    }

    /// A slab's memory and generation.
    pub fn region(&self, slab: u32) -> Option<(Arc<Region>, u32)> {
        let place = self.slabs.get(slab)?.read();
        place.region.as_ref().map(|region| (Arc::clone(region), place.generation))
    }

    /// A slot, if the slab is still of this generation and the range lies in it.
    pub fn slot(&self, slab: u32, generation: u32, offset: u64, bytes: u64) -> Option<Slot> {
        let (region, current) = self.region(slab)?;
        if current != generation {
            return None;
        }
        region.slot(usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?)
    }

    /// Whether a slab may still become this generation: one that is renewed by another thread does soon.
    pub fn awaits(&self, slab: u32, generation: u32) -> bool {
        let current = self.slabs.get(slab).map(|slab| slab.read().generation);
        current.is_some_and(|current| current < generation)
    }

    /// Every slab's memory, in order; a slab whose renewal failed is left out.
    pub fn regions(&self) -> Vec<Arc<Region>> {
        self.slabs.iter().filter_map(|slab| slab.read().region.clone()).collect()
    }

    /// Bytes of slabs locked in memory.
    pub fn locked_bytes(&self) -> u64 {
        self.report().locked_bytes
    }

    /// Bytes of slabs in reserved huge pages.
    pub fn huge_bytes(&self) -> u64 {
        self.report().huge_bytes
    }

    /// What the slabs have now.
    pub fn report(&self) -> DramReport {
        let mut sum = DramReport::default();
        for slab in self.slabs.iter() {
            let slab = slab.read();
            let Some(region) = &slab.region else { continue };
            let bytes = region.len() as u64;
            sum.bytes += bytes;
            sum.locked_bytes += if slab.report.locked.is_yes() { bytes } else { 0 };
            sum.huge_bytes += if slab.report.huge.is_yes() { bytes } else { 0 };
            sum.lock_warning = sum.lock_warning.or_else(|| slab.report.locked.why_not().map(str::to_owned));
            sum.huge_warning = sum.huge_warning.or_else(|| slab.report.huge.why_not().map(str::to_owned));
        }
        sum
    }
}

impl Default for Slab {
    /// One without memory.
    fn default() -> Slab {
        let report = RegionReport { huge: Granted::NotAsked, locked: Granted::NotAsked };
        Slab { region: None, report, generation: 0 }
    }
}

fn check_available(config: &DramConfig, slabs: u32) -> Result<(), DramError> {
    let asked_bytes = config.slab_bytes * u64::from(slabs);
    let (available_bytes, limited_by) = memory::available_bytes(config.huge_pages, config.check_available);
    if asked_bytes > available_bytes {
        return Err(DramError::Budget { asked_bytes, available_bytes, limited_by });
    }
    Ok(())
}

fn check(config: &DramConfig) -> Result<(), DramError> {
    let bytes = config.slab_bytes;
    if bytes == 0 || !bytes.is_multiple_of(crate::limits::BLOCK_BYTES) || usize::try_from(bytes).is_err() {
        return Err(DramError::Config(format!("a slab of {bytes} bytes is not a positive multiple of 4096")));
    }
    if config.slab_count == 0 || config.slab_count > SLABS_MAX {
        let count = config.slab_count;
        return Err(DramError::Config(format!("{count} slabs; 1 to {SLABS_MAX} are possible")));
    }
    if bytes.checked_mul(u64::from(config.slab_count)).is_none() {
        return Err(DramError::Config("the slabs' sizes add up to more than 2^64 bytes".to_owned()));
    }
    Ok(())
}

fn create(config: &DramConfig, slab: u32) -> Result<(Arc<Region>, RegionReport), DramError> {
    let made = Region::create(&options(config, slab));
    made.map_err(|source| DramError::Slab { slab, slab_bytes: config.slab_bytes, source })
}

fn adopt(
    config: &DramConfig,
    slab: u32,
    fd: OwnedFd,
    until: Instant,
) -> Result<(Arc<Region>, RegionReport), DramError> {
    let adopted = Region::adopt(fd, &options(config, slab), until);
    adopted.map_err(|source| DramError::Slab { slab, slab_bytes: config.slab_bytes, source })
}

fn options(config: &DramConfig, slab: u32) -> RegionOptions {
    RegionOptions {
        bytes: config.slab_bytes as usize,
        huge_pages: config.huge_pages,
        touch: true,
        lock: config.lock,
        name: format!("turnkv-slab-{slab}"),
    }
}

/// Clearing memory is bound by one core's speed, so several threads create slabs.
fn create_all(config: &DramConfig, starts: Vec<SlabStart>) -> Result<Vec<Slab>, DramError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let until = Instant::now() + KEPT_COLLAPSE_MAX;
    let generations: Vec<u32> = starts.iter().map(|start| start.generation).collect();
    let starts: Vec<_> = starts.into_iter().map(|start| parking_lot::Mutex::new(start.memory)).collect();
    let made = parking_lot::Mutex::new(Vec::with_capacity(config.slab_count as usize));
    std::thread::scope(|scope| {
        for _ in 0..cores.min(SLAB_THREADS_MAX).min(config.slab_count as usize) {
            scope.spawn(|| {
                loop {
                    let slab = next.fetch_add(1, Ordering::Relaxed);
                    if slab >= config.slab_count as usize {
                        return;
                    }
                    let memory = std::mem::take(&mut *starts[slab].lock());
                    let result = match memory {
                        SlabMemory::Kept(fd) => adopt(config, slab as u32, fd, until).map(Some),
                        SlabMemory::Fresh => create(config, slab as u32).map(Some),
                        SlabMemory::Absent => Ok(None),
                    };
                    let failed = result.is_err();
                    made.lock().push((slab, result));
                    if failed {
                        next.store(config.slab_count as usize, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut made = made.into_inner();
    made.sort_by_key(|(slab, _)| *slab);
    let slab = |at: usize, made| match made {
        Some((region, report)) => Slab { region: Some(region), report, generation: generations[at] },
        None => Slab { generation: generations[at], ..Slab::default() },
    };
    made.into_iter().map(|(at, result)| result.map(|made| slab(at, made))).collect()
}

#[cfg(test)]
mod tests;
