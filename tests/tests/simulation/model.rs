//! What the promises demand, in plain maps. Owns: the pages that there are and what clients were told of each.
//! Must not know: how the server keeps them.

use super::content::Shard;
use std::collections::{BTreeMap, BTreeSet};
use turnkv_proto::{BlockHash, CheckedSpec, NamespaceId, Spec};

/// Namespaces, the trees of their pages, and what was said of these.
pub(crate) struct Model {
    pub(crate) spaces: Vec<Space>,
    /// By (namespace, page).
    pages: BTreeMap<(usize, u32), Page>,
    offloads: u64,
}

/// A namespace.
pub(crate) struct Space {
    pub(crate) spec: CheckedSpec,
    /// Parents of its pages; a page is named by its place here.
    pub(crate) parents: Vec<Option<u32>>,
}

/// What is known of a page.
#[derive(Default)]
struct Page {
    /// By shard: offloads whose bytes a reader may get.
    offered: BTreeMap<u16, BTreeSet<u64>>,
    /// By shard: somebody wrote what it should not, or lied about what it wrote.
    tainted: BTreeSet<u16>,
    /// By shard: kept, as somebody was told in this life of the server.
    kept: BTreeSet<u16>,
    durable: bool,
}

/// What a reader made of the bytes it got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Right.
    Right,
    /// A miss at the reader: the checksum says so.
    Corrupt,
    /// A broken promise.
    Wrong(String),
}

impl Model {
    pub(crate) fn new(specs: Vec<Spec>) -> Model {
        let space =
            |spec: Spec| Space { spec: spec.check().expect("a simulated spec checks"), parents: Vec::new() };
        Model { spaces: specs.into_iter().map(space).collect(), pages: BTreeMap::new(), offloads: 0 }
    }

    /// A new page.
    pub(crate) fn grow(&mut self, space: usize, parent: Option<u32>) -> u32 {
        let parents = &mut self.spaces[space].parents;
        parents.push(parent);
        parents.len() as u32 - 1
    }

    /// A page and all before it, the root first.
    pub(crate) fn path(&self, space: usize, page: u32) -> Vec<u32> {
        let mut path = vec![page];
        while let Some(parent) = self.spaces[space].parents[path[path.len() - 1] as usize] {
            path.push(parent);
        }
        path.reverse();
        path
    }

    pub(crate) fn shards(&self, space: usize) -> u16 {
        self.spaces[space].spec.shards()
    }

    pub(crate) fn shard_bytes(&self, space: usize) -> usize {
        self.spaces[space].spec.shard_bytes() as usize
    }

    pub(crate) fn id(&self, space: usize) -> NamespaceId {
        self.spaces[space].spec.id()
    }

    /// The name of a page.
    pub(crate) fn hash(&self, space: usize, page: u32) -> BlockHash {
        let mut hash = [0u8; 32];
        let mut word = (space as u64) << 32 | u64::from(page);
        for part in hash.chunks_exact_mut(8) {
            word =
                (word ^ word >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9).wrapping_add(0x9E37_79B9_7F4A_7C15);
            part.copy_from_slice(&word.to_le_bytes());
        }
        BlockHash(hash)
    }

    /// A number for an offload.
    pub(crate) fn next_offload(&mut self) -> u64 {
        self.offloads += 1;
        self.offloads
    }

    /// Somebody is about to commit these bytes.
    pub(crate) fn offer(&mut self, of: Shard, offload: u64) {
        self.page(of).offered.entry(of.shard).or_default().insert(offload);
    }

    /// That commit was refused: the bytes are nobody's.
    pub(crate) fn withdraw(&mut self, of: Shard, offload: u64) {
        self.page(of).offered.entry(of.shard).or_default().remove(&offload);
    }

    /// Somebody lied, or wrote where it should not.
    pub(crate) fn taint(&mut self, of: Shard) {
        self.page(of).tainted.insert(of.shard);
    }

    pub(crate) fn is_tainted(&self, of: Shard) -> bool {
        self.pages.get(&(of.space, of.page)).is_some_and(|page| page.tainted.contains(&of.shard))
    }

    /// A commit's reply says that it is kept.
    pub(crate) fn keep(&mut self, of: Shard) {
        self.page(of).kept.insert(of.shard);
    }

    /// Did anybody ever commit all of it?
    pub(crate) fn was_offered(&self, space: usize, page: u32) -> bool {
        (0..self.shards(space)).all(|shard| self.was_shard_offered(Shard { space, page, shard }))
    }

    /// Did anybody ever commit this shard?
    pub(crate) fn was_shard_offered(&self, of: Shard) -> bool {
        let page = self.pages.get(&(of.space, of.page));
        page.and_then(|page| page.offered.get(&of.shard)).is_some_and(|offers| !offers.is_empty())
    }

    /// A reply says that this page and all before it are durable.
    pub(crate) fn make_durable(&mut self, space: usize, page: u32) {
        for page in self.path(space, page) {
            self.pages.entry((space, page)).or_default().durable = true;
        }
    }

    /// Pages that somebody was told are durable.
    pub(crate) fn durable(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.pages.iter().filter(|(_, page)| page.durable).map(|(at, _)| *at)
    }

    /// A page is durable no longer, for a reason.
    pub(crate) fn forgive(&mut self, space: usize, page: u32) {
        if let Some(page) = self.pages.get_mut(&(space, page)) {
            page.durable = false;
        }
    }

    /// All pages ever offered.
    pub(crate) fn known(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.pages.keys().copied()
    }

    /// The server ends: what was only kept is no promise any more.
    pub(crate) fn new_life(&mut self) {
        for page in self.pages.values_mut() {
            page.kept.clear();
        }
    }

    /// Judges what a reader got for a shard, with the checksum that came with it.
    pub(crate) fn judge(&self, of: Shard, found: &[u8], checksum: u64) -> Verdict {
        if turnkv_transfer::checksum(found) != checksum {
            return match self.is_tainted(of) {
                true => Verdict::Corrupt,
                false => Verdict::Wrong(format!(
                    "{of:?}: bytes that nobody spoilt do not verify ({:?})",
                    super::content::whose(found)
                )),
            };
        }
        let Some((who, offload)) = super::content::whose(found) else {
            return Verdict::Wrong(format!("{of:?}: bytes that verify and are nobody's"));
        };
        let offered = self.pages.get(&(of.space, of.page)).and_then(|page| page.offered.get(&of.shard));
        match who == of && offered.is_some_and(|offered| offered.contains(&offload)) {
            true => Verdict::Right,
            false => Verdict::Wrong(format!("{of:?}: the bytes of {who:?}, offload {offload}")),
        }
    }

    fn page(&mut self, of: Shard) -> &mut Page {
        self.pages.entry((of.space, of.page)).or_default()
    }
}
