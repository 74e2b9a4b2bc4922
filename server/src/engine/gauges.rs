//! Gauges, and counters that the rooms keep themselves, read when somebody looks. Owns: one row for each: name, label, help,
//! and where its value is. Must not know: HTTP.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use turnkv_pool::PoolStats;
use turnkv_tier::Usage;

/// What is kept for the next start.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct KeptDescriptors {
    /// Descriptors that are.
    pub(super) kept: u64,
    /// Those that whoever keeps has no room for.
    pub(super) refused: u64,
    /// Memory is to be kept and is not.
    pub(super) fails: bool,
}

/// What is looked at, at one moment.
pub(super) struct Picture {
    pub(super) pool: PoolStats,
    pub(super) nvme: Usage,
    pub(super) locked_bytes: u64,
    pub(super) huge_bytes: u64,
    /// Bytes of slabs that have memory.
    pub(super) present_bytes: u64,
    pub(super) draining: bool,
    /// Process and user of the client that holds most of what all share.
    pub(super) fullest: (i32, u32),
    pub(super) writing_bytes: u64,
    pub(super) prefetching_bytes: u64,
    pub(super) promotions_waited_for: u64,
    pub(super) route_engines: u64,
    pub(super) route_sessions: u64,
    pub(super) route_marks: u64,
    pub(super) durable_waits: u64,
    pub(super) catalog_changes: u64,
    pub(super) slot_waits: u64,
    pub(super) catalog_bytes: u64,
    pub(super) list_pages: u64,
    pub(super) list_budget_pages: u64,
    pub(super) catalog_fails: bool,
    pub(super) catalogs_set_aside: u64,
    pub(super) kept: KeptDescriptors,
    /// Page bytes written to NVMe for the first time, since start.
    pub(super) first_written_bytes: u64,
}

/// Where a row's value is.
type Read<T> = fn(&Picture) -> T;
type Label = Option<(&'static str, &'static str)>;
type GaugeRow = (&'static str, Label, &'static str, Read<f64>);
type CounterRow = (&'static str, &'static str, Read<u64>);

/// The handles, each with where its value is.
pub(super) struct Gauges {
    gauges: Vec<(Gauge, Read<f64>)>,
    counters: Vec<(Counter, Read<u64>)>,
}

const DRAM: Label = Some(("tier", "dram"));
const NVME: Label = Some(("tier", "nvme"));
const CAPACITY: &str = "turnkv_tier_capacity_bytes";
const CAPACITY_HELP: &str = "Configured bytes of a tier";
const USED: &str = "turnkv_tier_used_bytes";
const USED_HELP: &str = "Bytes of a tier that hold pages";
const LEASED: &str = "turnkv_tier_leased_bytes";
const LEASED_HELP: &str = "Bytes of a tier under lease";
const PINNED: &str = "turnkv_tier_pinned_bytes";
const PINNED_HELP: &str = "Bytes of a tier that cannot be given up now: leased, being written or read into";
const PAGES: &str = "turnkv_tier_pages";
const PAGES_HELP: &str = "Pages in a tier";
const SESSIONS: &str = "turnkv_pool_sessions";
const SESSIONS_HELP: &str =
    "Sessions remembered: in a turn, expected back at a time that was told, or idle without one";
const KEPT: &str = "turnkv_dram_kept_bytes";
const KEPT_HELP: &str = "Bytes that keep slabs which are to leave: under leases, protected and nowhere else";
const QUEUE: &str = "turnkv_queue_waiting_operations";
const QUEUE_HELP: &str = "Operations that wait: pages to be written, operations at the NVMe tier, reads that reloads wait \
     for, durable commits, calls that wait for slots, sessions to be saved";

