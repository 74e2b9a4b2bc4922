//! Reloads whose pages are read from NVMe: what cannot be read is a miss after the pages before it, and costs only itself and what
//! hangs on it.

use super::world::*;
use crate::simulation::{Fault, Shape, Step};
use turnkv_pool::MissCause;
use turnkv_tier::limits::UNREADABLE_EXTENTS_MAX;

#[test]
fn pages_go_to_the_disk_and_come_back() {
    let world = World::demoted(1);
    assert_eq!(world.reload(&hashes()), all(PAGES));
    world.is_quiet();
}

/// The order in which reads are carried out is the seed's: which of them fail differs.
#[test]
fn a_read_that_fails_half_way_of_a_reload_is_a_miss_after_the_pages_before_it() {
    let mut served = 0;
    for seed in 0..8 {
        let world = World::demoted(seed);
        let mut run = world.begin_reload(&hashes());
        for _ in 0..2 {
            assert!(world.server.step_tier(Step::Carry) && world.server.step_tier(Step::Finish));
        }
        world.fail(Fault::Latent);
        let told = world.read(&mut run, &hashes());
        let (miss, pages) = told.split_last().unwrap();
        assert_eq!(*miss, Err(MissCause::Io));
        assert!(pages.len() <= 2 && pages.iter().all(Result::is_ok), "{told:?}");
        served += pages.len();
        world.is_quiet();
        assert_eq!(
            world.present() as usize,
            pages.len(),
            "what could not be read, and what hangs on it, is gone"
        );
        world.heal();
        assert_eq!(world.offload(&hashes()), Ok(()), "it is taken again");
        assert_eq!(world.reload(&hashes()), all(PAGES));
        world.is_quiet();
    }
    assert!(served > 0, "some were served up to the miss");
}

#[test]
fn a_page_whose_bytes_are_wrong_is_a_miss_and_counted_and_those_before_it_are_served() {
    let world = World::demoted(1);
    let (file, at) = world.place(&hashes()[2]);
    world.disk.flip(&file, at + 100, 3);
    assert_eq!(world.reload(&hashes()), [Ok(0), Ok(1), Err(MissCause::Checksum)]);
    world.is_quiet();
    assert_eq!((world.present(), world.server.engine.stats().corrupt_pages), (2, 1));
    assert!(world.server.poisoned().is_none());
    assert_eq!(world.offload(&hashes()), Ok(()), "it is taken again");
    assert_eq!(world.reload(&hashes()), all(PAGES));
}

#[test]
fn a_page_that_cannot_be_read_costs_no_other_and_the_device_stays() {
    let world = World::demoted(1);
    let (file, at) = world.place(&hashes()[1]);
    world.disk.make_unreadable(&file, at, 512);
    assert_eq!(world.reload(&hashes()), [Ok(0), Err(MissCause::Io)]);
    world.is_quiet();
    assert_eq!((world.present(), world.server.books().unreadable_extents), (1, 1));
    assert!(world.server.poisoned().is_none());
    assert_eq!(world.offload(&chain(2, PAGES)), Ok(()), "others are written");
}

#[test]
fn a_read_that_fails_once_is_made_again_and_nobody_hears_of_it() {
    let world = World::demoted(1);
    world.fail(Fault::ReadError);
    assert_eq!(world.reload(&hashes()), all(PAGES));
    assert!(world.disk.counts().faults[&Fault::ReadError] >= u64::from(PAGES));
    assert_eq!(world.server.books().unreadable_extents, 0);
    world.is_quiet();
}

#[test]
fn a_segment_that_loses_several_pages_is_not_written_again_and_that_is_said() {
    let world = World::new(1);
    let several = UNREADABLE_EXTENTS_MAX as u8;
    for number in 1..=several {
        assert_eq!(world.offload(&chain(number, 1)), Ok(()));
    }
    world.demote(several.into());
    for number in 1..=several {
        let (file, at) = world.place(&chain(number, 1)[0]);
        assert_eq!(file, "segment-000000.kv", "all are in one");
        world.disk.make_unreadable(&file, at, 512);
        assert_eq!(world.reload(&chain(number, 1)), [Err(MissCause::Io)]);
    }
    let notes = world.server.engine.health().notes;
    assert!(notes.len() == 1 && notes[0].starts_with("1 segments of NVMe could not be read"), "{notes:?}");
    let capacity = || world.server.engine.stats().nvme.unwrap().0.capacity_bytes;
    let before = capacity();
    world.live(50);
    assert_eq!(world.offload(&chain(9, PAGES)), Ok(()), "the others are written");
    assert!(capacity() <= before);
    world.is_quiet();
}

