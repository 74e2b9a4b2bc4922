//! A process without a single free descriptor: the tier has had all of its own since it was opened.
//!
//! The test starts itself as the process that runs out of them.

use crate::support::*;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::process::Command;
use turnkv_tier::TierError;
use turnkv_tier::nvme::SealedSegment;

const ENGINE: &str = "TURNKV_TIER_STARVED_ENGINE";
const PAGE: u32 = 250_000;

/// Does nothing unless it is started as the one that starves.
#[test]
fn starved() {
    let Ok(engine) = std::env::var(ENGINE) else { return };
    let dir = place();
    let bench = Bench::new(dir.path().to_owned(), ENGINES[engine.parse::<usize>().unwrap()]);
    let (tier, _, _) = bench.open();
    assert!(tier.descriptors() >= SEGMENTS);
    let first = write(&tier, &bench, 1, PAGE).unwrap();
    let limit = Rlimit { current: Some(128), maximum: Some(128) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut eaten = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        eaten.push(file);
    }
    assert!(!eaten.is_empty());
    // Every segment gets its space and its first extent while there is no descriptor.
    let mut places = vec![(1, first)];
    for seed in 2.. {
        match write(&tier, &bench, seed, PAGE) {
            Ok(at) => places.push((seed, at)),
            Err(TierError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(places.len() as u64, 4 * (SEGMENTS - 1));
    let candidate = tier.reclaim_candidate(SealedSegment::dead_bytes).unwrap();
    tier.release(candidate.segment);
    places.retain(|(_, at)| at.segment != candidate.segment);
    places.push((999, write(&tier, &bench, 999, PAGE).unwrap()));
    for (seed, at) in &places {
        read(&tier, &bench, *at, *seed, PAGE).unwrap();
    }
    flush(&tier).unwrap();
    assert_eq!(tier.poisoned(), None);
    tier.shutdown().unwrap();
    println!("starved and well");
}

#[test]
fn a_process_out_of_descriptors_harms_no_tier() {
    for engine in 0..ENGINES.len() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "descriptors::starved", "--nocapture"])
            .env(ENGINE, engine.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success() && said.contains("starved and well"), "{said}");
    }
}
