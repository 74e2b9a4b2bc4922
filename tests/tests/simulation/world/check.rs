//! What must hold: at any moment, and when everything has come to rest. Owns: these checks. Must not know: how a run got there.

use super::{SLABS_MAX, World};
use std::collections::BTreeSet;
use turnkv::simulation::{Books, Fault};

impl World {
    /// What must hold at any moment.
    pub(super) fn check(&mut self) {
        let server = self.context.server();
        if let Err(why) = server.check() {
            self.context.broken(format!("the pool's books: {why}"));
        }
        self.check_losses(&server.books());
        let stats = server.stats();
        let dram = &stats.tiers[0];
        let breaths = if self.plan.breathes { SLABS_MAX * self.plan.shape.slab_bytes } else { 0 };
        let dram_max = self.plan.shape.dram_bytes.max(breaths);
        let bounds = [
            (dram.used_bytes <= dram.capacity_bytes, "DRAM holds more than there is"),
            (dram.capacity_bytes <= dram_max, "DRAM is larger than was ever asked for"),
            (stats.leases <= u64::from(self.plan.shape.leases_max), "more leases than leases_max"),
            (stats.sessions <= u64::from(self.plan.shape.sessions_max), "more sessions than sessions_max"),
            (stats.index_pages <= u64::from(self.plan.shape.pages_max), "more pages than pages_max"),
            (
                stats.namespaces <= u64::from(self.plan.shape.namespaces_max),
                "more namespaces than namespaces_max",
            ),
        ];
        for (holds, what) in bounds {
            if !holds {
                self.context.broken(format!("{what}: {stats:?}"));
            }
        }
        let books = server.books();
        let surplus_bytes = books.surplus_segments * self.plan.shape.segment_bytes;
        if let Some(nvme) = stats.tiers.get(1)
            && nvme.used_bytes > self.plan.shape.nvme_bytes + surplus_bytes
        {
            self.context.broken(format!("NVMe holds more than configured: {nvme:?}"));
        }
        if books.unreadable_extents > 0 && !self.plan.reads_fail_for_good() {
            self.context.broken(format!("a read that fails once costs a page: {books:?}"));
        }
    }

    /// No page is lost without being counted.
    fn check_losses(&mut self, books: &Books) {
        let (server, model) = (self.context.server(), self.context.model.borrow());
        let now: BTreeSet<(usize, u32)> = model
            .known()
            .filter(|(space, page)| server.held(&model.id(*space), &model.hash(*space, *page)).is_some())
            .collect();
        self.lost += self.seen.difference(&now).count() as u64;
        if now.len() as u64 != books.visible {
            self.context.broken(format!(
                "{} pages that were offloaded are there, and {} are counted",
                now.len(),
                books.visible
            ));
        }
        if self.lost > books.evicted + books.dropped {
            let Books { evicted, dropped, .. } = books;
            self.context.broken(format!(
                "{} pages are lost, {evicted} evicted and {dropped} dropped are counted",
                self.lost
            ));
        }
        self.seen = now;
    }

    /// At rest nobody holds anything and nothing is on its way.
    pub(super) fn check_rest(&mut self) {
        let server = self.context.server();
        let (books, stats) = (server.books(), server.stats());
        let stuck = self.pages.counts().faults.get(&Fault::Stuck).copied().unwrap_or(0) > 0;
        if stuck {
            return; // what is stuck waits for the power to be cut
        }
        let rest = [
            (stats.leases, "leases are held by nobody"),
            (stats.quarantined_bytes, "bytes are quarantined for nobody"),
            (books.writing_bytes, "bytes are being written"),
            (books.prefetching_bytes, "bytes are being read ahead"),
            (books.promotions, "reads are waited for"),
            (books.durable_waits, "commits wait to be durable"),
            (books.pinned_bytes, "bytes are in use"),
            (books.tier_operations, "operations are at the tier"),
        ];
        for (count, what) in rest {
            if count > 0 {
                self.context.broken(format!("at rest {count} {what}: {books:?}"));
            }
        }
        if server.poisoned().is_some() {
            return;
        }
        if books.extents + books.stranger_extents != books.live_extents {
            self.context.broken(format!("at rest the tier counts other extents than the pool: {books:?}"));
        }
    }
}
