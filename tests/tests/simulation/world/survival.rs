//! What survives the end of a life. Owns: what must be there at the next start, and what may be gone. Must not know: how lives
//! end.

use super::{End, World};
use std::collections::BTreeSet;
use turnkv::simulation::Held;

impl World {
    /// What must still be there after such an end, by what was promised and what the pool has given up since.
    pub(super) fn held(&self, end: End) -> Vec<(usize, u32, Held)> {
        let (server, model) = (self.context.server(), self.context.model.borrow());
        let find = |space: usize, page: u32| server.held(&model.id(space), &model.hash(space, page));
        let promised: Vec<(usize, u32)> = match end {
            End::Power => model.durable().collect(),
            // Every page whose write has completed.
            End::Kill => model.known().collect(),
            End::Clean => model.known().collect(),
        };
        let whole = |space: usize, page: u32| {
            model.path(space, page).iter().all(|page| find(space, *page).is_some_and(|held| held.on_nvme))
        };
        let mut found = Vec::new();
        for (space, page) in promised {
            let Some(held) = find(space, page) else { continue };
            if whole(space, page) {
                found.push((space, page, held));
            }
        }
        found
    }

    /// After a start: what was promised is there.
    pub(super) fn check_survivors(&mut self, held: Vec<(usize, u32, Held)>, misread: bool) {
        let server = self.context.server();
        let mut model = self.context.model.borrow_mut();
        let promised: Vec<(usize, u32)> = model.durable().collect();
        let mut missing = 0;
        for (space, page, was) in &held {
            if server.held(&model.id(*space), &model.hash(*space, *page)).is_some() {
                self.totals.survivors += 1;
                continue;
            }
            let chain = model.path(*space, *page);
            let spoilt = self.is_spoilt(was, &held, *space, &chain);
            if spoilt || misread {
                self.totals.forgiven += 1;
                continue;
            }
            // NVMe may have more than the index has room for, also what was forgotten before: what it leaves is counted.
            if chain.iter().all(|page| server.found(&model.id(*space), &model.hash(*space, *page))) {
                missing += 1;
                continue;
            }
            let durable = if promised.contains(&(*space, *page)) { "durable " } else { "" };
            self.context.broken(format!("{durable}page {space}:{page} ({was:?}) is gone after a restart"));
        }
        let crowded_out = server.books().crowded_out;
        if missing > crowded_out {
            self.context
                .broken(format!("{missing} pages are found and not served, {crowded_out} are counted"));
        }
        self.totals.crowded_out += missing;
        for (space, page) in promised {
            if server.held(&model.id(space), &model.hash(space, page)).is_none() {
                model.forgive(space, page);
            }
        }
    }

    /// Did the medium fail under a page or one before it?
    fn is_spoilt(&self, was: &Held, held: &[(usize, u32, Held)], space: usize, chain: &[u32]) -> bool {
        let before =
            held.iter().filter(|(at, page, _)| *at == space && chain.contains(page)).map(|(_, _, held)| held);
        let segments: BTreeSet<u32> = before
            .chain([was])
            .flat_map(|held| held.places.iter().flatten().map(|(segment, _)| *segment))
            .collect();
        let bytes = self.plan.shape.segment_bytes as usize;
        segments.iter().any(|segment| self.pages.is_damaged(&format!("segment-{segment:06}.kv"), 0, bytes))
    }
}