const GAUGES: &[GaugeRow] = &[
    (CAPACITY, DRAM, CAPACITY_HELP, |at| at.pool.dram.capacity_bytes as f64),
    (CAPACITY, NVME, CAPACITY_HELP, |at| at.nvme.capacity_bytes as f64),
    (USED, DRAM, USED_HELP, |at| at.pool.dram.used_bytes as f64),
    (USED, NVME, USED_HELP, |at| at.nvme.used_bytes as f64),
    (LEASED, DRAM, LEASED_HELP, |at| at.pool.dram.leased_bytes as f64),
    (LEASED, NVME, LEASED_HELP, |at| at.pool.nvme.leased_bytes as f64),
    (PINNED, DRAM, PINNED_HELP, |at| at.pool.dram.pinned_bytes as f64),
    (PINNED, NVME, PINNED_HELP, |at| at.pool.nvme.pinned_bytes as f64),
    (PAGES, DRAM, PAGES_HELP, |at| at.pool.dram.pages as f64),
    (PAGES, NVME, PAGES_HELP, |at| at.pool.nvme.pages as f64),
    ("turnkv_pool_dirty_bytes", None, "Bytes in DRAM that wait to be written to NVMe", |at| {
        at.pool.dirty_bytes as f64
    }),
    (
        "turnkv_nvme_behind_devices",
        None,
        "1 while pages stay in DRAM only until NVMe has time or room for them, 0 otherwise",
        |at| f64::from(u8::from(at.pool.behind)),
    ),
    ("turnkv_pool_quarantined_bytes", None, "Bytes that an expired writer may still be writing to", |at| {
        at.pool.quarantined_bytes as f64
    }),
    (SESSIONS, Some(("state", "in_turn")), SESSIONS_HELP, |at| at.pool.sessions_in_turn as f64),
    (SESSIONS, Some(("state", "expected")), SESSIONS_HELP, |at| at.pool.sessions_expected as f64),
    (SESSIONS, Some(("state", "idle")), SESSIONS_HELP, |at| {
        at.pool.sessions.saturating_sub(at.pool.sessions_in_turn + at.pool.sessions_expected) as f64
    }),
    ("turnkv_pool_namespaces", None, "Namespaces open", |at| at.pool.namespaces as f64),
    ("turnkv_pool_retiring_namespaces", None, "Namespaces that made way and are being dropped", |at| {
        at.pool.retiring_namespaces as f64
    }),
    ("turnkv_stranger_namespaces", None, "Namespaces that are not open and have pages on NVMe", |at| {
        at.pool.stranger_namespaces as f64
    }),
    ("turnkv_stranger_bytes", None, "Page bytes on NVMe of namespaces that are not open", |at| {
        at.pool.stranger_bytes as f64
    }),
    ("turnkv_catalog_failing_servers", None, "1 while the catalog cannot be written or read", |at| {
        f64::from(u8::from(at.catalog_fails))
    }),
    ("turnkv_pool_leases", None, "Leases held, those in quarantine too", |at| at.pool.leases as f64),
    (
        "turnkv_lease_lasting_bytes",
        None,
        "Bytes under leases that time does not end: being written, mapped, or in quarantine",
        |at| at.pool.lasting_bytes as f64,
    ),
    ("turnkv_lease_lasting_limit_bytes", None, "What these may be, all together", |at| {
        at.pool.lasting_bytes_max as f64
    }),
    ("turnkv_lease_fullest_client_bytes", None, "Of these, those of the client that has most", |at| {
        at.pool.lasting_client_bytes_max as f64
    }),
    ("turnkv_lease_fullest_user_bytes", None, "Of these, those of the user whose clients have most", |at| {
        at.pool.lasting_user_bytes_max as f64
    }),
    ("turnkv_lease_limit_leases", None, "Leases that there may be", |at| at.pool.leases_max as f64),
    ("turnkv_lease_fullest_client_leases", None, "Leases of the client that has most", |at| {
        at.pool.fullest_client_leases as f64
    }),
    ("turnkv_lease_fullest_user_leases", None, "Leases of the user whose clients have most", |at| {
        at.pool.fullest_user_leases as f64
    }),
    (
        "turnkv_lease_fullest_process_id",
        None,
        "Process of the client that has the largest part of these bytes, or of the leases; 0: none, or not of this host",
        |at| f64::from(at.fullest.0),
    ),
    ("turnkv_lease_fullest_process_user_id", None, "User of that process", |at| f64::from(at.fullest.1)),
    (
        "turnkv_pool_largest_call_steps",
        None,
        "Most pages, slots and entries that one hold of the pool's lock looked at or changed since start",
        |at| at.pool.call_steps_max as f64,
    ),
    (
        "turnkv_pool_condemned_pages",
        None,
        "Pages that did not verify and are to go with all that hangs on them, as far as that is not done",
        |at| at.pool.condemned_pages as f64,
    ),
    (
        "turnkv_pool_unfinished_pages",
        None,
        "Pages of which some shards are here and others are waited for: nobody can read them",
        |at| at.pool.unfinished_pages as f64,
    ),
    (
        "turnkv_pool_left_branches",
        None,
        "Branches that sessions left, whose pages are to go first, as far as these are not marked",
        |at| at.pool.left_branches as f64,
    ),
    ("turnkv_pool_free_slots", None, "Slots free in slabs that are cut", |at| at.pool.free_slots as f64),
    ("turnkv_pool_free_slabs", None, "Slabs that are not cut", |at| f64::from(at.pool.free_slabs)),
    ("turnkv_pool_index_bytes", None, "Memory of the index", |at| at.pool.index_bytes as f64),
    ("turnkv_pool_index_pages", None, "Pages in the index", |at| at.pool.entries as f64),
    ("turnkv_pool_session_bytes", None, "Memory of sessions and of where their lists end", |at| {
        at.pool.session_bytes as f64
    }),
    ("turnkv_dram_locked_bytes", None, "Page memory that is locked (mlock)", |at| at.locked_bytes as f64),
    (
        "turnkv_dram_missing_slabs",
        None,
        "Slabs out of service: the system had no memory or file descriptor for them when they changed tenant",
        |at| f64::from(at.pool.retired_slabs),
    ),
    ("turnkv_dram_wanted_bytes", None, "Page memory that there is to be", |at| {
        at.pool.dram_wanted_bytes as f64
    }),
    ("turnkv_dram_present_bytes", None, "Page memory that there is", |at| at.present_bytes as f64),
    (
        "turnkv_dram_leaving_slabs",
        None,
        "Slabs that are being emptied because page memory is to be smaller",
        |at| f64::from(at.pool.leaving_slabs),
    ),
    (KEPT, Some(("by", "leases")), KEPT_HELP, |at| at.pool.leaving_leased_bytes as f64),
    (KEPT, Some(("by", "protection")), KEPT_HELP, |at| at.pool.leaving_protected_bytes as f64),
    ("turnkv_dram_huge_bytes", None, "Page memory on huge pages", |at| at.huge_bytes as f64),
    ("turnkv_nvme_live_bytes", None, "Bytes of live extents, headers and padding included", |at| {
        at.nvme.live_bytes as f64
    }),
    ("turnkv_nvme_free_segments", None, "Segments that new extents could still take", |at| {
        at.nvme.free_segments as f64
    }),
    (
        "turnkv_nvme_waiting_segments",
        None,
        "Emptied segments that wait for a flush of what was moved out of them before they are written again",
        |at| at.nvme.waiting_segments as f64,
    ),
    (
        "turnkv_nvme_retired_segments",
        None,
        "Segments that are never written again, because parts of them could not be read",
        |at| at.nvme.retired_segments as f64,
    ),
    (
        "turnkv_nvme_damaged_segments",
        None,
        "Segments whose headers or lengths were not as they had been written when the tier was opened",
        |at| at.nvme.damaged_segments as f64,
    ),
    ("turnkv_nvme_inflight_bytes", None, "Bytes of operations given to the device", |at| {
        at.nvme.inflight_bytes as f64
    }),
    ("turnkv_nvme_poisoned_devices", None, "Devices out of service after an I/O error", |at| {
        f64::from(u8::from(at.nvme.poisoned))
    }),
    ("turnkv_nvme_full_devices", None, "Devices whose file system refused a segment", |at| {
        f64::from(u8::from(at.nvme.disk_full))
    }),
    ("turnkv_nvme_short_devices", None, "Devices whose tier waits for memory or file descriptors", |at| {
        f64::from(u8::from(at.nvme.short))
    }),
    (
        "turnkv_nvme_surplus_segments",
        None,
        "Segments beyond a lowered nvme.bytes that are still to be emptied",
        |at| at.nvme.surplus_segments as f64,
    ),
    (
        "turnkv_nvme_write_amplification_ratio",
        None,
        "Bytes written to the device for each page byte that was new, since start; 1 before any was",
        |at| match at.first_written_bytes {
            0 => 1.0,
            new => at.nvme.device_written_bytes as f64 / new as f64,
        },
    ),
    (QUEUE, Some(("queue", "write_behind")), QUEUE_HELP, |at| at.pool.waiting_writes as f64),
    (QUEUE, Some(("queue", "nvme")), QUEUE_HELP, |at| at.nvme.queued_ops as f64),
    (QUEUE, Some(("queue", "promotions")), QUEUE_HELP, |at| at.promotions_waited_for as f64),
    (QUEUE, Some(("queue", "durable")), QUEUE_HELP, |at| at.durable_waits as f64),
    (QUEUE, Some(("queue", "slots")), QUEUE_HELP, |at| at.slot_waits as f64),
    (QUEUE, Some(("queue", "catalog")), QUEUE_HELP, |at| at.catalog_changes as f64),
    (
        "turnkv_catalog_file_bytes",
        None,
        "Bytes that the catalog's file takes: of the disk, or of memory that is kept where there is no NVMe",
        |at| at.catalog_bytes as f64,
    ),
    (
        "turnkv_catalog_list_pages",
        None,
        "Pages that the lists of saved sessions and pins name, each counted once",
        |at| at.list_pages as f64,
    ),
    ("turnkv_catalog_list_budget_pages", None, "Pages that they may name", |at| at.list_budget_pages as f64),
    ("turnkv_queue_writing_bytes", None, "Page bytes handed to the NVMe tier and not completed", |at| {
        at.writing_bytes as f64
    }),
    ("turnkv_prefetch_reading_bytes", None, "Bytes being read ahead of expected turns", |at| {
        at.prefetching_bytes as f64
    }),
    (
        "turnkv_protection_protected_bytes",
        None,
        "Bytes of pages that give way last: pins, sessions with a priority",
        |at| at.pool.protected_bytes as f64,
    ),
    (
        "turnkv_protection_fullest_tenant_bytes",
        None,
        "Bytes protected by the tenant that protects most",
        |at| at.pool.protected_tenant_bytes_max as f64,
    ),
    ("turnkv_protection_budget_bytes", None, "What one tenant may protect", |at| {
        at.pool.protection_budget_bytes as f64
    }),
    ("turnkv_protection_protected_pages", None, "Pages that give way last", |at| {
        at.pool.protected_pages as f64
    }),
    ("turnkv_protection_holders", None, "Pins and protected sessions", |at| at.pool.protections as f64),
    ("turnkv_route_engines", None, "Engines that routes know", |at| at.route_engines as f64),
    ("turnkv_route_sessions", None, "Sessions whose last engine is known", |at| at.route_sessions as f64),
    ("turnkv_route_marked_pages", None, "Pages marked with the engines that ran them", |at| {
        at.route_marks as f64
    }),
    ("turnkv_keep_kept_descriptors", None, "Memory descriptors that are kept for the next start", |at| {
        at.kept.kept as f64
    }),
    (
        "turnkv_keep_refused_descriptors",
        None,
        "Memory descriptors that are to be kept for the next start and that whoever keeps has no room for",
        |at| at.kept.refused as f64,
    ),
    (
        "turnkv_keep_failing_servers",
        None,
        "1 while nobody keeps page memory for the next start although somebody is to",
        |at| f64::from(u8::from(at.kept.fails)),
    ),
    (
        "turnkv_keep_waiting_slabs",
        None,
        "Slabs that the last process left, whose pages wait for their namespace to be opened",
        |at| f64::from(at.pool.found_slabs),
    ),
    ("turnkv_server_draining_servers", None, "1 while this server declines offloads and leaves", |at| {
        f64::from(u8::from(at.draining))
    }),
];

