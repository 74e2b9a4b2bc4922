//! Sectors that cannot be read, wherever they are: what they held is a miss, the rest is served, and the next start comes.

use crate::support::*;
use std::collections::BTreeMap;
use turnkv_tier::limits::UNREADABLE_EXTENTS_MAX;
use turnkv_tier::nvme::simulation::{Fault, FaultPlan, SimulatedDisk};
use turnkv_tier::nvme::{NvmeTier, SealedSegment};
use turnkv_tier::{Location, TierError};

fn world(seed: u64) -> World {
    World::new(SimulatedDisk::new(FaultPlan::calm(seed), 1 << 30).unwrap(), seed)
}

fn name(segment: u16) -> String {
    format!("segment-{segment:06}.kv")
}

fn fill(world: &mut World, tier: &NvmeTier, pages: u64) -> BTreeMap<u64, Location> {
    (1..=pages).map(|seed| (seed, world.write(tier, seed, false).unwrap())).collect()
}

/// Makes an extent's payload unreadable.
fn scratch(world: &World, at: Location) {
    world.disk.make_unreadable(&name(at.segment), (u64::from(at.block) + 3) * 4096, 512);
}

#[test]
fn a_segment_with_several_unreadable_extents_is_retired() {
    let mut world = world(1);
    let (tier, _, _) = world.open();
    let pages = fill(&mut world, &tier, 40);
    world.settle(&tier);
    let bad: Vec<(u64, Location)> = pages
        .iter()
        .filter(|(_, at)| at.segment == pages[&1].segment)
        .map(|(seed, at)| (*seed, *at))
        .collect();
    let (gone, left) = bad.split_at(UNREADABLE_EXTENTS_MAX as usize);
    for (number, (seed, at)) in gone.iter().enumerate() {
        assert_eq!(tier.usage().retired_segments, 0, "{number} are few");
        scratch(&world, *at);
        assert_eq!(world.read(&tier, *at, *seed), Err(TierError::Unreadable(*at)));
    }
    assert_eq!((tier.usage().retired_segments, tier.poisoned()), (1, None));
    for (seed, at) in left {
        world.read(&tier, *at, *seed).unwrap();
    }
    // Emptied like any other, it does not come back.
    loop {
        let candidate = tier.reclaim_candidate(|sealed| sealed.age as f64).unwrap();
        tier.release(candidate.segment);
        candidate.extents.iter().for_each(|(_, at)| tier.forget(*at, PAGE));
        if candidate.segment == pages[&1].segment {
            break;
        }
    }
    world.settle(&tier);
    assert_eq!(tier.usage().capacity_bytes, (SEGMENTS - 1) * SEGMENT);
    for seed in 100..180 {
        match world.write(&tier, seed, false) {
            Ok(at) => assert_ne!(at.segment, pages[&1].segment),
            Err(error) => assert_eq!(error, TierError::Full),
        }
    }
    tier.shutdown().unwrap();
}

#[test]
fn a_failed_write_takes_the_device_out_of_service_and_a_failed_read_does_not() {
    let mut world = world(2);
    let (tier, _, _) = world.open();
    let pages = fill(&mut world, &tier, 3);
    world.settle(&tier);
    scratch(&world, pages[&1]);
    assert_eq!(world.read(&tier, pages[&1], 1), Err(TierError::Unreadable(pages[&1])));
    assert_eq!(tier.poisoned(), None);
    world.read(&tier, pages[&2], 2).unwrap();
    world.disk.set_plan(FaultPlan { at: vec![(0, Fault::WriteError)], ..FaultPlan::calm(2) });
    assert!(matches!(world.write(&tier, 4, false), Err(TierError::Io(_))));
    assert!(tier.poisoned().unwrap().contains("write"));
    assert_eq!(world.read(&tier, pages[&2], 2), Err(TierError::Poisoned));
    assert_eq!(world.write(&tier, 5, false), Err(TierError::Poisoned));
    assert_eq!(world.flush(&tier), Err(TierError::Poisoned));
    assert!(
        tier.usage().poisoned
            && !tier.needs_reclaim()
            && tier.reclaim_candidate(SealedSegment::dead_bytes).is_none()
    );
    assert!(tier.shutdown().is_err(), "an operator hears that it did not end well");
}

