//! The fake's leases of mapped slots. Owns: reserving, renewing, committing in place, releasing, taking over. Not: frames.

use super::Core;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use turnkv_proto::wire::{self, OffloadOutcome, Verb};
use turnkv_proto::{BlockHash, Error, ErrorKind};

/// What the fake does with leases of mapped slots, changed while it runs.
#[derive(Default)]
pub struct HeldScript {
    /// Names the memory, which outlives the process; 0: it does not.
    pub memory: AtomicU64,
    /// Slots that all leases have together at most; 0: as many as there are.
    pub all_max: AtomicU32,
    /// Positions of each lease that a new process takes over at most; 0: all.
    pub taken_max: AtomicU32,
    /// Says of each lease that a new process is to take over that there is no room for it now.
    pub no_room: AtomicBool,
    /// Lets nothing be mapped: pages are to be copied.
    pub refuses: AtomicBool,
    /// Says of every lease that is renewed that it is over.
    pub forgets: AtomicBool,
    /// Says less of the pages of a commit than there are.
    pub says_less: AtomicBool,
}

/// The slots of a lease by position, and the position of the next one.
#[derive(Default)]
pub struct SlotsHeld {
    pub slots: BTreeMap<u32, usize>,
    next: u32,
}

fn bound(most: &AtomicU32) -> usize {
    match most.load(Ordering::SeqCst) {
        0 => usize::MAX,
        most => most as usize,
    }
}

fn unknown() -> Error {
    Error::new(ErrorKind::LeaseUnknown, "no such lease")
}

/// Memory of a name that no other test has.
pub fn some_memory() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    NEXT.fetch_add(1, Ordering::SeqCst)
}

impl Core {
    pub(super) fn of_held(&self, verb: Verb, body: &[u8]) -> Result<Vec<u8>, Error> {
        match verb {
            Verb::Reserve => Ok(self.reserve(&wire::ReserveRequest::decode(body).unwrap())?.encode_to_vec()),
            Verb::Renew => Ok(self.renew(&wire::RenewRequest::decode(body).unwrap()).encode_to_vec()),
            Verb::CommitReserved => {
                let ask = wire::CommitReservedRequest::decode(body).unwrap();
                Ok(self.commit_reserved(&ask)?.encode_to_vec())
            }
            _ => Ok(self.take_over(wire::TakeOverRequest::decode(body).unwrap()).encode_to_vec()),
        }
    }

    fn reserve(&self, ask: &wire::ReserveRequest) -> Result<wire::ReserveReply, Error> {
        self.check_namespace(&ask.namespace)?;
        let most = bound(&self.script.held.all_max);
        let mut pool = self.pool.lock().unwrap();
        let mut held = match ask.lease {
            0 => SlotsHeld::default(),
            lease => pool.held.remove(&lease).ok_or_else(unknown)?,
        };
        let lease_ms = self.lease_ms();
        let mut reply = wire::ReserveReply { lease_ms, first: held.next, ..Default::default() };
        let others: usize = pool.held.values().map(|held| held.slots.len()).sum();
        while reply.slots.len() < ask.pages as usize {
            if others + held.slots.len() >= most {
                reply.short = OffloadOutcome::LeaseLimit.into();
                break;
            }
            let taken: Vec<_> = held.slots.values().map(|slot| (0, BlockHash([0; 32]), *slot)).collect();
            let Some(slot) = pool.free_slot(&taken) else {
                reply.short = OffloadOutcome::NoSpace.into();
                break;
            };
            held.slots.insert(held.next, slot);
            held.next += 1;
            reply.slots.push(self.slot_ref(slot));
        }
        if ask.lease != 0 || !reply.slots.is_empty() {
            reply.lease = if ask.lease == 0 { pool.lease() } else { ask.lease };
            pool.held.insert(reply.lease, held);
        }
        Ok(reply)
    }

