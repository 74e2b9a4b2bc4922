//! Adoption: a namespace is opened, and what the segments and the slabs of another process have of it becomes part of
//! the index. Owns: in which order, and which of it is whole. Must not know: segments, files.
//!
//! A page that was found in DRAM is newer than any that was not. If NVMe has the same bytes, it is in both. When it was used is
//! known of it: once all are there, they get that order (`take_uses`).
//!
//! What is found is put in order without the pool (`plan`: parents before children, what was written last
//! comes last, for nothing else is known of its use), then taken in by steps. In between pages may be
//! offloaded, strangers reclaimed: each page is looked at for itself, so a reader sees whole prefixes at any
//! moment.

use crate::ids::{NamespaceIndex, NvmePlace, PageKey, SlotKey};
use crate::limits::ADOPT_SHARDS_PER_CALL;
use crate::namespaces::table::NamespaceDesc;
use crate::nvme::found::{FoundSlab, FoundSlot};
use crate::nvme::strangers::Stranger;
use std::collections::HashSet;
use std::sync::Arc;
use turnkv_proto::{BlockHash, NamespaceId};

/// The adoption of one namespace's pages.
pub struct Adoption {
    ns: NamespaceIndex,
    id: NamespaceId,
    /// Extents, in order of their places; then what is in slots, as if it were extents.
    found: Arc<[Stranger]>,
    /// How many are extents.
    extents: usize,
    /// Slabs with pages of it, until these are taken in.
    slabs: Vec<FoundSlab>,
    /// The extents of whole pages: all shards of a page side by side, parents before children.
    order: Vec<u32>,
    /// The slots of these, where they are in DRAM.
    slots: Vec<Option<SlotKey>>,
    /// How many of these are of pages that were not looked at yet.
    slots_left: usize,
    /// When each page was used last that is in DRAM, and how often it was read; of others nothing is known.
    used: Vec<(u64, u8)>,
    /// Pages in DRAM that readers see, each with when it was used last.
    uses: Vec<(u64, PageKey)>,
    /// Slots of which no page is made: it is not whole, or another copy of it is newer.
    strays: Vec<SlotKey>,
    /// When the last page was written of those that hang together with each page.
    newest: Vec<u64>,
    shards: usize,
    /// How many of these were looked at.
    done: usize,
    adopted: u64,
    /// Pages that a full index had no room for.
    crowded_out: HashSet<BlockHash>,
}

/// What became of a page.
pub(crate) enum Adopted {
    /// Readers see it.
    Visible(PageKey),
    /// The index is full, or was for a page before it.
    CrowdedOut(BlockHash),
    /// It is here already, gone meanwhile, or hangs on nothing.
    Not,
}

/// Where in the sorted extents a whole page begins, and the page before it.
pub(crate) struct FoundPage {
    pub(super) first: usize,
    pub(super) parent: Option<usize>,
}

impl Adoption {
    /// What was found of a namespace, to be planned.
    pub(crate) fn new(
        ns: NamespaceIndex,
        id: NamespaceId,
        found: Arc<[Stranger]>,
        slabs: Vec<FoundSlab>,
    ) -> Adoption {
        Adoption {
            ns,
            id,
            extents: found.len(),
            found,
            slabs,
            order: Vec::new(),
            slots: Vec::new(),
            slots_left: 0,
            used: Vec::new(),
            uses: Vec::new(),
            strays: Vec::new(),
            newest: Vec::new(),
            shards: 1,
            done: 0,
            adopted: 0,
            crowded_out: HashSet::new(),
        }
    }

    /// Pages taken in so far.
    pub fn adopted(&self) -> u64 {
        self.adopted
    }

