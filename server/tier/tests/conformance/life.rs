//! The log over time: full, reclaimed, reopened.

use crate::support::*;
use std::collections::HashMap;
use turnkv_tier::nvme::{NvmeConfig, NvmeTier, SealedSegment};
use turnkv_tier::{Location, TierError};

/// A quarter of a segment.
const PAGE: u32 = 250_000;

/// Writes pages until the tier is full; where each is.
fn fill(tier: &NvmeTier, bench: &Bench) -> Vec<(u64, Location)> {
    let mut places = Vec::new();
    for seed in 1.. {
        match write(tier, bench, seed, PAGE) {
            Ok(at) => places.push((seed, at)),
            Err(TierError::Full) => return places,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

fn disk_bytes(bench: &Bench) -> u64 {
    let entries = std::fs::read_dir(bench.path()).unwrap();
    let segments =
        entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".kv"));
    segments.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn a_full_tier_refuses_and_keeps_what_it_has() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let places = fill(&tier, &bench);
        assert_eq!(places.len() as u64, 4 * (SEGMENTS - 1), "one segment is in reserve");
        assert!(tier.needs_reclaim());
        assert_eq!(tier.poisoned(), None);
        let (done, told) = promise();
        tier.rewrite(meta(999, PAGE), bench.filled(0, PAGE, 999), done);
        answer(&told).expect("reclaim may use the reserve");
        for (seed, at) in &places {
            read(&tier, &bench, *at, *seed, PAGE).unwrap();
        }
        let usage = tier.usage();
        assert!(usage.used_bytes <= usage.capacity_bytes);
        if bench.path().is_dir() {
            assert!(disk_bytes(&bench) <= bench.config.capacity_bytes);
        }
    });
}

#[test]
fn reclaim_frees_the_segment_that_pays_best() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let places = fill(&tier, &bench);
        let poor: Vec<_> = places.iter().filter(|(_, at)| at.segment == places[12].1.segment).collect();
        for (_, at) in &poor[1..] {
            tier.forget(*at, PAGE);
        }
        let candidate = tier.reclaim_candidate(SealedSegment::dead_bytes).unwrap();
        assert_eq!(candidate.segment, poor[0].1.segment);
        assert_eq!(candidate.extents, vec![(meta(poor[0].0, PAGE), poor[0].1)]);
        assert_eq!(candidate.live_bytes, u64::from(PAGE).next_multiple_of(4096) + 4096);
        let other = tier.reclaim_candidate(SealedSegment::dead_bytes).unwrap();
        assert_ne!(other.segment, candidate.segment, "a claimed segment is not handed out twice");
        tier.keep(other.segment);
        read(&tier, &bench, poor[0].1, poor[0].0, PAGE).unwrap();
        tier.release(candidate.segment);
        tier.release(candidate.segment);
        tier.release(9999);
        assert_eq!(read(&tier, &bench, poor[0].1, poor[0].0, PAGE), Err(TierError::Stale(poor[0].1)));
        let at = write(&tier, &bench, 5000, PAGE).unwrap();
        read(&tier, &bench, at, 5000, PAGE).unwrap();
    });
}

#[test]
fn a_segment_with_nothing_alive_frees_itself() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let places = fill(&tier, &bench);
        let first = places[0].1.segment;
        places.iter().filter(|(_, at)| at.segment == first).for_each(|(_, at)| tier.forget(*at, PAGE));
        for seed in 100..104 {
            write(&tier, &bench, seed, PAGE).unwrap();
        }
    });
}

