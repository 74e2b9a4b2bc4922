//! What another process left in DRAM is the next one's. Owns: the cases that random operations seldom meet. Must not know: memory,
//! the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::World;
use turnkv_pool::*;
use turnkv_proto::Shards;

/// A process, and as what the server before knew it.
const CLIENT: ClientId = ClientId(1);
const LEFT: ClientId = ClientId(9);
const SLOT: u64 = 8 << 10;

fn filled(nvme: bool) -> World {
    let mut world = World::new(nvme, 0);
    world.offload(0, 4, 8, (0, 0), 1, None);
    world.commit(0, 0);
    world.offload(1, 4, 8, (0, 1), 2, None);
    world.commit(0, 0);
    world.verify();
    world
}

#[test]
fn pages_come_back_to_the_slots_they_were_in_and_nothing_is_read() {
    for nvme in [false, true] {
        let mut world = filled(nvme);
        let before = world.pool.stats();
        assert!(before.dram.pages >= 8, "{before:?}");
        world.kill();
        world.verify();
        let after = world.pool.stats();
        assert_eq!((after.dram.pages, after.dram.used_bytes), (before.dram.pages, before.dram.used_bytes));
        assert!(after.found_shards > after.dram.pages, "{after:?}");
        assert_eq!((after.found_slabs, after.promoted_shards), (0, 0));
        // What was not written yet is to be written again.
        assert_eq!(after.dirty_bytes, if nvme { before.dirty_bytes } else { 0 });
        world.kill();
        assert_eq!(world.pool.stats().dram.pages, before.dram.pages, "and once more");
    }
}

#[test]
fn what_is_on_nvme_as_well_is_in_both_and_is_not_written_again() {
    let mut world = filled(true);
    world.start_writes(1 << 30);
    while !world.writes.is_empty() {
        world.finish_write(0, false);
    }
    world.verify();
    world.kill();
    world.verify();
    let stats = world.pool.stats();
    assert!(stats.dram.pages >= 8, "{stats:?}");
    assert_eq!((stats.nvme.pages, stats.dirty_bytes), (stats.dram.pages, 0));
    assert!(world.pool.next_writes(1 << 30, world.now).is_empty());
}

#[test]
fn slots_that_a_client_may_still_write_are_nobody_elses_until_it_is_gone() {
    let mut world = filled(false);
    world.offload(0, 20, 1, (0, 0), 1, None);
    world.offload(2, 20, 1, (0, 0), 2, None);
    world.kill();
    world.verify();
    let quarantined = world.pool.stats().quarantined_bytes;
    assert!(quarantined > 0, "{quarantined}");
    world.client_gone(1);
    world.client_gone(2);
    world.verify();
    let stats = world.pool.stats();
    assert_eq!((stats.quarantined_bytes, stats.leases), (0, 0));
}

