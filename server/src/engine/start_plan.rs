//! What becomes of the page memory that another process left, slab by slab. Owns: which slabs are taken over, which begin anew and
//! which have no memory, and who may still write or look at what. Must not know: who keeps descriptors, how memory is made.

use super::clients::{EPHEMERAL, Ghost, LeftSlots, random_u64};
use super::outliving::{CATALOG_NAME, TABLE_NAME, slab_name, slab_of_name};
use crate::limits::CLIENTS_MAX;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use turnkv_pool::{ClientId, FoundSlab, FoundSlot};
use turnkv_tier::dram::table::{FoundEntries, FoundEntry, Holder, SlotTable};
use turnkv_tier::dram::{SlabMemory, SlabStart};
use turnkv_transfer::Process;

/// A slab at a start.
#[derive(Default)]
pub(crate) struct BegunSlab {
    /// Of its memory, or of the last that it had.
    pub(crate) generation: u32,
    /// Whether it has memory.
    pub(crate) present: bool,
    /// What was found in it.
    pub(crate) found: Option<FoundSlab>,
}

/// What begins each slab, and whose its slots are.
#[derive(Default)]
pub(super) struct StartPlan {
    /// The table that was taken over.
    pub(super) table: Option<SlotTable>,
    /// What was saved of sessions.
    pub(super) catalog: Option<OwnedFd>,
    slabs: Vec<SlabPlan>,
    ghosts: Vec<Ghost>,
    /// Slots whose holders are gone, or not theirs any more.
    over: Vec<(u32, u32)>,
    /// Slots that somebody had mapped, with those who have still.
    mapped: BTreeMap<(u32, u32), Vec<Holder>>,
    /// Slabs whose memory the table speaks of and that nobody has kept.
    pub(super) lost: usize,
}

struct SlabPlan {
    generation: u32,
    /// Whether it has memory.
    present: bool,
    /// The memory that the last process left.
    kept: Option<OwnedFd>,
    /// Its name, while it serves.
    name: Option<String>,
    found: Option<FoundSlab>,
}

impl StartPlan {
    /// The plan for so many slabs at least: more are kept, if more have pages.
    pub(super) fn of(
        table: Option<(SlotTable, BTreeMap<u32, FoundEntries>)>,
        descriptors: BTreeMap<String, OwnedFd>,
        slab_count: u32,
    ) -> StartPlan {
        let mut plan = StartPlan::default();
        let Some((table, mut entries)) = table else {
            plan.slabs = (0..slab_count).map(|_| SlabPlan::fresh(0)).collect();
            return plan;
        };
        let mut kept: BTreeMap<u32, (u32, OwnedFd)> = BTreeMap::new();
        for (name, fd) in descriptors {
            let Some((slab, generation)) = slab_of_name(&name) else { continue };
            if slab < table.slab_count() && kept.get(&slab).is_none_or(|(other, _)| *other < generation) {
                kept.insert(slab, (generation, fd));
            }
        }
        let known = kept.last_key_value().map(|(slab, _)| slab + 1);
        let said = entries.last_key_value().map(|(slab, _)| slab + 1);
        for slab in 0..slab_count.max(known.max(said).unwrap_or(0)) {
            let entries = entries.remove(&slab).unwrap_or_default();
            let planned = plan.slab(slab, kept.remove(&slab), &entries);
            plan.note_processes(slab, &planned, &entries);
            plan.slabs.push(planned);
        }
        plan.table = Some(table);
        plan.leave_out_surplus(slab_count);
        plan
    }

    /// What the table says of the processes of a slab's slots, and which of it is over.
    fn note_processes(&mut self, slab: u32, planned: &SlabPlan, entries: &FoundEntries) {
        let held = planned.found.as_ref().map(|found| &found.held[..]).unwrap_or_default();
        let over = entries.held.iter().filter(|(slot, _)| !held.iter().any(|(other, _)| other == slot));
        self.over.extend(over.map(|(slot, _)| (slab, *slot)));
        let seen = planned.found.as_ref().map(|found| &found.mapped[..]).unwrap_or_default();
        for (slot, reader) in &entries.mapped {
            let readers = self.mapped.entry((slab, *slot)).or_default();
            let lives = |(of, client): &(u32, ClientId)| {
                of == slot
                    && self.ghosts.iter().any(|ghost| (ghost.client, ghost.holder) == (*client, *reader))
            };
            readers.extend(seen.iter().any(lives).then_some(*reader));
        }
    }

    /// Of the slabs without pages only those get memory that are wanted beside the ones with pages.
    fn leave_out_surplus(&mut self, slab_count: u32) {
        let mut missing = (slab_count as usize).saturating_sub(self.found());
        for slab in self.slabs.iter_mut().filter(|slab| slab.found.is_none()) {
            slab.present = missing > 0;
            missing -= usize::from(slab.present);
        }
    }

    /// What the table says of processes is over where these are gone, and where a slab's old memory is. Not before nobody keeps
    /// that any more: a start that is killed leaves the next one what it found.
    pub(super) fn clear(&mut self) {
        let Some(table) = &mut self.table else { return };
        self.over.iter().for_each(|(slab, slot)| table.hold(*slab, *slot, None));
        for ((slab, slot), readers) in &self.mapped {
            table.map(*slab, *slot, readers.iter().copied());
        }
        for (slab, planned) in (0u32..).zip(&self.slabs) {
            if planned.present {
                table.begin_slab(slab, planned.generation);
            }
            let seen =
                self.mapped.range((slab, 0)..=(slab, u32::MAX)).any(|(_, readers)| !readers.is_empty());
            table.map_slab(slab, seen);
        }
        let known: Vec<Holder> = table.readers().collect();
        for reader in known {
            if !self.mapped.values().flatten().any(|other| *other == reader) {
                table.forget(reader);
            }
        }
    }

