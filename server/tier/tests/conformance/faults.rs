//! What goes wrong: rot, a device that fails, a second process, callers that go away.

use crate::support::*;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use turnkv_tier::nvme::{NvmeConfig, OpenError};
use turnkv_tier::{Location, Tier, TierError};

/// Changes bytes of a payload on the device.
fn rot(bench: &Bench, at: Location, offset: u64) {
    let (path, base) = segment_file(bench, at.segment);
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let place = base + (u64::from(at.block) + 1) * 4096 + offset;
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ 1], place).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_flipped_bit_is_a_checksum_error_and_no_more() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let rotten = write(&tier, &bench, 1, 50_000).unwrap();
        let good = write(&tier, &bench, 2, 50_000).unwrap();
        rot(&bench, rotten, 49_999);
        assert_eq!(read(&tier, &bench, rotten, 1, 50_000), Err(TierError::Checksum(rotten)));
        read(&tier, &bench, good, 2, 50_000).unwrap();
        assert_eq!((tier.poisoned(), tier.usage().checksum_failures), (None, 1));
    });
}

#[test]
fn a_device_that_fails_is_out_of_service() {
    for engine in ENGINES {
        let dir = place();
        let bench = Bench::new(dir.path().to_owned(), engine);
        let (tier, _, _) = bench.open();
        let at = write(&tier, &bench, 1, 50_000).unwrap();
        let (path, _) = segment_file(&bench, at.segment);
        OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
        assert!(matches!(read(&tier, &bench, at, 1, 50_000), Err(TierError::Io(_))));
        assert!(tier.poisoned().unwrap().contains("read"));
        assert_eq!(read(&tier, &bench, at, 1, 50_000), Err(TierError::Poisoned));
        assert_eq!(write(&tier, &bench, 2, 50_000), Err(TierError::Poisoned));
        assert_eq!(flush(&tier), Err(TierError::Poisoned));
        assert!(
            tier.usage().poisoned && !tier.needs_reclaim() && tier.reclaim_candidate(|_| u64::MAX).is_none()
        );
        assert!(tier.shutdown().is_err(), "an operator hears that it did not end well");
    }
}

#[test]
fn a_second_opener_is_refused_and_told_why() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let error = bench.try_open().err().unwrap();
        assert!(matches!(error, OpenError::InUse { .. }));
        assert!(error.to_string().contains(&bench.path().display().to_string()));
        if bench.path().is_dir() {
            assert!(error.to_string().contains(&format!("process {}", std::process::id())));
        }
        let at = write(&tier, &bench, 1, 4096).unwrap();
        read(&tier, &bench, at, 1, 4096).unwrap();
        drop(tier);
        bench.open();
    });
}

#[test]
fn foreign_data_is_never_overwritten() {
    let dir = place();
    let file = dir.path().join("device");
    std::fs::write(&file, vec![1; 16 << 20]).unwrap();
    for engine in ENGINES {
        let bench = Bench::new(file.clone(), engine);
        assert!(matches!(bench.try_open().err().unwrap(), OpenError::Foreign { .. }));
    }
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 1));
}

#[test]
fn a_damaged_superblock_is_refused() {
    let dir = place();
    let bench = Bench::new(dir.path().to_owned(), ENGINES[1]);
    let (tier, _, _) = bench.open();
    write(&tier, &bench, 1, 4096).unwrap();
    drop(tier);
    let superblock = dir.path().join("superblock");
    let good = std::fs::read(&superblock).unwrap();
    let mut bad = good.clone();
    bad[17] ^= 1;
    for damage in [bad, good[..100].to_vec(), Vec::new()] {
        std::fs::write(&superblock, damage).unwrap();
        assert!(matches!(bench.try_open().err().unwrap(), OpenError::Superblock { .. }));
    }
    std::fs::remove_file(&superblock).unwrap();
    assert!(matches!(bench.try_open().err().unwrap(), OpenError::Superblock { .. }));
    std::fs::write(&superblock, good).unwrap();
    assert_eq!(bench.open().1.len(), 1);
}

