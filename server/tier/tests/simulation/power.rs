//! The power is lost, at any moment, again and again: what was flushed is there, wherever it was moved since.
//!
//! The story: reclaim moved a durable page, released its segment, and the segment was written again, all before the copy
//! was on stable storage. So the only synced copy was gone, and with the power the other one.

use crate::support::*;
use std::collections::BTreeMap;
use turnkv_tier::nvme::simulation::{FaultPlan, SimulatedDisk};
use turnkv_tier::nvme::{NvmeTier, SealedSegment};
use turnkv_tier::{Location, TierError};

/// Pages that were flushed are never given up here; so many leave room to reclaim.
const DURABLE_MAX: usize = 30;

/// What was written, and which of it was flushed.
#[derive(Default)]
struct Model {
    pages: BTreeMap<u64, Location>,
    durable: BTreeMap<u64, Location>,
    next: u64,
}

impl Model {
    fn act(&mut self, world: &mut World, tier: &NvmeTier) -> Result<(), TierError> {
        match world.random.below(12) {
            0..=6 => self.write(world, tier)?,
            7 => self.flush(world, tier)?,
            8 => world.settle(tier),
            9 => self.supersede(world, tier)?,
            _ => {}
        }
        if tier.needs_reclaim() { self.reclaim(world, tier) } else { Ok(()) }
    }

    fn write(&mut self, world: &mut World, tier: &NvmeTier) -> Result<(), TierError> {
        self.next += 1;
        match world.write(tier, self.next, false) {
            Ok(at) => drop(self.pages.insert(self.next, at)),
            Err(TierError::Full) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// All that was written is durable once the flush says so; the oldest pages are given up.
    fn flush(&mut self, world: &mut World, tier: &NvmeTier) -> Result<(), TierError> {
        world.flush(tier)?;
        self.durable.append(&mut self.pages);
        while self.durable.len() > DURABLE_MAX {
            let Some((_, at)) = self.durable.pop_first() else { return Ok(()) };
            tier.forget(at, PAGE);
        }
        Ok(())
    }

    /// A durable page is written again for another reason than reclaim, and its old extent forgotten.
    fn supersede(&mut self, world: &mut World, tier: &NvmeTier) -> Result<(), TierError> {
        let Some(seed) = self.durable.keys().nth(world.random.index(DURABLE_MAX)).copied() else {
            return Ok(());
        };
        match world.write(tier, seed, false) {
            Ok(at) => {
                let old = self.durable.insert(seed, at);
                old.into_iter().for_each(|old| tier.forget(old, PAGE));
                Ok(())
            }
            Err(TierError::Full) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Moves what is durable, drops the rest, releases the segment.
    fn reclaim(&mut self, world: &mut World, tier: &NvmeTier) -> Result<(), TierError> {
        let Some(candidate) = tier.reclaim_candidate(SealedSegment::dead_bytes) else { return Ok(()) };
        for (meta, at) in &candidate.extents {
            let seed = seed_of(meta);
            if self.durable.get(&seed) == Some(at) {
                match world.write(tier, seed, true) {
                    Ok(moved) => drop(self.durable.insert(seed, moved)),
                    Err(TierError::Full) => {
                        tier.keep(candidate.segment);
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
                tier.forget(*at, PAGE);
            } else if self.pages.get(&seed) == Some(at) {
                self.pages.remove(&seed);
            }
        }
        tier.release(candidate.segment);
        Ok(())
    }
}

/// Lives and power cuts of one disk.
fn run(seed: u64, lives: u64) {
    let mut world = World::new(SimulatedDisk::new(FaultPlan::calm(seed), 1 << 30).unwrap(), seed);
    let mut model = Model::default();
    for life in 0..lives {
        let (tier, recovered, report) = world.open();
        let found: BTreeMap<u64, Location> =
            recovered.iter().map(|extent| (seed_of(&extent.meta), extent.at)).collect();
        let mut durable = BTreeMap::new();
        for page in model.durable.keys() {
            let at = found
                .get(page)
                .unwrap_or_else(|| panic!("seed {seed}, life {life}: page {page} is lost, {report:?}"));
            world
                .read(&tier, *at, *page)
                .unwrap_or_else(|error| panic!("seed {seed}, life {life}: page {page}: {error}"));
            durable.insert(*page, *at);
        }
        model = Model { pages: BTreeMap::new(), durable, next: model.next };
        for (page, at) in &found {
            if !model.durable.contains_key(page) {
                tier.forget(*at, PAGE);
            }
        }
        for _ in 0..40 + world.random.below(120) {
            model.act(&mut world, &tier).unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
        }
        // A kill loses nothing, but what it leaves is not synced when the next life begins.
        if world.random.below(4) == 0 { world.disk.kill() } else { world.disk.crash() }
    }
}

#[test]
fn what_was_flushed_survives_power_loss_wherever_it_was_moved() {
    for seed in 0..12 {
        run(seed, 5);
    }
}
