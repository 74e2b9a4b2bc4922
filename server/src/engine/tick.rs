//! The tick: deadlines, watermarks, dead clients, pages that could not be written before. Owns: when these are
//! looked after. Must not know: what they decide.

use super::Engine;
use crate::catalog::Catalog;
use crate::limits::{CATALOG_FLUSH_MS, TICK_MS};
use std::sync::Arc;
use std::time::Duration;
use turnkv_pool::NamespaceIndex;
use turnkv_proto::SessionId;

impl Engine {
    /// Starts the threads that look after time and segments; they end when the engine is dropped by its last user.
    pub(crate) fn run_threads(engine: &Arc<Engine>) -> std::io::Result<()> {
        Engine::run_reclaim(engine)?;
        let weak = Arc::downgrade(engine);
        let ticks = move || {
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
        };
        std::thread::Builder::new().name("turnkv-tick".into()).spawn(ticks).map(drop)
    }

    /// Looks after everything once.
    pub(crate) fn tick(self: &Arc<Self>) {
        let now = self.now();
        for client in self.clients.take_gone() {
            tracing::info!(client = client.0, "a client's process is gone: its leases end");
            self.core().pool.client_gone(client, now);
        }
        {
            let mut core = self.core();
            core.pool.expire(now);
            core.pool.maintain(now);
        }
        self.clear_namespaces();
        self.pump_prefetches();
        self.forget_dead_extents();
        self.check_nvme_health();
        self.sweep_durable();
        self.start_reclaim();
        self.pump_writes();
        self.freed.notify_waiters();
    }

    /// Brings back what the catalog has, as soon as it can be read.
    pub(super) fn load_catalog(&self) {
        if let Some(loaded) = self.catalog.as_ref().and_then(|catalog| catalog.load()) {
            self.bring_back(loaded);
        }
    }

    /// Writes to the catalog what changed, and what could not be written before.
    pub(crate) fn flush_catalog(&self) {
        let Some(catalog) = &self.catalog else { return };
        self.load_catalog();
        catalog.flush_namespaces();
        catalog.flush_pins();
        if catalog.take_rebuilt() {
            self.mark_all_sessions(catalog);
        }
        let (records, changed) = {
            let marked = catalog.take_marked();
            let now = self.now();
            let mut core = self.core();
            let forgotten = core.pool.take_forgotten();
            let changed: Vec<_> = marked.into_iter().chain(forgotten).collect();
            let record = |(ns, session): &(NamespaceIndex, SessionId)| {
                let namespace = core.pool.namespace_desc(*ns)?.id;
                let record = core.pool.session_record(*ns, session, now);
                Some((namespace, session.clone(), record))
            };
            (changed.iter().filter_map(record).collect::<Vec<_>>(), changed)
        };
        if catalog.put_sessions(&records).is_err() {
            // The catalog says what is wrong. What was not written is tried again.
            for (ns, session) in changed {
                catalog.mark(ns, session);
            }
        }
    }

    /// The catalog was begun anew: every session is to be written again.
    fn mark_all_sessions(&self, catalog: &Catalog) {
        let mut from = 0;
        loop {
            let (sessions, next) = self.core().pool.session_names(from);
            sessions.into_iter().for_each(|(ns, session)| catalog.mark(ns, session));
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
    }
}
