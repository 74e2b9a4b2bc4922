//! Who goes first. Owns: the trait of eviction policies. Must not know: whether a page may go (residency decides), nor when.

mod lru;

use crate::arena::Pages;
use crate::config::PolicyKind;

pub(crate) use lru::Lru;

/// One list of pages that compete for the same room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListId {
    /// Pages in DRAM of one namespace.
    Dram(u16),
    /// Pages on NVMe only, of all namespaces.
    Nvme,
}

/// Where a page enters a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// As the one used last.
    Hot,
    /// As the first victim.
    Cold,
    /// Just before another page of the list would go.
    ColderThan(u32),
}

/// An order of eviction. The links are in the entries, so that a policy costs no memory of its own a page.
pub(crate) trait EvictionPolicy: Send + Sync {
    /// Adds a page that is in no list.
    fn insert(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position);
    /// The page was used.
    fn touch(&mut self, pages: &mut Pages, list: ListId, page: u32);
    /// Takes a page out of its list.
    fn remove(&mut self, pages: &mut Pages, list: ListId, page: u32);
    /// The page to evict next.
    fn victim(&self, list: ListId) -> Option<u32>;
    /// The page to evict after this one.
    fn next_victim(&self, pages: &Pages, page: u32) -> Option<u32>;
}

/// Builds the policy that was configured.
pub(crate) fn build(kind: PolicyKind) -> Box<dyn EvictionPolicy> {
    match kind {
        PolicyKind::Lru => Box::new(Lru::default()),
    }
}
