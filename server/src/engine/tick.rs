//! The tick: deadlines, watermarks, dead clients, pages that could not be written before. Owns: when these are
//! looked after. Must not know: what they decide.

use super::Engine;
use crate::config::Verify;
use crate::limits::{CATALOG_FLUSH_MS, KEEP_LOOK, TICK_MS};
use crate::supervise::Supervisor;
use std::sync::Arc;
use std::time::Duration;

impl Engine {
    /// Starts the threads that look after time and segments; they end when the engine is dropped by its last user, and the
    /// process with them if they end before.
    pub(crate) fn run_threads(engine: &Arc<Engine>, supervisor: &Supervisor) -> std::io::Result<()> {
        supervisor.thread("turnkv-reclaim", Engine::reclaiming(engine)?)?;
        supervisor.thread("turnkv-resize", Engine::resizing(engine)?)?;
        if engine.settings.verify == Verify::Always {
            Engine::run_verify(engine, supervisor)?;
        }
        Engine::run_remote(engine, supervisor)?;
        if engine.outliving.is_some() {
            let weak = Arc::downgrade(engine);
            // Not with the ticks: a keeper that is stopped is waited for.
            supervisor.thread("turnkv-keep", move || {
                while let Some(engine) = weak.upgrade() {
                    if let Some(outliving) = &engine.outliving {
                        outliving.follow(&engine.clock, &engine.slabs.dram);
                    }
                    drop(engine);
                    std::thread::sleep(KEEP_LOOK);
                }
            })?;
        }
        let weak = Arc::downgrade(engine);
        supervisor.thread("turnkv-tick", move || {
            let mut ticks = 0u64;
            while let Some(engine) = weak.upgrade() {
                engine.tick();
                ticks += 1;
                if ticks.is_multiple_of(CATALOG_FLUSH_MS / TICK_MS) {
                    engine.flush_catalog();
                }
                drop(engine);
                std::thread::sleep(Duration::from_millis(TICK_MS));
            }
        })
    }

    /// Looks after everything once.
    pub(crate) fn tick(self: &Arc<Self>) {
        let now = self.now();
        for client in self.clients.take_gone() {
            tracing::info!(client = client.0, "a client's process is gone: its leases end");
            self.end_client(client);
        }
        drop(self.decide_in_slices(|core| core.pool.expire(now)));
        self.decide().pool.maintain(now);
        self.clear_namespaces();
        self.renew_postponed();
        self.pump_prefetches();
        self.check_nvme_health();
        self.follow_capacity(now);
        self.sweep_durable();
        self.start_reclaim();
        self.pump_writes(); // those that the tier had no room for wait until now
    }
}
