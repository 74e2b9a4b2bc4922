//! The end of the pool's process at any moment, and the next one's start. Owns: the table that outlives it, and what the next
//! process must find. Must not know: the pool's insides.

use super::*;

/// What is written of slots and slabs, as it is after each call.
#[derive(Default)]
pub struct Table {
    slots: BTreeMap<SlotKey, SlotChange>,
    mapped: BTreeMap<SlotKey, Vec<ClientId>>,
    /// When the page in each slot was used last, in the order in which that was told, and how often it was read.
    used: BTreeMap<SlotKey, (u64, u8)>,
    uses: u64,
    slabs: BTreeSet<u32>,
}

impl Table {
    pub fn write(&mut self, effects: &Effects) {
        for change in &effects.slots {
            self.slots.remove(&change.slot);
            if change.record.is_some() || change.writer.is_some() {
                self.slots.insert(change.slot, *change);
            }
        }
        for SlotUse { slot, reads } in &effects.used {
            self.uses += 1;
            self.used.insert(*slot, (self.uses, *reads));
        }
        for MappedChange { slot, readers } in &effects.mapped {
            self.mapped.remove(slot);
            if !readers.is_empty() {
                self.mapped.insert(*slot, readers.clone());
            }
        }
        for SlabChange { slab, mapped } in &effects.slabs {
            self.slabs.remove(slab);
            self.slabs.extend(mapped.then_some(*slab));
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
                    used: self.used.get(&change.slot).map_or(0, |(used, _)| *used),
                    reads: self.used.get(&change.slot).map_or(0, |(_, reads)| *reads),
                },
            ))
        };
        let slots: Vec<(NamespaceId, FoundSlot)> = here().filter_map(slot).collect();
        let namespace = slots.first()?.0;
        assert!(slots.iter().all(|(other, _)| *other == namespace), "a slab has pages of one namespace");
        let held = here().filter_map(|change| Some((change.slot.slot, change.writer?))).collect();
        let slots = slots.into_iter().map(|(_, slot)| slot).collect();
        let mapped = self.mapped.iter().filter(|(slot, _)| slot.slab == slab);
        let reader = |slot: u32, reader: &ClientId| (slot, left(*reader));
        let mapped = mapped
            .flat_map(|(slot, readers)| readers.iter().map(|client| reader(slot.slot, client)))
            .collect();
        Some(FoundSlab { slab, generation, namespace, slots, held, mapped })
    }
}

/// A client as the next process knows it, until it has said what it has mapped.
fn left(client: ClientId) -> ClientId {
    ClientId(100 + client.0 % 100)
}

