//! A plain world around the pool: memory, a disk, clients. Owns: what must be true of any answer. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, missing_docs, unreachable_pub)]

mod hold;
mod kill;
mod nvme;
mod pages;
mod resize;

pub use pages::*;

use std::collections::{BTreeMap, BTreeSet};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};

pub const NODES: usize = 40;
/// Which bytes: namespace, node, shard.
pub type Content = (u16, usize, u16);
type Address = (u32, u32, u64);

const POLICIES: [PolicyKind; 6] = [
    PolicyKind::Lru,
    PolicyKind::S3Fifo,
    PolicyKind::TinyLfu,
    PolicyKind::Arc,
    PolicyKind::Gittins,
    PolicyKind::Session,
];

/// A small pool; `kind` chooses its policy, what it admits to NVMe, and whether writes have a budget.
pub fn config(nvme: bool, kind: usize) -> PoolConfig {
    PoolConfig {
        slab_bytes: 64 << 10,
        slab_count: 4,
        nvme_bytes: if nvme { 64 << 20 } else { 0 },
        nvme_admit: if kind / 6 % 3 == 2 { Admit::Reused } else { Admit::All },
        nvme_bytes_per_day: if kind / 18 % 3 == 2 { 20 << 20 } else { 0 },
        free_slots_percent: 10,
        limits: Limits {
            pages_max: 400,
            namespaces_max: 4,
            sessions_max: 3,
            session_pages_max: 64,
            leases_max: 8,
            lease_pages_max: 6,
            client_slots_max: 10,
            client_slots_percent: 100,
            user_slots_percent: 100,
            all_slots_percent: 100,
            lease_ms: 100,
            lease_grace_ms: 50,
            session_ttl_ms: 500,
            protected_percent: 25,
        },
        policy: POLICIES[kind % POLICIES.len()],
    }
}

#[derive(Clone, Debug)]
pub struct Held {
    pub client: ClientId,
    pub write: bool,
    /// Its slots are mapped: time does not end it.
    pub mapped: bool,
    pub shards: Shards,
    pub ns: u16,
    pub begun: u64,
    /// Position, node, slot: a node may have several, one a shard.
    pub slots: Vec<(u32, usize, Address)>,
}

pub struct World {
    pub kind: usize,
    pub pool: Pool,
    pub nvme: bool,
    pub spaces: Vec<(NamespaceIndex, u16)>,
    pub now: u64,
    pub memory: BTreeMap<Address, Content>,
    pub disk: BTreeMap<NvmePlace, Content>,
    pub places: u32,
    pub leases: BTreeMap<LeaseId, Held>,
    pub reads: Vec<(Promotion, u16, usize)>,
    pub writes: Vec<(WriteBehind, usize)>,
    /// Pages that readers were promised.
    pub promised: BTreeSet<(u16, usize)>,
    /// Pages that were seen off NVMe: they may go, or be promised again.
    pub off: BTreeSet<(u16, usize)>,
    /// Pages under read leases that nothing but eviction could have taken away: (lease, namespace, node).
    pub pinned: BTreeSet<(LeaseId, u16, usize)>,
    /// Everything the pool answered, for the proof of determinism.
    pub trace: Vec<String>,
    pub generations: BTreeMap<u32, u32>,
    /// What became of extents, and nobody looked at yet.
    pub notes: Vec<(NvmePlace, PlaceNote)>,
    /// What a process sees through its mappings, by lease and position: it must never change under it.
    pub seen: BTreeMap<(LeaseId, u32), (Address, Content)>,
    /// Marks what was written into reserved slots.
    pub scribbles: usize,
    /// What the table says that outlives the process.
    pub table: kill::Table,
    /// Write leases of earlier lives of the pool, whose clients may still write.
    pub ghosts: Vec<Held>,
}

impl Held {
    fn page(&self, position: u32) -> usize {
        self.shards.page(position as usize)
    }

    fn content(&self, position: u32, node: usize) -> Content {
        (self.ns, node, self.shards.shard(position as usize))
    }
}

