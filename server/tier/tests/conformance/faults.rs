//! What goes wrong: rot, a device that fails, a second process, callers that go away.

use crate::support::*;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use turnkv_tier::nvme::{NvmeConfig, OpenError};
use turnkv_tier::{Location, TierError};
use turnkv_transfer::checksum;

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
fn an_extent_that_cannot_be_read_is_a_miss_and_no_more() {
    for engine in ENGINES {
        let dir = place();
        let bench = Bench::new(dir.path().to_owned(), engine);
        let (tier, _, _) = bench.open();
        let good = write(&tier, &bench, 1, 50_000).unwrap();
        let at = write(&tier, &bench, 2, 50_000).unwrap();
        let (path, _) = segment_file(&bench, at.segment);
        let end = u64::from(at.block) * 4096;
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(end).unwrap();
        assert_eq!(read(&tier, &bench, at, 2, 50_000), Err(TierError::Unreadable(at)));
        file.set_len(SEGMENT).unwrap();
        assert_eq!(read(&tier, &bench, at, 2, 50_000), Err(TierError::Stale(at)), "it is gone for good");
        read(&tier, &bench, good, 1, 50_000).unwrap();
        let next = write(&tier, &bench, 3, 50_000).unwrap();
        read(&tier, &bench, next, 3, 50_000).unwrap();
        flush(&tier).unwrap();
        let usage = tier.usage();
        assert_eq!((usage.unreadable_extents, usage.live_extents, usage.poisoned), (1, 2, false));
        tier.shutdown().unwrap();
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

/// Where the copies of the superblock are: the file, and where in it.
fn superblocks(bench: &Bench) -> [(PathBuf, u64); 2] {
    let path = bench.path();
    if path.is_dir() {
        [(path.join("superblock"), 0), (path.join("superblock.2"), 0)]
    } else {
        [(path.to_owned(), 0), (path.to_owned(), (1 << 20) - 4096)]
    }
}

fn get_superblock((path, offset): &(PathBuf, u64)) -> Vec<u8> {
    let mut block = vec![0; 4096];
    OpenOptions::new().read(true).open(path).unwrap().read_exact_at(&mut block, *offset).unwrap();
    block
}

fn put_superblock((path, offset): &(PathBuf, u64), block: &[u8]) {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    file.write_all_at(block, *offset).unwrap();
}

#[test]
fn a_good_superblock_repairs_a_bad_one() {
    everywhere(|bench| {
        let (tier, _, report) = bench.open();
        assert_eq!(report.warnings, Vec::<String>::new());
        write(&tier, &bench, 1, 4096).unwrap();
        drop(tier);
        let copies = superblocks(&bench);
        let good = get_superblock(&copies[0]);
        assert_eq!(get_superblock(&copies[1]), good);
        for copy in &copies {
            for offset in [0, 9, 17, 30, 42] {
                let mut bad = good.clone();
                bad[offset] ^= 1;
                put_superblock(copy, &bad);
                let (tier, recovered, report) = bench.open();
                assert_eq!((recovered.len(), report.warnings.len()), (1, 1), "{:?}", report.warnings);
                assert!(report.warnings[0].contains("repaired"), "{:?}", report.warnings);
                drop(tier);
                assert_eq!(get_superblock(copy), good);
            }
        }
        assert_eq!(bench.open().2.warnings, Vec::<String>::new());
    });
}

#[test]
fn a_place_with_one_superblock_opens_and_gets_the_second() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        write(&tier, &bench, 1, 4096).unwrap();
        drop(tier);
        let [one, other] = superblocks(&bench);
        if bench.path().is_dir() {
            std::fs::remove_file(&other.0).unwrap();
        } else {
            put_superblock(&other, &[0; 4096]);
        }
        let (tier, recovered, report) = bench.open();
        assert_eq!((recovered.len(), report.warnings.len()), (1, 0), "{:?}", report.warnings);
        drop(tier);
        assert_eq!(get_superblock(&other), get_superblock(&one));
    });
}

#[test]
fn without_superblocks_the_segments_say_whose_they_are() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let at = write(&tier, &bench, 1, 4096).unwrap();
        eventually("segments are prepared ahead", || tier.usage().free_segments >= SEGMENTS - 1);
        tier.shutdown().unwrap();
        drop(tier);
        let copies = superblocks(&bench);
        let good = get_superblock(&copies[0]);
        let mut bad = good.clone();
        bad[17] ^= 1;
        copies.iter().for_each(|copy| put_superblock(copy, &bad));
        let (tier, recovered, report) = bench.open();
        assert_eq!(recovered.iter().map(|found| found.at).collect::<Vec<_>>(), [at]);
        assert!(report.warnings[0].contains("made again"), "{:?}", report.warnings);
        drop(tier);
        copies.iter().for_each(|copy| assert_eq!(get_superblock(copy), good));
    });
}

