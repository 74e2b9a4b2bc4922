//! What was found on NVMe at a start: kept until its namespace is opened, then taken in. Owns: the verbs. Must
//! not know: segments, files.

use crate::Pool;
use crate::ids::{NamespaceIndex, Now};
use crate::nvme::adoption::Adoption;
use crate::nvme::strangers::Stranger;
use turnkv_proto::NamespaceId;

impl Pool {
    /// Takes all that was found on NVMe at start, before any namespace is open. What is more than the index
    /// may hold goes (`thin`): returns how many pages that are, which count as crowded out.
    #[must_use = "what does not fit is lost, and has to be said"]
    pub fn keep_strangers(&mut self, found: impl Iterator<Item = (NamespaceId, Stranger)>) -> u64 {
        self.store.keep_strangers(found)
    }

    /// Whether extents of a namespace wait for it to be opened.
    pub fn has_strangers(&self, id: &NamespaceId) -> bool {
        self.store.nvme().has_strangers(id)
    }

    /// Forgets some of those that nobody will ask for: what an adoption left, and all after a time. True:
    /// there are more. The ids are of namespaces of which nothing is left.
    pub fn forget_strangers(&mut self, now: Now) -> (bool, Vec<NamespaceId>) {
        self.store.forget_strangers(now)
    }

    /// Begins to take in what NVMe has of a namespace that was just opened. None: it has nothing.
    pub fn begin_adoption(&self, ns: NamespaceIndex) -> Option<Adoption> {
        self.store.begin_adoption(&self.namespaces, ns)
    }

    /// Takes in some of the pages that were planned, of those trees whose last page was written no later than
    /// `until`, so that several namespaces come in one order. True: there are more. What is not whole, or
    /// hangs on nothing, is forgotten by and by (`forget_strangers`).
    pub fn adopt(&mut self, adoption: &mut Adoption, until: u64) -> bool {
        self.store.adopt(&self.namespaces, adoption, until)
    }
}