#[test]
fn reads_in_flight_outlive_a_release() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let places = fill(&tier, &bench);
        for round in 0..20u64 {
            let candidate = tier.reclaim_candidate(SealedSegment::dead_bytes).unwrap();
            let reads: Vec<_> = candidate
                .extents
                .iter()
                .enumerate()
                .map(|(number, (meta, at))| {
                    let (done, told) = promise();
                    let target = bench.slot(number + 4, PAGE);
                    tier.read(*at, PAGE, meta.checksum, target, done);
                    told
                })
                .collect();
            tier.release(candidate.segment);
            // New extents may take the segment as soon as the reads are over, and not before: each read verifies.
            let writes: Vec<_> = (0..4)
                .map(|number| {
                    let (done, told) = promise();
                    let seed = 1000 + round * 4 + number;
                    tier.write(meta(seed, PAGE), bench.filled(number as usize, PAGE, seed), done);
                    told
                })
                .collect();
            reads.iter().for_each(|told| answer(told).unwrap());
            for told in writes {
                assert!(matches!(answer(&told), Ok(_) | Err(TierError::Full)));
            }
        }
        assert!(!places.is_empty());
    });
}

#[test]
fn a_clean_restart_finds_everything() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let mut places = fill(&tier, &bench);
        let (forgotten_seed, forgotten) = places.remove(5);
        tier.forget(forgotten, PAGE);
        tier.shutdown().unwrap();
        drop(tier);
        let (tier, recovered, report) = bench.open();
        let mut found: HashMap<_, _> = recovered.iter().map(|found| (found.at, found.meta.clone())).collect();
        assert!(report.footers > 0, "{report:?}");
        for (seed, at) in &places {
            assert_eq!(found.remove(at).unwrap(), meta(*seed, PAGE));
            read(&tier, &bench, *at, *seed, PAGE).unwrap();
        }
        // An extent forgotten after its segment was sealed may come back: it still verifies.
        assert!(found.len() <= 1 && found.values().all(|back| *back == meta(forgotten_seed, PAGE)));
    });
}

#[test]
fn a_crash_loses_nothing_that_was_written() {
    everywhere(|bench| {
        let mut places = Vec::new();
        for life in 0..6u64 {
            let (tier, recovered, report) = bench.open();
            assert_eq!(recovered.len(), places.len(), "{report:?}");
            for (seed, at) in &places {
                read(&tier, &bench, *at, *seed, PAGE / 4).unwrap();
            }
            for number in 0..5 {
                let seed = 1 + life * 5 + number;
                places.push((seed, write(&tier, &bench, seed, PAGE / 4).unwrap()));
            }
            drop(tier); // no footer, no flush
        }
        let (tier, recovered, _) = bench.open();
        assert_eq!(recovered.len(), 30);
        assert!(tier.usage().used_bytes <= 3 * SEGMENT, "restarts do not cost a segment each");
    });
}

#[test]
fn the_newest_extent_of_a_shard_counts() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let old = write(&tier, &bench, 1, PAGE).unwrap();
        let new = write(&tier, &bench, 1, PAGE).unwrap();
        drop(tier);
        let (tier, recovered, report) = bench.open();
        assert_eq!(recovered.iter().map(|found| found.at).collect::<Vec<_>>(), [new]);
        assert_eq!(report.superseded, 1);
        assert_eq!(read(&tier, &bench, old, 1, PAGE), Err(TierError::Stale(old)));
        read(&tier, &bench, new, 1, PAGE).unwrap();
    });
}

#[test]
fn a_released_segment_stays_empty_after_a_restart() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        fill(&tier, &bench);
        let candidate = tier.reclaim_candidate(SealedSegment::dead_bytes).unwrap();
        let left = tier.usage().live_extents - candidate.extents.len() as u64;
        tier.release(candidate.segment);
        eventually("the keeper has it", || tier.usage().free_segments >= 2);
        tier.shutdown().unwrap();
        drop(tier);
        let (_, recovered, _) = bench.open();
        assert_eq!(recovered.len() as u64, left);
    });
}

#[test]
fn a_late_forget_or_read_of_a_segment_used_anew_is_nothing() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let places = fill(&tier, &bench);
        let (seed, old) = places[0];
        places.iter().take(12).for_each(|(_, at)| tier.forget(*at, PAGE)); // three segments
        let mut written = (5000..).map(|seed| write(&tier, &bench, seed, PAGE).unwrap());
        let (number, new) = written.by_ref().enumerate().find(|(_, at)| at.segment == old.segment).unwrap();
        assert_eq!((new.block, new.segment), (old.block, old.segment));
        let live = tier.usage().live_extents;
        tier.forget(old, PAGE);
        assert_eq!(tier.usage().live_extents, live);
        assert_eq!(read(&tier, &bench, old, seed, PAGE), Err(TierError::Stale(old)));
        read(&tier, &bench, new, 5000 + number as u64, PAGE).unwrap();
    });
}

