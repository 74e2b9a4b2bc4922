//! What makes page memory outlive the process while it serves: the slot table is written as slots change, and a keeper has the
//! descriptors. Owns: both, and trying again when the keeper is lost. Must not know: what a start makes of it (`memory`).

use crate::clock::Clock;
use crate::keep::link::Keeper;
use crate::keep::link::unfit::Parted;
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

/// The keeper of the descriptors.
pub(crate) struct Outliving {
    keeper: Keeper,
    table: OwnedFd,
    /// The memory of sessions, where no disk has them.
    catalog: Option<OwnedFd>,
    /// Names the memory, to clients too.
    memory: u64,
    /// After the keeper was lost, not tried again before.
    retry: Mutex<Retry>,
    /// Taken while another keeper takes the place of one that is of no use.
    turn: Mutex<()>,
}

/// When a keeper is looked for again.
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
    /// The descriptors of a table and of slabs are this keeper's to keep.
    ///
    /// # Errors
    /// The system has no descriptor more.
    pub(super) fn new(keeper: Keeper, table: &SlotTable, catalog: Option<OwnedFd>) -> io::Result<Outliving> {
        let (memory, table) = (table.id(), table.fd().try_clone_to_owned()?);
        Ok(Outliving { keeper, table, catalog, memory, retry: Mutex::default(), turn: Mutex::default() })
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

    /// Has everything kept, the table last: without it nothing is.
    pub(super) fn keep_all(&self, dram: &DramTier) {
        let keep = || -> io::Result<()> {
            for slab in 0..dram.numbers() {
                let Some((region, generation)) = dram.region(slab) else { continue };
                self.keeper.keep(&slab_name(slab, generation), region.fd())?;
            }
            if let Some(catalog) = &self.catalog {
                self.keeper.keep(CATALOG_NAME, catalog.as_fd())?;
            }
            self.keeper.keep(TABLE_NAME, self.table.as_fd())
        };
        self.say(keep());
    }

    /// A slab is about to have other memory than this.
    pub(super) fn let_go(&self, slab: u32, generation: u32) {
        self.say(self.keeper.drop_kept(&slab_name(slab, generation)));
    }

    /// A slab has this memory from now on.
    pub(super) fn keep(&self, slab: u32, generation: u32, region: &Region) {
        self.say(self.keeper.keep(&slab_name(slab, generation), region.fd()));
    }

    /// Who keeps.
    pub(super) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Descriptors that are kept; 0: nobody keeps any.
    pub(super) fn count(&self) -> usize {
        self.keeper.count()
    }

    /// Who keeps, and for how long; none: nobody, or not all of it yet.
    pub(super) fn describe(&self) -> Option<String> {
        self.keeper.describe().filter(|_| self.keeper.keeps(TABLE_NAME))
    }

    /// What an operator should know.
    pub(super) fn trouble(&self) -> Option<String> {
        let path = self.keeper.path().display();
        (self.keeper.count() == 0).then(|| {
            format!(
                "nobody keeps DRAM for the next start: see that `turnkv keep` can run and listen at {path}"
            )
        })
    }

    /// Has everything kept again if the keeper is gone, was never there, or is not found where it was. Blocking.
    pub(super) fn follow(&self, clock: &Clock, dram: &DramTier) {
        let is_due = |retry: &Retry| clock.now() >= retry.at;
        // Noticed at once, also while it is not tried again yet.
        let (_, Some(_turn)) = (self.keeper.is_gone(), self.turn.try_lock()) else { return };
        if !is_due(&self.retry.lock()) {
            return;
        }
        let Some(parted) = self.keeper.part(false) else { return };
        let found = self.keep_by_another(parted, dram);
        {
            let mut retry = self.retry.lock();
            retry.pause = (retry.pause * 2).clamp(KEEP_RETRY_MIN, KEEP_RETRY_MAX);
            retry.at = clock.now() + retry.pause;
        }
        match found {
            Err(error) => tracing::warn!(%error, "page memory is not kept for the next start: tried again"),
            Ok(_) => {
                self.retry.lock().pause = Duration::ZERO;
                tracing::info!("page memory is kept again");
            }
        }
    }

    /// Has everything kept by a keeper that answers and that the next server finds: by another one, where this one is of no use. Returns
    /// what an operator should know of that. Blocking.
    ///
    /// # Errors
    /// No such keeper can be had, or it has not all.
    pub(super) fn assure(&self, dram: &DramTier) -> io::Result<Option<String>> {
        let busy = || io::Error::new(io::ErrorKind::TimedOut, "another keeper is being looked for");
        let _turn = self.turn.try_lock_for(KEEP_CALL_WAIT).ok_or_else(busy)?;
        let said = self.keeper.part(true).map(|parted| self.keep_by_another(parted, dram)).transpose()?;
        if !self.keeper.keeps(TABLE_NAME) || !self.keeper.keeps_listening() {
            return Err(io::Error::other("the keeper has not all that it is to keep"));
        }
        Ok(said)
    }

    /// Has everything kept by another keeper. Returns what an operator should know.
    fn keep_by_another(&self, parted: Parted, dram: &DramTier) -> io::Result<String> {
        self.keeper.find_another(&parted)?;
        self.keep_all(dram);
        self.say(self.keeper.keep_listening_again());
        let said = format!("{}: another one keeps now", parted.why);
        let said = match parted.dismiss() {
            None => said,
            Some(pid) => {
                format!("{said}, and process {pid} has memory and sockets until it goes on or is ended")
            }
        };
        tracing::info!("{said}");
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
