//! What is in use. Owns: the gauges and counters of the pool. Must not know: how they are shown.

use crate::Pool;
use crate::ids::ClientId;
use crate::memory::leases::counts::{Holding, UserHolding};
use crate::memory::slots::SlotGauges;

/// Gauges and counters of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// DRAM.
    pub dram: TierGauges,
    /// NVMe.
    pub nvme: TierGauges,
    /// Bytes in DRAM that are not on NVMe yet.
    pub dirty_bytes: u64,
    /// Bytes of slots that a client whose lease expired may still be writing.
    pub quarantined_bytes: u64,
    /// Bytes under leases that time does not end: being written, mapped, or quarantined.
    pub lasting_bytes: u64,
    /// What these may be, all together.
    pub lasting_bytes_max: u64,
    /// Of the user whose clients hold most of these.
    pub lasting_user_bytes_max: u64,
    /// Of the client that holds most of these.
    pub lasting_client_bytes_max: u64,
    /// Pages that are to go with all that hangs on them, as far as that is not done.
    pub condemned_pages: u64,
    /// Pages that wait for more of their shards: nobody can read them.
    pub unfinished_pages: u64,
    /// Pages that went before these had come, ever, for whatever reason.
    pub unfinished_drops: u64,
    /// Branches that sessions left and whose pages are to go first, as far as these are not marked.
    pub left_branches: u64,
    /// The most steps (pages, slots and list entries looked at or changed) that one call took, ever.
    pub call_steps_max: u64,
    /// Slots free in slabs that are cut.
    pub free_slots: u64,
    /// Slabs that are not cut.
    pub free_slabs: u32,
    /// Of these, slabs that another process left, whose pages wait for their namespace to be opened.
    pub found_slabs: u32,
    /// Shards that were taken over in DRAM as another process left them, ever.
    pub found_shards: u64,
    /// Slabs taken out of service.
    pub retired_slabs: u32,
    /// Bytes of the slabs that there are to be.
    pub dram_wanted_bytes: u64,
    /// Bytes of those that there are.
    pub dram_present_bytes: u64,
    /// Slabs on their way out, because DRAM is to be smaller.
    pub leaving_slabs: u32,
    /// Bytes of slots that keep these because they are leased: read, written, mapped, or in quarantine.
    pub leaving_leased_bytes: u64,
    /// Bytes of slots that keep these because they hold the only copy of what is protected.
    pub leaving_protected_bytes: u64,
    /// Pages that readers can see.
    pub pages: u64,
    /// Entries of the index: pages, and pages being offloaded.
    pub entries: u64,
    /// Bytes of the index: entries, hash table, slot table, write queue, sessions, pages that wait for
    /// shards, what is known of strangers.
    pub index_bytes: u64,
    /// Bytes of the miss-ratio curves.
    pub curve_bytes: u64,
    /// Of these, bytes of sessions, of the ends of their lists, and of what is protected.
    pub session_bytes: u64,
    /// Sessions.
    pub sessions: u64,
    /// Sessions in a turn.
    pub sessions_in_turn: u64,
    /// Sessions not in a turn whose owner said when they come back.
    pub sessions_expected: u64,
    /// Pages in the write queue.
    pub waiting_writes: u64,
    /// Pages that give way last.
    pub protected_pages: u64,
    /// Bytes of these.
    pub protected_bytes: u64,
    /// Bytes protected by the tenant that protects most.
    pub protected_tenant_bytes_max: u64,
    /// What one tenant may protect.
    pub protection_budget_bytes: u64,
    /// Pins and protected sessions.
    pub protections: u64,
    /// Of these, pins.
    pub pins: u64,
    /// Protections that ended by time, ever.
    pub ended_protections: u64,
    /// Namespaces.
    pub namespaces: u64,
    /// Namespaces that retire: nobody finds them, and what they hold is being dropped.
    pub retiring_namespaces: u64,
    /// Namespaces that are not open and have extents on NVMe.
    pub stranger_namespaces: u64,
    /// These extents.
    pub stranger_extents: u64,
    /// Their bytes.
    pub stranger_bytes: u64,
    /// Leases, quarantined ones included.
    pub leases: u64,
    /// What these may be.
    pub leases_max: u64,
    /// Leases in quarantine.
    pub leases_quarantined: u64,
    /// Leases of the client that has most.
    pub fullest_client_leases: u64,
    /// Leases of the user whose clients have most.
    pub fullest_user_leases: u64,
    /// Calls that were refused a lease because a share was reached, ever.
    pub refused_leases: u64,
    /// Leases that ran past their deadline, ever.
    pub expired_leases: u64,
    /// Pages gone from the pool by policy, ever.
    pub evicted_pages: u64,
    /// Pages gone because they were lost, corrupt or dropped by command, ever.
    pub dropped_pages: u64,
    /// Pages that left DRAM and stayed on NVMe, ever.
    pub demoted_pages: u64,
    /// Shards read back into DRAM, ever.
    pub promoted_shards: u64,
    /// Shards written to NVMe, ever.
    pub written_shards: u64,
    /// Bytes whose write to NVMe was started, ever.
    pub written_bytes: u64,
    /// Pages not sent to NVMe when they came: by admission, the write budget, or because too much waited.
    pub kept_off_pages: u64,
    /// Pages that NVMe let go of while DRAM kept them, ever.
    pub let_go_pages: u64,
    /// Pages wait, off NVMe, until it has time or room for them.
    pub behind: bool,
    /// Pages found on NVMe that the index had no room for, ever: they are forgotten.
    pub crowded_out_pages: u64,
    /// Extents of namespaces that are not open which NVMe dropped for room.
    pub stranger_drops: u64,
    /// Slabs cut for another namespace, ever.
    pub recut_slabs: u64,
    /// Sessions forgotten to make room, ever.
    pub forgotten_sessions: u64,
}