#[test]
fn slabs_of_namespaces_that_nobody_opens_are_the_last_to_serve_others_and_get_fresh_memory() {
    let mut pool = Pool::new(common::config(false, 0)).unwrap();
    pool.tell_slots();
    let [desc, other, _] = common::descs();
    let slot = |slot: u32| FoundSlot {
        slot,
        hash: common::hash(slot as usize),
        parent: None,
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        bytes: 8192,
        checksum: 1,
        sequence: 1,
        used: 1,
        reads: 0,
    };
    for slab in 0..3 {
        let slots = vec![slot(slab)];
        pool.begin_slab(
            slab,
            7,
            Some(FoundSlab { slab, generation: 7, namespace: desc.id, slots, held: vec![], mapped: vec![] }),
        );
    }
    pool.begin_slab(3, 2, None);
    assert_eq!((pool.stats().found_slabs, pool.stats().free_slabs), (3, 4));
    pool.check().unwrap();
    let ns = pool.open_namespace(other).unwrap();
    let mut renewed = Vec::new();
    for node in 0..18 {
        // Each of one page, two shards of 12 KiB: five to a slab.
        let hashes = [common::hash(node)];
        let shards = turnkv_proto::Shards::new(0, 2).unwrap();
        let ask = OffloadAsk {
            ns,
            session: None,
            parent: None,
            hashes: &hashes,
            shards,
            tail_tokens: 0,
            client: ClientId(1),
        };
        let plan = pool.begin_offload(ask, 0).unwrap();
        let Some(lease) = plan.lease else { break };
        pool.commit_offload(lease, ClientId(1), &[(0, 1), (1, 1)], 0).unwrap();
        renewed.extend(pool.take_effects().renew);
        pool.check().unwrap();
    }
    let slabs: Vec<(u32, u32)> =
        renewed.iter().map(|SlabAction::Renew { slab, generation, .. }| (*slab, *generation)).collect();
    assert_eq!(slabs.len(), 3, "{slabs:?}");
    assert!(slabs.iter().all(|(slab, generation)| *slab < 3 && *generation == 8), "{slabs:?}");
    // Who comes too late finds nothing, and harms nothing.
    let ns = pool.open_namespace(desc.clone()).unwrap();
    let mut adoption = pool.begin_adoption(ns).unwrap().plan(&desc);
    while pool.adopt(&mut adoption, u64::MAX) {}
    pool.check().unwrap();
    assert_eq!((adoption.adopted(), pool.stats().found_shards), (0, 0));
}

/// A start that finds more slabs than there are to be serves all pages, and becomes smaller as any pool does.
#[test]
fn more_slabs_than_there_are_to_be_are_all_taken_over_and_then_leave() {
    let mut world = filled(true);
    world.resize(9);
    world.follow_size();
    for node in 0..common::NODES {
        for at in 0..2 {
            world.offload(at, node, 8, (0, 0), 1, None);
            if !world.leases.is_empty() {
                world.commit(0, 0);
            }
            if world.pool.stats().dram.used_bytes > 7 * (64 << 10) {
                break;
            }
        }
    }
    world.verify();
    let before = world.pool.stats().dram;
    assert!(before.used_bytes > 4 * (64 << 10), "{before:?}");
    world.kill();
    world.verify();
    let after = world.pool.stats();
    // Shards of pages that are not whole are free slots.
    assert_eq!(after.dram.pages, before.pages);
    assert_eq!(after.dram_wanted_bytes, 4 * (64 << 10));
    assert!(after.dram_present_bytes > after.dram_wanted_bytes, "{after:?}");
    for _ in 0..20 {
        world.follow_size();
        world.start_writes(1 << 30);
        while !world.writes.is_empty() {
            world.finish_write(0, false);
        }
    }
    world.verify();
    let stats = world.pool.stats();
    assert_eq!(stats.dram_present_bytes, stats.dram_wanted_bytes);
    assert_eq!(stats.nvme.pages, before.pages, "nothing is lost");
}

/// Of slabs that wait for their namespace, none that a process has mapped leaves; others leave last.
#[test]
fn slabs_that_wait_leave_last_and_those_that_are_mapped_do_not() {
    let mut pool = Pool::new(common::config(false, 0)).unwrap();
    pool.tell_slots();
    pool.introduce_client(ClientId(9), UserId(9));
    let [desc, ..] = common::descs();
    for slab in 0..2 {
        let mapped = if slab == 0 { vec![(0, ClientId(9))] } else { vec![] };
        let slot = FoundSlot {
            slot: 0,
            hash: common::hash(slab as usize),
            parent: None,
            shard: 0,
            shards: 1,
            tail_tokens: 0,
            bytes: 8192,
            checksum: 1,
            sequence: 1,
            used: 1,
            reads: 0,
        };
        let found =
            FoundSlab { slab, generation: 0, namespace: desc.id, slots: vec![slot], held: vec![], mapped };
        pool.begin_slab(slab, 0, Some(found));
    }
    pool.resize_dram(1, 0);
    while pool.shrink_some(0) == Shrink::Now {}
    let left: Vec<u32> = pool.take_left_slabs(8).into_iter().map(|(slab, _)| slab).collect();
    assert!(left.contains(&1) && !left.contains(&0), "{left:?}");
    pool.check().unwrap();
    assert_eq!(pool.stats().dram_present_bytes, 64 << 10);
}

