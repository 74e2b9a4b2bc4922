//! DRAM that grows and shrinks while it serves. Owns: what may be asked for, the steps on the way there, by a thread of their own,
//! and what is said of it. Must not know: which slab leaves, and what becomes of its pages (the pool does); who asks.

use super::Engine;
use super::reclaim::Next;
use super::start::limits_of;
use crate::config::{Bytes, DRAM_BYTES_MIN, Settings};
use crate::limits::{RESIZE_LOOK, SLAB_RENEW_RETRY_MS};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use turnkv_pool::{PoolStats, Shrink};
use turnkv_proto::{Error, ErrorKind};
use turnkv_tier::dram::table::Geometry;

/// How far DRAM is on its way to its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResizeReport {
    /// What it is to have.
    pub(crate) wanted_bytes: u64,
    /// What it has.
    pub(crate) present_bytes: u64,
    /// Slabs that are being emptied.
    pub(crate) leaving_slabs: u32,
    /// What keeps them: bytes under leases (read, written, mapped, or in quarantine).
    pub(crate) leased_bytes: u64,
    /// Bytes of protected pages that are nowhere else.
    pub(crate) protected_bytes: u64,
    /// Bytes that are still to be written to NVMe.
    pub(crate) dirty_bytes: u64,
    /// It is there.
    pub(crate) done: bool,
    /// What stands in the way; empty: nothing.
    pub(crate) note: String,
}

impl Engine {
    /// So many file descriptors are left beside tiers and connections: slabs beyond those of the start may have them.
    pub(crate) fn spare_descriptors(&self, spare: u64) {
        self.resizer.descriptors_spare.store(spare, Ordering::Relaxed);
    }

    /// These settings have changed in the file and take a restart.
    pub(crate) fn settings_wait(&self, keys: Vec<String>) {
        *self.resizer.settings_waiting.lock() = keys;
    }

    /// What an operator should know of them.
    pub(crate) fn settings_note(&self) -> Option<String> {
        let keys = self.resizer.settings_waiting.lock();
        let note = || format!("changed in the configuration file, and take a restart: {}", keys.join(", "));
        (!keys.is_empty()).then(note)
    }

    /// Shares of DRAM are as these settings say from now on; what was granted before stays.
    pub(crate) fn set_shares(&self, settings: &Settings) {
        let limits = limits_of(settings);
        self.decide().pool.set_shares(&limits, settings.limits.free_slots_percent);
    }

    /// DRAM is to have so many bytes, in whole slabs. Returns at once: the rest is done beside everything else, and what was asked
    /// for before does not count any more. What it is to have already changes nothing, and is refused by nothing.
    pub(crate) fn resize_dram(&self, bytes: u64) -> Result<ResizeReport, Error> {
        let slabs = self.slabs_of(bytes)?;
        let stats = self.decide().pool.stats();
        if u64::from(slabs) * self.settings.dram.slab_bytes == stats.dram_wanted_bytes {
            return Ok(self.resize_report());
        }
        let present = (stats.dram_present_bytes / self.settings.dram.slab_bytes) as u32;
        self.check_growth(slabs, present)?;
        self.want_slabs(slabs);
        tracing::info!(
            bytes = u64::from(slabs) * self.settings.dram.slab_bytes,
            before = stats.dram_present_bytes,
            "page memory is to have another size"
        );
        if let Some(bell) = self.resizer.bell.get() {
            // Full: it was rung, and not heard yet. Gone: the process ends.
            bell.try_send(()).unwrap_or_default();
        }
        Ok(self.resize_report())
    }

    /// DRAM is to have so many slabs, whatever that takes: the steps there are to be taken.
    pub(crate) fn want_slabs(&self, slabs: u32) {
        *self.resizer.trouble.lock() = None;
        let now = self.now();
        self.decide().pool.resize_dram(slabs, now);
    }

    /// How far it is.
    pub(crate) fn resize_report(&self) -> ResizeReport {
        let stats = self.decide().pool.stats();
        let present_bytes = self.slabs.dram.report().bytes;
        let trouble = self.resizer.trouble.lock().as_ref().map(|(why, _)| why.clone());
        let (wanted, counted) = (stats.dram_wanted_bytes, stats.dram_present_bytes);
        ResizeReport {
            wanted_bytes: wanted,
            present_bytes,
            leaving_slabs: stats.leaving_slabs,
            leased_bytes: stats.leaving_leased_bytes,
            protected_bytes: stats.leaving_protected_bytes,
            dirty_bytes: stats.dirty_bytes,
            done: counted == wanted && present_bytes <= wanted,
            note: trouble.or_else(|| kept(&stats)).unwrap_or_default(),
        }
    }

    /// The work of the thread that resizes; it ends with the engine.
    pub(super) fn resizing(engine: &Arc<Engine>) -> std::io::Result<impl FnOnce() + Send + use<>> {
        let (bell, rung) = sync_channel(1);
        if !engine.resize_report().done {
            // What was kept is not as large as memory is to be.
            bell.try_send(()).unwrap_or_default();
        }
        if engine.resizer.bell.set(bell).is_err() {
            return Err(std::io::Error::other("resize has a thread already"));
        }
        let weak = Arc::downgrade(engine);
        Ok(move || {
            while rung.recv().is_ok() {
                loop {
                    match weak.upgrade().map_or(Next::Rung, |engine| engine.step_resize()) {
                        Next::Now => {}
                        Next::Soon => std::thread::sleep(RESIZE_LOOK),
                        Next::Rung => break,
                    }
                }
            }
        })
    }

