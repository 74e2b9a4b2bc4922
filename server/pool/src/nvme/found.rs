//! What another process left in DRAM: slabs that were kept, and what each of their slots holds. Owns: which of these wait
//! for their namespace to be opened. Must not know: memory, how they become pages (`adoption`).

use crate::ids::{ClientId, SlotKey};
use std::collections::BTreeMap;
use turnkv_proto::{BlockHash, NamespaceId};

/// A slab whose memory another process left. All pages in it are of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSlab {
    /// Which.
    pub slab: u32,
    /// Of the memory.
    pub generation: u32,
    /// Whose the pages are.
    pub namespace: NamespaceId,
    /// What its slots hold.
    pub slots: Vec<FoundSlot>,
    /// Slots that a process may still be writing; each counts as leased to this client, which the pool was told of.
    pub held: Vec<(u32, ClientId)>,
    /// Slots that a process has mapped: each stays under a lease of this client, beside the page in it.
    pub mapped: Vec<(u32, ClientId)>,
}

/// One shard of a page in a slot, as was noted when its bytes were complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundSlot {
    /// Which slot of the slab.
    pub slot: u32,
    /// The page's hash.
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
    /// When it came into the slot, in the order in which slots were filled.
    pub sequence: u64,
    /// When the page was used last, in the same order; of a page with several shards one of them says so.
    pub used: u64,
    /// How often it was read; likewise.
    pub reads: u8,
}

/// All that wait, by namespace.
#[derive(Default)]
pub(crate) struct FoundSlabs {
    families: BTreeMap<NamespaceId, Vec<FoundSlab>>,
}

impl FoundSlab {
    /// The slots that hold something.
    pub(crate) fn keys(&self) -> impl Iterator<Item = SlotKey> + '_ {
        self.slots.iter().map(|slot| SlotKey { slab: self.slab, slot: slot.slot })
    }
}

impl FoundSlabs {
    /// A slab waits from now on.
    pub(crate) fn keep(&mut self, slab: FoundSlab) {
        self.families.entry(slab.namespace).or_default().push(slab);
    }

    /// Those of a namespace that was opened wait no more.
    pub(crate) fn take(&mut self, id: &NamespaceId) -> Vec<FoundSlab> {
        self.families.remove(id).unwrap_or_default()
    }

    /// A client has none of their slots mapped any more. Returns those of which no other has.
    pub(crate) fn forget_reader(&mut self, client: ClientId) -> Vec<u32> {
        let slabs = self.families.values_mut().flatten();
        let forget = |slab: &mut FoundSlab| {
            let before = slab.mapped.len();
            slab.mapped.retain(|(_, reader)| *reader != client);
            (before > 0 && slab.mapped.is_empty()).then_some(slab.slab)
        };
        slabs.filter_map(forget).collect()
    }

    /// Whether some wait for a namespace.
    pub(crate) fn wait_for(&self, id: &NamespaceId) -> bool {
        self.families.contains_key(id)
    }
}
