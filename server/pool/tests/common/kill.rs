//! The end of the pool's process at any moment, and the next one's start. Owns: the table that outlives it, and what the next
//! process must find. Must not know: the pool's insides.

use super::*;

/// What is written of slots and slabs, as it is after each call.
#[derive(Default)]
pub struct Table {
    slots: BTreeMap<SlotKey, SlotChange>,
    mapped: BTreeSet<u32>,
}

impl Table {
    pub fn write(&mut self, slots: &[SlotChange], slabs: &[SlabChange]) {
        for change in slots {
            self.slots.remove(&change.slot);
            if change.record.is_some() || change.writer.is_some() {
                self.slots.insert(change.slot, *change);
            }
        }
        for SlabChange { slab, mapped } in slabs {
            self.mapped.remove(slab);
            self.mapped.extend(mapped.then_some(*slab));
        }
    }

    fn found(&self, slab: u32, generation: u32) -> Option<FoundSlab> {
        let here = || self.slots.values().filter(|change| change.slot.slab == slab);
        let slot = |change: &SlotChange| {
            let record = change.record.filter(|record| record.generation == generation)?;
            Some((
                record.namespace,
                FoundSlot {
                    slot: change.slot.slot,
                    hash: record.hash,
                    parent: record.parent,
                    shard: record.shard,
                    shards: record.shards,
                    tail_tokens: record.tail_tokens,
                    bytes: record.bytes,
                    checksum: record.checksum,
                    sequence: 0,
                },
            ))
        };
        let slots: Vec<(NamespaceId, FoundSlot)> = here().filter_map(slot).collect();
        let namespace = slots.first()?.0;
        assert!(slots.iter().all(|(other, _)| *other == namespace), "a slab has pages of one namespace");
        let held = here().filter_map(|change| Some((change.slot.slot, change.writer?))).collect();
        let slots = slots.into_iter().map(|(_, slot)| slot).collect();
        Some(FoundSlab { slab, generation, namespace, slots, held })
    }
}

impl World {
    /// The table says what the pool knows, and each record names good bytes that nobody may write.
    pub fn verify_table(&mut self) {
        let told = self.pool.slots_told();
        let written: Vec<SlotChange> = self.table.slots.values().copied().collect();
        assert_eq!(told, written, "the table is what the pool has");
        for change in &written {
            let Some(record) = change.record else { continue };
            assert!(change.writer.is_none(), "{change:?} is complete and being written");
            let at = descs().iter().position(|desc| desc.id == record.namespace).unwrap();
            let node = (0..NODES).find(|node| hash(*node) == record.hash).unwrap();
            let address = self.address(change.slot);
            assert_eq!(address.1, record.generation, "{change:?}");
            assert_eq!(self.memory.get(&address), Some(&(at as u16, node, record.shard)), "{change:?}");
            assert_eq!(record.checksum, checksum((at as u16, node, record.shard)));
            assert_eq!(record.parent, parent(node).map(hash));
        }
    }

    /// The process ends without a word. The next one finds memory, table and disk; clients live on. Not in a world whose memory
    /// was resized: what is kept is not.
    pub fn kill(&mut self) {
        if self.resized {
            return;
        }
        self.bury();
        let expected = self.expected();
        let mut config = config(self.nvme, self.kind);
        config.nvme_bytes = if self.nvme { config.nvme_bytes } else { 0 };
        self.pool = Pool::new(config).unwrap();
        self.pool.tell_slots();
        (0..3).for_each(|client| self.pool.introduce_client(ClientId(client), UserId(client)));
        for slab in 0..4 {
            let generation = self.generations.get(&slab).copied().unwrap_or(0);
            let found = self.table.found(slab, generation).filter(|_| !self.table.mapped.contains(&slab));
            let generation = if found.is_some() { generation } else { generation + 1 };
            self.generations.insert(slab, generation);
            if found.is_none() {
                self.table.slots.retain(|slot, _| slot.slab != slab);
            }
            self.pool.begin_slab(slab, generation, found);
        }
        self.table.mapped.clear();
        self.keep_strangers();
        self.leave_ghosts();
        for desc in descs() {
            let ns = self.pool.open_namespace(desc.clone()).unwrap();
            let Some(adoption) = self.pool.begin_adoption(ns) else { continue };
            let mut adoption = adoption.plan(&desc);
            while self.pool.adopt(&mut adoption, u64::MAX) {
                self.pool.check().unwrap();
            }
        }
        while self.pool.forget_strangers(self.now).0 {}
        self.bury();
        self.promised.clear();
        self.off.clear();
        self.promise();
        for (ns, node) in expected {
            assert!(self.present(NamespaceIndex(ns, 0), node), "node {node} of {ns} is lost");
        }
    }

    fn keep_strangers(&mut self) {
        let stranger = |(place, (ns, node, shard)): (&NvmePlace, &Content)| {
            let desc = &descs()[usize::from(*ns)];
            let stranger = Stranger {
                hash: hash(*node),
                parent: parent(*node).map(hash),
                shard: *shard,
                shards: desc.shards,
                tail_tokens: 0,
                bytes: desc.shard_bytes as u32,
                checksum: checksum((*ns, *node, *shard)),
                place: *place,
                sequence: place.block.into(),
                leaving: false,
            };
            (desc.id, stranger)
        };
        if self.nvme {
            assert_eq!(self.pool.keep_strangers(self.disk.iter().map(stranger)), 0);
        }
    }

    fn leave_ghosts(&mut self) {
        let leases = std::mem::take(&mut self.leases).into_values();
        self.ghosts.extend(leases.filter(|held| held.write));
        self.reads.clear();
        self.writes.clear();
        self.pinned.clear();
        self.seen.clear();
    }

    /// The pages that must be there: whole in slabs that are taken over, or whole on NVMe with all their ancestors.
    fn expected(&mut self) -> BTreeSet<(u16, usize)> {
        let mut expected = BTreeSet::new();
        for (ns, shards) in self.spaces.clone() {
            let shards = usize::from(shards);
            let in_dram = |world: &World, node: usize| {
                let here = world.table.slots.values().filter(|change| {
                    let of = |record: SlotRecord| (record.namespace, record.hash);
                    change.record.map(of) == Some((descs()[usize::from(ns.0)].id, hash(node)))
                        && !world.table.mapped.contains(&change.slot.slab)
                });
                here.count() == shards
            };
            let on_disk = |world: &World, node: usize| {
                let shards_there: BTreeSet<u16> = world
                    .disk
                    .values()
                    .filter(|content| (content.0, content.1) == (ns.0, node))
                    .map(|content| content.2)
                    .collect();
                world.nvme && shards_there.len() == shards
            };
            for node in 0..NODES {
                let all = |there: &dyn Fn(usize) -> bool| path(node).into_iter().all(there);
                let safe = all(&|up| in_dram(self, up)) || all(&|up| on_disk(self, up));
                if safe && self.present(ns, node) {
                    expected.insert((ns.0, node));
                }
            }
        }
        expected
    }
}
