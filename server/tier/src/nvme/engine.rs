//! Both engines behind one enum. Owns: the choice. Must not know: how either works.

use super::blocking::Blocking;
use super::config::{Engine, NvmeConfig, OpenError, OpenReport};
use super::core::Core;
use super::finish::FinishQueue;
use super::fixed::Fixed;
use super::operation::Operation;
use super::ring::Ring;
#[cfg(feature = "simulation")]
use super::simulated_engine::SimulatedDriver;
use std::sync::Arc;
use std::thread::JoinHandle;
use turnkv_transfer::Region;

/// What carries operations to the device.
pub(crate) enum Driver {
    /// io_uring.
    Ring(Ring),
    /// Threads.
    Blocking(Blocking),
    /// Steps of a simulation.
    #[cfg(feature = "simulation")]
    Simulated(SimulatedDriver),
}

impl Driver {
    /// Starts the engine that was asked for, or the other one with a warning.
    pub(crate) fn start(
        config: &NvmeConfig,
        core: &Arc<Core>,
        finish: &Arc<FinishQueue>,
        fixed: Fixed,
        report: &mut OpenReport,
    ) -> Result<Driver, OpenError> {
        if config.engine != Engine::Blocking {
            match Ring::start(core, finish, config.inflight_bytes, fixed) {
                Ok((ring, warnings)) => {
                    report.engine = "ring";
                    report.registered_bytes = ring.registered_bytes();
                    report.warnings.extend(warnings);
                    return Ok(Driver::Ring(ring));
                }
                Err(why) if config.engine == Engine::Ring => return Err(OpenError::Ring(why)),
                Err(why) => {
                    report.warnings.push(format!(
                        "io_uring is not available ({why}): threads do its work, for more CPU"
                    ));
                }
            }
        }
        report.engine = "blocking";
        let started = Blocking::start(core, finish, config.inflight_bytes);
        started.map(Driver::Blocking).map_err(|source| OpenError::Io {
            what: "cannot start threads for",
            path: config.path.clone(),
            source,
        })
    }

    /// Queues an operation. Its end comes through [`Core::finish`].
    pub(crate) fn submit(&self, operation: Operation) {
        match self {
            Driver::Ring(ring) => ring.submit(operation),
            Driver::Blocking(blocking) => blocking.submit(operation),
            #[cfg(feature = "simulation")]
            Driver::Simulated(simulated) => simulated.submit(operation),
        }
    }

    /// A slab has a new memory.
    pub(crate) fn register(&self, index: usize, region: Arc<Region>) {
        match self {
            Driver::Ring(ring) => ring.register(index, region),
            // They use whatever memory a slot has.
            Driver::Blocking(_) => {}
            #[cfg(feature = "simulation")]
            Driver::Simulated(_) => {}
        }
    }

    /// A slab's memory goes.
    pub(crate) fn unregister(&self, index: usize) {
        match self {
            Driver::Ring(ring) => ring.unregister(index),
            Driver::Blocking(_) => {}
            #[cfg(feature = "simulation")]
            Driver::Simulated(_) => {}
        }
    }

    /// Slab bytes registered with the kernel.
    pub(crate) fn registered_bytes(&self) -> u64 {
        match self {
            Driver::Ring(ring) => ring.registered_bytes(),
            Driver::Blocking(_) => 0,
            #[cfg(feature = "simulation")]
            Driver::Simulated(_) => 0,
        }
    }

    /// Lets the threads end once nothing is queued or in flight; gives their handles.
    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        match self {
            Driver::Ring(ring) => ring.stop(),
            Driver::Blocking(blocking) => blocking.stop(),
            #[cfg(feature = "simulation")]
            Driver::Simulated(_) => Vec::new(),
        }
    }
}