#[test]
fn superblocks_that_nothing_agrees_with_are_refused() {
    let dir = place();
    let bench = Bench::new(dir.path().to_owned(), ENGINES[1]);
    let (tier, _, _) = bench.open();
    write(&tier, &bench, 1, 4096).unwrap();
    drop(tier);
    let other = Bench::new(dir.path().join("other"), ENGINES[1]);
    write(&other.open().0, &other, 1, 4096).unwrap();
    std::fs::copy(other.path().join("segment-000001.kv"), dir.path().join("segment-000001.kv")).unwrap();
    let copies = superblocks(&bench);
    let good = get_superblock(&copies[0]);
    let mut later = good.clone();
    later[8] = 2;
    let sum = checksum(&later[..40]);
    later[40..48].copy_from_slice(&sum.to_le_bytes());
    for damage in [vec![1; 4096], good[..100].to_vec(), Vec::new(), later.clone()] {
        for (path, _) in &copies {
            std::fs::write(path, &damage).unwrap();
        }
        assert!(matches!(bench.try_open().err().unwrap(), OpenError::Superblock { .. }));
    }
    put_superblock(&copies[0], &good);
    assert!(
        matches!(bench.try_open().err().unwrap(), OpenError::Superblock { .. }),
        "one of a later version"
    );
    std::fs::remove_file(&copies[1].0).unwrap();
    assert_eq!(bench.open().1.len(), 1);
}

#[test]
fn a_device_that_others_wrote_to_is_not_repaired() {
    let dir = place();
    let file = dir.path().join("device");
    std::fs::File::create(&file).unwrap().set_len((1 << 20) + SEGMENTS * SEGMENT).unwrap();
    let bench = Bench::new(file.clone(), ENGINES[1]);
    drop(bench.open());
    let good = std::fs::read(&file).unwrap();
    let begin = [7; 4096];
    // A partition table in the first block; a file system that leaves the first block alone.
    for (first, middle) in [(&begin[..], &[0u8; 16][..]), (&[0; 4096][..], &[1; 16][..])] {
        let mut foreign = good.clone();
        foreign[..4096].copy_from_slice(first);
        foreign[65_536..65_552].copy_from_slice(middle);
        std::fs::write(&file, &foreign).unwrap();
        assert!(matches!(bench.try_open().err().unwrap(), OpenError::Foreign { .. }));
        assert!(std::fs::read(&file).unwrap() == foreign);
    }
}

#[test]
fn a_segment_linked_under_another_name_has_one_and_the_other_is_a_stray() {
    for (engine, other) in ENGINES.into_iter().flat_map(|engine| [(engine, 0), (engine, 5)]) {
        let dir = place();
        let bench = Bench::new(dir.path().to_owned(), engine);
        let (tier, _, _) = bench.open();
        let places: Vec<_> =
            (1..=5).map(|seed| (seed, write(&tier, &bench, seed, 250_000).unwrap())).collect();
        tier.shutdown().unwrap();
        drop(tier);
        let (seed, at) = places[4];
        assert_eq!(at.segment, 1, "four pages fill a segment");
        let ((own, _), (other_name, _)) = (segment_file(&bench, 1), segment_file(&bench, other));
        std::fs::remove_file(&other_name).unwrap();
        std::fs::hard_link(&own, &other_name).unwrap();
        let (tier, recovered, report) = bench.open();
        let name = other_name.file_name().unwrap().to_string_lossy().into_owned();
        assert!(report.warnings.iter().any(|warning| warning.contains(&name)), "{:?}", report.warnings);
        let left = places.iter().filter(|(_, at)| at.segment != other).count();
        assert_eq!((recovered.len(), report.retired, report.damaged), (left, 1, 0));
        while write(&tier, &bench, 9000, 250_000).is_ok() {}
        read(&tier, &bench, at, seed, 250_000).unwrap();
    }
}

#[test]
fn strays_are_named_and_left_alone() {
    let dir = place();
    let bench = Bench::new(dir.path().to_owned(), ENGINES[0]);
    std::fs::create_dir(dir.path().join("segment-000001.kv")).unwrap();
    std::fs::create_dir(dir.path().join("segment-000099.kv")).unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    for name in ["segment-x.kv", "segment-1.kv", "catalog.redb"] {
        std::fs::write(dir.path().join(name), "mine").unwrap();
    }
    for life in 0..2 {
        let (tier, recovered, report) = bench.open();
        assert_eq!((recovered.len() as u64, report.retired), (life, 1));
        let text = report.warnings.join("\n");
        for name in ["segment-000099.kv", "lost+found", "segment-x.kv", "segment-1.kv", "not written again"] {
            assert!(text.contains(name), "{text}");
        }
        assert!(!text.contains("catalog"), "{text}");
        let usage = tier.usage();
        assert_eq!((usage.retired_segments, usage.capacity_bytes), (1, (SEGMENTS - 1) * SEGMENT));
        let at = write(&tier, &bench, life + 1, 4096).unwrap();
        assert_ne!(at.segment, 1);
        tier.shutdown().unwrap();
    }
    assert!(dir.path().join("segment-000001.kv").is_dir());
}

/// A pipe, a socket, a device: whatever has a segment's name and is no file is left alone as a folder is.
#[test]
fn what_is_no_file_in_the_place_of_a_segment_stops_no_start() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let dir = place();
    let bench = Bench::new(dir.path().to_owned(), ENGINES[0]);
    let name = |segment: u32| dir.path().join(format!("segment-{segment:06}.kv"));
    mknodat(CWD, name(1), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(name(2)).unwrap();
    std::os::unix::fs::symlink("/dev/null", name(99)).unwrap();
    let (tier, recovered, report) = bench.open();
    assert_eq!((recovered.len(), report.retired), (0, 2));
    let text = report.warnings.join("\n");
    for stray in [1, 2, 99] {
        assert!(text.contains(&format!("segment-{stray:06}.kv")), "{stray}: {text}");
    }
    let at = write(&tier, &bench, 1, 4096).unwrap();
    assert!(![1, 2].contains(&at.segment));
    tier.shutdown().unwrap();
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