const COUNTERS: &[CounterRow] = &[
    (
        "turnkv_pool_unfinished_drops_total",
        "Pages that went before all shards of them, or of a page before them, had come",
        |at| at.pool.unfinished_drops,
    ),
    ("turnkv_pool_evicted_pages_total", "Pages that left the pool by policy", |at| at.pool.evicted_pages),
    (
        "turnkv_pool_dropped_pages_total",
        "Pages that left the pool because they were lost, corrupt or dropped by command",
        |at| at.pool.dropped_pages,
    ),
    ("turnkv_pool_demoted_pages_total", "Pages that left DRAM and stayed on NVMe", |at| {
        at.pool.demoted_pages
    }),
    ("turnkv_pool_promoted_shards_total", "Page shards read back into DRAM", |at| at.pool.promoted_shards),
    ("turnkv_pool_written_shards_total", "Page shards written to NVMe", |at| at.pool.written_shards),
    (
        "turnkv_nvme_kept_off_pages_total",
        "Pages that were not sent to NVMe when they came: by admission, the write budget, or because too much waited",
        |at| at.pool.kept_off_pages,
    ),
    (
        "turnkv_nvme_let_go_pages_total",
        "Pages that left NVMe and stayed in DRAM: none that was acknowledged as durable; written again once there is room",
        |at| at.pool.let_go_pages,
    ),
    (
        "turnkv_nvme_crowded_out_pages_total",
        "Pages found on NVMe that a full index (limits.pages_max) had no room for: forgotten, though NVMe has them",
        |at| at.pool.crowded_out_pages,
    ),
    (
        "turnkv_stranger_dropped_extents_total",
        "Extents of namespaces that are not open which NVMe dropped for room",
        |at| at.pool.stranger_drops,
    ),
    (
        "turnkv_keep_found_shards_total",
        "Page shards taken over in DRAM as the last process left them",
        |at| at.pool.found_shards,
    ),
    ("turnkv_pool_recut_slabs_total", "Slabs cut for another namespace", |at| at.pool.recut_slabs),
    ("turnkv_pool_forgotten_sessions_total", "Sessions forgotten by age or to make room", |at| {
        at.pool.forgotten_sessions
    }),
    ("turnkv_catalog_set_aside_total", "Catalogs that could not be read and were set aside", |at| {
        at.catalogs_set_aside
    }),
    ("turnkv_lease_expiries_total", "Leases that ran past their deadline", |at| at.pool.expired_leases),
    (
        "turnkv_lease_refused_total",
        "Calls that were refused a lease because their client, its user or all hold as many as they may",
        |at| at.pool.refused_leases,
    ),
    ("turnkv_protection_ended_total", "Protections that ended by time", |at| at.pool.ended_protections),
    (
        "turnkv_nvme_stored_bytes_total",
        "Page bytes written to NVMe as they are stored: fewer where pages were made smaller",
        |at| at.nvme.stored_bytes,
    ),
    ("turnkv_nvme_device_written_bytes_total", "Bytes written to the device, everything included", |at| {
        at.nvme.device_written_bytes
    }),
    ("turnkv_nvme_checksum_failures_total", "Reads from NVMe whose bytes did not verify", |at| {
        at.nvme.checksum_failures
    }),
    (
        "turnkv_nvme_shortages_total",
        "Times the system was short of memory or descriptors for the tier",
        |at| at.nvme.shortages,
    ),
    ("turnkv_nvme_unreadable_extents_total", "Pages' shards that the device could not read", |at| {
        at.nvme.unreadable_extents
    }),
    (
        "turnkv_nvme_release_syncs_total",
        "Rounds of flushes made so that emptied segments could be written again",
        |at| at.nvme.release_syncs,
    ),
    ("turnkv_nvme_syncs_total", "Flushes of the device; those that share one count once", |at| at.nvme.syncs),
];

impl Gauges {
    /// Registers and describes every row.
    pub(super) fn new() -> Gauges {
        let gauges = GAUGES.iter().map(|(name, label, help, read)| {
            describe_gauge!(*name, *help);
            let gauge = match label {
                Some((key, value)) => gauge!(*name, *key => *value),
                None => gauge!(*name),
            };
            (gauge, *read)
        });
        let counters = COUNTERS.iter().map(|(name, help, read)| {
            describe_counter!(*name, *help);
            (counter!(*name), *read)
        });
        Gauges { gauges: gauges.collect(), counters: counters.collect() }
    }

    /// Brings all of them up to date.
    pub(super) fn show(&self, picture: &Picture) {
        for (gauge, read) in &self.gauges {
            gauge.set(read(picture));
        }
        for (counter, read) in &self.counters {
            counter.absolute(read(picture));
        }
    }
}
