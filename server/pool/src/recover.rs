//! Recovery: pages found on NVMe at start. Owns: closure of what was found. Must not know: segments, files.

use crate::Pool;
use crate::entry::{Cell, NONE, RECOVERING};
use crate::ids::{NamespaceIndex, NvmePlace};
use crate::residency::Removal;
use turnkv_proto::BlockHash;

/// A page found on NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredPage {
    /// Its hash.
    pub hash: BlockHash,
    /// The page before it.
    pub parent: Option<BlockHash>,
    /// Which shard.
    pub shard: u16,
    /// Where it is.
    pub place: NvmePlace,
    /// CRC-64/NVME of its bytes.
    pub checksum: u64,
    /// Above 0: a partial tail of so many tokens.
    pub tail_tokens: u32,
}

/// What recovery came to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Pages that became visible.
    pub pages: u64,
    /// Places, with their bytes, of extents that belong to no visible page, and of those that a later one replaced:
    /// forget them.
    pub orphans: Vec<(NvmePlace, u64)>,
}

impl Pool {
    /// Takes a page that was found on NVMe. Order does not matter, except that of two with one name the later wins:
    /// feed them in ascending sequence. Pages the pool has by other means are left alone.
    pub fn recover(&mut self, ns: NamespaceIndex, page: RecoveredPage) {
        let Some(desc) = self.namespaces.get(ns) else { return };
        let bytes = desc.shard_bytes;
        let found = self.pages.find(ns.0, &page.hash);
        let known = found.is_none_or(|index| self.pages[index].has(RECOVERING));
        let room = found.is_some() || self.pages.len() < self.config.limits.pages_max;
        let sane = page.shard < desc.shards
            && page.tail_tokens < desc.page_tokens.max(1)
            && page.parent != Some(page.hash);
        if !known || !room || !sane || !self.nvme_alive {
            self.dead.push((page.place, bytes));
            return;
        }
        let index = found.unwrap_or_else(|| {
            let index = self.pages.insert(ns.0, page.hash, NONE, RECOVERING);
            self.recovering.push((self.pages.key(index), page.parent));
            index
        });
        self.pages[index].cell.tail_tokens = page.tail_tokens as u16;
        self.set_place(index, page.shard, page.place);
        self.pages.cell_mut(index, page.shard).set_checksum(page.checksum);
    }

    /// Makes visible what is complete and reachable from a root; the rest is dropped.
    pub fn finish_recovery(&mut self) -> RecoveryReport {
        let before = self.tally.visible;
        let found = std::mem::take(&mut self.recovering);
        let resolve = |(key, parent)| self.pages.resolve(key).map(|index| (index, parent));
        let found: Vec<(u32, Option<BlockHash>)> = found.into_iter().filter_map(resolve).collect();
        let mut roots = Vec::new();
        for (index, parent) in &found {
            match parent.map(|hash| self.pages.find(self.pages[*index].ns, &hash)) {
                None => roots.push(*index),
                Some(None) => {}
                Some(Some(parent)) => {
                    self.pages.link(parent, *index);
                    if !self.pages[parent].has(RECOVERING) {
                        roots.push(*index);
                    }
                }
            }
        }
        // A cycle, if a damaged log had one, is not reachable from a root: this walk ends.
        while let Some(index) = roots.pop() {
            if !self.pages.cells(index).iter().all(Cell::committed) {
                continue;
            }
            self.pages[index].flags &= !RECOVERING;
            let mut child = self.pages[index].first_child;
            while child != NONE {
                roots.push(child);
                child = self.pages[child].next;
            }
            self.settle(index);
            self.settle_durable(index);
        }
        for (index, _) in &found {
            if self.pages[*index].has(RECOVERING) {
                self.remove_leaf(*index, Removal::Dropped);
            }
        }
        self.choose_leaving(self.pages.len()); // the tier may be smaller than what it holds
        RecoveryReport { pages: self.tally.visible - before, orphans: std::mem::take(&mut self.dead) }
    }
}
