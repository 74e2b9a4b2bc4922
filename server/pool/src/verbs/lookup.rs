//! Lookup: how much of a prefix is here. Owns: the read-only question. Must not know: leases, sessions.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::index::flags::COUNTED_DRAM;
use turnkv_proto::BlockHash;

/// Answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Found {
    /// How many leading hashes of the sample are present.
    pub present: u32,
    /// Of these, how many are in DRAM.
    pub dram: u32,
}

impl Pool {
    /// Counts the leading hashes of the sample that are present. Touches nothing. Ask for
    /// [`HASHES_PER_LOOK_MAX`] at a time where others wait.
    ///
    /// [`HASHES_PER_LOOK_MAX`]: crate::limits::HASHES_PER_LOOK_MAX
    pub fn lookup(&mut self, ns: NamespaceIndex, hashes: &[BlockHash], now: Now) -> Result<Found, PoolError> {
        self.namespaces.desc(ns)?;
        self.store.call.begin();
        self.store.call.advance(now);
        let mut found = Found::default();
        self.store.call.add(hashes.len() as u64);
        for index in hashes.iter().map_while(|hash| self.store.pages().find_visible(ns.0, hash)) {
            found.present += 1;
            found.dram += u32::from(self.store.pages()[index].has(COUNTED_DRAM));
        }
        Ok(found)
    }

    /// The handle of a page that readers can see.
    pub fn page_key(&self, ns: NamespaceIndex, hash: &BlockHash) -> Option<PageKey> {
        self.find_page(ns, hash).map(|index| self.store.pages().key(index))
    }

    /// The entry of a page that readers can see. None also where the namespace has retired: whoever has its place
    /// now has pages of its own.
    pub(super) fn find_page(&self, ns: NamespaceIndex, hash: &BlockHash) -> Option<u32> {
        self.namespaces.get(ns)?;
        self.store.pages().find_visible(ns.0, hash)
    }
}