#[test]
fn a_read_that_fails_once_costs_nothing() {
    let mut world = world(4);
    let (tier, _, _) = world.open();
    let pages = fill(&mut world, &tier, 30);
    world.settle(&tier);
    let fails_once = || FaultPlan { at: vec![(0, Fault::ReadError)], ..FaultPlan::calm(4) };
    for (seed, at) in &pages {
        world.disk.set_plan(fails_once());
        world.read(&tier, *at, *seed).unwrap();
    }
    assert_eq!((tier.usage().unreadable_extents, tier.usage().live_extents), (0, 30));
    world.disk.kill();
    drop(tier);
    // Nor does a start lose by it: headers, footers, what is read in long stretches.
    let often = FaultPlan::calm(4).with(Fault::ReadError, 500_000);
    world.disk.set_plan(often);
    let (tier, recovered, report) = world.open();
    assert_eq!((recovered.len(), report.unreadable, report.retired), (30, 0, 0));
    assert!(world.disk.counts().faults[&Fault::ReadError] > 35, "{:?}", world.disk.counts());
    world.disk.set_plan(FaultPlan::calm(4));
    tier.shutdown().unwrap();
}

#[test]
fn a_start_waits_for_descriptors() {
    for skipped in 0..6 {
        let mut world = world(5);
        let (tier, _, _) = world.open();
        fill(&mut world, &tier, 5);
        tier.shutdown().unwrap();
        drop(tier);
        let first = world.disk.operations() + skipped;
        let plan = FaultPlan { at: vec![(first, Fault::NoDescriptor); 20], ..FaultPlan::calm(5) };
        world.disk.set_plan(plan);
        let (tier, recovered, report) = world.open();
        assert_eq!((recovered.len(), report.warnings), (5, Vec::<String>::new()));
        assert_eq!(world.disk.counts().faults[&Fault::NoDescriptor], 20);
        tier.shutdown().unwrap();
    }
}

#[test]
fn a_failed_sync_takes_the_device_out_of_service() {
    let mut world = world(3);
    let (tier, _, _) = world.open();
    fill(&mut world, &tier, 3);
    world.settle(&tier);
    world.disk.set_plan(FaultPlan { at: vec![(0, Fault::SyncError)], ..FaultPlan::calm(3) });
    assert!(matches!(world.flush(&tier), Err(TierError::Io(_))));
    assert_eq!(world.flush(&tier), Err(TierError::Poisoned));
}

/// What a place still has after so many bytes at an offset of each named file cannot be read.
fn reopened(seed: u64, damage: &[(&str, u64, usize)]) -> (usize, u32, u32, Vec<String>) {
    let mut world = world(seed);
    let (tier, _, _) = world.open();
    let pages = fill(&mut world, &tier, 30);
    tier.shutdown().unwrap();
    drop(tier);
    for (file, offset, len) in damage {
        world.disk.make_unreadable(file, *offset, *len);
    }
    let (tier, recovered, report) = world.open();
    for extent in &recovered {
        let page = seed_of(&extent.meta);
        assert!(pages.contains_key(&page));
        match world.read(&tier, extent.at, page) {
            Ok(()) => {}
            Err(error) => assert_eq!(error, TierError::Unreadable(extent.at)),
        }
    }
    for seed in 100..120 {
        let at = world.write(&tier, seed, false).unwrap();
        world.read(&tier, at, seed).unwrap();
    }
    world.flush(&tier).unwrap();
    assert_eq!(tier.poisoned(), None);
    tier.shutdown().unwrap();
    (recovered.len(), report.unreadable, report.retired, report.warnings)
}

#[test]
fn a_start_comes_whatever_cannot_be_read() {
    let last = SEGMENT - 4096;
    assert_eq!(reopened(10, &[]), (30, 0, 0, vec![]));
    // A footer: the headers say the same.
    let (found, unreadable, retired, warnings) = reopened(11, &[("segment-000000.kv", last, 512)]);
    assert_eq!((found, unreadable, retired, warnings.len()), (30, 1, 1, 2), "{warnings:?}");
    // A header: what it vouched for is gone, and nothing else.
    let (found, unreadable, retired, warnings) = reopened(12, &[("segment-000000.kv", 0, 512)]);
    assert_eq!((unreadable, retired, warnings.len()), (1, 1, 2), "{warnings:?}");
    assert!((16..30).contains(&found), "{found}");
    // A footer and an extent: the others of that segment are found by what each says itself.
    let damage = [("segment-000000.kv", last, 512), ("segment-000000.kv", 5 * 4096, 4096)];
    let (found, unreadable, retired, _) = reopened(13, &damage);
    assert_eq!((found, unreadable, retired), (29, 1, 1));
    // Everything in a segment.
    let (_, unreadable, retired, _) = reopened(14, &[("segment-000001.kv", 0, SEGMENT as usize)]);
    assert_eq!((unreadable, retired), (1, 1));
    // One of the superblocks, either one; then both, and the segments say it all.
    for (seed, file) in [(15, "superblock"), (16, "superblock.2")] {
        let (found, _, _, warnings) = reopened(seed, &[(file, 0, 512)]);
        assert_eq!((found, warnings.len()), (30, 1), "{warnings:?}");
    }
    let (found, _, _, warnings) = reopened(17, &[("superblock", 0, 512), ("superblock.2", 0, 512)]);
    assert_eq!((found, warnings.len()), (30, 1), "{warnings:?}");
}