impl World {
    pub fn new(nvme: bool, kind: usize) -> World {
        let mut pool = Pool::new(config(nvme, kind)).unwrap();
        pool.tell_slots();
        let spaces = descs().map(|desc| (pool.open_namespace(desc.clone()).unwrap(), desc.shards)).to_vec();
        World {
            kind,
            pool,
            nvme,
            spaces,
            now: 1000,
            memory: BTreeMap::new(),
            disk: BTreeMap::new(),
            places: 0,
            leases: BTreeMap::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            promised: BTreeSet::new(),
            off: BTreeSet::new(),
            pinned: BTreeSet::new(),
            trace: Vec::new(),
            generations: BTreeMap::new(),
            notes: Vec::new(),
            seen: BTreeMap::new(),
            scribbles: 0,
            table: kill::Table::default(),
            ghosts: Vec::new(),
        }
    }

    pub fn note(&mut self, what: impl std::fmt::Debug) {
        self.trace.push(format!("{what:?}"));
    }

    pub fn address(&self, slot: SlotKey) -> Address {
        let place = self.pool.slot_place(slot).expect("a slot that was named exists");
        assert!(place.offset + place.bytes <= 64 << 10, "a slot lies in its slab");
        (place.slab, place.generation, place.offset)
    }

    fn overlaps(&self, slot: SlotKey, other: Address) -> bool {
        let place = self.pool.slot_place(slot).unwrap();
        // Slots of other cuts of the slab are at least 8 KiB long.
        place.slab == other.0 && place.offset < other.2 + 8192 && other.2 < place.offset + place.bytes
    }

    /// Nobody else may be reading or writing a slot that is given out to be written.
    fn assert_exclusive(&self, slot: SlotKey) {
        for (id, held) in &self.leases {
            let late = held.begun + if held.write || held.mapped { u64::MAX / 2 } else { 150 } < self.now;
            for (_, _, other) in &held.slots {
                assert!(late || !self.overlaps(slot, *other), "{slot:?} is still under {id:?}: {held:?}");
            }
        }
        for ghost in &self.ghosts {
            for (_, _, other) in &ghost.slots {
                let same_memory = self.address(slot).1 == other.1;
                assert!(
                    !same_memory || !self.overlaps(slot, *other),
                    "{slot:?} may still be written by {ghost:?}"
                );
            }
        }
        for (read, _, _) in &self.reads {
            assert_ne!(read.slot, slot, "a read into the slot is in flight");
        }
        for (write, _) in &self.writes {
            assert_ne!(write.slot, slot, "a write from the slot is in flight");
        }
    }

    fn take_actions(&mut self) {
        let effects = self.pool.take_effects();
        self.table.write(&effects);
        let Effects { renew, notes, .. } = effects;
        self.notes.extend(notes);
        for SlabAction::Renew { slab, generation, tenant } in renew {
            let before = self.generations.insert(slab, generation).unwrap_or(0);
            assert!(generation > before, "a renewed slab has a new generation");
            assert_eq!(self.pool.slab_tenant(slab), Some((tenant.as_str(), generation)));
        }
    }