    fn renew(&self, ask: &wire::RenewRequest) -> wire::RenewReply {
        let mut reply = wire::RenewReply { lease_ms: self.lease_ms(), ..Default::default() };
        let mut pool = self.pool.lock().unwrap();
        for lease in &ask.leases {
            let read = pool.reads.get(lease).cloned();
            if self.script.held.forgets.load(Ordering::SeqCst) {
                pool.held.remove(lease);
                reply.gone.push(*lease);
            } else if self.script.held.refuses.load(Ordering::SeqCst) {
                reply.refused.push(*lease);
            } else if let Some(slots) = read {
                pool.reads.remove(lease);
                let next = slots.len() as u32;
                pool.held.insert(*lease, SlotsHeld { slots: (0..).zip(slots).collect(), next });
            } else if !pool.held.contains_key(lease) {
                reply.gone.push(*lease);
            }
        }
        reply
    }

    fn commit_reserved(&self, ask: &wire::CommitReservedRequest) -> Result<wire::CommitReservedReply, Error> {
        self.check_namespace(&ask.namespace)?;
        let mut pool = self.pool.lock().unwrap();
        let held = pool.held.get(&ask.lease).ok_or_else(unknown)?;
        let slots: Option<Vec<usize>> =
            ask.positions.iter().map(|position| held.slots.get(position).copied()).collect();
        let slots = slots.ok_or_else(|| Error::invalid("a position that the lease has not"))?;
        let mut parent = BlockHash::parse_optional(&ask.parent).unwrap();
        let mut reply = wire::CommitReservedReply { durable: ask.durable, ..Default::default() };
        let hashes = turnkv_proto::unpack_hashes(&ask.hashes).unwrap();
        for ((hash, slot), checksum) in hashes.iter().zip(slots).zip(&ask.checksums) {
            let is_reachable = parent.is_none_or(|parent| pool.pages.contains_key(&parent));
            let outcome = match pool.pages.get(hash) {
                _ if !is_reachable => OffloadOutcome::NoParent,
                Some(_) => OffloadOutcome::Present,
                None => {
                    assert_eq!(self.slot(slot).page().checksum(), *checksum, "of what was written there");
                    pool.pages.insert(*hash, (slot, *checksum));
                    OffloadOutcome::Stored
                }
            };
            reply.outcomes.push(outcome.into());
            parent = if ask.siblings { parent } else { Some(*hash) };
        }
        pool.committed += 1;
        if self.script.held.says_less.load(Ordering::SeqCst) {
            reply.outcomes.pop();
        }
        Ok(reply)
    }

    pub(super) fn release(&self, ask: &wire::ReleaseRequest) {
        let mut pool = self.pool.lock().unwrap();
        pool.corrupt.extend(&ask.corrupt);
        let Some(held) = pool.held.get_mut(&ask.lease) else { return };
        held.slots.retain(|position, _| !ask.positions.is_empty() && !ask.positions.contains(position));
        if held.slots.is_empty() {
            pool.held.remove(&ask.lease);
        }
    }

    fn take_over(&self, ask: wire::TakeOverRequest) -> wire::TakeOverReply {
        if self.script.held.no_room.load(Ordering::SeqCst) {
            return wire::TakeOverReply { no_room: true, lease_ms: self.lease_ms(), ..Default::default() };
        }
        let mut pool = self.pool.lock().unwrap();
        let slots = ask.slots.iter().map(|slot| slot.offset as usize / super::PAGE_BYTES);
        let taken = ask.positions.iter().copied().zip(slots).take(bound(&self.script.held.taken_max));
        let slots: BTreeMap<u32, usize> = taken.collect();
        let positions: Vec<u32> = slots.keys().copied().collect();
        let next = positions.last().map_or(0, |last| last + 1);
        let lease = if positions.is_empty() { 0 } else { pool.lease() };
        if lease != 0 {
            pool.held.insert(lease, SlotsHeld { slots, next });
        }
        wire::TakeOverReply { lease, lease_ms: self.lease_ms(), positions, no_room: false }
    }
}
