//! Passes of reclaim over a tier that fails in the middle of them: a pass ends whatever becomes of it, what it did not move stays
//! where it is, and writes go on.

use super::world::*;
use crate::engine::stats::EvictFrom;
use crate::engine::testing::open;
use crate::simulation::Fault;
use turnkv_pool::limits::PASS_MS_MAX;

/// The disk has hardly a free segment. In the older ones half is dead and the other half is worth keeping: there is room for it,
/// and it is nowhere else.
fn full() -> World {
    let mut world = World::new(1);
    let kept = world.namespace;
    let dropped = open(&world.server.engine, "dropped", PAGE);
    for number in 1..=40 {
        for namespace in [dropped, kept] {
            if namespace == kept || number <= 8 {
                world.namespace = namespace;
                world.commit_now(world.filled(&chain(number, 3)));
                world.settle();
            }
        }
        world.pass(TICK);
        if number == 8 {
            world.server.engine.evict(Some(&dropped), EvictFrom::Everywhere).unwrap();
        }
        if world.server.engine.nvme().unwrap().needs_reclaim() {
            world.demote_what_can();
            return world;
        }
    }
    panic!("the disk is never full");
}

/// Goes on with reclaim until a pass waits for pages that it moves.
fn moving(world: &World) {
    for _ in 0..100 {
        world.server.step_reclaim();
        if world.server.books().tier_operations > 0 && !world.server.step_reclaim() {
            return;
        }
    }
    panic!("nothing is moved");
}

/// Prefixes that were worth keeping, and are here whole.
fn kept(world: &World) -> usize {
    (1..=40).filter(|number| world.present_of(&chain(*number, 3)) == 3).count()
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
fn passes_make_room_and_move_what_is_worth_keeping() {
    let world = full();
    let before = kept(&world);
    moving(&world);
    world.live(50);
    assert!(emptied(&world) > 0);
    assert_eq!((kept(&world), before > 8), (before, true), "half of the disk is enough for it");
    for number in 1..=before as u8 {
        assert_eq!(world.reload(&chain(number, 3)), all(3));
    }
    goes_on(&world);
}

#[test]
fn a_pass_that_cannot_read_what_it_moves_ends_and_drops_only_that() {
    let world = full();
    let before = kept(&world);
    moving(&world);
    world.fail(Fault::Latent);
    world.settle();
    world.heal();
    world.live(20);
    assert!(world.server.poisoned().is_none() && world.server.books().unreadable_extents > 0);
    assert!(kept(&world) < before && kept(&world) > 0, "{} of {before} are left", kept(&world));
    world.is_quiet();
    goes_on(&world);
}

#[test]
fn a_pass_whose_bytes_are_wrong_moves_none_of_them() {
    let world = full();
    moving(&world);
    world.fail(Fault::FlippedRead);
    world.settle();
    world.heal();
    world.live(20);
    assert!(world.server.engine.stats().corrupt_pages > 0);
    for number in 1..=40 {
        let hashes = chain(number, 3);
        let present = world.present_of(&hashes); // whatever is served has its own bytes
        assert_eq!(world.reload(&hashes)[..present as usize], all(present));
    }
    goes_on(&world);
}

#[test]
fn a_pass_over_a_device_that_hangs_is_given_up_in_time_and_does_not_spin() {
    let world = full();
    world.hang();
    moving(&world);
    let before = world.server.books();
    assert_eq!(world.reclaim(), 0, "it waits, and is not asked again at once");
    let ticks = (PASS_MS_MAX / TICK.as_millis() as u64) as u32;
    let mut steps = 0;
    for _ in 0..2 * ticks {
        steps += world.reclaim();
        world.settle();
        world.pass(TICK);
    }
    assert!(steps < 4 * ticks, "{steps} steps while nothing can go on");
    assert!(world.server.books().tier_operations <= before.tier_operations + 8, "passes do not pile up");
    world.let_go();
    world.live(20);
    world.is_quiet();
    goes_on(&world);
}

#[test]
fn a_pass_whose_device_dies_ends_with_it() {
    let world = full();
    moving(&world);
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
    moving(&world);
    world.fail(Fault::NoSpace);
    world.live(50);
    assert!(world.server.poisoned().is_none());
    world.heal();
    world.live(200);
    goes_on(&world);
}
