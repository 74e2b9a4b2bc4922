//! What a start finds does not depend on how often the tier was started.

use crate::support::*;
use turnkv_tier::Location;
use turnkv_tier::nvme::NvmeTier;
use turnkv_tier::nvme::simulation::{FaultPlan, SimulatedDisk};

fn places(world: &World) -> (NvmeTier, Vec<(u64, Location)>) {
    let (tier, recovered, _) = world.open();
    let mut places: Vec<_> = recovered.iter().map(|extent| (seed_of(&extent.meta), extent.at)).collect();
    places.sort_unstable();
    (tier, places)
}

#[test]
fn two_starts_find_the_same_whatever_was_forgotten_before() {
    for forgotten in [&[6][..], &[5, 6], &[1, 3], &[1, 2, 3, 4, 5, 6]] {
        let mut world = World::new(SimulatedDisk::new(FaultPlan::calm(6), 1 << 30).unwrap(), 6);
        let (tier, _, _) = world.open();
        let written: Vec<Location> = (1..=6).map(|seed| world.write(&tier, seed, false).unwrap()).collect();
        world.flush(&tier).unwrap();
        forgotten.iter().for_each(|seed| tier.forget(written[*seed - 1], PAGE));
        tier.shutdown().unwrap(); // its segment gets a footer, and the next start goes on with it
        drop(tier);
        let (tier, first) = places(&world);
        world.disk.kill();
        drop(tier);
        let (tier, second) = places(&world);
        assert_eq!(first, second, "{forgotten:?} were forgotten");
        tier.shutdown().unwrap();
    }
}
