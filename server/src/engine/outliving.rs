//! What makes page memory outlive the process while it serves: the slot table is written as slots change, and somebody keeps the
//! descriptors. Owns: both, and trying again when whoever keeps is lost. Must not know: what a start makes of it (`memory`).

use crate::clock::Clock;
use crate::keep::custody::Custody;
use crate::limits::{KEEP_CALL_WAIT, KEEP_RETRY_MAX, KEEP_RETRY_MIN};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use turnkv_pool::{ClientId, Effects, MappedChange, SlabAction, SlabChange, SlotChange, SlotRecord, SlotUse};
use turnkv_tier::dram::DramTier;
use turnkv_tier::dram::table::{Holder, SlotEntry, SlotTable};
use turnkv_transfer::Region;

/// Writes the slot table, under the pool's lock: what it says is never later than what others may do.
pub(crate) struct SlotTableWriter {
    table: SlotTable,
    /// The processes of clients: who else may write a slot is this process.
    holders: BTreeMap<ClientId, Holder>,
}

/// The descriptors, and who keeps them.
pub(crate) struct Outliving {
    custody: Custody,
    table: OwnedFd,
    /// The memory of sessions, where no disk has them.
    catalog: Option<OwnedFd>,
    /// Names the memory, to clients too.
    memory: u64,
    /// After whoever kept was lost, not tried again before.
    retry: Mutex<Retry>,
    /// Taken while what is not kept comes to be kept again.
    turn: Mutex<()>,
}

/// When that is tried again.
#[derive(Default)]
struct Retry {
    at: Duration,
    /// After the last attempt.
    pause: Duration,
}

impl SlotTableWriter {
    /// Writes this table.
    pub(super) fn new(table: SlotTable) -> SlotTableWriter {
        SlotTableWriter { table, holders: BTreeMap::new() }
    }

    /// A client is this process.
    pub(super) fn introduce(&mut self, client: ClientId, holder: Holder) {
        self.holders.insert(client, holder);
    }

    /// A client is gone, and so are its leases.
    pub(super) fn forget(&mut self, client: ClientId) {
        let Some(holder) = self.holders.remove(&client) else { return };
        if !self.holders.values().any(|other| *other == holder) {
            self.table.forget(holder);
        }
    }

    /// A slab is about to have memory of this generation.
    pub(super) fn begin_slab(&mut self, slab: u32, generation: u32) {
        self.table.begin_slab(slab, generation);
    }

    /// Notes what became of slots and slabs, and which pages were used.
    pub(super) fn write(&mut self, effects: &Effects) {
        for SlabAction::Renew { slab, generation, .. } in &effects.renew {
            self.begin_slab(*slab, *generation);
        }
        for SlotChange { slot, record, writer } in &effects.slots {
            match record {
                Some(record) => self.table.seal(slot.slab, slot.slot, &entry(record)),
                None => self.table.void(slot.slab, slot.slot),
            }
            let holder = writer.and_then(|client| self.holders.get(&client).copied());
            self.table.hold(slot.slab, slot.slot, holder);
        }
        for MappedChange { slot, readers } in &effects.mapped {
            let holder = |client| self.holders.get(client).copied().unwrap_or(Holder::Unknown);
            self.table.map(slot.slab, slot.slot, readers.iter().map(holder));
        }
        for SlabChange { slab, mapped } in &effects.slabs {
            self.table.map_slab(*slab, *mapped);
        }
        for SlotUse { slot, reads } in &effects.used {
            self.table.touch(slot.slab, slot.slot, *reads);
        }
    }
}

impl Outliving {
    /// The descriptors of a table and of slabs are to be kept there.
    ///
    /// # Errors
    /// The system has no descriptor more.
    pub(super) fn new(
        custody: Custody,
        table: &SlotTable,
        catalog: Option<OwnedFd>,
    ) -> io::Result<Outliving> {
        let (memory, table) = (table.id(), table.fd().try_clone_to_owned()?);
        Ok(Outliving { custody, table, catalog, memory, retry: Mutex::default(), turn: Mutex::default() })
    }

    /// Where sessions are saved, as the process before left it; none: a disk has them.
    ///
    /// # Errors
    /// The system has no descriptor more.
    pub(super) fn catalog(&self) -> io::Result<Option<OwnedFd>> {
        self.catalog.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Names the memory: that of the process before, if it was taken over.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    /// Has all memory kept, the table last: without it nothing is.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn keep_all(&self, dram: &DramTier) -> io::Result<()> {
        let slabs: Vec<_> = (0..dram.numbers())
            .filter_map(|slab| dram.region(slab).map(|(region, generation)| (slab, generation, region)))
            .collect();
        let mut kept: Vec<_> = slabs
            .iter()
            .map(|(slab, generation, region)| (slab_name(*slab, *generation), region.fd()))
            .collect();
        kept.extend(self.catalog.iter().map(|catalog| (CATALOG_NAME.to_owned(), catalog.as_fd())));
        kept.push((TABLE_NAME.to_owned(), self.table.as_fd()));
        self.custody.keep(&kept)
    }

