//! Random operations against a plain world. Owns: the properties of the pool as a whole. Must not know: its insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::World;
use proptest::prelude::*;
use turnkv_pool::{EndTurn, FromElsewhere, MissCause, PoolStats};
use turnkv_proto::SessionId;

#[derive(Clone, Debug)]
enum Op {
    Offload { space: usize, node: usize, count: usize, moved: (u16, u16), client: u64, session: Option<u8> },
    Commit { at: usize, skip: usize },
    Abort { at: usize },
    Reload { space: usize, node: usize, moved: (u16, u16), client: u64, hold: bool },
    Reserve { space: usize, shard: u16, client: u64, pages: u32, extend: Option<usize> },
    CommitReserved { at: usize, node: usize, count: usize, siblings: bool },
    Renew { at: usize },
    Release { at: usize, some: usize, corrupt: bool },
    End { at: usize, corrupt: bool },
    Land { at: usize, cause: Option<MissCause> },
    Prefetch { space: usize, node: usize, shard: u16 },
    StartWrites { bytes: u64 },
    FinishWrite { at: usize, fail: bool },
    Reclaim { at: usize },
    Bury,
    Wait { ms: u64 },
    Expire,
    Maintain,
    ClientGone { client: u64 },
    Demote,
    Turn { space: usize, session: u8, node: usize, keep: u32, last: bool },
    Fork { space: usize, session: u8, fork: u8, pages: u32 },
    Supersede { space: usize, session: u8, keep: u32 },
    Elsewhere { space: usize, session: u8, what: Elsewhere },
    Close { space: usize, session: u8 },
    PrefetchDue { bytes: u64 },
    Expect { space: usize, session: u8, in_ms: u64 },
    Pin { space: usize, node: usize, for_ms: u64 },
    Unpin { space: usize, node: usize },
    Resize { slabs: u32 },
    FollowSize,
    LoseNvme,
    Kill,
}

/// What another pool does with a session.
#[derive(Clone, Copy, Debug)]
enum Elsewhere {
    Begins,
    Ends,
    /// It comes back after so many turns.
    Comes(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let space = || 0..3_usize;
    let node = || 0..common::NODES;
    // Which shard, and how many: half of all calls move one.
    let moved = || (0..4_u16, prop_oneof![Just(0), 1..4_u16]);
    let causes = prop_oneof![
        8 => Just(None),
        1 => Just(Some(MissCause::Checksum)),
        1 => Just(Some(MissCause::Busy)),
        1 => Just(Some(MissCause::Io)),
    ];
    let elsewhere =
        prop_oneof![Just(Elsewhere::Begins), Just(Elsewhere::Ends), (0..9_u32).prop_map(Elsewhere::Comes)];
    prop_oneof![
        20 => (space(), node(), 1..8_usize, moved(), 0..3_u64, prop::option::of(0..5_u8)).prop_map(
            |(space, node, count, moved, client, session)| Op::Offload { space, node, count, moved, client, session }
        ),
        20 => (any::<usize>(), 0..4_usize).prop_map(|(at, skip)| Op::Commit { at, skip }),
        2 => any::<usize>().prop_map(|at| Op::Abort { at }),
        12 => (space(), node(), moved(), 0..3_u64, prop::bool::weighted(0.3))
            .prop_map(|(space, node, moved, client, hold)| Op::Reload { space, node, moved, client, hold }),
        6 => (space(), 0..4_u16, 0..3_u64, 1..6_u32, prop::option::of(any::<usize>()))
            .prop_map(|(space, shard, client, pages, extend)| Op::Reserve { space, shard, client, pages, extend }),
        8 => (any::<usize>(), node(), 1..6_usize, prop::bool::weighted(0.2))
            .prop_map(|(at, node, count, siblings)| Op::CommitReserved { at, node, count, siblings }),
        2 => any::<usize>().prop_map(|at| Op::Renew { at }),
        9 => (any::<usize>(), 0..4_usize, prop::bool::weighted(0.1))
            .prop_map(|(at, some, corrupt)| Op::Release { at, some, corrupt }),
        12 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(at, corrupt)| Op::End { at, corrupt }),
        14 => (any::<usize>(), causes).prop_map(|(at, cause)| Op::Land { at, cause }),
        3 => (space(), node(), 0..4_u16).prop_map(|(space, node, shard)| Op::Prefetch { space, node, shard }),
        8 => (1..60_000_u64).prop_map(|bytes| Op::StartWrites { bytes }),
        20 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(at, fail)| Op::FinishWrite { at, fail }),
        4 => any::<usize>().prop_map(|at| Op::Reclaim { at }),
        2 => Just(Op::Bury),
        4 => (1..120_u64).prop_map(|ms| Op::Wait { ms }),
        2 => Just(Op::Expire),
        2 => Just(Op::Maintain),
        1 => (0..3_u64).prop_map(|client| Op::ClientGone { client }),
        1 => Just(Op::Demote),
        1 => Just(Op::Kill),
        4 => (space(), 0..5_u8, node(), 0..6_u32, any::<bool>())
            .prop_map(|(space, session, node, keep, last)| Op::Turn { space, session, node, keep, last }),
        1 => (space(), 0..5_u8, 0..5_u8, 0..6_u32)
            .prop_map(|(space, session, fork, pages)| Op::Fork { space, session, fork, pages }),
        1 => (space(), 0..5_u8, 0..6_u32).prop_map(|(space, session, keep)| Op::Supersede { space, session, keep }),
        1 => (space(), 0..5_u8, elsewhere).prop_map(|(space, session, what)| Op::Elsewhere { space, session, what }),
        1 => (space(), 0..5_u8).prop_map(|(space, session)| Op::Close { space, session }),
        6 => (1..40_000_u64).prop_map(|bytes| Op::PrefetchDue { bytes }),
        3 => (space(), 0..5_u8, 0..4000_u64).prop_map(|(space, session, in_ms)| Op::Expect { space, session, in_ms }),
        2 => (space(), node(), 1..300_u64).prop_map(|(space, node, for_ms)| Op::Pin { space, node, for_ms }),
        1 => (space(), node()).prop_map(|(space, node)| Op::Unpin { space, node }),
        2 => (1..8_u32).prop_map(|slabs| Op::Resize { slabs }),
        4 => Just(Op::FollowSize),
    ]
}