    /// Puts what is whole in order. Of several extents of one shard the latest counts. Without a pool,
    /// because it takes long.
    #[must_use]
    pub fn plan(mut self, desc: &NamespaceDesc) -> Adoption {
        let keys: Vec<SlotKey> = self.slabs.iter().flat_map(FoundSlab::keys).collect();
        let used = |slot: &FoundSlot| (slot.used, slot.reads);
        let used: Vec<(u64, u8)> = self.slabs.iter().flat_map(|slab| slab.slots.iter().map(used)).collect();
        if !keys.is_empty() {
            let in_slots = self.slabs.iter().flat_map(|slab| &slab.slots).map(as_extent);
            self.found = self.found.iter().copied().chain(in_slots).collect();
        }
        let found = Arc::clone(&self.found);
        let fits = |stranger: &Stranger| is_sane(stranger, desc);
        let sorted = latest(&found, fits);
        let on_nvme = if keys.is_empty() { Vec::new() } else { latest(&found[..self.extents], fits) };
        let mut placed = vec![false; keys.len()];
        self.shards = usize::from(desc.shards);
        let pages = whole_pages(&sorted, &found, self.shards);
        let extents = |page: &FoundPage| &sorted[page.first..page.first + self.shards];
        let written = |page: &FoundPage| extents(page).iter().map(|at| found[*at as usize].sequence).max();
        let written: Vec<u64> = pages.iter().map(|page| written(page).unwrap_or(0)).collect();
        for (page, newest) in newest_last(&pages, written) {
            let in_slots =
                extents(&pages[page]).iter().filter_map(|at| (*at as usize).checked_sub(self.extents));
            self.used.push(in_slots.map(|slot| used[slot]).max().unwrap_or_default());
            for at in extents(&pages[page]).iter().copied() {
                let slot = (at as usize).checked_sub(self.extents);
                self.order.push(slot.and_then(|_| twin(&found, &on_nvme, at)).unwrap_or(at));
                self.slots.push(slot.map(|slot| keys[slot]));
                slot.into_iter().for_each(|slot| placed[slot] = true);
                self.slots_left += usize::from(slot.is_some());
            }
            self.newest.push(newest);
        }
        self.strays =
            keys.into_iter().zip(placed).filter_map(|(key, placed)| (!placed).then_some(key)).collect();
        self
    }

    /// A slab with pages of it that is to be taken in next, before its pages are.
    pub(crate) fn next_slab(&mut self) -> Option<FoundSlab> {
        self.slabs.pop()
    }

    /// A slot of which no page is made.
    pub(crate) fn next_stray(&mut self) -> Option<SlotKey> {
        self.strays.pop()
    }

    /// The slots of the page that comes next, where its shards are in DRAM.
    pub(crate) fn next_slots(&self) -> &[Option<SlotKey>] {
        self.slots.get(self.done..self.done + self.shards).unwrap_or_default()
    }

    /// Whether one of the extents is one, and not only in a slot.
    pub(crate) fn is_extent(&self, at: u32) -> bool {
        (at as usize) < self.extents
    }

    /// When the last page was written of those that come next and hang together; none: there are no more.
    pub fn next_newest(&self) -> Option<u64> {
        self.newest.get(self.done / self.shards).copied()
    }

    /// The namespace, in this pool and everywhere.
    pub(crate) fn namespace(&self) -> (NamespaceIndex, NamespaceId) {
        (self.ns, self.id)
    }

    /// Pages that one call may look at.
    pub(crate) fn pages_per_call(&self) -> usize {
        (ADOPT_SHARDS_PER_CALL / self.shards).max(1)
    }

    /// The shards of the page that comes next, by their places among the extents.
    pub(crate) fn next_shards(&self) -> Option<&[u32]> {
        self.order.get(self.done..self.done + self.shards)
    }

    /// How often the page that comes next was read.
    pub(crate) fn next_reads(&self) -> u8 {
        self.used.get(self.done / self.shards).map_or(0, |(_, reads)| *reads)
    }

    /// The pages in DRAM that were taken in, each with when it was used last: in this order they leave, those of all namespaces.
    pub fn take_uses(&mut self) -> Vec<(u64, PageKey)> {
        std::mem::take(&mut self.uses)
    }

    /// One of the extents.
    pub(crate) fn extent(&self, at: u32) -> &Stranger {
        &self.found[at as usize]
    }

    /// Whether a full index had no room for a page.
    pub(crate) fn is_crowded_out(&self, page: &BlockHash) -> bool {
        self.crowded_out.contains(page)
    }

    /// The page that came next was looked at.
    pub(crate) fn note(&mut self, adopted: Adopted) {
        match adopted {
            Adopted::Visible(page) => {
                self.adopted += 1;
                let used = self.used.get(self.done / self.shards).filter(|(used, _)| *used > 0);
                self.uses.extend(used.map(|(used, _)| (*used, page)));
            }
            Adopted::CrowdedOut(page) => drop(self.crowded_out.insert(page)),
            Adopted::Not => {}
        }
        self.slots_left -= self.next_slots().iter().flatten().count();
        self.done += self.shards;
    }

    /// Whether there are more pages.
    pub(crate) fn has_more(&self) -> bool {
        self.done < self.order.len()
    }

    /// Whether there may be slots that no page has and that are not given up yet.
    pub(crate) fn has_slots(&self) -> bool {
        self.slots_left > 0 || !self.strays.is_empty()
    }
}

/// What is in a slot was put there after whatever is only on NVMe was.
const IN_DRAM: u64 = 1 << 63;

fn as_extent(slot: &FoundSlot) -> Stranger {
    Stranger {
        hash: slot.hash,
        parent: slot.parent,
        shard: slot.shard,
        shards: slot.shards,
        tail_tokens: slot.tail_tokens,
        bytes: slot.bytes,
        checksum: slot.checksum,
        place: NvmePlace { segment: 0, generation: 0, block: 0 },
        sequence: slot.sequence | IN_DRAM,
        leaving: false,
    }
}

