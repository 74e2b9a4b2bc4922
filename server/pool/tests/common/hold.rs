//! Processes that map slots. Owns: reserving, committing in place, renewing and releasing in the plain world.
//! Must not know: the pool's insides.

use super::*;

/// A slot that was reserved and holds no page of the tree yet.
const RESERVED: usize = usize::MAX;

impl World {
    pub fn reserve(&mut self, space: usize, shard: u16, client: u64, pages: u32, extend: Option<usize>) {
        let (ns, shards) = self.spaces[space];
        let (mut shard, mut client) = (shard % shards, ClientId(client));
        let extended = extend.and_then(|at| self.pick_mapped(at));
        let extended = extended.filter(|(_, held)| held.ns == ns.0 && held.shards.count() == 1);
        if let Some((_, held)) = &extended {
            (shard, client) = (held.shards.first(), held.client);
        }
        let lease = extended.as_ref().map(|(lease, _)| *lease);
        let reserved = self.pool.reserve(ReserveAsk { ns, shard, client, lease, pages }, self.now);
        self.note(&reserved);
        let Ok(reserved) = reserved else { return };
        self.take_actions();
        assert_eq!(reserved.short.is_none(), reserved.slots.len() == pages as usize);
        assert_eq!(reserved.lease.is_none(), lease.is_none() && reserved.slots.is_empty());
        let Some(lease) = reserved.lease else { return };
        assert_eq!(self.pool.renew(client, &[lease], self.now), Renewed::default());
        let mut slots = extended.map_or(Vec::new(), |(_, held)| held.slots);
        for (at, slot) in reserved.slots.iter().enumerate() {
            self.assert_exclusive(*slot);
            let (position, address) = (reserved.first + at as u32, self.address(*slot));
            assert!(slots.iter().all(|(other, _, _)| *other < position), "positions are never given twice");
            self.scribbles += 1;
            let content = (u16::MAX, self.scribbles, shard);
            self.memory.insert(address, content);
            self.seen.insert((lease, position), (address, content));
            slots.push((position, RESERVED, address));
        }
        let (write, mapped, ns, begun) = (false, true, ns.0, self.now);
        let shards = Shards::one(shard);
        self.leases.insert(lease, Held { client, write, mapped, shards, ns, begun, slots });
    }

    /// Wants to map what a reload found. False: so much may not be held; it stays a lease to copy from.
    pub fn hold(&mut self, client: ClientId, lease: LeaseId) -> bool {
        let Renewed { gone, refused } = self.pool.renew(client, &[lease], self.now);
        assert!(gone.is_empty() && (refused.is_empty() || refused == [lease]));
        refused.is_empty()
    }