fn name(session: u8) -> SessionId {
    SessionId::parse(&format!("s{session}")).unwrap()
}

fn turn(world: &mut World, space: usize, session: u8, node: usize, keep: u32, last: bool) {
    let (ns, _) = world.spaces[space];
    let begun = world.pool.begin_turn(ns, &name(session), world.now);
    world.note(begun);
    let path = common::path(node);
    let keep = (keep as usize).min(path.len());
    let hashes: Vec<_> = path[keep..].iter().map(|node| common::hash(*node)).collect();
    let tail_tokens = if hashes.is_empty() { 0 } else { keep as u32 % 3 };
    let (ttl_ms, priority, expected_return_ms) = (200, node as u32 % 2, 10 * (node as u64 % 3));
    let keep = keep as u32;
    let end = EndTurn { keep, hashes: &hashes, tail_tokens, expected_return_ms, ttl_ms, priority, last };
    let ended = world.pool.end_turn(ns, &name(session), end, world.now);
    world.note(ended);
}

fn elsewhere(world: &mut World, space: usize, session: u8, what: Elsewhere) {
    let (ns, name, now) = (world.spaces[space].0, name(session), world.now);
    let told = match what {
        Elsewhere::Begins => world.pool.begin_elsewhere(ns, &name, now).map(drop),
        Elsewhere::Ends => world.pool.end_elsewhere(ns, &name, now),
        Elsewhere::Comes(turns) => {
            let from =
                FromElsewhere { turns, pages: turns, waited_ms: 900, begins: turns % 2 == 0, start: None };
            world.pool.continue_session(ns, &name, &from, now)
        }
    };
    world.note(told);
}

