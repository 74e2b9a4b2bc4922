//! Passes of reclaim over a tier that fails in the middle of them: a pass ends whatever becomes of it, what it did not move stays
//! where it is, and writes go on.

use super::world::*;
use crate::simulation::Fault;
use turnkv_pool::limits::PASS_MS_MAX;

/// More pages were offloaded, prefix by prefix, than the disk has room for: what is next is a pass.
fn full() -> World {
    let world = World::new(1);
    for number in 1..=40 {
        world.commit_now(world.filled(&chain(number, PAGES)));
        world.settle();
        world.pass(TICK);
        if world.server.engine.nvme().unwrap().needs_reclaim() {
            return world;
        }
    }
    panic!("the disk is never full");
}

/// New pages find their way to the disk again.
fn goes_on(world: &World) {
    for number in 100..140 {
        world.commit_now(world.filled(&chain(number, PAGES)));
        world.live(3);
    }
    world.live(300);
    assert_eq!(world.dirty_bytes(), 0);
    world.is_quiet();
    let last = chain(139, PAGES);
    assert_eq!(world.reload(&last), all(PAGES));
}

fn emptied(world: &World) -> u64 {
    world.server.books().moved[2]
}

#[test]
fn passes_make_room_for_what_comes() {
    let world = full();
    goes_on(&world);
    assert!(emptied(&world) > 0);
}

#[test]
fn a_pass_that_cannot_read_what_it_moves_ends_and_drops_only_that() {
    let world = full();
    world.demote_what_can();
    world.fail(Fault::Latent);
    world.live(20);
    assert!(world.server.poisoned().is_none());
    world.heal();
    world.is_quiet();
    goes_on(&world);
}

#[test]
fn a_pass_whose_bytes_are_wrong_moves_none_of_them() {
    let world = full();
    world.demote_what_can();
    world.fail(Fault::FlippedRead);
    world.live(20);
    world.heal();
    world.is_quiet();
    for number in 1..=40 {
        let told = world.reload(&chain(number, PAGES)); // whatever is served has its own bytes
        assert!(told.iter().rev().skip(1).all(Result::is_ok));
    }
    goes_on(&world);
}

#[test]
fn a_pass_over_a_device_that_hangs_is_given_up_in_time_and_does_not_spin() {
    let world = full();
    world.demote_what_can();
    world.hang();
    let ticks = (PASS_MS_MAX / TICK.as_millis() as u64) as u32;
    let mut steps = 0;
    for _ in 0..2 * ticks {
        steps += world.reclaim();
        world.settle();
        world.pass(TICK);
    }
    assert!(steps < 100 * ticks, "{steps} steps while nothing can go on");
    world.let_go();
    world.live(20);
    world.is_quiet();
    goes_on(&world);
}

#[test]
fn a_pass_whose_device_dies_ends_with_it() {
    let world = full();
    world.demote_what_can();
    for _ in 0..5 {
        world.server.step_reclaim();
    }
    world.disk.cut_power();
    world.live(5);
    assert!(world.server.poisoned().is_some());
    assert_eq!(world.reclaim(), 0);
    world.is_quiet();
    world.commit_now(world.filled(&chain(200, PAGES)));
    assert_eq!(world.reload(&chain(200, PAGES)), all(PAGES));
}

#[test]
fn a_pass_on_a_disk_without_space_for_what_moves_ends_and_goes_on_when_there_is() {
    let world = full();
    let used = world.disk.used_bytes();
    world.disk.set_capacity(used);
    world.fail(Fault::NoSpace);
    world.live(50);
    assert!(world.server.poisoned().is_none());
    world.heal();
    world.disk.set_capacity(1 << 30);
    world.live(200);
    goes_on(&world);
}
