//! Write-behind and durable commits: whatever becomes of a write or a flush, who waits is told in time, and what is not written
//! stays in DRAM and is written later.

use super::world::*;
use crate::engine::durable::NotDurable;
use crate::simulation::{Fault, Step};
use std::pin::pin;

#[test]
fn a_write_that_fails_is_told_to_who_waits_for_it_and_dram_serves_on() {
    let world = World::new(1);
    world.fail(Fault::WriteError);
    assert_eq!(world.offload(&hashes()), Err(NotDurable::Device));
    world.pass(TICK);
    world.is_quiet();
    assert!(world.server.poisoned().is_some());
    assert_eq!(world.present(), PAGES);
    assert_eq!(world.reload(&hashes()), all(PAGES));
    world.is_quiet();
}

#[test]
fn a_flush_that_fails_is_no_durable_commit() {
    let world = World::new(1);
    let commit = world.filled(&hashes());
    let mut call = pin!(world.server.engine.commit_offload(CLIENT, &commit));
    assert!(poll(call.as_mut()).is_pending());
    while world.step_but(Some(Step::Flush)) {}
    assert!(poll(call.as_mut()).is_pending());
    assert_eq!(world.dirty_bytes(), 0, "all of it is written");
    world.fail(Fault::SyncError);
    assert_eq!(world.run(call).unwrap().durable, Some(Err(NotDurable::Device)));
    world.pass(TICK);
    world.is_quiet();
    assert_eq!(world.reload(&hashes()), all(PAGES));
    world.is_quiet();
}

#[test]
fn a_segment_that_cannot_be_prepared_is_a_failure_of_the_device() {
    let world = World::new(1);
    world.fail(Fault::SyncError);
    assert_eq!(world.offload(&hashes()), Err(NotDurable::Device));
    world.pass(TICK);
    world.is_quiet();
    assert_eq!(world.reload(&hashes()), all(PAGES));
}

#[test]
fn pages_that_find_no_room_on_the_disk_stay_dirty_and_are_written_when_there_is() {
    let world = World::new(1);
    world.fail(Fault::NoSpace);
    assert_eq!(world.offload(&hashes()), Err(NotDurable::Timeout));
    world.is_quiet();
    assert!(world.dirty_bytes() > 0 && world.server.poisoned().is_none());
    assert_eq!(world.present(), PAGES);
    world.heal();
    world.live(1_000);
    assert_eq!(world.dirty_bytes(), 0);
    world.is_quiet();
}

#[test]
fn a_server_that_has_started_needs_no_more_descriptors() {
    let world = World::new(1);
    world.fail(Fault::NoDescriptor);
    for number in 1..=30 {
        world.commit_now(world.filled(&chain(number, PAGES))); // more than the segments take that there were
        world.live(2);
    }
    assert_eq!(world.offload(&chain(31, PAGES)), Ok(()));
    assert_eq!(world.disk.counts().faults.get(&Fault::NoDescriptor), None, "none was asked for");
    world.is_quiet();
}

/// The tier takes two operations at a time: of four writes two are refused at its door.
#[test]
fn writes_that_the_tier_refuses_wait_a_while_and_are_made_all_the_same() {
    let world = World::of(1, crate::simulation::Shape { queue_ops: 2, ..shape() });
    world.commit_now(world.filled(&hashes()));
    let books = world.server.books();
    assert_eq!((books.writing_bytes, books.tier_operations), (2 * PAGE, 2), "no more than it takes");
    world.settle();
    let books = world.server.books();
    assert_eq!((books.writing_bytes, books.dirty_bytes), (0, 2 * PAGE), "after a refusal there is a pause");
    world.pass(TICK);
    world.settle();
    assert_eq!(world.dirty_bytes(), 0, "the tick goes on");
    world.is_quiet();
    assert_eq!(world.offload(&chain(2, 12)), Ok(()), "who waits is not told of refusals");
    world.is_quiet();
}

#[test]
fn a_device_that_does_not_answer_keeps_nobody_and_its_late_writes_count() {
    let world = World::new(1);
    world.hang();
    let commit = world.filled(&hashes());
    assert_eq!(world.commit(&commit), Err(NotDurable::Timeout));
    let books = world.server.books();
    assert_eq!(
        (books.durable_waits, books.writing_bytes),
        (0, u64::from(PAGES) * PAGE),
        "it may still write"
    );
    assert_eq!(world.reload(&hashes()), all(PAGES), "DRAM serves what is being written");
    world.let_go();
    world.settle();
    assert_eq!((world.server.books().writing_bytes, world.dirty_bytes()), (0, 0));
    let begun = world.run(world.server.engine.begin_offload(CLIENT, &durable(&world)));
    assert_eq!(begun.unwrap().durable, Some(Ok(())), "asked again, they are on stable storage");
    world.is_quiet();
}

