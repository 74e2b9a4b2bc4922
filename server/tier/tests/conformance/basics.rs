//! What every tier does: write, read, flush, forget, usage, bounds.

use crate::support::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use turnkv_tier::nvme::NvmeConfig;
use turnkv_tier::{Location, TierError};

#[test]
fn what_is_written_is_read() {
    everywhere(|bench| {
        let (tier, recovered, report) = bench.open();
        assert!(recovered.is_empty(), "{report:?}");
        for (seed, bytes) in [(1, 1), (2, 4095), (3, 4096), (4, 4097), (5, 131_072), (6, 700_000)] {
            let at = write(&tier, &bench, seed, bytes).unwrap();
            read(&tier, &bench, at, seed, bytes).unwrap();
        }
        flush(&tier).unwrap();
        let usage = tier.usage();
        assert_eq!((usage.writes, usage.reads, usage.live_extents), (6, 6, 6));
        assert_eq!(usage.written_bytes, usage.read_bytes);
        assert_eq!((usage.inflight_bytes, usage.queued_ops, usage.poisoned), (0, 0, false));
        assert!(usage.live_bytes <= usage.used_bytes && usage.used_bytes <= usage.capacity_bytes);
        tier.shutdown().unwrap();
    });
}

#[test]
fn many_at_once_all_land() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let bytes = 24_000;
        let writes: Vec<_> = (0..150u64)
            .map(|seed| {
                let (done, told) = promise();
                tier.write(meta(seed, bytes), bench.filled(seed as usize, bytes, seed), done);
                told
            })
            .collect();
        let places: Vec<Location> = writes.iter().map(|told| answer(told).unwrap()).collect();
        let reads: Vec<_> = (0..150u64)
            .map(|seed| {
                let (done, told) = promise();
                let target = bench.slot(seed as usize, bytes);
                target.claim().unwrap().fill(&vec![0; bytes as usize]);
                tier.read(places[seed as usize], bytes, meta(seed, bytes).checksum, target.clone(), done);
                (told, target)
            })
            .collect();
        for (seed, (told, target)) in reads.iter().enumerate() {
            answer(told).unwrap();
            assert!(target.page().to_vec() == pattern(bytes, seed as u64));
        }
    });
}

#[test]
fn flushes_share_their_syncs() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let rounds = 40;
        for round in 0..rounds {
            write(&tier, &bench, round, 4096).unwrap();
        }
        let flushes: Vec<_> = (0..1000)
            .map(|_| {
                let (done, told) = promise();
                tier.flush(done);
                told
            })
            .collect();
        flushes.iter().for_each(|told| answer(told).unwrap());
        assert!(tier.usage().syncs < 100, "{} syncs for 1000 flushes", tier.usage().syncs);
    });
}

#[test]
fn a_forgotten_extent_is_stale() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let at = write(&tier, &bench, 1, 8192).unwrap();
        let kept = write(&tier, &bench, 2, 8192).unwrap();
        tier.forget(at, 8192);
        tier.forget(at, 8192);
        for nowhere in [Location { segment: 99, ..at }, Location { block: u32::MAX, ..at }] {
            tier.forget(nowhere, 8192);
            assert_eq!(read(&tier, &bench, nowhere, 1, 8192), Err(TierError::Stale(nowhere)));
        }
        assert_eq!(read(&tier, &bench, at, 1, 8192), Err(TierError::Stale(at)));
        read(&tier, &bench, kept, 2, 8192).unwrap();
        assert_eq!((tier.usage().live_extents, tier.usage().live_bytes), (1, 12_288));
    });
}