#[test]
fn a_lower_capacity_is_reached_by_emptying() {
    for engine in ENGINES {
        let dir = place();
        let bench = Bench::new(dir.path().to_owned(), engine);
        let (tier, _, _) = bench.open();
        let places = fill(&tier, &bench);
        drop(tier);
        let config =
            NvmeConfig { capacity_bytes: 4 * SEGMENT, segment_bytes: 2 * SEGMENT, ..bench.config.clone() };
        let small = Bench { config, region: region(4 << 20) };
        let (tier, recovered, report) = small.open();
        assert_eq!(report.segment_bytes, SEGMENT, "what is there keeps its segment size");
        assert!(report.warnings.iter().any(|text| text.contains("beyond the capacity")), "{report:?}");
        assert_eq!(recovered.len(), places.len(), "nothing is gone yet");
        for (seed, at) in &places {
            read(&tier, &small, *at, *seed, PAGE).unwrap();
        }
        let usage = tier.usage();
        assert_eq!((usage.capacity_bytes, usage.surplus_segments), (4 * SEGMENT, 3));
        empty_surplus(&tier, &small);
        assert!(disk_bytes(&small) <= 4 * SEGMENT, "every surplus file is gone");
        assert!(tier.usage().live_extents > 0);
        tier.shutdown().unwrap();
        drop(tier);
        let (tier, recovered, report) = small.open();
        assert_eq!((tier.usage().surplus_segments, report.warnings.len()), (0, 1), "{report:?}");
        for found in recovered {
            let seed = u64::from_le_bytes(found.meta.hash.0[..8].try_into().unwrap());
            read(&tier, &small, found.at, seed, PAGE).unwrap();
        }
    }
}

#[test]
fn a_device_is_emptied_behind_a_lower_capacity() {
    for engine in ENGINES {
        let dir = place();
        let file = dir.path().join("device");
        std::fs::File::create(&file).unwrap().set_len((1 << 20) + SEGMENTS * SEGMENT).unwrap();
        let bench = Bench::new(file, engine);
        let (tier, _, _) = bench.open();
        let places = fill(&tier, &bench);
        drop(tier);
        let config = NvmeConfig { capacity_bytes: 4 * SEGMENT, ..bench.config.clone() };
        let small = Bench { config, region: region(4 << 20) };
        let (tier, recovered, _) = small.open();
        assert_eq!((recovered.len(), tier.usage().surplus_segments), (places.len(), 3));
        empty_surplus(&tier, &small);
        tier.shutdown().unwrap();
        drop(tier);
        let (_, recovered, _) = bench.open();
        assert!(recovered.iter().all(|found| found.at.segment < 4), "nothing of them comes back");
    }
}

/// Empties segments until none is surplus; what lives in a surplus one moves while there is room.
fn empty_surplus(tier: &NvmeTier, bench: &Bench) {
    for _ in 0..2000 {
        if tier.usage().surplus_segments == 0 {
            return;
        }
        let Some(candidate) = tier.reclaim_candidate(SealedSegment::dead_bytes) else {
            std::thread::sleep(std::time::Duration::from_millis(5));
            continue;
        };
        for (meta, at) in &candidate.extents {
            if candidate.surplus && tier.movable_bytes() >= PAGE {
                let seed = u64::from_le_bytes(meta.hash.0[..8].try_into().unwrap());
                let (done, told) = promise();
                tier.rewrite(meta.clone(), bench.filled(0, PAGE, seed), done);
                assert!(answer(&told).unwrap().segment < 4, "nothing new goes beyond the capacity");
            }
            tier.forget(*at, PAGE);
        }
        tier.release(candidate.segment);
    }
    panic!("surplus segments stay: {:?}", tier.usage());
}