/// Gauges of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TierGauges {
    /// Bytes there are.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes under leases.
    pub leased_bytes: u64,
    /// Bytes that cannot be evicted now: leased, being written or read into.
    pub pinned_bytes: u64,
    /// Pages with all shards there.
    pub pages: u64,
}

impl Pool {
    /// The client that holds most of what all share: bytes that time does not free, or leases, whichever it
    /// has the larger part of.
    pub fn fullest_client(&self) -> Option<ClientId> {
        let part = |count: u64, whole: u64| (u128::from(count) << 64) / u128::from(whole.max(1));
        let (bytes_max, leases_max) =
            (self.room().all_bytes_max(), u64::from(self.store.limits().leases_max));
        let fullness = |(client, holding): (ClientId, Holding)| {
            let bytes = part(holding.lasting_bytes, bytes_max);
            (bytes.max(part(holding.leases.into(), leases_max)), client)
        };
        self.leases.counts().clients().map(fullness).max().map(|(_, client)| client)
    }

    /// Gauges and counters now.
    pub fn stats(&self) -> PoolStats {
        let (tally, slots) = (self.store.tally(), self.store.slots().gauges());
        let session_bytes = self.session_bytes();
        let (dram, nvme) = self.tiers(&slots);
        let (nvme_books, going) = (self.store.nvme().gauges(), self.store.going());
        PoolStats {
            dram,
            nvme,
            dirty_bytes: tally.dirty_bytes,
            condemned_pages: going.condemned_pages,
            unfinished_pages: going.unfinished_pages,
            unfinished_drops: going.unfinished_drops,
            left_branches: going.left_branches,
            call_steps_max: self.store.call.steps_max(),
            free_slots: slots.free_slots,
            free_slabs: self.store.slots().uncut() as u32,
            found_slabs: self.store.slots().aside().len() as u32,
            found_shards: tally.found,
            retired_slabs: slots.retired_slabs,
            pages: tally.visible,
            entries: u64::from(self.store.pages().len()),
            index_bytes: (self.store.pages().bytes() + self.store.slots().bytes() + nvme_books.memory_bytes)
                as u64
                + going.unfinished_bytes as u64
                + session_bytes,
            curve_bytes: self.curves.bytes() as u64,
            session_bytes,
            sessions: u64::from(self.sessions.len()),
            sessions_in_turn: self.sessions.in_turn(),
            sessions_expected: self.sessions.expected(),
            waiting_writes: nvme_books.waiting_writes,
            protected_pages: self.store.protections().pages(),
            protected_bytes: self.store.protections().protected_bytes(),
            protected_tenant_bytes_max: self.store.protections().fullest_bytes(),
            protection_budget_bytes: self.store.protection_budget(),
            protections: self.store.protections().len() as u64,
            pins: self.store.protections().pins(),
            ended_protections: self.store.protections().ended(),
            namespaces: self.namespaces.len() as u64,
            retiring_namespaces: self.retiring() as u64,
            stranger_namespaces: nvme_books.stranger_namespaces,
            stranger_extents: nvme_books.stranger_extents,
            stranger_bytes: nvme_books.stranger_bytes,
            evicted_pages: tally.evicted,
            dropped_pages: tally.dropped,
            demoted_pages: tally.demoted,
            promoted_shards: tally.promoted,
            written_shards: tally.written,
            written_bytes: tally.written_bytes,
            kept_off_pages: tally.kept_off,
            let_go_pages: tally.let_go,
            behind: nvme_books.behind,
            crowded_out_pages: tally.crowded_out,
            stranger_drops: tally.strangers_dropped,
            recut_slabs: slots.recuts,
            forgotten_sessions: self.sessions.forgotten_count(),
            ..self.other_stats()
        }
    }