/// The tier takes two operations at a time.
#[test]
fn reads_that_the_tier_refuses_are_busy_and_their_pages_stay() {
    let world = World::demoted_of(1, Shape { queue_ops: 2, ..shape() });
    assert_eq!(world.reload(&hashes()), [Ok(0), Ok(1), Err(MissCause::Busy)]);
    world.is_quiet();
    assert_eq!(world.present(), PAGES);
    assert_eq!(world.reload(&hashes()), all(PAGES), "asked again, the rest comes");
    world.is_quiet();
}

#[test]
fn a_device_that_does_not_answer_keeps_no_reader_and_no_slot_of_its_is_another_pages() {
    let world = World::demoted_of(1, Shape { lease_ms: 60_000, ..shape() });
    world.hang();
    let run = &mut world.begin_reload(&hashes());
    assert_eq!(world.read(run, &hashes()), [Err(MissCause::Busy)], "in the time that it would wait");
    assert_eq!(world.present(), PAGES, "it may still come");
    let pinned = u64::from(PAGES) * PAGE;
    assert!(world.server.books().pinned_bytes >= pinned, "the device may still write to these slots");
    world.heal();
    let others = chain(2, SLOTS);
    let commit = world.filled(&others);
    assert!(commit.pages.len() <= (SLOTS - PAGES) as usize, "{} slots were given away", commit.pages.len());
    world.commit_now(commit);
    world.let_go();
    world.settle();
    assert_eq!(world.reload(&hashes()), all(PAGES));
    world.is_quiet();
}

#[test]
fn readers_that_come_and_go_while_a_device_hangs_leave_nothing_behind() {
    let world = World::demoted(1);
    world.hang();
    for _ in 0..200 {
        let run = world.begin_reload(&hashes());
        assert!(!run.is_done());
        world.end_reload(&run);
    }
    let waiting = world.server.books().waiting_readers;
    assert!(waiting <= 8 * u64::from(PAGES), "{waiting} readers are remembered, and none is there");
    world.let_go();
    world.is_quiet();
    assert_eq!((world.server.books().waiting_readers, world.present()), (0, PAGES));
}

#[test]
fn reads_of_a_tier_that_dies_are_misses_and_new_pages_are_taken_without_it() {
    let world = World::demoted(1);
    let mut run = world.begin_reload(&hashes());
    world.disk.cut_power();
    assert_eq!(world.read(&mut run, &hashes()), [Err(MissCause::Io)]);
    world.pass(TICK);
    world.is_quiet();
    assert_eq!(world.present(), 0);
    let told = world.offload(&hashes());
    assert_eq!(told, Err(crate::engine::durable::NotDurable::Device), "kept in DRAM, and said to be no more");
    world.pass(TICK);
    assert!(world.server.poisoned().is_some());
    assert_eq!(world.reload(&hashes()), all(PAGES));
    world.is_quiet();
}

#[test]
fn two_readers_of_one_page_share_its_read_and_its_failure() {
    let world = World::demoted(1);
    let (mut one, mut other) = (world.begin_reload(&hashes()), world.begin_reload(&hashes()));
    assert_eq!(world.server.books().tier_operations, u64::from(PAGES), "each page is read once");
    world.fail(Fault::Latent);
    assert_eq!(world.read(&mut one, &hashes()), [Err(MissCause::Io)]);
    assert_eq!(world.read(&mut other, &hashes()), [Err(MissCause::Io)]);
    world.is_quiet();
    assert_eq!(world.present(), 0);
}

#[test]
fn a_reload_that_leaves_in_the_middle_leaves_nothing_behind_but_its_lease() {
    let world = World::demoted(1);
    let run = world.begin_reload(&hashes());
    assert!(world.server.books().promotions > 0);
    world.settle();
    assert_eq!(world.server.books().promotions, 0);
    assert!(world.server.books().pinned_bytes > 0, "it may still be copying");
    world.end_reload(&run);
    drop(run);
    world.is_quiet();
    assert_eq!(world.reload(&hashes()), all(PAGES), "what was read is of use");
    world.is_quiet();
}

#[test]
fn a_lease_that_nobody_ends_is_ended_by_time() {
    let world = World::demoted(1);
    drop(world.begin_reload(&hashes()));
    world.live(20);
    world.is_quiet();
}
