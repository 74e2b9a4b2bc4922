//! Which lists of pages there are. Owns: their names, and the places in a list. Must not know: pages, what an
//! order means.

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

impl ListId {
    /// Its number: that of NVMe first, then one a namespace.
    pub(crate) fn row(self) -> usize {
        match self {
            ListId::Nvme => 0,
            ListId::Dram(ns) => 1 + usize::from(ns),
        }
    }
}