    pub fn offload(
        &mut self,
        space: usize,
        node: usize,
        count: usize,
        moved: (u16, u16),
        client: u64,
        session: Option<&SessionId>,
    ) {
        let (ns, shards) = self.spaces[space];
        let full = path(node);
        let from = full.len().saturating_sub(count.max(1));
        let nodes = &full[from..];
        let hashes: Vec<BlockHash> = nodes.iter().map(|node| hash(*node)).collect();
        let up = from.checked_sub(1).map(|at| hash(full[at]));
        let (shards, client) = (some_shards(moved, shards), ClientId(client));
        let ask = OffloadAsk { ns, session, parent: up, hashes: &hashes, shards, tail_tokens: 0, client };
        let plan = self.pool.begin_offload(ask, self.now);
        self.note(&plan);
        let Ok(plan) = plan else { return };
        self.take_actions();
        assert_eq!(plan.outcomes.len(), shards.positions(hashes.len()));
        let mut declined = false;
        let mut slots = Vec::new();
        for (position, outcome) in plan.outcomes.iter().enumerate() {
            match outcome {
                Outcome::Present => assert!(!declined, "nothing follows a declined page"),
                Outcome::Granted(slot) => {
                    assert!(!declined, "nothing follows a declined page");
                    self.assert_exclusive(*slot);
                    let address = self.address(*slot);
                    assert!(slots.iter().all(|(_, _, other)| *other != address), "one slot, two grants");
                    let node = nodes[shards.page(position)];
                    self.memory.insert(address, (ns.0, node, shards.shard(position)));
                    slots.push((position as u32, node, address));
                }
                _ => {
                    assert!(declined || position % shards.count() == 0, "pages are declined whole");
                    declined = true;
                }
            }
        }
        assert_eq!(plan.lease.is_some(), !slots.is_empty());
        if let Some(lease) = plan.lease {
            let (write, mapped, ns, begun) = (true, false, ns.0, self.now);
            let held = Held { client, write, mapped, shards, ns, begun, slots };
            assert!(self.leases.insert(lease, held).is_none(), "a lease is never given twice");
        }
    }

    pub fn commit(&mut self, at: usize, skip: usize) {
        let Some((lease, held)) = self.pick(at, true) else { return };
        let filled: Vec<(u32, u64)> = held
            .slots
            .iter()
            .enumerate()
            .filter(|(index, _)| skip == 0 || index % 4 != skip)
            .map(|(_, (position, node, _))| (*position, checksum(held.content(*position, *node))))
            .collect();
        let done = self.pool.commit_offload(lease, held.client, &filled, self.now);
        self.note(&done);
        self.leases.remove(&lease);
        assert_eq!(done.is_ok(), held.begun + 100 >= self.now, "a commit counts until its deadline");
        let Ok(done) = done else { return };
        let torn = |at: &u32| done.dropped.iter().any(|other| held.page(*other) == held.page(*at));
        let kept: BTreeSet<usize> =
            filled.iter().map(|(at, _)| at).filter(|at| !torn(at)).map(|at| held.page(*at)).collect();
        assert_eq!(done.kept.len(), kept.len(), "a page is kept once, or torn");
        assert!(done.freed >= done.dropped.len() + held.slots.len() - filled.len());
        assert_eq!(
            self.pool.commit_offload(lease, held.client, &filled, self.now),
            Err(PoolError::LeaseUnknown)
        );
        self.promise();
    }

    /// What is visible now is promised from now on.
    pub fn promise(&mut self) {
        for (ns, _) in self.spaces.clone() {
            for node in 0..NODES {
                if self.present(ns, node) {
                    let kept = self.is_kept(ns, node);
                    let set = if kept { &mut self.promised } else { &mut self.off };
                    set.insert((ns.0, node));
                }
            }
        }
    }

    /// Whether a page is on NVMe or on its way there, or there is no NVMe to be on.
    pub fn is_kept(&self, ns: NamespaceIndex, node: usize) -> bool {
        let key = self.pool.page_key(ns, &hash(node));
        !self.nvme || key.is_some_and(|key| self.pool.is_on_nvme(key).is_some())
    }

    pub fn present(&mut self, ns: NamespaceIndex, node: usize) -> bool {
        self.pool.lookup(ns, &[hash(node)], self.now).unwrap().present == 1
    }

    pub fn abort(&mut self, at: usize) {
        let Some((lease, held)) = self.pick(at, true) else { return };
        let foreign = self.pool.abort_offload(lease, ClientId(99));
        assert_eq!(foreign, Err(PoolError::LeaseUnknown));
        self.pool.abort_offload(lease, held.client).unwrap();
        self.leases.remove(&lease);
    }

