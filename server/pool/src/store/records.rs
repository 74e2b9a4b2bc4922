//! What each slot holds, for whoever keeps a table of that across processes. Owns: what is told of a slot. Must not know:
//! the table.

use crate::ids::{ClientId, NONE, SlotKey};
use crate::index::flags::FILLED;
use crate::memory::slots::{Slab, SlotState};
use crate::namespaces::table::Namespaces;
use crate::store::Store;
use turnkv_proto::{BlockHash, NamespaceId};

/// What a slot holds: complete bytes of one shard of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// Whose page.
    pub namespace: NamespaceId,
    /// The page.
    pub hash: BlockHash,
    /// The page before it.
    pub parent: Option<BlockHash>,
    /// Which shard.
    pub shard: u16,
    /// Of so many.
    pub shards: u16,
    /// Above 0: a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// Its bytes.
    pub bytes: u32,
    /// CRC-64/NVME of these.
    pub checksum: u64,
    /// Which memory of the slab they are in.
    pub generation: u32,
}

/// A slot that changed, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotChange {
    /// Which.
    pub slot: SlotKey,
    /// What it holds; none: nothing that counts, from before anybody may write to it.
    pub record: Option<SlotRecord>,
    /// Who may write to it.
    pub writer: Option<ClientId>,
}

/// A slot that others have mapped than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedChange {
    /// Which.
    pub slot: SlotKey,
    /// Who may look at it at any time.
    pub readers: Vec<ClientId>,
}

/// A page in DRAM that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotUse {
    /// The slot of its first shard.
    pub slot: SlotKey,
    /// How often it was read, as far as anybody tells apart.
    pub reads: u8,
}

/// What changed of slots and slabs, in order.
pub(crate) type Changed = (Vec<SlotChange>, Vec<MappedChange>, Vec<SlabChange>);

/// A slab that processes came to have mapped, or have no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabChange {
    /// Which.
    pub slab: u32,
    /// Whether some process may look at its slots at any time.
    pub mapped: bool,
}

impl Store {
    /// From now on it is told which slots change what they hold.
    pub(crate) fn tell_changes(&mut self) {
        self.slots.tell_changes();
    }

    /// Slots and slabs that changed since the last call, as they are now.
    pub(crate) fn take_changes(&mut self, namespaces: &Namespaces) -> Changed {
        let (slots, seen, slabs) = self.slots.take_changes();
        let change = |slot: u32| {
            let (record, writer) = (self.record(namespaces, slot), self.slots.writer(slot));
            SlotChange { slot: self.slots.key(slot), record, writer }
        };
        let mapped = |slab: u32| SlabChange { slab, mapped: self.slots.slabs()[slab as usize].mapped > 0 };
        let seen = seen.into_iter().map(|slot| self.mapping(slot)).collect();
        (slots.into_iter().map(change).collect(), seen, slabs.into_iter().map(mapped).collect())
    }

    /// Pages in DRAM that were used since the last call, in order.
    pub(crate) fn take_uses(&mut self) -> Vec<SlotUse> {
        let uses = self.slots.take_uses().into_iter();
        uses.map(|(slot, reads)| SlotUse { slot: self.slots.key(slot), reads }).collect()
    }

    /// All that a table would say of slots, from scratch: for the check of invariants.
    pub(crate) fn all_changes(&self, namespaces: &Namespaces) -> Vec<SlotChange> {
        let of_slab = |(slab, this): (usize, &Slab)| {
            (0..this.metas.len() as u32)
                .map(move |at| SlotKey { slab: slab as u32, slot: at })
                .collect::<Vec<_>>()
        };
        let keys = self.slots.slabs().iter().enumerate().flat_map(of_slab);
        let change = |slot: SlotKey| {
            let number = self.slots.number(slot.slab, slot.slot);
            SlotChange { slot, record: self.record(namespaces, number), writer: self.slots.writer(number) }
        };
        keys.map(change).filter(|change| change.record.is_some() || change.writer.is_some()).collect()
    }

    /// All slots that somebody has mapped, in their order: for the check of invariants.
    pub(crate) fn all_mapped(&self) -> Vec<MappedChange> {
        let mut slots: Vec<u32> = self.slots.mapped_slots().collect();
        slots.sort_unstable();
        slots.into_iter().map(|slot| self.mapping(slot)).collect()
    }

    fn mapping(&self, slot: u32) -> MappedChange {
        MappedChange { slot: self.slots.key(slot), readers: self.slots.readers(slot) }
    }

    fn record(&self, namespaces: &Namespaces, slot: u32) -> Option<SlotRecord> {
        let key = self.slots.key(slot);
        let slab = self.slots.slabs().get(key.slab as usize)?;
        let meta = slab.metas.get(key.slot as usize).filter(|meta| meta.state() == SlotState::Used)?;
        let shard = self.pages.shard_in(meta.owner, slot)?;
        let (entry, cell) = (&self.pages[meta.owner], self.pages.cell(meta.owner, shard));
        if !cell.has(FILLED) {
            return None;
        }
        Some(SlotRecord {
            namespace: namespaces.id_at(entry.ns),
            hash: entry.hash,
            parent: (entry.parent != NONE).then(|| self.pages[entry.parent].hash),
            shard,
            shards: self.pages.shards(meta.owner),
            tail_tokens: entry.cell.tail_tokens(),
            bytes: self.slots.shard_bytes_of(entry.ns) as u32,
            checksum: cell.checksum(),
            generation: slab.generation,
        })
    }
}
