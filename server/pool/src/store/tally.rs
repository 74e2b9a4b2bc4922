//! What is where, counted. Owns: the gauges and counters that change with a page's state. Must not know: pages.

/// Gauges and counters that residency keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) visible: u64,
    /// Pages that became visible, ever.
    pub(crate) shown: u64,
    pub(crate) dram_pages: u64,
    pub(crate) nvme_pages: u64,
    pub(crate) nvme_bytes: u64,
    pub(crate) dirty_bytes: u64,
    /// Shards being written.
    pub(crate) writing: u64,
    pub(crate) evicted: u64,
    pub(crate) dropped: u64,
    pub(crate) demoted: u64,
    pub(crate) promoted: u64,
    /// Shards taken over in DRAM as another process left them.
    pub(crate) found: u64,
    pub(crate) written: u64,
    pub(crate) written_bytes: u64,
    /// Pages that admission or the write budget kept off NVMe when they came.
    pub(crate) kept_off: u64,
    /// Pages that NVMe let go of while DRAM kept them.
    pub(crate) let_go: u64,
    /// Pages found on NVMe that a full index had no room for.
    pub(crate) crowded_out: u64,
    /// Extents of namespaces that are not open which were dropped for room.
    pub(crate) strangers_dropped: u64,
}