#[test]
fn impossible_configurations_are_refused() {
    let dir = place();
    let good = Bench::new(dir.path().join("new"), ENGINES[1]).config;
    let wrong = [
        NvmeConfig { segment_bytes: 0, ..good.clone() },
        NvmeConfig { segment_bytes: (1 << 20) + 1, ..good.clone() },
        NvmeConfig { capacity_bytes: 3 << 20, ..good.clone() },
        NvmeConfig { capacity_bytes: u64::MAX, ..good.clone() },
        NvmeConfig { inflight_bytes: 0, ..good.clone() },
        NvmeConfig { queue_ops_max: 0, ..good.clone() },
        NvmeConfig { path: "/dev/null".into(), ..good },
    ];
    for config in wrong {
        let bench = Bench { config, region: region(4096) };
        assert!(matches!(bench.try_open().err().unwrap(), OpenError::Config(_)), "{:?}", bench.config);
    }
}

#[test]
fn callers_that_go_away_leak_nothing() {
    for engine in ENGINES {
        let dir = place();
        let bench = Bench::new(dir.path().to_owned(), engine);
        let before = Arc::strong_count(&bench.region);
        let (tier, _, _) = bench.open();
        let at = write(&tier, &bench, 1, 60_000).unwrap();
        let open = Arc::strong_count(&bench.region);
        let answered = Arc::new(AtomicUsize::new(0));
        for number in 0..64 {
            let answered = Arc::clone(&answered);
            let done = Box::new(move |_: Result<(), TierError>| {
                answered.fetch_add(1, Ordering::SeqCst);
            });
            tier.read(at, 60_000, meta(1, 60_000).checksum, bench.slot(number, 60_000), done);
            let (done, told) = promise();
            tier.write(meta(100 + number as u64, 4096), bench.slot(number, 4096), done);
            drop(told);
        }
        eventually("reads end", || answered.load(Ordering::SeqCst) == 64);
        eventually("nothing is left", || tier.usage().queued_ops == 0);
        eventually("slots are released", || Arc::strong_count(&bench.region) == open);
        let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let during = fds();
        drop(tier);
        assert_eq!(Arc::strong_count(&bench.region), before, "the ring gives its registered slabs back");
        assert!(fds() < during);
    }
}

#[test]
fn a_panicking_call_back_harms_nobody() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let at = write(&tier, &bench, 1, 4096).unwrap();
        for _ in 0..8 {
            tier.read(
                at,
                4096,
                meta(1, 4096).checksum,
                bench.slot(1, 4096),
                Box::new(|_| panic!("a caller's bug")),
            );
        }
        eventually("they end", || tier.usage().queued_ops == 0);
        read(&tier, &bench, at, 1, 4096).unwrap();
    });
}

#[test]
fn a_closed_tier_says_so() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let at = write(&tier, &bench, 1, 4096).unwrap();
        tier.shutdown().unwrap();
        tier.shutdown().unwrap();
        assert_eq!(read(&tier, &bench, at, 1, 4096), Err(TierError::Closed));
        assert_eq!(write(&tier, &bench, 2, 4096), Err(TierError::Closed));
        assert_eq!(flush(&tier), Err(TierError::Closed));
    });
}

#[test]
fn bytes_that_changed_before_they_were_written_are_not_kept() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let (done, told) = promise();
        tier.write(meta(1, 50_000), bench.filled(0, 50_000, 2), done);
        assert_eq!(answer(&told), Err(TierError::Changed));
        let usage = tier.usage();
        assert_eq!((usage.changed_writes, usage.writes, usage.live_extents), (1, 0, 0));
        let at = write(&tier, &bench, 3, 50_000).unwrap();
        read(&tier, &bench, at, 3, 50_000).unwrap();
        assert_eq!(tier.poisoned(), None);
        drop(tier);
        let (_, recovered, _) = bench.open();
        assert_eq!(recovered.iter().map(|found| found.at).collect::<Vec<_>>(), [at]);
    });
}