    /// How one slab begins: as it is, if all that is in it can be accounted for, else with fresh memory.
    fn slab(&mut self, slab: u32, kept: Option<(u32, OwnedFd)>, entries: &FoundEntries) -> SlabPlan {
        let latest = entries.sealed.iter().map(|found| found.entry.generation).max();
        let known = kept.as_ref().map(|(generation, _)| *generation).max(latest).max(entries.generation);
        // A generation is never used twice with one table: an old entry would speak of new memory.
        let fresh = SlabPlan::fresh(known.map_or(0, |known| known + 1));
        let Some((generation, fd)) = kept else {
            let is_latest =
                |found: &FoundEntry| entries.generation.is_none_or(|latest| found.entry.generation == latest);
            self.lost += usize::from(entries.sealed.iter().any(is_latest));
            return fresh;
        };
        let of_it = entries.sealed.iter().filter(|found| found.entry.generation == generation);
        let namespace = of_it.clone().next().map(|found| found.entry.namespace);
        let alone = of_it.clone().all(|found| Some(found.entry.namespace) == namespace);
        let (Some(namespace), true) = (namespace, alone) else { return fresh };
        let Some(held) = self.ghosts_of(&entries.held, LeftSlots::Writing) else { return fresh };
        let Some(mapped) = self.ghosts_of(&entries.mapped, LeftSlots::Mapped) else { return fresh };
        let slots = of_it.map(found_slot).collect();
        let found = FoundSlab { slab, generation, namespace, slots, held, mapped };
        let name = Some(slab_name(slab, generation));
        SlabPlan { generation, present: true, kept: Some(fd), name, found: Some(found) }
    }

    /// Which of these slots are of processes that live, as what these are known. None: nobody can say.
    fn ghosts_of(&mut self, slots: &[(u32, Holder)], left: LeftSlots) -> Option<Vec<(u32, ClientId)>> {
        let mut held = Vec::new();
        for (slot, holder) in slots {
            let Holder::Process { pid, began, .. } = holder else { return None };
            let is_known = |ghost: &&Ghost| (ghost.holder, ghost.left) == (*holder, left);
            if let Some(ghost) = self.ghosts.iter().find(is_known) {
                held.push((*slot, ghost.client));
                continue;
            }
            let Some(process) = Process::find(*pid as i32, *began).ok()? else { continue };
            let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
            let client = ClientId(random_u64().ok()? & !EPHEMERAL);
            if self.ghosts.len() >= CLIENTS_MAX {
                return None;
            }
            self.ghosts.push(Ghost { client, pid: *pid as i32, user, process, holder: *holder, left });
            held.push((*slot, client));
        }
        Some(held)
    }

    /// Whether what is kept under a name stays.
    pub(super) fn keeps(&self, name: &str) -> bool {
        let is_table = name == TABLE_NAME && self.table.is_some();
        let is_catalog = name == CATALOG_NAME && self.catalog.is_some();
        is_table || is_catalog || self.slabs.iter().any(|slab| slab.name.as_deref() == Some(name))
    }

    /// With what memory each slab begins.
    pub(super) fn starts(&mut self) -> Vec<SlabStart> {
        let start = |slab: &mut SlabPlan| {
            let memory = match slab.kept.take() {
                Some(fd) => SlabMemory::Kept(fd),
                None if slab.present => SlabMemory::Fresh,
                None => SlabMemory::Absent,
            };
            SlabStart { generation: slab.generation, memory }
        };
        self.slabs.iter_mut().map(start).collect()
    }

    /// What the pool is to be told of slabs, and of whom.
    pub(super) fn begun(self) -> (Vec<BegunSlab>, Vec<Ghost>) {
        let begun = |slab: SlabPlan| BegunSlab {
            generation: slab.generation,
            present: slab.present,
            found: slab.found,
        };
        (self.slabs.into_iter().map(begun).collect(), self.ghosts)
    }

    /// Slabs with pages.
    pub(super) fn found(&self) -> usize {
        self.slabs.iter().filter(|slab| slab.found.is_some()).count()
    }

    /// Shards of pages in them.
    pub(super) fn shards(&self) -> usize {
        self.slabs.iter().filter_map(|slab| slab.found.as_ref()).map(|found| found.slots.len()).sum()
    }
}

impl SlabPlan {
    fn fresh(generation: u32) -> SlabPlan {
        SlabPlan { generation, present: true, kept: None, name: None, found: None }
    }
}

fn found_slot(found: &FoundEntry) -> FoundSlot {
    let entry = &found.entry;
    FoundSlot {
        slot: found.slot,
        hash: entry.hash,
        parent: entry.parent,
        shard: entry.shard,
        shards: entry.shards,
        tail_tokens: entry.tail_tokens,
        bytes: entry.bytes,
        checksum: entry.checksum,
        sequence: found.sequence,
        used: found.used,
        reads: found.reads,
    }
}