    pub fn reload(&mut self, space: usize, node: usize, moved: (u16, u16), client: u64, hold: bool) {
        let (ns, shards) = self.spaces[space];
        let (shards, client) = (some_shards(moved, shards), ClientId(client));
        let nodes = path(node);
        let hashes: Vec<BlockHash> = nodes.iter().map(|node| hash(*node)).collect();
        let ask = ReloadAsk { ns, hashes: &hashes, shards, client, session: None, hold };
        let plan = self.pool.begin_reload(ask, self.now);
        self.note(&plan);
        let Ok(plan) = plan else { return };
        let hold = hold && plan.lease.is_some_and(|lease| self.hold(client, lease));
        self.take_actions();
        for read in &plan.ahead {
            let content = *self.disk.get(&read.place).expect("a place that was written");
            self.start_read(*read, content);
        }
        let mut slots = Vec::new();
        for (position, step) in plan.pages.iter().enumerate() {
            if matches!(step, ReloadStep::NoSlot | ReloadStep::Miss(_)) {
                assert_eq!(position + 1, plan.pages.len(), "nothing follows the end");
                break;
            }
            let node = nodes[shards.page(position)];
            let content = (ns.0, node, shards.shard(position));
            let slot = match step {
                ReloadStep::Ready { slot, checksum: sum, .. } => {
                    assert_eq!(self.memory.get(&self.address(*slot)), Some(&content), "the right bytes");
                    assert_eq!(*sum, checksum(content));
                    if let (Some(lease), true) = (plan.lease, hold) {
                        self.seen.insert((lease, position as u32), (self.address(*slot), content));
                    }
                    *slot
                }
                ReloadStep::Promote(read) => {
                    self.start_read(*read, content);
                    read.slot
                }
                ReloadStep::Join { slot, checksum: sum, .. } => {
                    assert!(self.reads.iter().any(|(read, _, _)| read.slot == *slot), "a read to join");
                    assert_eq!(*sum, checksum(content));
                    *slot
                }
                ReloadStep::NoSlot | ReloadStep::Miss(_) => break,
            };
            slots.push((position as u32, node, self.address(slot)));
        }
        assert_eq!(slots.len() % shards.count(), 0, "pages are covered whole");
        assert_eq!(plan.lease.is_some(), !slots.is_empty());
        if let Some(lease) = plan.lease {
            self.pinned.extend(slots.iter().map(|(_, node, _)| (lease, ns.0, *node)));
            let (write, mapped, ns, begun) = (false, hold, ns.0, self.now);
            let held = Held { client, write, mapped, shards, ns, begun, slots };
            assert!(self.leases.insert(lease, held).is_none(), "a lease is never given twice");
        }
    }

    pub fn start_read(&mut self, read: Promotion, content: Content) {
        self.assert_exclusive(read.slot);
        assert_eq!(self.disk.get(&read.place), Some(&content), "a read of the right place");
        assert_eq!(read.checksum, checksum(content));
        self.reads.push((read, content.0, content.1));
    }

    /// Ends a read lease; its bytes must not have changed under it, unless it is overdue.
    pub fn end(&mut self, at: usize, corrupt: bool) {
        let Some((lease, held)) = self.pick(at, false) else { return };
        let pending =
            |address: &Address| self.reads.iter().any(|(read, _, _)| self.address(read.slot) == *address);
        let known = held.begun + 150 >= self.now;
        for (position, node, address) in &held.slots {
            let content = held.content(*position, *node);
            let landed = self.memory.get(address) == Some(&content);
            // A read that failed leaves whatever was there before: its waiters were told.
            assert!(!known || landed || pending(address) || self.memory.get(address) != Some(&content));
        }
        let corrupt: Vec<u32> = if corrupt { vec![0] } else { vec![] };
        let before = self.promised.clone();
        let ended = self.pool.end_reload(lease, held.client, &corrupt, self.now);
        self.note(ended);
        assert_eq!(ended.is_ok(), known);
        self.leases.remove(&lease);
        if known && !corrupt.is_empty() {
            let (_, node, _) = held.slots[0];
            let (ns, _) = self.spaces.iter().copied().find(|(ns, _)| ns.0 == held.ns).unwrap();
            if !self.present(ns, node) {
                self.forget_below(held.ns, node);
            }
        }
        assert!(self.promised.is_subset(&before));
    }

