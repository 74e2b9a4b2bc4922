//! Pages read ahead of their turn: a read that fails or does not end costs no turn more than its pages, and never more than the
//! bytes that may be read ahead.

use super::world::*;
use crate::engine::lookup::PagesOf;
use crate::engine::prefetch::{Prefetch, When};
use crate::engine::session::{BeginTurn, SessionKey};
use crate::simulation::{Fault, Shape};
use turnkv_pool::MissCause;
use turnkv_proto::SessionId;

fn name() -> SessionId {
    SessionId::parse("chat").unwrap()
}

fn key(world: &World) -> SessionKey {
    SessionKey { namespace: world.namespace, session: name() }
}

/// All pages are on the disk alone, and are a session's.
fn with_session(shape: Shape) -> World {
    let world = World::of(1, shape);
    let engine = &world.server.engine;
    engine.begin_turn(&BeginTurn { of: key(&world), engine: None, ended: 0, may_go: false }).unwrap();
    assert_eq!(world.offload(&hashes()), Ok(()));
    let end = end_of_turn(key(&world));
    assert_eq!(engine.end_turn(&end).unwrap().pages, PAGES);
    world.demote(PAGES);
    world
}

/// The session is back so soon that its pages are read ahead now.
fn expect(world: &World) {
    let ask = Prefetch { namespace: world.namespace, when: When::Within { session: name(), ms: 200 } };
    world.server.engine.prefetch(&ask).unwrap();
    world.pass(TICK);
}

fn now(world: &World) -> (u32, u32) {
    let when = When::Now(PagesOf::Hashes(hashes()));
    let begun = world.server.engine.prefetch(&Prefetch { namespace: world.namespace, when }).unwrap();
    (begun.started, begun.ready)
}

fn in_dram(world: &World) -> u64 {
    world.server.engine.stats().pool.dram.pages
}

#[test]
fn pages_are_there_before_their_turn() {
    let world = with_session(shape());
    expect(&world);
    assert!(world.server.books().prefetching_bytes > 0);
    world.settle();
    assert_eq!(in_dram(&world), u64::from(PAGES));
    world.is_quiet();
    assert_eq!((now(&world), world.reload(&hashes())), ((0, PAGES), all(PAGES)));
}

#[test]
fn a_read_ahead_that_fails_costs_its_pages_and_is_not_made_again() {
    let world = with_session(shape());
    world.fail(Fault::Latent);
    expect(&world);
    world.settle();
    world.is_quiet();
    let reads = world.disk.counts().faults[&Fault::Latent];
    world.live(20);
    assert_eq!(world.disk.counts().faults[&Fault::Latent], reads, "what is gone is not read again");
    assert_eq!(world.present(), 0);
    world.heal();
    assert_eq!(world.offload(&hashes()), Ok(()));
    world.is_quiet();
}

/// The tier takes two operations at a time. What it refuses is left to the turn.
#[test]
fn reads_ahead_that_the_tier_refuses_hold_nothing_and_their_pages_stay() {
    let world = with_session(Shape { queue_ops: 2, ..shape() });
    expect(&world);
    assert_eq!(world.server.books().prefetching_bytes, 2 * PAGE, "two are on their way");
    world.live(10);
    world.is_quiet();
    assert!(in_dram(&world) >= 2);
    assert_eq!((world.present(), world.reload(&hashes())), (PAGES, all(PAGES)));
}

#[test]
fn a_turn_that_comes_early_joins_what_is_read_ahead_and_shares_its_failure() {
    let world = with_session(shape());
    expect(&world);
    let mut run = world.begin_reload(&hashes());
    assert_eq!(world.server.books().tier_operations, u64::from(PAGES), "nothing is read twice");
    assert_eq!(world.read(&mut run, &hashes()), all(PAGES));
    world.demote(PAGES);
    assert_eq!(now(&world), (PAGES, 0));
    let mut run = world.begin_reload(&hashes());
    world.fail(Fault::Latent);
    assert_eq!(world.read(&mut run, &hashes()), [Err(MissCause::Io)]);
    world.is_quiet();
}

#[test]
fn reads_ahead_that_hang_hold_their_bytes_and_are_not_begun_again() {
    let world = with_session(shape());
    world.hang();
    expect(&world);
    let books = world.server.books();
    for _ in 0..100 {
        world.pass(TICK);
    }
    assert_eq!(world.server.books().prefetching_bytes, books.prefetching_bytes);
    assert_eq!(world.server.books().tier_operations, books.tier_operations);
    world.disk.cut_power();
    world.settle();
    world.pass(TICK);
    world.is_quiet();
    assert_eq!(now(&world), (0, 0), "a device that is gone is asked for nothing");
}