#[test]
fn requests_that_break_the_rules_change_nothing() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let invalid = |result: Result<Location, TierError>| {
            assert!(matches!(result, Err(TierError::Invalid(_))), "{result:?}");
        };
        let ask = |meta, slot| {
            let (done, told) = promise();
            tier.write(meta, slot, done);
            answer(&told)
        };
        let slot = bench.slot(0, 8192);
        invalid(ask(meta(1, 0), slot.clone()));
        invalid(ask(meta(1, 8193), slot.clone()));
        invalid(ask(meta(1, (64 << 20) + 1), slot.clone()));
        invalid(ask(meta(1, 2 << 20), bench.slot(0, 2 << 20)));
        invalid(ask(meta(1, 4096), bench.region.slot(512, 4096).unwrap()));
        let mut wrong = meta(1, 4096);
        wrong.shard = 1;
        invalid(ask(wrong, slot));
        let small = region(6000);
        invalid(ask(meta(1, 1000), small.slot(4096, 1000).unwrap()));
        assert_eq!((tier.usage().queued_ops, tier.usage().used_bytes, tier.usage().live_extents), (0, 0, 0));
    });
}

#[test]
fn a_full_queue_refuses_at_once() {
    everywhere(|mut bench| {
        bench.config = NvmeConfig { queue_ops_max: 4, ..bench.config.clone() };
        let (tier, _, _) = bench.open();
        let (busy, good) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for seed in 0..2000 {
            let (refused, written) = (Arc::clone(&busy), Arc::clone(&good));
            let done = Box::new(move |result| {
                let count = match result {
                    Ok(_) => written,
                    Err(TierError::Busy) => refused,
                    Err(error) => panic!("{error}"),
                };
                count.fetch_add(1, Ordering::SeqCst);
            });
            tier.write(meta(seed, 1), bench.slot(seed as usize, 4096), done);
            assert!(tier.usage().queued_ops <= 5);
            if good.load(Ordering::SeqCst) > 100 {
                break;
            }
        }
        eventually("all answered", || tier.usage().queued_ops == 0);
        assert!(busy.load(Ordering::SeqCst) > 0, "four at once are soon too many");
    });
}

#[test]
fn bytes_in_flight_stay_bounded() {
    everywhere(|mut bench| {
        bench.config.inflight_bytes = 256 << 10;
        let (tier, _, _) = bench.open();
        let bytes = 60_000;
        let at: Vec<_> = (0..40).map(|seed| write(&tier, &bench, seed, bytes).unwrap()).collect();
        let stride = (bytes as usize).next_multiple_of(4096);
        let targets = region(400 * stride);
        let reads: Vec<_> = (0..400usize)
            .map(|number| {
                let seed = number % 40;
                let (done, told) = promise();
                let target = targets.slot(number * stride, bytes as usize).unwrap();
                tier.read(at[seed], bytes, meta(seed as u64, bytes).checksum, target, done);
                assert!(tier.usage().inflight_bytes <= 256 << 10);
                told
            })
            .collect();
        for told in reads {
            assert!(tier.usage().inflight_bytes <= 256 << 10);
            answer(&told).unwrap();
        }
    });
}

#[test]
fn a_slot_that_somebody_writes_is_not_read_into() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let at = write(&tier, &bench, 1, 60_000).unwrap();
        let target = bench.slot(3, 60_000);
        let writing = target.claim().unwrap();
        assert!(matches!(read_into(&tier, at, 1, 60_000, &target), Err(TierError::Invalid(_))));
        drop(writing);
        read_into(&tier, at, 1, 60_000, &target).unwrap();
        let again = target.claim().expect("the right ends before the call-back");
        assert_eq!(tier.usage().queued_ops, 0);
        drop(again);
    });
}

#[test]
fn a_renewed_slab_serves_at_once() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let before = tier.registered_bytes();
        let at = write(&tier, &bench, 1, 100_000).unwrap();
        for round in 0..20 {
            let fresh = region(4 << 20);
            let target = fresh.slot(round * 4096, 100_000).unwrap();
            tier.register(0, Arc::clone(&fresh));
            read_into(&tier, at, 1, 100_000, &target).unwrap();
            assert!(target.page().to_vec() == pattern(100_000, 1));
        }
        // Outside the table: unregistered, not refused.
        [1 << 20, usize::MAX].into_iter().for_each(|index| tier.register(index, region(4 << 20)));
        assert_eq!(tier.registered_bytes(), before);
        read(&tier, &bench, at, 1, 100_000).unwrap();
    });
}
