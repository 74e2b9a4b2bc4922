//! The cluster in simulated time: members, the network, etcd, the archive and engines fail as a seed has it, and no promise is
//! broken. No thread, no clock, and no chance but the seed's. Must not know: how members decide.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expected by failing")]
#![forbid(unsafe_code)]

mod check;
mod etcd;
mod plan;
mod pool;
mod random;
mod turns;
mod world;

use check::RIGHT_AFTER_ROUNDS;
use etcd::EtcdFault;
use plan::{Plan, STEPS};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{ETCD, Event, World};

/// Seeds that every test run plays.
const SEEDS: u64 = 300;
/// Seeds that found something once.
const KEPT: [u64; 2] = [42, 2282];

#[test]
fn no_promise_is_broken() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = setting("TURNKV_CLUSTER_SEEDS").unwrap_or(SEEDS);
    let first = setting("TURNKV_CLUSTER_FIRST").unwrap_or(0);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in KEPT.into_iter().chain(first..first + seeds) {
        match catch_unwind(|| play(seed, STEPS)) {
            Ok(played) => {
                played.counts.into_iter().for_each(|(what, count)| *counts.entry(what).or_default() += count)
            }
            Err(_) => panic!(
                "seed {seed} breaks a promise, with {} steps already: TURNKV_CLUSTER_FIRST={seed} TURNKV_CLUSTER_SEEDS=1",
                shortest(seed)
            ),
        }
    }
    println!("{seeds} seeds from {first}, directory right within {RIGHT_AFTER_ROUNDS} rounds: {counts:?}");
    assert!(counts.contains_key("turns at home") && counts.contains_key("pulls"), "{counts:?}");
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..20 {
        let (one, two) = (play(seed, STEPS), play(seed, STEPS));
        assert_eq!((one.traced, &one.counts), (two.traced, &two.counts), "seed {seed}");
    }
    assert_ne!(play(1, STEPS).traced, play(2, STEPS).traced);
}

/// The fewest steps of a seed that break a promise.
fn shortest(seed: u64) -> u32 {
    let fails = |steps: &u32| catch_unwind(AssertUnwindSafe(|| play(seed, *steps))).is_err();
    (0..STEPS).find(fails).unwrap_or(STEPS)
}

fn play(seed: u64, steps: u32) -> World {
    let plan = Plan::of(seed, steps);
    let mut world = World::new(&plan);
    world.rounds(4);
    for _ in 0..plan.steps {
        step(&mut world);
        world.check_bounds();
    }
    world.heal();
    world.rounds(RIGHT_AFTER_ROUNDS);
    world.check_right();
    for session in 0..world.sessions.len() {
        for host in 0..world.hosts.len() {
            world.begin_turn(session, host, true);
            world.rounds(2);
            assert!(!world.sessions[session].busy, "a turn is still under way");
        }
    }
    world
}

/// One step: something fails or is mended, a turn begins, time goes by.
fn step(world: &mut World) {
    if world.random.chance(world.plan.faults) {
        fault(world);
    }
    let (session, host) = (world.random.below(world.plan.sessions), world.random.below(world.plan.members));
    world.begin_turn(session as usize, host as usize, false);
    if world.random.chance(60) {
        let moved = world.random.below(world.plan.sessions) as usize;
        (0..world.hosts.len()).for_each(|from| world.move_session(moved, from));
    }
    let most = if world.random.chance(100) { 6000 } else { 400 };
    let until = world.now + world.random.below(most);
    world.run_until(until);
}

fn fault(world: &mut World) {
    let members = world.plan.members;
    let host = world.random.below(members) as usize;
    let other = world.random.below(members) as usize;
    match world.random.below(16) {
        0 | 1 => crash(world, host),
        2..=4 => revive(world),
        5 => drop(world.cuts.insert((host, other))),
        6 => world.cuts.extend([(host, other), (other, host)]),
        7 => world.cuts.extend((0..members as usize).filter(|peer| *peer != host).map(|peer| (host, peer))),
        8 => drop(world.cuts.insert((host, ETCD))),
        9 | 10 => world.cuts.clear(),
        11 => etcd(world),
        12 => world.etcd.fault = EtcdFault::None,
        13 => world.archive_down = !world.archive_down,
        14 => world.hosts[host].skew += world.random.below(600_000),
        _ => repeat_old_words(world),
    }
}

fn crash(world: &mut World, host: usize) {
    world.count("crashes");
    world.crash(host);
    // Half of them lose what they had.
    if world.random.chance(500) {
        world.hosts[host].pool = pool::PoolModel::default();
    }
}

fn revive(world: &mut World) {
    for host in 0..world.hosts.len() {
        if world.hosts[host].member.is_none() {
            world.start(host);
            world.count("starts");
        }
    }
}

fn etcd(world: &mut World) {
    world.count("etcd faults");
    world.etcd.fault = match world.random.below(5) {
        0 => EtcdFault::Down,
        1 => EtcdFault::Empty,
        2 => EtcdFault::Halved,
        3 => EtcdFault::Stale(world.etcd.members(world.now)),
        _ => {
            world.etcd.wipe();
            EtcdFault::None
        }
    };
}

/// What was said long ago, some of it in lives that are over, is heard again.
fn repeat_old_words(world: &mut World) {
    for envelope in std::mem::take(&mut world.old_words) {
        let at = world.now + 1 + world.random.below(2000);
        world.schedule(at, Event::Message(envelope));
    }
}