/// A server that found a slab of which a process has three slots mapped: two have pages, one was reserved.
fn left_mapped(change: impl FnOnce(&mut PoolConfig)) -> (Pool, NamespaceIndex) {
    let mut config = common::config(false, 0);
    change(&mut config);
    let mut pool = Pool::new(config).unwrap();
    pool.tell_slots();
    [CLIENT, LEFT, ClientId(2)].iter().for_each(|client| pool.introduce_client(*client, UserId(client.0)));
    let [desc, ..] = common::descs();
    let slot = |slot: u32| FoundSlot {
        slot,
        hash: common::hash(slot as usize),
        parent: slot.checked_sub(1).map(|before| common::hash(before as usize)),
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        bytes: SLOT as u32,
        checksum: 1,
        sequence: 1,
        used: 1,
        reads: 0,
    };
    let mapped = vec![(0, LEFT), (1, LEFT), (5, LEFT)];
    let slots = vec![slot(0), slot(1)];
    let found = FoundSlab { slab: 0, generation: 7, namespace: desc.id, slots, held: vec![], mapped };
    pool.begin_slab(0, 7, Some(found));
    let ns = pool.open_namespace(desc.clone()).unwrap();
    let mut adoption = pool.begin_adoption(ns).unwrap().plan(&desc);
    while pool.adopt(&mut adoption, u64::MAX) {}
    assert_eq!((adoption.adopted(), pool.stats().quarantined_bytes), (2, 3 * SLOT));
    pool.check().unwrap();
    (pool, ns)
}

fn mapped(position: u32, slot: u64) -> MappedSlot {
    MappedSlot { position, slab: 0, generation: 7, offset: slot * SLOT, reserved: slot == 5 }
}

fn over(ns: NamespaceIndex, slots: &[MappedSlot]) -> TakeOverAsk<'_> {
    TakeOverAsk { client: CLIENT, left: &[LEFT], ns, shard: 0, slots }
}

#[test]
fn a_process_takes_over_what_it_had_mapped_and_nothing_beside() {
    let (mut pool, ns) = left_mapped(|_| ());
    let before = pool.stats();
    let good = mapped(4, 0);
    let others = [
        MappedSlot { generation: 6, ..good },
        MappedSlot { slab: 1, ..good },
        MappedSlot { slab: 99, ..good },
        MappedSlot { offset: SLOT / 2, ..good },
        MappedSlot { offset: 8 * SLOT, ..good },
        MappedSlot { offset: SLOT << 32, ..good }, // of the same number, as far as 32 bits reach
        MappedSlot { offset: u64::MAX - (SLOT - 1), ..good },
        mapped(4, 3), // free, and nobody's
    ];
    for other in others {
        assert_eq!(pool.take_over(over(ns, &[other]), 0), Ok(TakenOver::default()), "{other:?}");
    }
    let strange = pool.take_over(TakeOverAsk { left: &[ClientId(8)], ..over(ns, &[good]) }, 0);
    assert_eq!(strange, Ok(TakenOver::default()), "another's slots");
    assert_eq!(pool.stats(), before);
    let taken = pool.take_over(over(ns, &[mapped(4, 0), mapped(6, 3), mapped(9, 5)]), 0).unwrap();
    assert_eq!(taken.positions, [4, 9]);
    let lease = taken.lease.unwrap();
    pool.check().unwrap();
    // The reserved slot is to be written, once; the others are looked at.
    let hashes = [common::hash(2)];
    let (shards, parent) = (Shards::one(0), Some(common::hash(1)));
    let pages =
        OffloadAsk { ns, session: None, parent, hashes: &hashes, shards, tail_tokens: 0, client: CLIENT };
    let commit = |position| CommitReservedAsk { pages, lease, filled: position, siblings: false };
    assert!(
        matches!(pool.commit_reserved(commit(&[(4, 1)]), 0), Err(PoolError::Invalid(_))),
        "it has a page"
    );
    assert_eq!(pool.commit_reserved(commit(&[(9, 1)]), 0).unwrap().outcomes, [Outcome::Stored]);
    assert!(matches!(pool.commit_reserved(commit(&[(9, 1)]), 0), Err(PoolError::Invalid(_))), "twice");
    // What the server before knew it as is gone; what it took over stays.
    assert!(pool.client_gone(LEFT, 0));
    assert_eq!(pool.renew(CLIENT, &[lease], 0), Renewed::default());
    assert_eq!((pool.stats().leases, pool.stats().dram.leased_bytes), (1, 2 * SLOT));
    pool.release(lease, CLIENT, &[], &[], 0).unwrap();
    assert_eq!((pool.stats().leases, pool.stats().lasting_bytes, pool.stats().dram.pages), (0, 0, 3));
    pool.check().unwrap();
}