#[test]
fn reclaim_reads_headers_where_the_footer_cannot_be_read() {
    let mut world = world(20);
    let (tier, _, _) = world.open();
    let pages = fill(&mut world, &tier, 40);
    world.settle(&tier);
    let first = pages[&1].segment;
    world.disk.make_unreadable(&name(first), SEGMENT - 4096, 512);
    let unsaid = pages[&2];
    world.disk.make_unreadable(&name(first), u64::from(unsaid.block) * 4096, 512);
    let candidate = tier.reclaim_candidate(|sealed| f64::from(u8::from(sealed.segment == first))).unwrap();
    assert_eq!(candidate.segment, first);
    let there = pages.values().filter(|at| at.segment == first).count();
    assert_eq!(candidate.extents.len(), there - 1, "one header cannot be read");
    for (_, at) in &candidate.extents {
        tier.forget(*at, PAGE);
    }
    tier.release(candidate.segment);
    world.read(&tier, unsaid, 2).unwrap(); // its payload is well, and nobody was told that it is gone
    assert_eq!((tier.usage().retired_segments, tier.poisoned()), (1, None));
    tier.shutdown().unwrap();
}

#[test]
fn an_extent_whose_header_rotted_is_not_released_behind_its_owners_back() {
    let mut world = world(21);
    let (tier, _, _) = world.open();
    let pages = fill(&mut world, &tier, 40);
    world.settle(&tier);
    let (first, unsaid) = (pages[&1].segment, pages[&2]);
    world.disk.flip(&name(first), SEGMENT - 4096, 1);
    world.disk.flip(&name(first), u64::from(unsaid.block) * 4096, 1);
    let before = tier.usage().live_extents;
    let candidate = tier.reclaim_candidate(|sealed| f64::from(u8::from(sealed.segment == first))).unwrap();
    for (_, at) in &candidate.extents {
        tier.forget(*at, PAGE);
    }
    tier.release(candidate.segment);
    world.settle(&tier);
    assert_eq!(tier.usage().live_extents, before - candidate.extents.len() as u64);
    world.read(&tier, unsaid, 2).unwrap();
    tier.forget(unsaid, PAGE);
    assert_eq!(tier.usage().live_extents, before - candidate.extents.len() as u64 - 1);
    tier.shutdown().unwrap();
}

#[test]
fn latent_errors_cost_what_they_hit_and_no_start() {
    for seed in 0..10 {
        let plan = FaultPlan::calm(seed).with(Fault::Latent, 20_000).with(Fault::ReadError, 20_000);
        let mut world = World::new(SimulatedDisk::new(plan, 1 << 30).unwrap(), seed);
        let mut lost = 0;
        for life in 0..4 {
            let (tier, recovered, report) =
                world.try_open().unwrap_or_else(|error| panic!("{seed}/{life}: {error}"));
            for extent in recovered {
                match world.read(&tier, extent.at, seed_of(&extent.meta)) {
                    Ok(()) => {}
                    Err(TierError::Unreadable(_) | TierError::Stale(_)) => lost += 1,
                    Err(error) => panic!("{seed}/{life}: {error}, {report:?}"),
                }
            }
            for page in 0..30 {
                match world.write(&tier, 1000 * life + page, false) {
                    Ok(_) | Err(TierError::Full) => {}
                    Err(error) => panic!("{seed}/{life}: {error}"),
                }
            }
            assert_eq!(tier.poisoned(), None);
            tier.shutdown().unwrap();
        }
        assert!(lost < 60, "{lost}");
    }
}
