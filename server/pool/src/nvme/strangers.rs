//! Strangers: extents on NVMe of namespaces that are not open here (not yet; or their spec was lost, or does
//! not fit this pool's slabs). Owns: which of them there are, for how long they are kept. Must not know: why
//! a namespace is not open, how its pages become part of the index (`adopt`).
//!
//! A stranger takes space that nobody else asked for: it is in no books of what is to stay, so the reclaim of
//! its segment drops it, those segments are the first to be reclaimed, and after a time it goes by itself.

use crate::ids::NvmePlace;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnkv_proto::{BlockHash, NamespaceId};

/// One shard of a page, as its extent says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// The page's hash.
    pub hash: BlockHash,
    /// The page before it.
    pub parent: Option<BlockHash>,
    /// Which shard.
    pub shard: u16,
    /// Of so many.
    pub shards: u16,
    /// Above 0: a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// Its bytes.
    pub bytes: u32,
    /// CRC-64/NVME of these.
    pub checksum: u64,
    /// Where it is.
    pub place: NvmePlace,
    /// When it was written, in the tier's own order.
    pub sequence: u64,
    /// It went before others when the pool was left.
    pub leaving: bool,
}

/// The strangers of one namespace.
struct Family {
    /// In order of their places.
    extents: Arc<[Stranger]>,
    /// A bit for each: it is still there.
    alive: Vec<u64>,
    count: u64,
    bytes: u64,
    /// Nobody will ask for what is left: it goes, and is gone up to here.
    doomed_to: Option<usize>,
}

/// Strangers that were forgotten.
pub(super) struct Forgotten {
    /// Their extents, in order.
    pub(super) dead: Vec<Stranger>,
    /// Namespaces of which nothing is left.
    pub(super) gone: Vec<NamespaceId>,
    /// There are more.
    pub(super) more: bool,
}

/// All strangers.
#[derive(Default)]
pub(crate) struct Strangers {
    families: BTreeMap<NamespaceId, Family>,
    count: u64,
    bytes: u64,
}

impl Family {
    fn new(mut extents: Vec<Stranger>) -> Family {
        extents.sort_unstable_by_key(|stranger| stranger.place);
        extents.dedup_by_key(|stranger| stranger.place);
        let mut alive = vec![u64::MAX; extents.len().div_ceil(64)];
        if let Some(last) = alive.last_mut().filter(|_| !extents.len().is_multiple_of(64)) {
            *last = (1 << (extents.len() % 64)) - 1;
        }
        let bytes = extents.iter().map(|stranger| u64::from(stranger.bytes)).sum();
        Family { alive, count: extents.len() as u64, bytes, doomed_to: None, extents: extents.into() }
    }

    fn is_alive(&self, at: usize) -> bool {
        self.alive.get(at / 64).is_some_and(|word| word & 1 << (at % 64) != 0)
    }

    /// One of them is gone, or not a stranger any more; none if that was so already.
    fn take(&mut self, at: usize) -> Option<Stranger> {
        if !self.is_alive(at) {
            return None;
        }
        let stranger = self.extents[at];
        self.alive[at / 64] &= !(1 << (at % 64));
        self.count -= 1;
        self.bytes -= u64::from(stranger.bytes);
        Some(stranger)
    }
}

impl Strangers {
    /// Namespaces that have some.
    pub(super) fn families(&self) -> usize {
        self.families.len()
    }

    pub(super) fn extents_of(&self, id: &NamespaceId) -> Option<Arc<[Stranger]>> {
        self.families
            .get(id)
            .filter(|family| family.doomed_to.is_none())
            .map(|family| Arc::clone(&family.extents))
    }

    pub(super) fn is_alive(&self, id: &NamespaceId, at: usize) -> bool {
        self.families.get(id).is_some_and(|family| family.is_alive(at))
    }

    /// One of them is a stranger no more.
    pub(super) fn take(&mut self, id: &NamespaceId, at: usize) -> Option<Stranger> {
        let taken = self.families.get_mut(id)?.take(at)?;
        self.count -= 1;
        self.bytes -= u64::from(taken.bytes);
        Some(taken)
    }

    /// The extent at a place, if it is one of them, is a stranger no more.
    pub(super) fn take_at(&mut self, id: &NamespaceId, place: NvmePlace) -> Option<Stranger> {
        let extents = &self.families.get(id)?.extents;
        let at = extents.binary_search_by_key(&place, |stranger| stranger.place).ok()?;
        self.take(id, at)
    }

    /// What is left of a namespace's goes.
    pub(super) fn doom(&mut self, id: &NamespaceId) {
        if let Some(family) = self.families.get_mut(id) {
            family.doomed_to.get_or_insert(0);
        }
    }

    /// What is left of all goes.
    pub(super) fn doom_all(&mut self) {
        self.families.values_mut().for_each(|family| {
            family.doomed_to.get_or_insert(0);
        });
    }

    /// Whether some wait for a namespace to be opened.
    pub(super) fn wait_for(&self, id: &NamespaceId) -> bool {
        self.families.get(id).is_some_and(|family| family.count > 0 && family.doomed_to.is_none())
    }

    /// Extents of a namespace are strangers from now on.
    pub(super) fn keep(&mut self, id: NamespaceId, extents: Vec<Stranger>) {
        let family = Family::new(extents);
        self.count += family.count;
        self.bytes += family.bytes;
        self.families.insert(id, family);
    }

    /// Forgets some of those that nobody will ask for, looking at so many.
    pub(super) fn forget_some(&mut self, looks: usize) -> Forgotten {
        let (mut budget, mut dead, mut gone) = (looks, Vec::new(), Vec::new());
        for (id, family) in &mut self.families {
            let Some(from) = family.doomed_to else { continue };
            let to = family.extents.len().min(from + budget);
            budget -= to - from;
            for old in (from..to).filter_map(|at| family.take(at)) {
                self.count -= 1;
                self.bytes -= u64::from(old.bytes);
                dead.push(old);
            }
            family.doomed_to = Some(to);
            if to == family.extents.len() {
                gone.push(*id);
            }
            if budget == 0 {
                break;
            }
        }
        gone.iter().for_each(|id| {
            self.families.remove(id);
        });
        Forgotten { dead, gone, more: budget == 0 }
    }

    /// Extents, and their bytes.
    pub(super) fn sums(&self) -> (u64, u64) {
        (self.count, self.bytes)
    }

    pub(super) fn memory(&self) -> usize {
        let of = |family: &Family| family.extents.len() * size_of::<Stranger>() + family.alive.len() * 8;
        self.families.values().map(of).sum()
    }

    /// Counts them from scratch, for the check of invariants.
    pub(super) fn recount(&self) -> (u64, u64) {
        let alive = self.families.values().flat_map(|family| {
            let there = |(at, _): &(usize, &Stranger)| family.is_alive(*at);
            family.extents.iter().enumerate().filter(there).map(|(_, stranger)| u64::from(stranger.bytes))
        });
        alive.fold((0, 0), |(count, bytes), more| (count + 1, bytes + more))
    }
}

#[cfg(test)]
mod tests;
