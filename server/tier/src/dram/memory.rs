//! What memory the host and this process's cgroup can still give, and giving pages back. Owns: reading /proc and the
//! cgroup. Must not know: slabs.

use crate::limits::HOST_SPARE_BYTES;
use rustix::fs::{FallocateFlags, fallocate};
use std::path::{Path, PathBuf};
use turnkv_transfer::{HugePages, Region};

/// Bytes that can be taken now, and what sets that limit. A host whose memory grows as it is used says too little of itself, so
/// it is not asked with `ask_host` false; the limit of a cgroup always counts.
pub(super) fn available_bytes(huge_pages: HugePages, ask_host: bool) -> (u64, &'static str) {
    let huge = match huge_pages {
        HugePages::Auto => huge_free_bytes(),
        HugePages::Off => 0,
    };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let host = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    let host = host.saturating_sub(HOST_SPARE_BYTES).saturating_add(huge);
    tightest(ask_host.then_some(host), cgroup_free_bytes())
}

fn tightest(host: Option<u64>, cgroup: Option<u64>) -> (u64, &'static str) {
    match (host, cgroup) {
        (host, Some(free)) if host.is_none_or(|host| free < host) => {
            (free, "the memory limit of this process's cgroup")
        }
        (Some(host), _) => {
            (host, "the host's available memory; dram.check_available = false where that grows")
        }
        (None, _) => (u64::MAX, "nothing"),
    }
}

/// Returns a region's pages to the system, whoever still maps them. Its next reader sees zeros.
pub(super) fn give_back(region: &Region) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = fallocate(region.fd(), flags, 0, region.len() as u64) {
        tracing::warn!(%errno, "an old slab's pages stay taken until its last user unmaps it");
    }
}

/// A field of /proc/meminfo, which counts in KiB.
fn meminfo_bytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

fn huge_free_bytes() -> u64 {
    let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let pages: u64 = text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    pages.saturating_mul(2 << 20)
}

/// What the tightest limit above this process leaves (cgroup v2); `None` without one.
fn cgroup_free_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = Path::new("/sys/fs/cgroup");
    let mut group: PathBuf = root.join(path.trim_start_matches('/'));
    let mut free = None;
    while group.starts_with(root) {
        if let (Some(limit), Some(used)) =
            (number(&group.join("memory.max")), number(&group.join("memory.current")))
        {
            let left = limit.saturating_sub(used).saturating_add(reclaimable(&group));
            free = Some(free.map_or(left, |free: u64| free.min(left)));
        }
        if !group.pop() {
            break;
        }
    }
    free
}

/// Page cache that the kernel would drop before it refuses memory.
fn reclaimable(group: &Path) -> u64 {
    let text = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let field = |name: &str| {
        let mut words = text.lines().map(str::split_ascii_whitespace);
        words.find_map(|mut line| {
            (line.next() == Some(name)).then(|| line.next()?.parse::<u64>().ok()).flatten()
        })
    };
    field("inactive_file").unwrap_or(0).saturating_add(field("active_file").unwrap_or(0))
}

/// A file that holds one number; `max` and absence are none.
fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_counts_in_kib() {
        let text = "MemTotal:       100 kB\nMemAvailable:    7 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable:"), Some(7 << 10));
        assert_eq!(meminfo_bytes(text, "Absent:"), None);
        assert_eq!(meminfo_bytes("MemAvailable: x kB", "MemAvailable:"), None);
    }

    #[test]
    fn a_host_that_grows_is_not_asked_and_a_cgroup_always_counts() {
        let (bytes, limited_by) = tightest(Some(5), Some(7));
        assert_eq!(bytes, 5);
        assert!(limited_by.contains("dram.check_available"), "{limited_by}");
        assert_eq!(tightest(Some(7), Some(5)).0, 5);
        assert_eq!(tightest(None, Some(7)).0, 7);
        assert_eq!(tightest(None, None).0, u64::MAX);
    }

    #[test]
    fn this_host_has_memory() {
        let (bytes, limited_by) = available_bytes(HugePages::Off, true);
        assert!(bytes > 0, "{limited_by}");
    }
}
