//! The NVMe tier on a disk in memory that fails as it is told, without a thread: the same seed gives the same
//! run.
//!
//! Owns: opening such a tier, its steps. Must not know: what the steps do; they are the functions that the
//! threads of a real tier loop over. Behind the feature `simulation`: nothing of it is in a production build.
//!
//! ```no_run
//! use turnkv_tier::nvme::simulation::{Fault, FaultPlan, Random, SimulatedDisk};
//! use turnkv_tier::nvme::{NvmeConfig, NvmeTier};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = FaultPlan::calm(7).with(Fault::Short, 10_000); // 1 % of all reads and writes
//! let disk = SimulatedDisk::new(plan, 1 << 30)?;
//! let config = NvmeConfig { segment_bytes: 1 << 20, ..NvmeConfig::new("simulated", 8 << 20) };
//! let (tier, recovered, report) = NvmeTier::open_simulated(config.clone(), &disk)?;
//! // tier.write(..), tier.read(..), tier.flush(..): nothing happens until a step is taken. Call-backs run in the step.
//! let mut random = Random::new(8);
//! while tier.step_any(&mut random) {} // to the end, in an order the seed says; or one by one: tier.step(Step::Keeper)
//! disk.advance(std::time::Duration::from_secs(1)); // slow operations, and a full disk that is asked again, need time
//! disk.crash(); // the power is lost: all of the tier's calls fail from here on
//! drop(tier);   // ends what was in flight with errors
//! let again = NvmeTier::open_simulated(config, &disk)?;
//! # Ok(()) }
//! ```
//!
//! - A power cut in the middle of a step: [`Fault::PowerCut`] in the plan, at an operation of the disk. After
//!   it [`SimulatedDisk::is_off`] says so; what a call-back says from then on was heard by nobody, and
//!   [`SimulatedDisk::crash`] comes next. [`SimulatedDisk::kill`] ends the process and loses nothing.
//! - In [`FaultPlan::meanwhile`] calls of a million another thread of the tier does something in the middle
//!   of the call: what a thread does between two of its calls to the disk is not all at once.
//! - A database's file: [`SimulatedDisk::open_file`] has `len`, `read`, `write`, `set_len` and `sync` on
//!   `&self`, with the same cache, faults and crash; give it a disk of its own, or a name of its own on the
//!   tier's.
//! - Stuck operations end (with an error) when the power is cut; until then [`NvmeTier::shutdown`] gives up
//!   on them after its usual time, which is simulated too.

use super::config::{NvmeConfig, OpenError, OpenReport, Packing, Recovered};
use super::device::Device;
use super::engine::Driver;
use super::finish::FinishQueue;
use super::flush::Flushes;
use super::placer::Placer;
use super::simulated_engine::SimulatedDriver;
use super::{NvmeTier, keeper};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use super::simulated_disk::{Fault, FaultCounts, FaultPlan, Hit, Random, SimulatedDisk, SimulatedFile};

/// One thing that one thread of a real tier would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The keeper does a chore.
    Keeper,
    /// The engine carries out an operation that is queued, whichever the seed says.
    Carry,
    /// An operation that was carried out ends: it is verified, and called back.
    Finish,
    /// Every flush that waits is served.
    Flush,
}

impl Step {
    /// Every kind.
    pub const ALL: [Step; 4] = [Step::Keeper, Step::Carry, Step::Finish, Step::Flush];
}

impl NvmeTier {
    /// Opens a simulated disk and reads back what is there. Starts no thread: nothing happens but in
    /// [`NvmeTier::step`].
    pub fn open_simulated(
        config: NvmeConfig,
        disk: &SimulatedDisk,
    ) -> Result<(NvmeTier, Vec<Recovered>, OpenReport), OpenError> {
        let mut report = OpenReport { engine: "simulated", ..OpenReport::default() };
        let disk = disk.join();
        let device = Device::open_simulated(&config, &disk, &mut report.warnings)?;
        let (core, recovered) = super::read_back(device, &config, &mut report)?;
        let finish = Arc::new(FinishQueue::default());
        // What a codec is worth is measured in real time, which no seed replays.
        let packing = if config.packing == Packing::Auto { Packing::Off } else { config.packing };
        let packer = super::packer(&NvmeConfig { packing, ..config.clone() }, &core, true)?;
        let driver = SimulatedDriver::new(&core, &finish, config.inflight_bytes, disk.clone());
        let tier = NvmeTier::new(core, Driver::Simulated(driver), finish, packer);
        disk.set_others(tier.others());
        Ok((tier, recovered, report))
    }

    /// Takes a step; `false` if there was nothing to do for it.
    pub fn step(&self, step: Step) -> bool {
        take(&self.placer, &self.finish, &self.flushes, step)
    }

    /// Takes one step of those that have something to do, whichever the seed says; `false` if none has.
    pub fn step_any(&self, random: &mut Random) -> bool {
        let mut steps = Step::ALL;
        random.shuffle(&mut steps);
        steps.into_iter().any(|step| self.step(step))
    }

    /// What other threads do in the middle of one thread's call to the disk.
    fn others(&self) -> impl Fn(u64) + Send + Sync + 'static {
        let (placer, finish) = (Arc::downgrade(&self.placer), Arc::downgrade(&self.finish));
        let flushes = Arc::downgrade(&self.flushes);
        move |number| {
            let step = Step::ALL[(number % Step::ALL.len() as u64) as usize];
            if let (Some(placer), Some(finish), Some(flushes)) =
                (placer.upgrade(), finish.upgrade(), flushes.upgrade())
            {
                take(&placer, &finish, &flushes, step);
            }
        }
    }

    /// What the threads of a tier on a real device do meanwhile.
    pub(super) fn step_without_threads(&self) {
        let simulated = matches!(self.placer.engine, Driver::Simulated(_));
        while simulated && Step::ALL.into_iter().any(|step| self.step(step)) {}
    }
}

fn take(placer: &Placer, finish: &FinishQueue, flushes: &Flushes, step: Step) -> bool {
    let Driver::Simulated(driver) = &placer.engine else { return false };
    match step {
        Step::Keeper => alone(&driver.controlling, || keeper::step(placer)),
        Step::Carry => driver.carry(),
        Step::Finish => finish.step(&placer.core),
        Step::Flush => alone(&driver.controlling, || flushes.step(&placer.core)),
    }
}

/// A thread that others wait for in the middle of its work cannot be waited for here, where there is one
/// thread.
fn alone(busy: &AtomicBool, act: impl FnOnce() -> bool) -> bool {
    if busy.swap(true, Ordering::Relaxed) {
        return false;
    }
    let did = act();
    busy.store(false, Ordering::Relaxed);
    did
}
