//! Leaving: what is in DRAM is on the disk when the server is gone, as far as the disk takes it, and a disk that does not keeps
//! nobody.

use super::world::*;
use crate::simulation::{Fault, Shape};
use turnkv_proto::ErrorKind;

#[test]
fn a_server_that_leaves_writes_what_it_has() {
    let world = World::new(1);
    for number in 1..=5 {
        world.commit_now(world.filled(&chain(number, PAGES)));
    }
    let world = world.again(End::Clean);
    for number in 1..=5 {
        assert_eq!(world.reload(&chain(number, PAGES)), all(PAGES));
    }
    world.is_quiet();
}

#[test]
fn a_server_that_leaves_writes_what_it_would_not_have_written_unasked() {
    let world = World::of(1, Shape { admit_reused: true, ..shape() });
    world.commit_now(world.filled(&hashes()));
    world.live(10);
    let held = world.server.held(&world.namespace, &hashes()[0]).unwrap();
    assert!(!held.on_nvme, "nobody came back to it");
    let world = world.again(End::Clean);
    assert_eq!(world.reload(&hashes()), all(PAGES));
}

/// Slots had been given when the drain began: their pages are taken, so they are written too.
#[test]
fn pages_that_come_while_a_server_leaves_are_written_as_well() {
    let tight = Shape { admit_reused: true, ..shape() };
    let budget = Shape { write_bytes_per_day: SEGMENT, ..shape() };
    for shape in [shape(), tight, budget] {
        let world = World::of(1, shape);
        world.commit_now(world.filled(&chain(2, 2)));
        let commit = world.filled(&hashes());
        world.server.drain();
        world.settle();
        world.commit_now(commit);
        let world = world.again(End::Clean);
        assert_eq!(world.reload(&hashes()), all(PAGES));
        world.is_quiet();
    }
}

#[test]
fn a_drain_declines_what_is_new_and_is_taken_back_until_the_server_leaves() {
    let world = World::new(1);
    assert_eq!(world.offload(&hashes()), Ok(()));
    world.server.drain();
    assert!(world.server.engine.health().not_serving.is_some());
    assert!(world.try_filled(&chain(2, PAGES)).is_none());
    assert_eq!(world.reload(&hashes()), all(PAGES), "what is here is served");
    assert_eq!(world.server.engine.resume(), Ok(true));
    assert_eq!(world.server.engine.resume(), Ok(false));
    assert_eq!(world.offload(&chain(2, PAGES)), Ok(()));
    world.server.engine.leave();
    assert_eq!(world.server.engine.resume().unwrap_err().kind, ErrorKind::Draining);
}

#[test]
fn a_server_does_not_wait_for_a_device_that_is_gone() {
    let world = World::new(1);
    world.commit_now(world.filled(&hashes()));
    assert!(world.server.drain(), "there is something to wait for");
    world.disk.cut_power();
    world.settle();
    world.pass(TICK);
    assert!(!world.server.drain());
    world.server.seal();
    world.is_quiet();
}

#[test]
fn a_server_leaves_a_device_that_does_not_answer_behind_and_the_next_start_serves_what_was_durable() {
    let world = World::new(1);
    assert_eq!(world.offload(&hashes()), Ok(()));
    world.hang();
    world.commit_now(world.filled(&chain(2, PAGES)));
    let commit = world.filled(&chain(3, PAGES));
    {
        let mut call = std::pin::pin!(world.server.engine.commit_offload(CLIENT, &commit));
        assert!(poll(call.as_mut()).is_pending());
        world.server.seal(); // bounded by itself
        let told = world.run(call).unwrap();
        assert!(told.durable.is_some_and(|told| told.is_err()), "who waited is told");
    }
    world.heal();
    let world = world.again(End::Killed);
    assert_eq!(world.reload(&hashes()), all(PAGES));
    world.is_quiet();
}

#[test]
fn a_server_that_leaves_a_full_disk_keeps_what_is_on_it() {
    let world = World::new(1);
    assert_eq!(world.offload(&hashes()), Ok(()));
    world.fail(Fault::NoSpace);
    for number in 2..=7 {
        world.commit_now(world.filled(&chain(number, PAGES)));
        world.live(2);
    }
    assert!(world.server.drain(), "there is no room for all of it");
    world.server.seal();
    world.heal();
    let world = world.again(End::Killed);
    assert_eq!(world.reload(&hashes()), all(PAGES));
    world.is_quiet();
}

/// A crash in the middle of leaving is a crash.
#[test]
fn power_lost_while_a_server_leaves_costs_nothing_that_was_durable() {
    for steps in 0..40 {
        let world = World::new(steps);
        assert_eq!(world.offload(&hashes()), Ok(()));
        world.commit_now(world.filled(&chain(2, 12)));
        world.server.drain();
        for _ in 0..steps {
            world.step();
        }
        let at = world.disk.operations() + 1 + steps % 5;
        let mut plan = calm();
        plan.at = vec![(at, Fault::PowerCut)];
        world.disk.set_plan(plan);
        world.server.seal();
        let world = world.again(End::PowerCut);
        assert_eq!(world.reload(&hashes()), all(PAGES), "after {steps} steps");
        world.is_quiet();
    }
}