#[test]
fn a_process_that_takes_the_same_slots_over_again_and_again_leaves_others_their_shares() {
    for leases_max in [8, 1 << 14] {
        let (mut pool, ns) = left_mapped(|PoolConfig { limits, .. }| {
            (limits.leases_max, limits.client_slots_percent) = (leases_max, 50);
            (limits.user_slots_percent, limits.all_slots_percent) = (85, 95);
        });
        let mut leases = Vec::new();
        for call in 0..4 * leases_max.min(100) {
            // One page, as if it were mapped at many places.
            let many: Vec<MappedSlot> = (0..1 + call % 3).map(|at| mapped(at, 0)).collect();
            leases.extend(pool.take_over(over(ns, &many), 0).unwrap().lease);
        }
        let stats = pool.stats();
        assert!(leases.len() > 1 && leases.len() as u32 <= leases_max / 2, "{} leases", leases.len());
        assert!(stats.lasting_bytes - 3 * SLOT <= (4 << 16) / 2, "of half of DRAM: {stats:?}");
        pool.check().unwrap();
        let ask = ReserveAsk { ns, shard: 0, client: ClientId(2), lease: None, pages: 1 };
        assert_eq!(pool.reserve(ask, 0).map(|reserved| reserved.slots.len()), Ok(1), "another finds room");
        for lease in leases {
            pool.release(lease, CLIENT, &[], &[], 0).unwrap();
        }
        assert_eq!(
            pool.take_over(over(ns, &[mapped(0, 0)]), 0).unwrap().positions,
            [0],
            "what ended can come again"
        );
        pool.check().unwrap();
    }
}

#[test]
fn what_newer_leases_leave_no_room_for_is_not_taken_in_part_and_can_be_said_again() {
    let (mut pool, ns) = left_mapped(|config| config.limits.client_slots_percent = 10);
    // Of 256 KiB, a client has 25.6: three slots of 8 KiB.
    let ask = ReserveAsk { ns, shard: 0, client: CLIENT, lease: None, pages: 2 };
    let newer = pool.reserve(ask, 0).unwrap();
    assert_eq!(newer.slots.len(), 2);
    pool.renew(CLIENT, &[newer.lease.unwrap()], 0);
    let (before, slots) = (pool.stats(), [mapped(0, 0), mapped(1, 1)]);
    let none = TakenOver { no_room: true, ..TakenOver::default() };
    assert_eq!(pool.take_over(over(ns, &slots), 0), Ok(none));
    assert_eq!(pool.stats(), before);
    pool.release(newer.lease.unwrap(), CLIENT, &[], &[], 0).unwrap();
    let taken = pool.take_over(over(ns, &slots), 0).unwrap();
    assert_eq!((taken.positions, taken.no_room), (vec![0, 1], false));
    pool.check().unwrap();
}