    /// One step: some pages go, one slab goes or comes.
    pub(crate) fn step_resize(&self) -> Next {
        let waits = self.resizer.trouble.lock().as_ref().is_some_and(|(_, until)| self.clock.now() < *until);
        let (shrunk, left, next) = {
            let (mut core, now) = (self.decide(), self.now());
            let shrunk = core.pool.shrink_some(now);
            let next = if waits { None } else { core.pool.slab_to_make() };
            if let (Some((slab, generation)), Some(table)) = (next, &mut core.slot_table) {
                table.begin_slab(slab, generation);
            }
            (shrunk, core.pool.take_left_slabs(1), next)
        };
        let went = !left.is_empty();
        for (slab, generation) in left {
            self.give_back_slab(slab, generation);
        }
        if let Some((slab, generation)) = next {
            return self.make_slab(slab, generation);
        }
        match shrunk {
            _ if went => Next::Now,
            _ if waits => Next::Soon,
            Shrink::Now => Next::Now,
            Shrink::Soon => Next::Soon,
            Shrink::Done => {
                tracing::info!(bytes = self.slabs.dram.report().bytes, "page memory has its size");
                Next::Rung
            }
        }
    }

    /// A slab that is empty for good: whoever knows its memory lets go of it, and the system has it back.
    fn give_back_slab(&self, slab: u32, generation: u32) {
        if let Some((region, old)) = self.slabs.dram.region(slab).filter(|(_, current)| *current < generation)
        {
            self.remote.detach(&region);
            if let Some(outliving) = &self.outliving {
                outliving.let_go(slab, old);
            }
        }
        if let Some(nvme) = &self.nvme {
            nvme.unregister(slab as usize);
        }
        self.slabs.dram.give_back(slab, generation);
        self.slabs.tell_renewed();
    }

    /// A slab that comes: it serves once its memory is there.
    fn make_slab(&self, slab: u32, generation: u32) -> Next {
        match self.slabs.dram.make(slab, generation) {
            Some(Ok(region)) => {
                self.remote.attach(&region);
                // Before any page is in it.
                if let Some(outliving) = &self.outliving {
                    outliving.keep(slab, generation, &region);
                }
                if let Some(nvme) = &self.nvme {
                    nvme.register(slab as usize, region);
                }
                *self.resizer.trouble.lock() = None;
                self.decide().pool.slab_made(slab);
                Next::Now
            }
            made => {
                let why = made.map_or_else(
                    || "no more slabs are possible".to_owned(),
                    |made| made.err().map(|error| error.to_string()).unwrap_or_default(),
                );
                tracing::warn!(slab, why, "page memory does not grow now: it is tried again");
                let until = self.clock.now() + Duration::from_millis(SLAB_RENEW_RETRY_MS);
                let why = format!("{why}: tried again until it is there; `turnkv resize` to less ends that");
                *self.resizer.trouble.lock() = Some((why, until));
                Next::Soon
            }
        }
    }

    fn slabs_of(&self, bytes: u64) -> Result<u32, Error> {
        let slab_bytes = self.settings.dram.slab_bytes;
        let most = u64::from(Geometry::widest(slab_bytes).slab_count) * slab_bytes;
        let least = DRAM_BYTES_MIN.max(slab_bytes);
        if (least..=most).contains(&bytes) {
            return Ok((bytes / slab_bytes) as u32);
        }
        let (least, most) = (Bytes(least), Bytes(most));
        Err(Error::invalid(format!(
            "{} is not within {least} and {most}, what DRAM can have in slabs of {}",
            Bytes(bytes),
            Bytes(slab_bytes)
        )))
    }

    fn check_growth(&self, slabs: u32, present: u32) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Limit, text));
        if let Err(error) = self.slabs.dram.check_growth(slabs.saturating_sub(present)) {
            return refuse(error.to_string());
        }
        let spare = self.resizer.descriptors_spare.load(Ordering::Relaxed);
        let more =
            (2 + self.held_descriptors()) * u64::from(slabs.saturating_sub(self.slabs.dram.slab_count()));
        if more > spare {
            return refuse(format!(
                "so many slabs need {more} more open files, and {spare} are left beside connections: raise the limit of open files, lower limits.connections_max, or start with a larger dram.slab_bytes"
            ));
        }
        Ok(())
    }
}

/// What keeps slabs that are to leave.
fn kept(stats: &PoolStats) -> Option<String> {
    let leased = (stats.leaving_leased_bytes > 0).then(|| {
        format!(
            "{} are leased (read, written, mapped or in quarantine) and leave when that ends",
            Bytes(stats.leaving_leased_bytes)
        )
    });
    let protected = (stats.leaving_protected_bytes > 0).then(|| {
        format!(
            "{} are protected and nowhere else: they leave when their pins and priorities end",
            Bytes(stats.leaving_protected_bytes)
        )
    });
    let both: Vec<String> = [leased, protected].into_iter().flatten().collect();
    (!both.is_empty()).then(|| both.join("; "))
}
