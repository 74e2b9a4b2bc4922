//! Strangers: extents on NVMe of namespaces that are not open here (not yet; or their spec was lost, or does
//! not fit this pool's slabs). Owns: which of them there are, for how long they are kept. Must not know: why
//! a namespace is not open, how its pages become part of the index (`adopt`).
//!
//! A stranger takes space that nobody else asked for: it is in no books of what is to stay, so the reclaim of
//! its segment drops it, those segments are the first to be reclaimed, and after a time it goes by itself.

use crate::ids::{Now, NvmePlace, PlaceNote};
use crate::limits::{STRANGERS_MS_MAX, STRANGERS_PER_CALL};
use crate::nvme::Nvme;
use crate::nvme::thin::thin;
use crate::store::Store;
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

/// All strangers.
#[derive(Default)]
pub(crate) struct Strangers {
    families: BTreeMap<NamespaceId, Family>,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
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
    pub(crate) fn families(&self) -> usize {
        self.families.len()
    }

    pub(crate) fn extents_of(&self, id: &NamespaceId) -> Option<Arc<[Stranger]>> {
        self.families
            .get(id)
            .filter(|family| family.doomed_to.is_none())
            .map(|family| Arc::clone(&family.extents))
    }

    pub(crate) fn is_alive(&self, id: &NamespaceId, at: usize) -> bool {
        self.families.get(id).is_some_and(|family| family.is_alive(at))
    }

    /// One of them is a stranger no more.
    pub(crate) fn take(&mut self, id: &NamespaceId, at: usize) -> Option<Stranger> {
        let taken = self.families.get_mut(id)?.take(at)?;
        self.count -= 1;
        self.bytes -= u64::from(taken.bytes);
        Some(taken)
    }

    /// The extent at a place, if it is one of them, is a stranger no more.
    fn take_at(&mut self, id: &NamespaceId, place: NvmePlace) -> Option<Stranger> {
        let extents = &self.families.get(id)?.extents;
        let at = extents.binary_search_by_key(&place, |stranger| stranger.place).ok()?;
        self.take(id, at)
    }

    /// What is left of a namespace's goes.
    pub(crate) fn doom(&mut self, id: &NamespaceId) {
        if let Some(family) = self.families.get_mut(id) {
            family.doomed_to.get_or_insert(0);
        }
    }

    pub(crate) fn memory(&self) -> usize {
        let of = |family: &Family| family.extents.len() * size_of::<Stranger>() + family.alive.len() * 8;
        self.families.values().map(of).sum()
    }

    /// Counts them from scratch, for the check of invariants.
    pub(crate) fn recount(&self) -> (u64, u64) {
        let alive = self.families.values().flat_map(|family| {
            let there = |(at, _): &(usize, &Stranger)| family.is_alive(*at);
            family.extents.iter().enumerate().filter(there).map(|(_, stranger)| u64::from(stranger.bytes))
        });
        alive.fold((0, 0), |(count, bytes), more| (count + 1, bytes + more))
    }
}

impl Nvme {
    /// Whether extents of a namespace wait for it to be opened.
    fn has_strangers(&self, id: &NamespaceId) -> bool {
        self.strangers.families.get(id).is_some_and(|family| family.count > 0 && family.doomed_to.is_none())
    }

    /// The extent at a place is not kept for anybody who may come. It is dead from now on, also where its
    /// segment is not emptied after all. Returns how many extents went for which somebody could still have
    /// come.
    pub(super) fn forget_stranger(&mut self, id: &NamespaceId, place: NvmePlace) -> u64 {
        let waits = self.has_strangers(id); // else nobody would have asked for it
        let Some(old) = self.strangers.take_at(id, place) else { return 0 };
        self.note_dead(old.place, old.bytes.into());
        u64::from(waits)
    }
}

impl Store {
    /// Takes all that was found on NVMe at start, before any namespace is open. What is more than the index
    /// may hold goes (`thin`): returns how many pages that are, which count as crowded out.
    #[must_use = "what does not fit is lost, and has to be said"]
    pub(crate) fn keep_strangers(&mut self, found: impl Iterator<Item = (NamespaceId, Stranger)>) -> u64 {
        if !self.nvme.alive {
            return 0;
        }
        let mut families: BTreeMap<NamespaceId, Vec<Stranger>> = BTreeMap::new();
        for (id, stranger) in found {
            families.entry(id).or_default().push(stranger);
        }
        let all = families.values().flatten().filter(|stranger| stranger.shard == 0).count(); // one a page
        let pages_max = self.config.limits.pages_max as usize;
        if all > pages_max {
            let thinned = thin(&mut families, pages_max);
            thinned.extents.iter().for_each(|old| self.nvme.note_dead(old.place, old.bytes.into()));
            self.tally.crowded_out += thinned.pages;
        }
        for (id, extents) in families {
            let family = Family::new(extents);
            self.nvme.strangers.count += family.count;
            self.nvme.strangers.bytes += family.bytes;
            self.nvme.strangers.families.insert(id, family);
        }
        self.tally.crowded_out
    }

    /// Whether extents of a namespace wait for it to be opened.
    pub(crate) fn has_strangers(&self, id: &NamespaceId) -> bool {
        self.nvme.has_strangers(id)
    }

    /// Forgets some of those that nobody will ask for: what an adoption left, and all after a time. True:
    /// there are more. The ids are of namespaces of which nothing is left.
    pub(crate) fn forget_strangers(&mut self, now: Now) -> (bool, Vec<NamespaceId>) {
        self.call.advance(now);
        if self.call.now() >= STRANGERS_MS_MAX {
            self.nvme.strangers.families.values_mut().for_each(|family| {
                family.doomed_to.get_or_insert(0);
            });
        }
        let (mut budget, mut gone) = (STRANGERS_PER_CALL, Vec::new());
        for (id, family) in &mut self.nvme.strangers.families {
            let Some(from) = family.doomed_to else { continue };
            let to = family.extents.len().min(from + budget);
            budget -= to - from;
            for at in from..to {
                if let Some(old) = family.take(at) {
                    self.nvme.strangers.count -= 1;
                    self.nvme.strangers.bytes -= u64::from(old.bytes);
                    self.nvme.place_notes.push((old.place, PlaceNote::Dead(old.bytes.into())));
                }
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
            self.nvme.strangers.families.remove(id);
        });
        (budget == 0, gone)
    }
}