impl World {
    /// The table says what the pool knows, and each record names good bytes that nobody may write.
    pub fn verify_table(&mut self) {
        let told = self.pool.slots_told();
        let written: Vec<SlotChange> = self.table.slots.values().copied().collect();
        assert_eq!(told, written, "the table is what the pool has");
        let mapped = self.table.mapped.iter();
        let mapped: Vec<MappedChange> =
            mapped.map(|(slot, readers)| MappedChange { slot: *slot, readers: readers.clone() }).collect();
        assert_eq!(self.pool.mapped_told(), mapped, "and who looks at it");
        let slabs: BTreeSet<u32> = mapped.iter().map(|change| change.slot.slab).collect();
        assert_eq!(slabs, self.table.slabs);
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

    /// The process ends without a word. The next one finds memory, table and disk; clients live on. It is to have four slabs, and
    /// begins with all that have pages.
    pub fn kill(&mut self) {
        self.bury();
        let expected = self.expected();
        let mut config = config(self.nvme, self.kind);
        config.nvme_bytes = if self.nvme { config.nvme_bytes } else { 0 };
        let wanted = config.slab_count;
        config.slab_count = self.generations.last_key_value().map_or(0, |(slab, _)| slab + 1).max(wanted);
        let slabs = 0..config.slab_count;
        self.pool = Pool::new(config).unwrap();
        self.pool.tell_slots();
        for client in (0..3).map(ClientId) {
            self.pool.introduce_client(client, UserId(client.0));
            self.pool.introduce_client(left(client), UserId(client.0));
        }
        let has_pages = |slab: &u32| {
            let generation = self.generations.get(slab).copied().unwrap_or(0);
            self.table.found(*slab, generation).is_some()
        };
        let mut missing = (wanted as usize).saturating_sub(slabs.clone().filter(has_pages).count());
        for slab in slabs {
            let generation = self.generations.get(&slab).copied().unwrap_or(0);
            let found = self.table.found(slab, generation);
            if found.is_none() {
                self.table.slots.retain(|slot, _| slot.slab != slab);
            }
            let generation = if found.is_some() { generation } else { generation + 1 };
            self.generations.insert(slab, generation);
            if found.is_none() && missing == 0 {
                self.pool.begin_absent(slab, generation);
                continue;
            }
            missing -= usize::from(found.is_none());
            self.pool.begin_slab(slab, generation, found);
        }
        self.table.mapped.clear();
        self.table.slabs.clear();
        self.keep_strangers();
        self.leave_ghosts();
        let mut uses = Vec::new();
        for desc in descs() {
            let ns = self.pool.open_namespace(desc.clone()).unwrap();
            let Some(adoption) = self.pool.begin_adoption(ns) else { continue };
            let mut adoption = adoption.plan(&desc);
            while self.pool.adopt(&mut adoption, u64::MAX) {
                self.pool.check().unwrap();
            }
            uses.extend(adoption.take_uses());
        }
        uses.sort_unstable_by_key(|(used, _)| *used);
        let uses: Vec<PageKey> = uses.into_iter().map(|(_, page)| page).collect();
        self.pool.use_again(&uses);
        self.pool.check().unwrap();
        while self.pool.forget_strangers(self.now).0 {}
        self.say_what_is_mapped();
        self.bury();
        self.promised.clear();
        self.off.clear();
        self.promise();
        for (ns, node) in expected {
            assert!(self.present(NamespaceIndex(ns, 0), node), "node {node} of {ns} is lost");
        }
        self.resize(wanted);
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
        self.ghosts.extend(leases.filter(|held| held.write || held.mapped));
        self.reads.clear();
        self.writes.clear();
        self.pinned.clear();
        self.seen.clear();
    }

    /// Every other process says at once what it has mapped, and goes on with it. Others stay silent until they are gone.
    fn say_what_is_mapped(&mut self) {
        let (ghosts, mut told) = (std::mem::take(&mut self.ghosts), BTreeSet::new());
        for (at, mut held) in ghosts.into_iter().enumerate() {
            if !held.mapped || !at.is_multiple_of(2) || held.shards.count() > 1 {
                self.ghosts.push(held);
                continue;
            }
            let ns = NamespaceIndex(held.ns, 0);
            let slot = |(position, node, address): &(u32, usize, Address)| MappedSlot {
                position: *position,
                slab: address.0,
                generation: address.1,
                offset: address.2,
                reserved: *node == usize::MAX,
            };
            let slots: Vec<MappedSlot> = held.slots.iter().map(slot).collect();
            let (shard, client, left) = (held.shards.first(), held.client, [left(held.client)]);
            let ask = TakeOverAsk { client, left: &left, ns, shard, slots: &slots };
            let stats = self.pool.stats();
            let is_full = stats.leases >= stats.leases_max;
            let taken = self.pool.take_over(ask, self.now).unwrap();
            let is_gone = |address: &Address| self.generations[&address.0] != address.1;
            if taken.no_room {
                // There are as many leases as there may be, with those that the last server's end left.
                assert!(is_full || held.slots.iter().any(|(_, _, address)| is_gone(address)), "{stats:?}");
                self.ghosts.push(held);
                continue;
            }
            let again = self.pool.take_over(ask, self.now).unwrap();
            // It has them mapped at another place too, and gives that up at once.
            assert!(again.positions.iter().all(|position| taken.positions.contains(position)));
            if let Some(lease) = again.lease {
                self.pool.release(lease, client, &[], &[], self.now).expect("a lease of this client");
            }
            let rest = held.slots.extract_if(.., |(position, _, _)| !taken.positions.contains(position));
            for (_, _, address) in rest {
                // A page of a slab that had nothing else: it has fresh memory, and the process the old one.
                assert!(is_gone(&address), "{address:?} is nobody's");
            }
            let Some(lease) = taken.lease else { continue };
            held.begun = self.now;
            for (position, _, address) in &held.slots {
                self.seen.insert((lease, *position), (*address, self.memory[address]));
            }
            self.leases.insert(lease, held);
            told.insert(client);
        }
        // Who has said all has nothing else mapped.
        told.retain(|client| self.ghosts.iter().all(|ghost| ghost.client != *client));
        for client in told {
            while !self.pool.client_gone(left(client), self.now) {}
        }
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