    pub fn land(&mut self, at: usize, cause: Option<MissCause>) {
        if self.reads.is_empty() {
            return;
        }
        let (read, ns, node) = self.reads.swap_remove(at % self.reads.len());
        match cause {
            None => {
                let address = self.address(read.slot);
                let landed = self.pool.promoted(read.page, read.shard, self.now);
                self.note(landed);
                self.memory.insert(address, (ns, node, read.shard));
            }
            Some(cause) => {
                let live = self.pool.is_on_nvme(read.page).is_some();
                self.pool.promote_failed(read.page, read.shard, cause, self.now);
                if live && self.pool.is_on_nvme(read.page).is_none() {
                    self.forget_below(ns, node);
                }
            }
        }
    }

    pub fn client_gone(&mut self, client: u64) {
        self.pool.client_gone(ClientId(client), self.now);
        self.pool.client_gone(ClientId(100 + client), self.now);
        self.ghosts.retain(|ghost| ghost.client != ClientId(client));
        self.leases.retain(|_, held| held.client != ClientId(client));
        let leases = &self.leases;
        self.seen.retain(|(lease, _), _| leases.contains_key(lease));
    }

    pub fn expire(&mut self) {
        self.pool.expire(self.now);
        let now = self.now;
        // A read lease frees by time; a write lease and one on mapped slots only by its holder.
        self.leases.retain(|_, held| held.write || held.mapped || held.begun + 150 >= now);
    }

    pub fn bury(&mut self) {
        self.take_actions();
        for (place, note) in std::mem::take(&mut self.notes) {
            let (PlaceNote::Dead(bytes) | PlaceNote::Moved(bytes)) = note else { continue };
            assert!(bytes > 0);
            assert!(self.disk.remove(&place).is_some(), "a place dies once");
        }
    }

    /// What must hold between any two calls.
    pub fn verify(&mut self) {
        self.pool.check().unwrap_or_else(|broken| panic!("{broken}"));
        self.take_actions();
        self.verify_table();
        let (leases, now) = (&self.leases, self.now);
        self.pinned.retain(|(lease, _, _)| {
            leases.get(lease).is_some_and(|held| held.mapped || held.begun + 150 >= now)
        });
        for ((lease, position), (address, content)) in &self.seen {
            assert_eq!(self.memory.get(address), Some(content), "{lease:?} at {position} changed underneath");
        }
        for (lease, ns, node) in self.pinned.clone() {
            assert!(self.present(NamespaceIndex(ns, 0), node), "node {node} was evicted under {lease:?}");
        }
        let mut pages = 0;
        for (ns, _) in self.spaces.clone() {
            for node in 0..NODES {
                let present = self.present(ns, node);
                pages += u64::from(present);
                if present {
                    assert!(parent(node).is_none_or(|up| self.present(ns, up)), "closure");
                }
                if self.nvme {
                    let kept = present && self.is_kept(ns, node);
                    if kept && self.off.remove(&(ns.0, node)) {
                        self.promised.insert((ns.0, node));
                    }
                    assert!(
                        !present || kept || self.off.contains(&(ns.0, node)),
                        "node {node} is off unasked"
                    );
                    assert_eq!(kept, self.promised.contains(&(ns.0, node)), "ns {} node {node}", ns.0);
                }
            }
        }
        assert_eq!(self.pool.stats().pages, pages);
    }

    fn pick(&self, at: usize, write: bool) -> Option<(LeaseId, Held)> {
        let wanted = |held: &Held| held.write == write && !held.mapped;
        let leases: Vec<_> = self.leases.iter().filter(|(_, held)| wanted(held)).collect();
        let (lease, held) = leases.get(at % leases.len().max(1))?;
        Some((**lease, (*held).clone()))
    }
}