#[test]
fn what_a_process_says_wrongly_of_its_slots_is_refused_and_changes_nothing() {
    let (mut pool, ns) = left_mapped(|_| ());
    let before = pool.stats();
    let many: Vec<MappedSlot> = (0..=limits::LEASE_PAGES_MAX).map(|at| mapped(at, 0)).collect();
    let wrong = [
        (0, vec![mapped(1, 0), mapped(1, 1)]),
        (0, vec![mapped(2, 0), mapped(1, 1)]),
        (0, many),
        (0, vec![mapped(0, 0), mapped(u32::MAX, 1)]),
        (1, vec![mapped(0, 0)]),
    ];
    for (shard, slots) in wrong {
        let refused = pool.take_over(TakeOverAsk { shard, ..over(ns, &slots) }, 0);
        assert!(matches!(refused, Err(PoolError::Invalid(_))), "{:?}: {refused:?}", slots.last());
    }
    let unknown = NamespaceIndex(ns.0, ns.1 + 1);
    assert_eq!(pool.take_over(over(unknown, &[mapped(0, 0)]), 0), Err(PoolError::NamespaceUnknown));
    assert_eq!(pool.take_over(over(ns, &[]), 0), Ok(TakenOver::default()));
    assert_eq!(pool.stats(), before);
    pool.check().unwrap();
}

#[test]
fn positions_of_a_lease_that_end_are_not_given_twice() {
    let (mut pool, ns) = left_mapped(|_| ());
    let lease = pool.take_over(over(ns, &[mapped(u32::MAX - 2, 0)]), 0).unwrap().lease;
    let ask = |pages| ReserveAsk { ns, shard: 0, client: CLIENT, lease, pages };
    let more = pool.reserve(ask(3), 0).unwrap();
    assert_eq!((more.first, more.slots.len(), more.short), (u32::MAX - 1, 1, Some(Outcome::LeaseLimit)));
    let none = pool.reserve(ask(1), 0).unwrap();
    assert_eq!((none.slots.len(), none.short), (0, Some(Outcome::LeaseLimit)));
    assert_eq!(pool.reserve_more(ask(1), u32::MAX, 0).unwrap().unwrap().slots, []);
    pool.check().unwrap();
    pool.release(lease.unwrap(), CLIENT, &[u32::MAX - 2], &[], 0).unwrap();
    pool.release(lease.unwrap(), CLIENT, &[u32::MAX - 1], &[], 0).unwrap();
    assert_eq!(pool.renew(CLIENT, &[lease.unwrap()], 0).gone, [lease.unwrap()], "nothing is left of it");
    pool.check().unwrap();
}

#[test]
fn where_all_leases_are_held_what_was_mapped_stays_as_it_was_until_one_ends() {
    let (mut pool, ns) = left_mapped(|config| config.limits.leases_max = 2);
    let hashes = [common::hash(0)];
    let read = ReloadAsk {
        ns,
        hashes: &hashes,
        shards: Shards::one(0),
        client: ClientId(2),
        session: None,
        hold: false,
    };
    let plan = pool.begin_reload(read, 0).unwrap();
    let before = pool.stats();
    assert_eq!(before.leases, 2, "the mapped slots are under one");
    let none = TakenOver { no_room: true, ..TakenOver::default() };
    assert_eq!(pool.take_over(over(ns, &[mapped(0, 0)]), 0), Ok(none));
    assert_eq!(pool.stats(), before);
    pool.end_reload(plan.lease.unwrap(), ClientId(2), &[], 0).unwrap();
    assert_eq!(pool.take_over(over(ns, &[mapped(0, 0)]), 0).unwrap().positions, [0]);
    // It is heard of no more: time alone frees nothing, its end does.
    while !pool.expire(1 << 40) {}
    assert!(pool.stats().dram.leased_bytes >= SLOT);
    assert!(pool.client_gone(CLIENT, 1 << 40) && pool.client_gone(LEFT, 1 << 40));
    assert_eq!((pool.stats().leases, pool.stats().dram.leased_bytes), (0, 0));
    pool.check().unwrap();
}
