//! Killed with -9 in the middle of writing: whatever was acknowledged is there, and nothing else passes as it.
//!
//! The test starts itself as the process to be killed; that one tells on a pipe which writes were acknowledged.

use crate::support::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;
use turnkv_tier::Location;
use turnkv_tier::nvme::{Engine, NvmeConfig};

const PLACE: &str = "TURNKV_TIER_CRASH_PLACE";
const BYTES: u32 = 30_000;
const LIVES: u64 = 8;

fn bench(place: &str, engine: Engine) -> Bench {
    let mut bench = Bench::new(place.into(), engine);
    bench.config = NvmeConfig { capacity_bytes: 64 * SEGMENT, ..bench.config };
    bench
}

/// Writes until killed. Does nothing unless it is started as the victim.
#[test]
fn victim() {
    let Ok(place) = std::env::var(PLACE) else { return };
    let (engine, first, place) = match place.split(' ').collect::<Vec<_>>()[..] {
        [engine, first, place] => (ENGINES[engine.parse::<usize>().unwrap()], first.parse().unwrap(), place),
        _ => panic!("{place}"),
    };
    let bench = bench(place, engine);
    let (tier, _, _) = bench.open();
    for seed in first.. {
        let (done, told) = promise();
        tier.write(meta(seed, BYTES), bench.filled(seed as usize, BYTES, seed), done);
        // A second one in flight, never waited for, so that some writes are torn.
        let (done, _) = promise();
        tier.write(
            meta(seed + (1 << 32), BYTES),
            bench.filled(seed as usize + 64, BYTES, seed + (1 << 32)),
            done,
        );
        let Ok(at) = answer(&told) else {
            std::thread::sleep(Duration::from_secs(60));
            return;
        };
        let line = format!("\nkept {seed} {} {}\n", at.segment, at.block);
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    }
}

/// Runs a victim for a while and kills it; adds what it acknowledged.
fn one_life(engine: usize, place: &str, life: u64, kept: &mut HashMap<u64, (u16, u32)>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::victim", "--nocapture"])
        .env(PLACE, format!("{engine} {} {place}", 1 + life * 100_000))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut first = true;
    for line in lines.map_while(Result::ok) {
        let Some(rest) = line.strip_prefix("kept ") else { continue };
        let words: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        if let [seed, segment, block] = words[..] {
            kept.insert(seed, (segment as u16, block as u32));
        }
        if std::mem::take(&mut first) {
            std::thread::sleep(Duration::from_millis(10 + life * 7));
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    for (number, engine) in ENGINES.into_iter().enumerate() {
        let dir = place();
        let path = dir.path().to_str().unwrap();
        let mut kept = HashMap::new();
        for life in 0..LIVES {
            let before = kept.len();
            one_life(number, path, life, &mut kept);
            assert!(kept.len() > before, "each life gets something done");
            let bench = bench(path, engine);
            let (tier, recovered, report) = bench.open();
            let found: HashMap<u64, Location> = recovered
                .iter()
                .map(|found| (u64::from_le_bytes(found.meta.hash.0[..8].try_into().unwrap()), found.at))
                .collect();
            for (seed, at) in &kept {
                assert_eq!(
                    found.get(seed).map(|at| (at.segment, at.block)),
                    Some(*at),
                    "life {life}, {report:?}"
                );
            }
            for (seed, at) in &found {
                read(&tier, &bench, *at, *seed, BYTES).unwrap();
            }
        }
    }
}