/// Pages that are present, offered once more to hear whether they are durable.
fn durable(world: &World) -> crate::engine::offload::BeginOffload {
    crate::engine::offload::BeginOffload {
        durable: true,
        ..crate::engine::testing::offer(world.namespace, hashes())
    }
}

#[test]
fn a_flush_that_does_not_end_keeps_nobody_and_promises_nothing() {
    let world = World::new(1);
    let commit = world.filled(&hashes());
    let call = world.server.engine.commit_offload(CLIENT, &commit);
    let committed = world.run_but(Some(Step::Flush), call).unwrap();
    assert_eq!(committed.durable, Some(Err(NotDurable::Timeout)));
    assert_eq!((world.dirty_bytes(), world.server.books().durable_waits), (0, 0), "written, and not flushed");
    world.settle(); // the flush that nobody waits for
    let begun = world.run(world.server.engine.begin_offload(CLIENT, &durable(&world)));
    assert_eq!(begun.unwrap().durable, Some(Ok(())));
    world.is_quiet();
}

/// What was durable before is not asked again, so the failure of a flush is told to those who wait for it, and to nobody else.
#[test]
fn everybody_who_waits_hears_of_a_device_that_fails_and_within_one_tick() {
    let world = World::new(1);
    let (first, second) = (world.filled(&chain(1, 2)), world.filled(&chain(2, 2)));
    let mut flushing = pin!(world.server.engine.commit_offload(CLIENT, &first));
    assert!(poll(flushing.as_mut()).is_pending());
    while world.step_but(Some(Step::Flush)) {}
    assert!(poll(flushing.as_mut()).is_pending(), "it waits for its flush");
    let mut writing = pin!(world.server.engine.commit_offload(CLIENT, &second));
    assert!(poll(writing.as_mut()).is_pending());
    world.disk.cut_power();
    world.settle();
    world.pass(TICK);
    for call in [flushing, writing] {
        let std::task::Poll::Ready(told) = poll(call) else { panic!("it still waits") };
        assert_eq!(told.unwrap().durable, Some(Err(NotDurable::Device)));
    }
    world.is_quiet();
    assert_eq!((world.present_of(&chain(1, 2)), world.present_of(&chain(2, 2))), (2, 2), "DRAM has them");
}

#[test]
fn a_durable_commit_that_leaves_waits_for_nothing_and_its_pages_are_written() {
    let world = World::new(1);
    let commit = world.filled(&hashes());
    {
        let mut call = pin!(world.server.engine.commit_offload(CLIENT, &commit));
        assert!(poll(call.as_mut()).is_pending());
        assert_eq!(world.server.books().durable_waits, 1);
    }
    assert_eq!(world.server.books().durable_waits, 0);
    world.is_quiet();
    assert_eq!((world.present(), world.dirty_bytes()), (PAGES, 0));
}

#[test]
fn a_page_changed_before_it_was_written_is_dropped_and_said_to_be() {
    let world = World::new(1);
    let mut commit = world.filled(&hashes());
    commit.pages[1].1 ^= 1;
    let committed = world.run(world.server.engine.commit_offload(CLIENT, &commit)).unwrap();
    assert_eq!(committed.durable, Some(Err(NotDurable::Changed)));
    world.is_quiet();
    assert_eq!(world.present(), 1);
}

#[test]
fn without_its_device_the_server_takes_and_serves_pages_and_says_what_is_wrong() {
    let world = World::new(1);
    assert_eq!(world.server.engine.health().notes, Vec::<String>::new());
    assert_eq!(world.offload(&hashes()), Ok(()));
    world.disk.cut_power();
    world.commit_now(world.filled(&chain(2, PAGES)));
    world.live(3);
    let notes = world.server.engine.health().notes;
    assert!(notes.len() == 1 && notes[0].starts_with("without NVMe"), "{notes:?}");
    assert_eq!(world.server.engine.health().not_serving, None);
    assert_eq!(world.reload(&chain(2, PAGES)), all(PAGES));
    assert_eq!(world.offload(&chain(3, PAGES)), Err(NotDurable::Device), "at once: nobody waits for it");
    assert_eq!(world.reload(&chain(3, PAGES)), all(PAGES));
    assert_eq!(world.reclaim(), 0, "there is nothing to empty any more");
    for number in 4..20 {
        world.commit_now(world.filled(&chain(number, PAGES)));
        world.live(1);
    }
    assert_eq!(world.dirty_bytes(), 0, "nothing waits for a device that is gone");
    world.is_quiet();
}