/// The extent with the same bytes of the same shard as a slot has.
fn twin(found: &[Stranger], on_nvme: &[u32], slot: u32) -> Option<u32> {
    let wanted = &found[slot as usize];
    let name = |at: u32| (found[at as usize].hash, found[at as usize].shard);
    let at = on_nvme.binary_search_by_key(&(wanted.hash, wanted.shard), |at| name(*at)).ok()?;
    let twin = &found[on_nvme[at] as usize];
    let says = |found: &Stranger| (found.checksum, found.parent, found.tail_tokens);
    (says(twin) == says(wanted)).then_some(on_nvme[at])
}

fn is_sane(stranger: &Stranger, desc: &NamespaceDesc) -> bool {
    stranger.shards == desc.shards
        && stranger.shard < desc.shards
        && stranger.tail_tokens < desc.page_tokens.max(1)
        && u64::from(stranger.bytes) == desc.shard_bytes
        && stranger.parent != Some(stranger.hash)
}

/// Of what fits, the latest extent of each shard, in order of their hashes.
pub(crate) fn latest(found: &[Stranger], fits: impl Fn(&Stranger) -> bool) -> Vec<u32> {
    let mut sorted: Vec<u32> = (0..found.len() as u32).filter(|at| fits(&found[*at as usize])).collect();
    let name = |at: u32| (found[at as usize].hash, found[at as usize].shard);
    sorted.sort_unstable_by_key(|at| (name(*at), std::cmp::Reverse(found[*at as usize].sequence)));
    sorted.dedup_by_key(|at| name(*at));
    sorted
}

/// The pages of which every shard is there, in order of their hashes.
pub(crate) fn whole_pages(sorted: &[u32], found: &[Stranger], shards: usize) -> Vec<FoundPage> {
    let hash = |at: usize| found[sorted[at] as usize].hash;
    let (mut pages, mut first) = (Vec::new(), 0);
    while first < sorted.len() {
        let run = sorted[first..].iter().take_while(|at| found[**at as usize].hash == hash(first)).count();
        if run == shards {
            pages.push(FoundPage { first, parent: None });
        }
        first += run;
    }
    let firsts: Vec<usize> = pages.iter().map(|page| page.first).collect();
    for page in &mut pages {
        let parent = found[sorted[page.first] as usize].parent;
        page.parent = parent.and_then(|parent| firsts.binary_search_by_key(&parent, |at| hash(*at)).ok());
    }
    pages
}

/// The pages from the roots on, and from those whose parent is elsewhere. Pages of a cycle, if a damaged log
/// had one, are not among them.
pub(crate) fn parents_first(pages: &[FoundPage]) -> Vec<usize> {
    let mut starts = vec![0usize; pages.len() + 1];
    for parent in pages.iter().filter_map(|page| page.parent) {
        starts[parent + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut children = vec![0usize; starts.last().copied().unwrap_or(0)];
    let mut next = starts.clone();
    for (at, parent) in pages.iter().enumerate().filter_map(|(at, page)| Some((at, page.parent?))) {
        children[next[parent]] = at;
        next[parent] += 1;
    }
    let mut order: Vec<usize> = (0..pages.len()).filter(|at| pages[*at].parent.is_none()).collect();
    let mut at = 0;
    while at < order.len() {
        let page = order[at];
        order.extend_from_slice(&children[starts[page]..starts[page + 1]]);
        at += 1;
    }
    order
}

/// The pages in order, parents first, each after those that hang on its parent and were written before
/// whatever hangs on it; and with each when the last of its tree was written.
fn newest_last(pages: &[FoundPage], written: Vec<u64>) -> Vec<(usize, u64)> {
    let mut newest = written;
    let order = parents_first(pages);
    for page in order.iter().rev().copied() {
        if let Some(parent) = pages[page].parent {
            newest[parent] = newest[parent].max(newest[page]);
        }
    }
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); pages.len()];
    let (mut left, mut ordered) = (Vec::new(), Vec::with_capacity(order.len()));
    let mut by_age = order;
    by_age.sort_by_key(|page| std::cmp::Reverse(newest[*page]));
    // The oldest is on top, among the roots as among the children of each page.
    for page in by_age {
        match pages[page].parent {
            Some(parent) => children[parent].push(page as u32),
            None => left.push((page, newest[page])),
        }
    }
    while let Some((page, tree)) = left.pop() {
        ordered.push((page, tree));
        left.extend(std::mem::take(&mut children[page]).into_iter().map(|child| (child as usize, tree)));
    }
    ordered
}
