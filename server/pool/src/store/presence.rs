//! Pages that came to be in a tier, or are in it no more, for whoever tells others of them. Owns: the list of these since it was
//! taken last. Must not know: who listens.

use crate::namespaces::table::Namespaces;
use turnkv_proto::{BlockHash, NamespaceId};

/// Where a page can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageTier {
    /// All its shards are in slots.
    Dram,
    /// All its shards are on NVMe.
    Nvme,
}

/// A whole page that is in a tier from now on, or is in it no more. Partial tails are not told of: nobody but their session finds
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageChange {
    /// Whose it is.
    pub namespace: NamespaceId,
    /// Tokens of it.
    pub page_tokens: u32,
    /// Its name.
    pub hash: BlockHash,
    /// The page before it.
    pub parent: Option<BlockHash>,
    /// Where.
    pub tier: PageTier,
    /// Whether it is there now.
    pub here: bool,
}

/// Changes since they were taken last; nothing is noted unless somebody asked for it.
#[derive(Debug, Default)]
pub(super) struct Presence {
    asked: bool,
    noted: Vec<Noted>,
}

#[derive(Debug)]
struct Noted {
    ns: u16,
    hash: BlockHash,
    parent: Option<BlockHash>,
    tier: PageTier,
    here: bool,
}

impl Presence {
    /// From now on changes are noted.
    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether they are.
    pub(super) fn is_asked(&self) -> bool {
        self.asked
    }

    /// A page of a namespace came to a tier, or left it.
    pub(super) fn note(
        &mut self,
        ns: u16,
        hash: BlockHash,
        parent: Option<BlockHash>,
        tier: PageTier,
        here: bool,
    ) {
        self.noted.push(Noted { ns, hash, parent, tier, here });
    }

    /// What changed since the last call, in order.
    pub(super) fn take(&mut self, namespaces: &Namespaces) -> Vec<PageChange> {
        let noted = std::mem::take(&mut self.noted).into_iter();
        let change = |Noted { ns, hash, parent, tier, here }| {
            let (namespace, page_tokens) = (namespaces.id_at(ns), namespaces.page_tokens_at(ns));
            PageChange { namespace, page_tokens, hash, parent, tier, here }
        };
        noted.map(change).collect()
    }
}
