//! Adoption: a namespace is opened, and what the segments have of it becomes part of the index. Owns: in
//! which order, and which of it is whole. Must not know: segments, files.
//!
//! What is found is put in order without the pool (`plan`: parents before children, what was written last
//! comes last, for nothing else is known of its use), then taken in by steps. In between pages may be
//! offloaded, strangers reclaimed: each page is looked at for itself, so a reader sees whole prefixes at any
//! moment.

use crate::ids::NamespaceIndex;
use crate::limits::ADOPT_SHARDS_PER_CALL;
use crate::namespaces::table::NamespaceDesc;
use crate::nvme::strangers::Stranger;
use std::collections::HashSet;
use std::sync::Arc;
use turnkv_proto::{BlockHash, NamespaceId};

/// The adoption of one namespace's pages.
pub struct Adoption {
    ns: NamespaceIndex,
    id: NamespaceId,
    found: Arc<[Stranger]>,
    /// The extents of whole pages: all shards of a page side by side, parents before children.
    order: Vec<u32>,
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
    Visible,
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
    pub(crate) fn new(ns: NamespaceIndex, id: NamespaceId, found: Arc<[Stranger]>) -> Adoption {
        let crowded_out = HashSet::new();
        let (order, newest) = (Vec::new(), Vec::new());
        Adoption { ns, id, found, order, newest, shards: 1, done: 0, adopted: 0, crowded_out }
    }

    /// Pages taken in so far.
    pub fn adopted(&self) -> u64 {
        self.adopted
    }

    /// Puts what is whole in order. Of several extents of one shard the latest counts. Without a pool,
    /// because it takes long.
    #[must_use]
    pub fn plan(mut self, desc: &NamespaceDesc) -> Adoption {
        let found = Arc::clone(&self.found);
        let fits = |stranger: &Stranger| is_sane(stranger, desc);
        let sorted = latest(&found, fits);
        self.shards = usize::from(desc.shards);
        let pages = whole_pages(&sorted, &found, self.shards);
        let extents = |page: &FoundPage| &sorted[page.first..page.first + self.shards];
        let written = |page: &FoundPage| extents(page).iter().map(|at| found[*at as usize].sequence).max();
        let written: Vec<u64> = pages.iter().map(|page| written(page).unwrap_or(0)).collect();
        for (page, newest) in newest_last(&pages, written) {
            self.order.extend_from_slice(extents(&pages[page]));
            self.newest.push(newest);
        }
        self
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
            Adopted::Visible => self.adopted += 1,
            Adopted::CrowdedOut(page) => drop(self.crowded_out.insert(page)),
            Adopted::Not => {}
        }
        self.done += self.shards;
    }

    /// Whether there are more pages.
    pub(crate) fn has_more(&self) -> bool {
        self.done < self.order.len()
    }
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
