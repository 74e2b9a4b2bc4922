//! A start on what a disk may have left: it comes, and serves every page that was durable and is whole, and no other bytes ever.

use super::world::*;
use crate::engine::durable::NotDurable;
use crate::engine::session::{BeginTurn, ListSessions, Listed, SessionKey};
use crate::simulation::Fault;
use turnkv_pool::MissCause;
use turnkv_proto::SessionId;

#[test]
fn what_was_durable_is_there_after_every_kind_of_end() {
    for how in [End::Clean, End::Killed, End::PowerCut] {
        let world = World::new(1);
        assert_eq!(world.offload(&hashes()), Ok(()));
        let world = world.again(how);
        assert_eq!((world.present(), world.reload(&hashes())), (PAGES, all(PAGES)), "{how:?}");
        world.is_quiet();
    }
}

/// Some of the writes were on their way: torn ones are misses.
#[test]
fn power_lost_in_the_middle_of_writes_costs_those_and_no_others() {
    let mut found = 0;
    for seed in 0..32 {
        let world = World::new(seed);
        assert_eq!(world.offload(&hashes()), Ok(()));
        let others = chain(2, 12);
        world.commit_now(world.filled(&others));
        for _ in 0..seed {
            world.step();
        }
        let world = world.again(End::PowerCut);
        assert_eq!(world.present(), PAGES, "seed {seed}: these were durable");
        let present = world.present_of(&others);
        let told = world.reload(&others);
        let served = told.iter().filter(|page| page.is_ok()).count() as u32;
        assert!(served <= present && told.iter().take(served as usize).all(Result::is_ok), "seed {seed}");
        found += served;
        assert_eq!(world.offload(&others), Ok(()), "seed {seed}");
        world.is_quiet();
    }
    assert!(found > 0, "some had been written");
}

#[test]
fn a_page_that_rotted_while_the_server_was_down_is_a_miss_when_it_is_wanted() {
    let world = World::demoted(1);
    let (file, at) = world.place(&hashes()[3]);
    world.end(End::Clean);
    world.disk.flip(&file, at + 7, 1);
    let world = world.start_again().unwrap();
    assert_eq!(world.reload(&hashes()), [Ok(0), Ok(1), Ok(2), Err(MissCause::Checksum)]);
    assert_eq!(world.server.engine.stats().corrupt_pages, 1);
    world.is_quiet();
}

#[test]
fn a_segment_that_cannot_be_read_any_more_costs_its_own_pages_and_the_server_starts() {
    let world = World::new(1);
    for number in 1..=6 {
        assert_eq!(world.offload(&chain(number, PAGES)), Ok(()));
    }
    let (file, _) = world.place(&chain(1, PAGES)[0]);
    let lost = |world: &World, number| world.place(&chain(number, PAGES)[3]).0 == file;
    let kept: Vec<u8> = (2..=6).filter(|number| !lost(&world, *number)).collect();
    world.end(End::Killed);
    world.disk.make_unreadable(&file, 0, 64 << 10);
    let world = world.start_again().unwrap();
    assert_eq!(world.present_of(&chain(1, PAGES)), 0);
    assert!(!kept.is_empty());
    for number in kept {
        let hashes = chain(number, PAGES);
        let (present, told) = (world.present_of(&hashes), world.reload(&hashes));
        assert!(present == 0 || told == all(PAGES), "a prefix whose first page is gone is unreachable");
    }
    assert!(world.server.poisoned().is_none());
    assert_eq!(world.offload(&chain(9, PAGES)), Ok(()), "the rest is written");
    world.is_quiet();
}

#[test]
fn a_device_that_cannot_be_read_at_a_start_is_an_error_that_names_it() {
    let world = World::demoted(1);
    world.end(End::Killed);
    world.fail(Fault::Latent);
    let Err(error) = world.start_again() else { panic!("it starts on a disk that cannot be read") };
    assert!(format!("{error:#}").contains("simulated"), "{error:#}");
}

#[test]
fn a_start_without_descriptors_is_an_error_and_costs_nothing() {
    let world = World::demoted(1);
    world.end(End::Killed);
    world.fail(Fault::NoDescriptor);
    let (disk, catalog) = (world.disk.clone(), world.catalog.clone());
    let Err(error) = world.start_again() else { panic!("it starts without its files") };
    assert!(format!("{error:#}").contains("open files"), "{error:#}");
    disk.set_plan(calm());
    assert_eq!(World::on(disk, catalog).reload(&hashes()), all(PAGES), "the next start has what was there");
}

fn turn(world: &World) {
    let of = || SessionKey { namespace: world.namespace, session: SessionId::parse("chat").unwrap() };
    world.server.engine.begin_turn(&BeginTurn { of: of(), engine: None, ended: 0, may_go: false }).unwrap();
    let end = end_of_turn(of());
    world.server.engine.end_turn(&end).unwrap();
}

fn sessions(world: &World) -> u64 {
    world.server.engine.list_sessions(&ListSessions { of: Listed::All, limit: None }).unwrap().total
}

/// Pages do not depend on the catalog; sessions do, and come as soon as it can be read.
#[test]
fn a_catalog_that_cannot_be_read_at_a_start_is_read_later_and_pages_do_not_wait_for_it() {
    let world = World::new(1);
    assert_eq!(world.offload(&hashes()), Ok(()));
    turn(&world);
    world.end(End::Clean);
    world.catalog.set_plan(calm().with(Fault::NoDescriptor, 1_000_000));
    let world = world.start_again().unwrap();
    assert_eq!((world.present(), world.reload(&hashes())), (PAGES, all(PAGES)));
    assert_eq!(sessions(&world), 0);
    assert!(world.server.engine.health().notes.iter().any(|note| note.contains("catalog")));
    world.catalog.set_plan(calm());
    for _ in 0..20 {
        world.pass(TICK);
        world.server.flush_catalog();
    }
    assert_eq!(sessions(&world), 1, "what was saved is back");
    assert_eq!(world.server.engine.health().notes, Vec::<String>::new());
    world.is_quiet();
}

#[test]
fn a_catalog_that_is_lost_costs_sessions_and_no_page() {
    let world = World::new(1);
    assert_eq!(world.offload(&hashes()), Ok(()));
    turn(&world);
    world.end(End::Clean);
    for sector in 0..64 {
        world.catalog.flip("catalog.redb", sector * 512 + 40, 5);
    }
    let world = world.start_again().unwrap();
    assert_eq!((world.present(), world.reload(&hashes())), (PAGES, all(PAGES)));
    turn(&world);
    world.server.flush_catalog();
    let world = world.again(End::Killed);
    assert_eq!((sessions(&world), world.present()), (1, PAGES), "what came after is saved");
}

#[test]
fn a_device_that_fails_soon_after_a_start_leaves_a_server_that_serves_what_it_has_read() {
    let world = World::demoted(1).again(End::Killed);
    assert_eq!(world.reload(&hashes()[..2]), all(2));
    world.fail(Fault::WriteError);
    assert_eq!(world.offload(&chain(2, 2)), Err(NotDurable::Device));
    world.pass(TICK);
    assert_eq!((world.present(), world.reload(&hashes()[..2])), (2, all(2)), "DRAM has two of them");
    world.is_quiet();
}