fn apply(world: &mut World, op: &Op) {
    match *op {
        Op::Offload { space, node, count, moved, client, session } => {
            world.offload(space, node, count, moved, client, session.map(name).as_ref());
        }
        Op::Commit { at, skip } => world.commit(at, skip),
        Op::Abort { at } => world.abort(at),
        Op::Reload { space, node, moved, client, hold } => world.reload(space, node, moved, client, hold),
        Op::Reserve { space, shard, client, pages, extend } => {
            world.reserve(space, shard, client, pages, extend);
        }
        Op::CommitReserved { at, node, count, siblings } => world.commit_reserved(at, node, count, siblings),
        Op::Renew { at } => world.renew(at),
        Op::Release { at, some, corrupt } => world.release(at, some, corrupt),
        Op::End { at, corrupt } => world.end(at, corrupt),
        Op::Land { at, cause } => world.land(at, cause),
        Op::Prefetch { space, node, shard } => world.prefetch(space, node, shard),
        Op::StartWrites { bytes } => world.start_writes(bytes),
        Op::FinishWrite { at, fail } => world.finish_write(at, fail),
        Op::Reclaim { at } => world.reclaim(at),
        Op::Bury => world.bury(),
        Op::Wait { ms } => world.now += ms,
        Op::Expire => world.expire(),
        Op::Maintain => world.pool.maintain(world.now),
        Op::ClientGone { client } => world.client_gone(client),
        Op::Demote => {
            let demoted = world.pool.demote_all(None);
            world.note(demoted);
        }
        Op::Turn { space, session, node, keep, last } => turn(world, space, session, node, keep, last),
        Op::Fork { space, session, fork, pages } => {
            let ns = world.spaces[space].0;
            let forked = world.pool.fork(ns, &name(session), &name(fork), pages, world.now);
            world.note(forked);
        }
        Op::Supersede { space, session, keep } => {
            let ns = world.spaces[space].0;
            let left = world.pool.supersede(ns, &name(session), keep, world.now);
            world.note(left);
        }
        Op::Elsewhere { space, session, what } => elsewhere(world, space, session, what),
        Op::Close { space, session } => {
            let ns = world.spaces[space].0;
            let closed = world.pool.close(ns, &name(session), world.now);
            world.note(closed);
        }
        Op::PrefetchDue { bytes } => world.prefetch_due(bytes),
        Op::Expect { space, session, in_ms } => {
            let told = world.pool.expect_return(world.spaces[space].0, &name(session), in_ms, world.now);
            world.note(told);
        }
        Op::Pin { space, node, for_ms } => {
            let hashes: Vec<_> = common::path(node).into_iter().map(common::hash).collect();
            let pinned = world.pool.pin(world.spaces[space].0, &hashes, for_ms, world.now);
            world.note(pinned);
        }
        Op::Unpin { space, node } => {
            let ended = world.pool.unpin(world.spaces[space].0, &common::hash(node));
            world.note(ended);
        }
        Op::Resize { slabs } => world.resize(slabs),
        Op::FollowSize => world.follow_size(),
        Op::LoseNvme => world.lose_nvme(),
        Op::Kill => world.kill(),
    }
}

fn run(nvme: bool, ops: &[Op]) -> World {
    // Each policy and each rule of admission gets its share of the cases.
    let mut world = World::new(nvme, ops.len());
    for op in ops {
        apply(&mut world, op);
        world.verify();
    }
    world
}

/// A client that stays silent holds what it had mapped under each server; a random run came to it.
#[test]
fn what_a_client_held_of_several_servers_is_kept_beyond_its_share() {
    let mut world = World::new(true, 0);
    for life in 0..6 {
        for node in [6 * life + 1, 6 * life + 4] {
            world.offload(0, node, 6, (0, 0), 1, None);
            world.commit(0, 0);
            world.reload(0, node, (0, 0), 0, true);
        }
        world.kill();
        world.verify();
    }
}

proptest! {
    #[test]
    fn two_tiers_keep_every_promise(ops in prop::collection::vec(op(), 1..300)) {
        run(true, &ops);
    }

    #[test]
    fn one_tier_keeps_every_promise(ops in prop::collection::vec(op(), 1..300)) {
        run(false, &ops);
    }

    #[test]
    fn a_lost_device_costs_only_what_was_there(
        before in prop::collection::vec(op(), 1..150),
        after in prop::collection::vec(op(), 1..100),
    ) {
        let ops = [before, vec![Op::LoseNvme], after].concat();
        run(true, &ops);
    }

    #[test]
    fn the_same_operations_give_the_same_answers(ops in prop::collection::vec(op(), 1..200)) {
        let (one, two) = (run(true, &ops), run(true, &ops));
        prop_assert_eq!(&one.trace, &two.trace);
        // The hash table's seed is its own, so its parts may grow at other moments; no decision hangs on that.
        let stats = |world: &World| PoolStats { index_bytes: 0, ..world.pool.stats() };
        prop_assert_eq!(stats(&one), stats(&two));
    }

    #[test]
    fn everything_ended_leaves_nothing_held(ops in prop::collection::vec(op(), 1..200)) {
        let mut world = run(true, &ops);
        while !world.reads.is_empty() {
            world.land(0, None);
        }
        (0..3).for_each(|client| world.client_gone(client));
        for _ in 0..2000 {
            world.start_writes(1 << 20);
            if world.writes.is_empty() {
                break;
            }
            world.finish_write(0, false);
        }
        world.verify();
        let stats = world.pool.stats();
        prop_assert_eq!((stats.leases, stats.dram.leased_bytes, stats.dram.pinned_bytes), (0, 0, 0));
        prop_assert_eq!((stats.dirty_bytes, stats.quarantined_bytes), (0, 0));
        world.pool.evict_namespace(None);
        world.pool.check().unwrap();
        world.bury();
        world.resize(4);
        world.follow_size();
        let stats = world.pool.stats();
        prop_assert_eq!((stats.entries, stats.dram.used_bytes, stats.nvme.used_bytes), (0, 0, 0));
        prop_assert_eq!(stats.free_slabs, 4);
        prop_assert!(world.disk.is_empty(), "every extent was given up");
    }
}