    /// Those of the leases, and of slabs that come and go; the others are 0.
    fn other_stats(&self) -> PoolStats {
        let (slots, slab_bytes) = (self.store.slots(), self.store.config().slab_bytes);
        let (leased, protected) = slots.kept_bytes();
        PoolStats {
            dram_wanted_bytes: u64::from(slots.wanted()) * slab_bytes,
            dram_present_bytes: u64::from(slots.present()) * slab_bytes,
            leaving_slabs: slots.leaving().len() as u32,
            leaving_leased_bytes: leased,
            leaving_protected_bytes: protected,
            ..self.lease_stats()
        }
    }

    /// Those of the leases; the others are 0.
    fn lease_stats(&self) -> PoolStats {
        let counts = self.leases.counts();
        let (expired_leases, refused_leases) = self.leases.expired_and_refused();
        let of_client =
            |held: fn(Holding) -> u64| counts.clients().map(|(_, has)| held(has)).max().unwrap_or(0);
        let of_user =
            |held: fn(UserHolding) -> u64| counts.users().map(|(_, has)| held(has)).max().unwrap_or(0);
        PoolStats {
            quarantined_bytes: counts.quarantined_bytes,
            lasting_bytes: counts.lasting_bytes,
            lasting_bytes_max: self.room().all_bytes_max(),
            lasting_user_bytes_max: of_user(|has| has.lasting_bytes),
            lasting_client_bytes_max: of_client(|has| has.lasting_bytes),
            leases: u64::from(counts.leases),
            leases_max: u64::from(self.store.limits().leases_max),
            leases_quarantined: u64::from(counts.quarantined),
            fullest_client_leases: of_client(|has| has.leases.into()),
            fullest_user_leases: of_user(|has| has.leases.into()),
            refused_leases,
            expired_leases,
            ..PoolStats::default()
        }
    }

    fn tiers(&self, slots: &SlotGauges) -> (TierGauges, TierGauges) {
        let tally = self.store.tally();
        let dram = TierGauges {
            capacity_bytes: slots.capacity_bytes,
            used_bytes: slots.used_bytes,
            leased_bytes: slots.leased_bytes,
            pinned_bytes: slots.pinned_bytes,
            pages: tally.dram_pages,
        };
        let nvme = TierGauges {
            capacity_bytes: self.store.nvme().capacity_bytes(),
            used_bytes: tally.nvme_bytes,
            leased_bytes: 0,
            pinned_bytes: 0,
            pages: tally.nvme_pages,
        };
        (dram, nvme)
    }

    /// Memory of sessions, of the ends of their lists, and of what is protected or left.
    fn session_bytes(&self) -> u64 {
        let lists = self.store.pages().tips_bytes() + self.store.going().list_bytes;
        (self.sessions.bytes() + lists) as u64
    }
}