    pub fn commit_reserved(&mut self, at: usize, node: usize, count: usize, siblings: bool) {
        let Some((lease, held)) = self.pick_mapped(at) else { return };
        let free: Vec<(u32, Address)> = held
            .slots
            .iter()
            .filter(|(_, node, _)| *node == RESERVED)
            .map(|(position, _, address)| (*position, *address))
            .collect();
        let full = path(node);
        let mut from = full.len().saturating_sub(count.clamp(1, free.len().max(1)));
        if siblings {
            from = full.len() - 1; // what hangs on the parent is one page of this tree
        }
        let nodes = &full[from..];
        if free.len() < nodes.len() {
            return;
        }
        let shards = held.shards;
        let hashes: Vec<BlockHash> = nodes.iter().map(|node| hash(*node)).collect();
        let filled: Vec<(u32, u64)> = free
            .iter()
            .rev() // slots are written in any order
            .zip(nodes)
            .map(|((position, _), node)| (*position, checksum((held.ns, *node, shards.first()))))
            .collect();
        for ((position, address), node) in free.iter().rev().zip(nodes) {
            let content = (held.ns, *node, shards.first());
            self.memory.insert(*address, content);
            self.seen.insert((lease, *position), (*address, content));
        }
        let ns = NamespaceIndex(held.ns, 0);
        let parent = from.checked_sub(1).map(|at| hash(full[at]));
        let client = held.client;
        let pages = OffloadAsk { ns, session: None, parent, hashes: &hashes, shards, tail_tokens: 0, client };
        let twice = [filled[0], filled[0]];
        let double = OffloadAsk { hashes: &[hashes[0]; 2], ..pages };
        let refused = CommitReservedAsk { pages: double, lease, filled: &twice, siblings };
        assert!(matches!(self.pool.commit_reserved(refused, self.now), Err(PoolError::Invalid(_))));
        let ask = CommitReservedAsk { pages, lease, filled: &filled, siblings };
        let done = self.pool.commit_reserved(ask, self.now);
        self.note(&done);
        let done = done.expect("a held lease can be committed however late");
        assert_eq!(done.outcomes.len(), nodes.len());
        let stored = done.outcomes.iter().filter(|outcome| **outcome == Outcome::Stored).count();
        assert_eq!(done.kept.len(), stored);
        let mut stored_nodes = Vec::new();
        let record = self.leases.get_mut(&lease).expect("a commit ends no lease");
        for (outcome, ((position, _), node)) in done.outcomes.iter().zip(free.iter().rev().zip(nodes)) {
            if *outcome == Outcome::Stored {
                let slot = record.slots.iter_mut().find(|(other, _, _)| other == position);
                slot.expect("a position of the lease").1 = *node;
                stored_nodes.push(*node);
            }
        }
        for node in stored_nodes {
            if self.present(ns, node) {
                self.pinned.insert((lease, held.ns, node)); // all its shards are there
            }
        }
        self.promise();
    }

    pub fn renew(&mut self, at: usize) {
        let Some((lease, held)) = self.pick_mapped(at) else { return };
        assert_eq!(self.pool.renew(ClientId(99), &[lease], self.now).gone, [lease]);
        assert_eq!(self.pool.renew(held.client, &[lease], self.now), Renewed::default());
    }

    pub fn release(&mut self, at: usize, some: usize, corrupt: bool) {
        let Some((lease, held)) = self.pick_mapped(at) else { return };
        let (client, now) = (held.client, self.now);
        assert_eq!(self.pool.release(lease, ClientId(99), &[], &[], now), Err(PoolError::LeaseUnknown));
        assert!(matches!(self.pool.release(lease, client, &[9999], &[], now), Err(PoolError::Invalid(_))));
        let picked = held.slots.iter().enumerate().filter(|(at, _)| some == 0 || at % 3 == some % 3);
        let picked: Vec<(u32, usize)> = picked.map(|(_, (position, node, _))| (*position, *node)).collect();
        if picked.is_empty() {
            return;
        }
        let positions: Vec<u32> = picked.iter().map(|(position, _)| *position).collect();
        let (bad, node) = picked[0];
        let corrupt: Vec<u32> = if corrupt { vec![bad] } else { vec![] };
        self.pool.release(lease, client, &positions, &corrupt, now).expect("a lease of this client");
        let record = self.leases.get_mut(&lease).expect("it was picked");
        record.slots.retain(|(position, _, _)| !positions.contains(position));
        let rest: Vec<usize> = record.slots.iter().map(|(_, node, _)| *node).collect();
        if rest.is_empty() {
            self.leases.remove(&lease);
        }
        self.seen.retain(|(other, position), _| *other != lease || !positions.contains(position));
        self.pinned.retain(|(other, _, node)| *other != lease || rest.contains(node));
        let ns = NamespaceIndex(held.ns, 0);
        if !corrupt.is_empty() && node != RESERVED && !self.present(ns, node) {
            self.forget_below(held.ns, node);
        }
    }

    fn pick_mapped(&self, at: usize) -> Option<(LeaseId, Held)> {
        let leases: Vec<_> = self.leases.iter().filter(|(_, held)| held.mapped).collect();
        let (lease, held) = leases.get(at % leases.len().max(1))?;
        Some((**lease, (*held).clone()))
    }
}