    /// The same at a start, which goes on without.
    pub(super) fn begin(&self, dram: &DramTier) {
        self.say(self.keep_all(dram));
    }

    /// A slab is about to have other memory than this.
    pub(super) fn let_go(&self, slab: u32, generation: u32) {
        self.say(self.custody.drop_kept(&slab_name(slab, generation)));
    }

    /// A slab has this memory from now on.
    pub(super) fn keep(&self, slab: u32, generation: u32, region: &Region) {
        self.say(self.custody.keep(&[(slab_name(slab, generation), region.fd())]));
    }

    /// Where it is kept.
    pub(super) fn custody(&self) -> &Custody {
        &self.custody
    }

    /// Descriptors that are kept.
    pub(super) fn count(&self) -> usize {
        self.custody.count()
    }

    /// Descriptors that there is no room for.
    pub(super) fn refused(&self) -> usize {
        self.custody.refused()
    }

    /// Whether the next start would find memory.
    pub(super) fn is_kept(&self) -> bool {
        self.custody.keeps(TABLE_NAME)
    }

    /// Who keeps, and for how long; none: nobody, or not all of it yet.
    pub(super) fn describe(&self) -> Option<String> {
        self.custody.describe().filter(|_| self.is_kept())
    }

    /// What an operator should know.
    pub(super) fn trouble(&self) -> Option<String> {
        let what = match (self.is_kept(), self.refused()) {
            (true, 0) => return None,
            (true, _) => "some of DRAM is not kept for the next start",
            (false, _) => "nobody keeps DRAM for the next start",
        };
        Some(format!("{what}: {}", self.custody.trouble()))
    }

    /// Has everything kept again where it is not: who keeps is gone, was never there, is not found where it was, or had no room. Blocking.
    pub(super) fn follow(&self, clock: &Clock, dram: &DramTier) {
        let is_due = |retry: &Retry| clock.now() >= retry.at;
        // Noticed at once, also while it is not tried again yet.
        let (_, Some(_turn)) = (self.custody.is_gone(), self.turn.try_lock()) else { return };
        if !is_due(&self.retry.lock()) {
            return;
        }
        let Some(found) = self.custody.mend(false, &|| self.keep_all(dram)) else { return };
        {
            let mut retry = self.retry.lock();
            retry.pause = (retry.pause * 2).clamp(KEEP_RETRY_MIN, KEEP_RETRY_MAX);
            retry.at = clock.now() + retry.pause;
        }
        match found {
            Err(error) => tracing::warn!(%error, "page memory is not kept for the next start: tried again"),
            Ok(said) => {
                self.retry.lock().pause = Duration::ZERO;
                tracing::info!("{said}: page memory is kept again");
            }
        }
    }

    /// Has everything where the next program in this process finds it: with who keeps it and answers, another one where this one is of no
    /// use, unless this process hands it down itself. Returns what an operator should know of that. Blocking.
    ///
    /// # Errors
    /// Nobody keeps it, or not all.
    pub(super) fn assure(&self, dram: &DramTier) -> io::Result<Option<String>> {
        let busy = || io::Error::new(io::ErrorKind::TimedOut, "another keeper is being looked for");
        let turn = self.turn.try_lock_for(KEEP_CALL_WAIT).ok_or_else(busy);
        let mended = |_turn| self.custody.mend(true, &|| self.keep_all(dram)).transpose();
        let said = turn.and_then(mended);
        if self.custody.hands_down() {
            return Ok(said.unwrap_or_else(|_| self.trouble()));
        }
        let said = said?;
        if !self.is_kept() || !self.custody.keeps_listening() {
            return Err(io::Error::other("the keeper has not all that it is to keep"));
        }
        Ok(said)
    }

    fn say(&self, kept: io::Result<()>) {
        if let Err(error) = kept {
            tracing::warn!(%error, "page memory is not kept for the next start");
        }
    }
}

/// The name of the slot table's descriptor.
pub(super) const TABLE_NAME: &str = "slot-table";

/// The name of the descriptor of what is saved of sessions.
pub(super) const CATALOG_NAME: &str = "catalog";

/// The name of a slab's descriptor.
pub(super) fn slab_name(slab: u32, generation: u32) -> String {
    format!("slab-{slab}-{generation}")
}

/// Which slab's, and of which generation, a descriptor of this name is.
pub(super) fn slab_of_name(name: &str) -> Option<(u32, u32)> {
    let (slab, generation) = name.strip_prefix("slab-")?.split_once('-')?;
    Some((slab.parse().ok()?, generation.parse().ok()?))
}

fn entry(record: &SlotRecord) -> SlotEntry {
    SlotEntry {
        namespace: record.namespace,
        hash: record.hash,
        parent: record.parent,
        shard: record.shard,
        shards: record.shards,
        tail_tokens: record.tail_tokens,
        bytes: record.bytes,
        checksum: record.checksum,
        generation: record.generation,
    }
}
