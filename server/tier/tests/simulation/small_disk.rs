//! A disk with less space than the tier was promised: writes are refused at once and not after a wait, what reclaim moves
//! always has where to go, and the tier grows when the disk does.

use crate::support::{config, extent, promise, region};
use std::time::Duration;
use turnkv_tier::nvme::simulation::{Fault, FaultPlan, Random, SimulatedDisk};
use turnkv_tier::nvme::{NvmeTier, SealedSegment};
use turnkv_tier::{Location, TierError};

const PAGE: usize = 250_000;

fn run(tier: &NvmeTier) {
    let mut random = Random::new(9);
    while tier.step_any(&mut random) {}
}

fn write(tier: &NvmeTier, seed: u8, moves: bool) -> Option<Result<Location, TierError>> {
    let payload = vec![seed; PAGE];
    let slot = region().slot(0, PAGE).unwrap();
    slot.claim().unwrap().fill(&payload);
    let (done, told) = promise();
    if moves {
        tier.rewrite(extent(seed, &payload), slot, done);
    } else {
        tier.write(extent(seed, &payload), slot, done);
    }
    run(tier);
    told.try_recv().ok()
}

/// Writes until the tier refuses; no write may be left waiting. How many it took.
fn fill(tier: &NvmeTier, from: u8) -> u8 {
    for seed in from.. {
        match write(tier, seed, false) {
            Some(Ok(_)) => {}
            Some(Err(TierError::Full)) => return seed - from,
            other => panic!("{other:?} after {} writes: {:?}", seed - from, tier.usage()),
        }
    }
    unreachable!()
}

#[test]
fn the_reserve_is_never_given_to_ordinary_writes() {
    // Room for four and a half segments of eight.
    let disk = SimulatedDisk::new(FaultPlan::calm(3), (9 << 20) / 2).unwrap();
    let (tier, _, _) = NvmeTier::open_simulated(config(), &disk).unwrap();
    run(&tier);
    assert_eq!(fill(&tier, 1), 12, "three segments of four pages, and one in reserve");
    let usage = tier.usage();
    assert!(usage.disk_full && tier.needs_reclaim(), "{usage:?}");
    assert_eq!((usage.capacity_bytes, tier.capacity().0), (4 << 20, 4));
    for round in 0..20u8 {
        assert!(tier.movable_bytes() >= PAGE as u32);
        let candidate = tier.reclaim_candidate(SealedSegment::dead_bytes).unwrap();
        for (meta, at) in &candidate.extents[..2] {
            assert!(matches!(write(&tier, meta.hash.0[0], true), Some(Ok(_))), "round {round}");
            tier.forget(*at, PAGE as u32);
        }
        tier.release(candidate.segment);
        run(&tier);
        assert!(fill(&tier, 100 + round) <= 2, "what was dropped has made so much room");
    }
    assert_eq!(tier.poisoned(), None);
}

#[test]
fn a_disk_that_grows_is_noticed_although_nothing_is_wanted() {
    let disk = SimulatedDisk::new(FaultPlan::calm(4), (9 << 20) / 2).unwrap();
    let (tier, _, _) = NvmeTier::open_simulated(config(), &disk).unwrap();
    fill(&tier, 1);
    assert_eq!(tier.capacity().0, 4);
    let candidate = tier.reclaim_candidate(SealedSegment::dead_bytes).unwrap();
    tier.release(candidate.segment); // two are ready: the tier wants no more
    run(&tier);
    disk.set_capacity(64 << 20);
    disk.advance(Duration::from_secs(60));
    run(&tier);
    assert_eq!((tier.capacity().0, tier.usage().disk_full), (8, false));
}

#[test]
fn descriptors_that_run_out_later_harm_nothing() {
    let disk = SimulatedDisk::new(FaultPlan::calm(5), 64 << 20).unwrap();
    let (tier, _, _) = NvmeTier::open_simulated(config(), &disk).unwrap();
    assert_eq!(fill(&tier, 1), 28);
    disk.set_plan(FaultPlan::calm(5).with(Fault::NoDescriptor, 1_000_000));
    let candidate = tier.reclaim_candidate(SealedSegment::dead_bytes).unwrap();
    tier.release(candidate.segment);
    run(&tier);
    assert!(matches!(write(&tier, 200, false), Some(Ok(_))));
    assert_eq!(tier.poisoned(), None);
}
